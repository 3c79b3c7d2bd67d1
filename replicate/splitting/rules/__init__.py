"""How each kind of operation is split: one rule for each kind, by families.

An operation without a rule runs once, on whole values. Importing this package registers all rules
in `registry.RULES`.
"""

from replicate.splitting.rules import (
    control_flow,
    different,
    elementwise,
    gathers,
    lists,
    matrices,
    networks,
    partitions,
    random,
    reductions,
    registry,
    shapes,
    spaces,
    sparse,
)

FAMILIES = (
    control_flow,  # loops and branches of version 1
    different,  # different values, and sums for each
    elementwise,  # element-wise: one operand, or several that are broadcast; texts
    gathers,  # gathers, scatters, segments, lookups, top k
    lists,  # TensorArrays, stacks and tensor lists
    matrices,  # products of matrices, einsum, biases, linear algebra, FFT, diagonals
    networks,  # convolutions, pools, images, quantisation, losses, normalisation, recurrent cells
    partitions,  # entries that numbers part and put together again
    random,  # random numbers
    reductions,  # sums, maxima, arg max, cumulative sums, counts
    shapes,  # shapes, slices, concatenation, padding
    spaces,  # rows that are picked, numbers of rows
    sparse,  # sparse and ragged tensors
)
RULES = registry.RULES
