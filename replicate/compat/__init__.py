"""TensorFlow, and the names of it that are private."""
