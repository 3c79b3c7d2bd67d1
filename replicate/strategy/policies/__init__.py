"""The strategies, one a room: where each of them puts variables, and runs towers."""
