"""What `scripts/benchmark.py` is made of: models, subjects, one measurement, tables."""
