"""Model functions that the configs name, with their data."""
