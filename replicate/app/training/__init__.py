"""Training, evaluation, prediction and export, as a config says."""
