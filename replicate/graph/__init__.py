"""Mechanisms on one graph: tensors in, tensors out; no strategy."""
