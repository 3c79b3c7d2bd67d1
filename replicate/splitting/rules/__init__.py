"""How each kind of operation is split: one rule for each kind, by families.

An operation without a rule runs once, on whole values. Importing this package registers all rules
in `registry.RULES`.
"""

from replicate.splitting.rules import (
    contractions,
    control_flow,
    different,
    elementwise,
    gathers,
    images,
    lists,
    matrices,
    networks,
    random,
    reductions,
    registry,
    shapes,
    spaces,
    sparse,
)

FAMILIES = (
    contractions,  # products of matrices, einsum, biases
    control_flow,  # loops and branches of version 1
    different,  # different values, and sums for each
    elementwise,  # element-wise: one operand, or several that are broadcast; texts
    gathers,  # gathers, scatters, segments, lookups, top k
    images,  # convolutions, pools, images
    lists,  # TensorArrays, stacks and tensor lists
    matrices,  # linear algebra, FFT, diagonals, bands
    networks,  # softmax, cross entropies, batch normalisation, recurrent cells
    random,  # random numbers
    reductions,  # sums, maxima, arg max, cumulative sums, counts
    shapes,  # shapes, slices, concatenation, padding
    spaces,  # rows that are picked, numbers of rows
    sparse,  # sparse and ragged tensors
)
RULES = registry.RULES
