"""Floor 1: mechanisms on one graph. Tensors in, tensors out; no strategy."""
