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


def _einsum(*operands):
    return tf.raw_ops.Einsum(inputs=operands, equation="...i,ij->...j")


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


def _set_to(x):
    held = tf.raw_ops.TensorListReserve(element_shape=-1, num_elements=2, element_dtype=F64)
    held = tf.raw_ops.TensorListSetItem(input_handle=held, index=1, item=x)
    return tf.raw_ops.TensorListGetItem(
        input_handle=held, index=1, element_shape=-1, element_dtype=F64
    )


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


@pytest.mark.parametrize(
    ("kind", "function", "operands", "dtype"),
    [
        ("Split", lambda x: tf.raw_ops.Split(axis=0, value=x, num_split=2), [summed(4, 3)], F64),
        ("SplitV", lambda x: raw("SplitV", num_split=2)(x, [1, 3], 0), [summed(4, 3)], F64),
        ("TensorListStack", _stacked, [tensor(4, "B", states=["rows1"])], F64),
        ("TensorListElementShape", _shape_of_elements, [tensor(4, "B", 2, states=["rows1"])], F64),
        ("SparseReorder", _reordered, [rows("B", 3)], F64),
        (
            "SparseSegmentSum",
            lambda x: tf.sparse.segment_sum(x, [0, 2, 3], [0, 0, 1]),
            [summed(4, 3)],
            F64,
        ),
        *(
            ("Equal", raw("Equal", incompatible_shape_error=False), [rows("B", 3), other], F64)
            for other in (rows("B", 3), tensor(1, states=["whole"]), tensor(3, states=["whole"]))
        ),
        ("MatMul", lambda x: tf.matmul(x, tf.ones([4, 2], F64)), [summed(3, 4)], F64),
        ("TensorListFromTensor", _element_of, [summed(4, 3)], F64),
        ("TensorListGetItem", _element_of, [summed(4, 3)], F64),
        ("TensorListFromTensor", _element_of, [tensor(4, "B", states=["rows1"])], F64),
        ("TensorListSetItem", _set_to, [summed(3)], F64),
        ("Exp", _of_different, [rows("B")], F64),
        ("ScatterNd", _at_coordinates, [rows("B", 3)], F64),
        (
            "ScatterNd",
            raw("ScatterNd"),
            [indices(2, 1, states=["whole"]), summed(2, 3), [3, 3]],
            F64,
        ),
        (
            "UnsortedSegmentSum",
            raw("UnsortedSegmentSum"),
            [summed(4, 2), indices(4, states=["whole"]), 3],
            F64,
        ),
        ("Fill", _one_for_each_word, [tensor("B", of=among("a b", "c"))], tf.string),
        ("SparseCrossV2", _crossed, [rows("B", 3)], F64),
        (
            "GatherNd",
            raw("GatherNd"),
            [summed(3, 2), indices(4, 1, states=["whole"])],
            F64,
        ),
        (
            "GatherV2",
            lambda x, places: tf.gather(x, places, batch_dims=1),
            [rows("B", 3), indices("B", 2, states=["rows0"])],
            F64,
        ),
        (
            "DenseBincount",
            lambda x: raw("DenseBincount")(x, 4, tf.zeros([0])),
            [indices("B", states=["rows0"])],
            F64,
        ),
        ("Einsum", _einsum, [rows("B", 3), tensor(3, 4, states=["whole"])], F64),
        *(
            (kind, raw(kind), [rows("B", 4, dtype=tf.complex64)], tf.complex64)
            for kind in ("FFT", "IFFT")
        ),
        ("RFFT", lambda x: raw("RFFT")(x, [4]), [rows("B", 4, dtype=tf.float32)], tf.float32),
        ("IRFFT", lambda x: raw("IRFFT")(x, [4]), [rows("B", 3, dtype=tf.complex64)], tf.complex64),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_is_split(kind, function, operands, dtype):
    family = harness.Family(kind)
    family.case(kind, function, *operands, dtypes=(dtype,))
    outcome = harness.tried(family, TWO)
    assert not outcome.failures
    assert not outcome.missing
    assert (kind in outcome.split, outcome.whole.get(kind)) == (True, None)
