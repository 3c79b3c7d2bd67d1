"""Operations that are split in a state in which running whole would give the same values."""

import pytest

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import among, indices, raw, tensor

F64 = tf.float64
TWO = harness.Setting("batch", 2, (3,))


def rows(*dims, dtype=None):
    return tensor(*dims, dtype=dtype, states=["rows0"])


def summed(*dims):
    return tensor(*dims, states=["sum"])


def _stacked(x):
    held = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=-1)
    return tf.raw_ops.TensorListStack(input_handle=held, element_shape=-1, element_dtype=F64)


def _shape_of_elements(x):
    held = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[-1, 2])
    return tf.raw_ops.TensorListElementShape(input_handle=held, shape_type=tf.int32)


def _reordered(x):
    sparse = tf.sparse.from_dense(x)
    parts = tf.raw_ops.SparseReorder(
        input_indices=sparse.indices, input_values=sparse.values, input_shape=sparse.dense_shape
    )
    return [parts.output_indices, parts.output_values]


def _element_of(x):
    held = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=-1)
    return tf.raw_ops.TensorListGetItem(
        input_handle=held, index=1, element_shape=-1, element_dtype=F64
    )


def _list_of(*values, shape=-1):
    held = tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=2, element_dtype=F64)
    for n, value in enumerate(values):
        held = tf.raw_ops.TensorListSetItem(input_handle=held, index=n, item=value)
    return held


def _set_to(*values):
    return tf.raw_ops.TensorListGetItem(
        input_handle=_list_of(*values), index=0, element_shape=-1, element_dtype=F64
    )


def _pushed(x):
    held = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=2, element_dtype=F64)
    held = tf.raw_ops.TensorListPushBack(input_handle=held, tensor=x)
    return tf.raw_ops.TensorListPopBack(
        input_handle=held, element_shape=-1, element_dtype=F64
    ).tensor


def _stacked_array(x):
    """Stacks an array that does not know the shape of its elements."""
    array = tf.raw_ops.TensorArrayV3(size=1, dtype=F64)
    flow = tf.raw_ops.TensorArrayWriteV3(handle=array.handle, index=0, value=x, flow_in=array.flow)
    return tf.raw_ops.TensorArrayGatherV3(handle=array.handle, indices=[0], flow_in=flow, dtype=F64)


def _of_different(x):
    values, places = tf.unique(x)
    return tf.gather(tf.exp(values), places)


def _at_coordinates(x):
    """Puts values at [row, 0] of zeros, [B, 3]."""
    rows = tf.range(tf.shape(x)[0])[:, None]
    return tf.scatter_nd(tf.concat([rows, tf.zeros_like(rows)], 1), x[:, 0], tf.shape(x))


def _one_for_each_word(texts):
    words = tf.raw_ops.StringSplitV2(input=texts, sep=" ")
    return tf.fill([tf.shape(words.indices)[0]], 2.0)


def _crossed(x):
    given = tf.sparse.from_dense(x)
    words = given.with_values(tf.as_string(given.values))
    return tf.sparse.cross([words, words]).values


def _product(**options):
    """Multiplies a matrix of rows, as a sparse one, by another one of rows."""
    return lambda x, y: tf.sparse.sparse_dense_matmul(
        tf.sparse.from_dense(x), y, adjoint_a=True, **options
    )


def _summed_by_gathered_numbers(x):
    """Sums rows by their numbers, which are gathered by themselves."""
    ids = tf.range(tf.shape(x)[0])
    return tf.math.unsorted_segment_sum(x, tf.gather(ids, ids), tf.shape(x)[0])


def require_split(setting, kind, *case):
    family = harness.Family(kind)
    family.case(kind, *case)
    outcome = harness.tried(family, setting)
    assert not outcome.failures
    assert not outcome.missing
    assert (kind in outcome.split, outcome.whole.get(kind)) == (True, None)


