"""Floor 0: the only doors to names that TensorFlow keeps private."""
