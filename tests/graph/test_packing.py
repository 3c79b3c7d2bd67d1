"""Which tensors share a transfer, and as what they travel."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf
from replicate.graph import packing

DTYPES = [
    *(tf.bool, tf.int8, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64),
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128),
]


def packs(tensors, most=packing.PACK_BYTES):
    return packing.Packing([tensors], most, most).packs


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_what_is_carried_comes_back_as_it_was(session, dtype):
    tensor = tf.cast(tf.constant([[0, 1], [1, 0]]), dtype)
    found = packing.restored(packing.carried(tensor), tensor)
    assert found.dtype == dtype
    assert session.run(tf.reduce_all(tf.equal(found, tensor)))
    assert packing.is_sent(tensor)


def test_text_stays_where_it_is(fresh_graph):
    text = tf.constant(["a"])
    assert not packing.is_sent(text)
    with pytest.raises(TypeError, match="Workers join numbers"):
        packing.carried(text)


def test_small_tensors_of_several_dtypes_are_one(fresh_graph):
    tensors = [tf.constant(1.0), tf.constant(1, tf.int32), tf.constant(1.0, tf.float64)]
    assert {t.dtype for t in packing.of_few_dtypes(tensors)} == {tf.float64}


def test_what_float64_cannot_hold_stays_what_it_is(fresh_graph):
    tensors = [tf.constant(1.0), tf.constant(1, tf.int64), tf.zeros([1000]), tf.zeros([2, 0])]
    found = [t.dtype for t in packing.of_few_dtypes([*tensors, tf.constant(1, tf.int32)])]
    # 1000 numbers are above the limit of 4096 bytes.
    assert found == [tf.float64, tf.int64, tf.float32, tf.float64, tf.float64]


def test_tensors_of_one_dtype_and_of_known_shapes_share_a_transfer(fresh_graph):
    unknown = tf.compat.v1.placeholder(tf.float32, [None])
    tensors = [tf.constant(1.0), tf.constant(1), unknown, tf.zeros([3])]
    assert packs(tensors) == [[0, 3], [1], [2]]


def test_a_transfer_is_not_larger_than_the_limit(fresh_graph):
    tensors = [tf.zeros([packing.PACK_BYTES // 4 - 1]), tf.zeros([2]), tf.zeros([2])]
    assert packs(tensors) == [[0], [1, 2]]
    assert packs(tensors[1:], 0) == [[0], [1]]  # none share one


def test_a_pack_gives_back_what_it_holds(session):
    shapes = [[3, 2], [], [4], [1, 2], [], [0, 2], [2, 2, 2], [5, 0], [1]]
    tensors = [tf.random.stateless_uniform(shape, [1, n]) for n, shape in enumerate(shapes)]
    plan = packing.Packing([tensors])
    (flat,) = plan.pack(tensors)
    assert flat.shape == [6 + 1 + 4 + 2 + 1 + 0 + 8 + 0 + 1]
    for found, tensor in zip(*session.run((plan.unpack([flat]), tensors)), strict=True):
        np.testing.assert_array_equal(found, tensor, strict=True)


def test_tensors_that_differ_in_length_alone_are_packed_by_one_operation(fresh_graph):
    tensors = [tf.zeros([length, 2]) for length in range(1, 50)]
    plan, before = packing.Packing([tensors]), len(fresh_graph.get_operations())
    plan.unpack(plan.pack(tensors))
    added = [op.type for op in fresh_graph.get_operations()[before:] if op.type != "Const"]
    assert added == ["ConcatV2", "Reshape", "Reshape", "SplitV"]


@pytest.mark.parametrize(("workers", "expected"), [(2, 4 << 20), (32, 4 << 20), (1000, 125 << 20)])
def test_pieces_of_a_ring_do_not_shrink_with_workers(workers, expected):
    assert packing.pack_bytes(workers) == expected  # 4 MiB, or 128 KiB for each worker
