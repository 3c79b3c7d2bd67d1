"""The strategies: where each of them puts variables, and runs towers."""
