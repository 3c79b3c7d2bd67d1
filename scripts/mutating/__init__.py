"""Parts of scripts/mutants.py."""
