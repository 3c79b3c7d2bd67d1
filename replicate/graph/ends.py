"""Input that ends in one worker before it ends in another.

A worker whose input has ended goes on with a row of zeros on loan, which counts for nothing,
until no worker has rows any more: then all end together. Where the size of a batch is static
all end with the first of them, as an incomplete batch is dropped.
"""

import logging
from typing import Any

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, collectives, reductions, rows

_log = logging.getLogger("replicate")
_NEXT = "IteratorGetNext"


def joined(features: Any, labels: Any, across: collectives.Across) -> tuple[Any, Any, Any]:
    """Lets all workers' input end together.

    Args:
        features: The worker's features, as an Estimator gets them of a dataset.
        labels: The worker's labels, likewise.
        across: Joins what workers bring.

    Returns:
        Features and labels that do not end before all workers' do, and whether the rows are
        the worker's own: True, or a bool tensor. Input that is of no dataset is given back.
    """
    nest = (features, labels)
    op = _source(nest)
    if op is None:
        _log.warning(
            "Input that is no tf.data.Dataset ends in each worker by itself: all workers need the "
            "same number of batches, or the others wait for one that has ended. Return a Dataset "
            "from the input_fn."
        )
        return features, labels, True
    spec = tf.nest.map_structure(tf.type_spec_from_value, nest)
    with reductions.alone_on("/device:CPU:0", collectives.SCOPE):
        variant = tf.raw_ops.IteratorGetNextAsOptional(
            iterator=op.inputs[0],
            output_types=op.get_attr("output_types"),
            output_shapes=op.get_attr("output_shapes"),
        )
        has_next = tf.raw_ops.OptionalHasValue(optional=variant)
        flat, is_own = _value(variant, op, has_next, spec, across)
    features, labels = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
    return features, labels, is_own


def _source(nest: Any) -> tf.Operation | None:
    """Returns the operation that gives all of a nest and nothing else, or None."""
    leaves = [leaf for leaf in tf.nest.flatten(nest, expand_composites=True) if leaf is not None]
    if not leaves or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return None
    found = {op for op in ancestry.made_from(leaves) if op.type == _NEXT}
    if len(found) != 1:
        return None
    op = next(iter(found))
    whole = tf.nest.flatten(nest)
    is_dense = all(leaf is None or isinstance(leaf, tf.Tensor) for leaf in whole)
    in_order = [leaf for leaf in whole if leaf is not None]
    is_straight = is_dense and [t.ref() for t in in_order] == [t.ref() for t in op.outputs]
    return op if is_straight else None


def _value(variant, op, has_next, spec, across) -> tuple[list, Any]:
    """Returns the next element's tensors, or zeros in their place, and whose they are."""
    known = [part for part in tf.nest.flatten(spec) if part is not None]
    types, shapes = op.get_attr("output_types"), op.get_attr("output_shapes")

    def own():
        return tf.raw_ops.OptionalGetValue(
            optional=variant, output_types=types, output_shapes=shapes
        )

    def lent():
        return [_row_of_zeros(part.shape, part.dtype) for part in known]

    batched = [part for part in known if part.shape.rank != 0]
    is_static = all(rows.static_count(part) is not None for part in batched)
    wanted = across.size if is_static else 1
    (number,) = across.sum([tf.cast(has_next, tf.int32)])
    with tf1.control_dependencies([tf.cond(number >= wanted, tf.no_op, _end)]):
        has_next = tf.identity(has_next)
    found = tf.cond(has_next, own, lent)
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    for tensor, part in zip(found, known, strict=True):
        tensor.set_shape(part.shape)
    return found, True if is_static else has_next


def _end() -> tf.Operation:
    """Ends the input: to ask an empty dataset for more is how a session learns of it."""
    empty = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(0))
    return tf1.group(empty.get_next())


def _row_of_zeros(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Returns a row of zeros, or of empty text; what is not known is one long."""
    size = [] if shape.rank is None else [1 if length is None else length for length in shape]
    return tf.fill(size, tf.zeros([], dtype))
