"""Configs: YAML documents read, checked against types, and the functions and files they name."""