@pytest.mark.parametrize(
    ("kind", "function", "operands"),
    [
        ("Split", lambda x: tf.raw_ops.Split(axis=0, value=x, num_split=2), [summed(4, 3)]),
        ("SplitV", lambda x: raw("SplitV", num_split=2)(x, [1, 3], 0), [summed(4, 3)]),
        ("TensorListStack", _stacked, [tensor(4, "B", states=["rows1"])]),
        ("TensorListElementShape", _shape_of_elements, [tensor(4, "B", 2, states=["rows1"])]),
        ("TensorListPushBack", _pushed, [rows("B", 3)]),
        ("TensorListSetItem", lambda x: _set_to(x, tf.transpose(x)), [rows("B", "B")]),
        ("TensorArrayGatherV3", _stacked_array, [rows("B", 3)]),
        ("SparseReorder", _reordered, [rows("B", 3)]),
        (
            "SparseReshape",
            lambda x: tf.sparse.reshape(tf.sparse.from_dense(x), [-1, 2]).indices,
            [rows("B", 4)],
        ),
        *(
            ("SparseTensorDenseMatMul", _product(adjoint_b=is_turned), [rows("B", 3), other])
            for is_turned, other in (
                (False, rows("B", 2)),
                (True, tensor(2, "B", states=["rows1"])),
            )
        ),
        (
            "SparseSegmentSum",
            lambda x: tf.sparse.segment_sum(x, [0, 2, 3], [0, 0, 1]),
            [summed(4, 3)],
        ),
        (
            "SparseSegmentSumWithNumSegments",
            lambda x, at: raw("SparseSegmentSumWithNumSegments")(x, at, tf.zeros_like(at), 2),
            [tensor(3, states=["whole"]), indices("B", states=["rows0"])],
        ),
        *(
            ("Equal", raw("Equal", incompatible_shape_error=False), [rows("B", 3), other])
            for other in (rows("B", 3), tensor(1, states=["whole"]), tensor(3, states=["whole"]))
        ),
        ("TensorListFromTensor", _element_of, [summed(4, 3)]),
        ("TensorListFromTensor", _element_of, [tensor(4, "B", states=["rows1"])]),
        ("TensorListSetItem", _set_to, [summed(3)]),
        ("Exp", _of_different, [rows("B")]),
        ("ScatterNd", _at_coordinates, [rows("B", 3)]),
        (
            "ScatterNd",
            raw("ScatterNd"),
            [indices(2, 1, states=["whole"]), summed(2, 3), [3, 3]],
        ),
        (
            "UnsortedSegmentSum",
            raw("UnsortedSegmentSum"),
            [summed(4, 2), indices(4, states=["whole"]), 3],
        ),
        ("Fill", _one_for_each_word, [tensor("B", dtype=tf.string, of=among("a b", "c"))]),
        ("UnsortedSegmentSum", _summed_by_gathered_numbers, [rows("B", 3)]),
        (
            "GatherNd",
            raw("GatherNd"),
            [summed(3, 2), indices(4, 1, states=["whole"])],
        ),
        (
            "GatherV2",
            lambda x, places: tf.gather(x, places, batch_dims=1),
            [rows("B", 3), indices("B", 2, states=["rows0"])],
        ),
        (
            "Conv2DBackpropInput",
            lambda x, y: raw("Conv2DBackpropInput", strides=[1] * 4, padding="SAME")([4, 4], x, y),
            [tensor(3, 3, 2, 3, states=["whole"]), rows("B", 4, 4, 3)],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_is_split(kind, function, operands):
    require_split(TWO, kind, function, *operands)


def test_the_shape_of_elements_that_are_sums_is_asked_on_each_device():
    require_split(
        harness.Setting("batch", 2, (3,), is_static=True),
        "TensorListElementShape",
        lambda x: raw("TensorListElementShape", shape_type=tf.int32)(_list_of(x, shape=[4])),
        summed(4),
    )
