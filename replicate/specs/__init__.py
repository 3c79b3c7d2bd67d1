"""Floor 3, wing c: K EstimatorSpecs become one."""
