"""Floor 3, wing b: towers of a model_fn, and the optimizer step."""
