"""What surrounds a training step: the call of the model_fn, gradients, optimizers."""
