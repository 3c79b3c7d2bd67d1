"""In which precision values are computed: the coarsest that is on the way to them.

A step may store weights in float32 and compute in bfloat16. Then another rounding of float32 is
lost in the first cast, and what devices round differently is a rounding of bfloat16.
"""

from collections.abc import Iterable

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.graph import operations

_EPSILONS = {"bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}


def epsilon(dtype: tf.DType) -> float:
    """Returns the distance of a dtype from 1 to the next number; 0 if it is no floating one."""
    dtype = dtype.base_dtype
    if not (dtype.is_floating or dtype.is_complex):
        return 0.0
    known = _EPSILONS.get(dtype.name)
    return float(np.finfo(dtype.as_numpy_dtype).eps) if known is None else known


def coarsest(ops: Iterable[tf.Operation]) -> float:
    """Returns the largest `epsilon` of what operations, and functions that they call, make."""
    found = 0.0
    for op in ops:
        found = max([found, *(epsilon(tensor.dtype) for tensor in op.outputs)])
        for body in operations.bodies(op):
            found = max(found, coarsest(operations.made_from(body.outputs)))
    return found
