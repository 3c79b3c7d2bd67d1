"""The data that a config names, as the input of an Estimator."""
