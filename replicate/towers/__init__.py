"""K calls of a model_fn, one for each tower, and K EstimatorSpecs made one."""
