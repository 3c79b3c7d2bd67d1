"""The cases of scripts/faults.py."""
