"""What scripts/fuzz_models.py is made of: random model_fns, how they are run, and shrunk."""
