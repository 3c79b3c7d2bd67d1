"""The strategy as TensorFlow's own code sees it."""
