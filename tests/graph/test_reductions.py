"""Sums, means and concatenations: by hand, eagerly and in a graph."""

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import reductions

CPU_1 = "/device:CPU:1"


@pytest.fixture(params=["eager", "graph"])
def evaluate(request):
    """Evaluates what a function makes, eagerly or in a session."""

    def eagerly(make):
        return tf.nest.map_structure(lambda t: t.numpy(), make())

    def in_session(make):
        with tf.Graph().as_default(), tf1.Session() as session:
            return session.run(make())

    return eagerly if request.param == "eager" else in_session


def mean_onto(tensors, device):
    return reductions.divide_onto(reductions.sum_onto(tensors, device), len(tensors), device)


def slices(values, indices, dense_shape=(4, 1)):
    shape = None if dense_shape is None else tf.constant(dense_shape, tf.int64)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), shape)


def each(kind, *values):
    return [kind(value) for value in values]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: reductions.sum_onto(each(tf.constant, [1.0, 2.0], [10.0, 20.0]), CPU_1), [11, 22]),
        (lambda: mean_onto(each(tf.constant, 1.0, 2.0, 6.0), CPU_1), 3.0),
        # 49 times 1: a product with 1/49 would round down to 0. 7 / 2 = 3.5, rounded down.
        (lambda: mean_onto([tf.constant(1)] * 49, CPU_1), 1),
        (lambda: mean_onto(each(tf.constant, 3, 4), CPU_1), 3),
        # 1 * 0.5 + 3 * 0.25 = 1.25
        (
            lambda: reductions.weighted_sum_onto(
                each(tf.constant, 1.0, 3.0), [0.5, tf.constant(0.25)], [True, True], CPU_1
            ),
            1.25,
        ),
        (
            lambda: reductions.concat_onto(each(tf.constant, [[1]], [[2], [3]]), CPU_1),
            [[1], [2], [3]],
        ),
        # 1 x 2 above 2 x 3: the result is 3 x 3.
        (
            lambda: tf.sparse.to_dense(
                reductions.concat_onto(
                    [
                        tf.SparseTensor([[0, 1]], [7], [1, 2]),
                        tf.SparseTensor([[1, 2]], [8], [2, 3]),
                    ],
                    CPU_1,
                )
            ),
            [[0, 7, 0], [0, 0, 0], [0, 0, 8]],
        ),
        (
            lambda: reductions.concat_onto(
                each(tf.ragged.constant, [[1], []], [[2, 3]]), CPU_1
            ).to_tensor(),
            [[1, 0], [0, 0], [2, 3]],
        ),
    ],
)
def test_towers_values_come_to(evaluate, make, expected):
    np.testing.assert_array_equal(evaluate(make), expected)


def test_slices_stay_slices(evaluate):
    def make():
        parts = [slices([[1.0]], [2]), slices([[3.0], [5.0]], [0, 2])]
        summed = reductions.sum_onto(parts, CPU_1)
        mean = mean_onto(parts, CPU_1)
        return [summed.values, summed.indices, summed.dense_shape, mean.values, mean.indices]

    values, indices, shape, mean, mean_indices = evaluate(make)
    np.testing.assert_array_equal(values, [[1.0], [3.0], [5.0]])
    np.testing.assert_array_equal(indices, [2, 0, 2])
    np.testing.assert_array_equal(shape, [4, 1])
    np.testing.assert_array_equal(mean, [[0.5], [1.5], [2.5]])
    np.testing.assert_array_equal(mean_indices, indices)


def test_duplicates_are_summed_once(evaluate):
    # Index 2: 1 + 5 = 6; index 0: 3.
    def make():
        made = reductions.deduplicate(slices([[1.0], [3.0], [5.0]], [2, 0, 2]))
        return made.values, made.indices

    values, indices = evaluate(make)
    np.testing.assert_array_equal(values, [[6.0], [3.0]])
    np.testing.assert_array_equal(indices, [2, 0])


def test_results_are_where_they_were_asked_for(fresh_graph):
    one = [tf.constant(1.0)]
    many = [tf.constant([1.0]), tf.constant([2.0])]
    gpu = "/device:GPU:3"
    for value in (
        reductions.sum_onto(one, gpu),
        reductions.sum_onto(many, gpu),
        mean_onto(many, gpu),
        reductions.weighted_sum_onto(many, [0.5, tf.constant(0.5)], [True, True], gpu),
        reductions.concat_onto(many, gpu),
        reductions.concat_onto(many[:1], gpu),
        reductions.copy_onto(many[0], gpu),
    ):
        assert value.device == gpu


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.float64])
def test_a_tower_without_rows_brings_no_nan(evaluate, bad, is_tensor, dtype):
    def make():
        zero, no = (tf.constant(0.0), tf.constant(False)) if is_tensor else (0.0, False)
        tensors = [tf.constant([2.0, 4.0], dtype), tf.constant([bad, bad], dtype)]
        weighted = reductions.weighted_sum_onto(tensors, [1.0, zero], [True, no], CPU_1)
        return tf.cast(weighted, tf.float32)

    np.testing.assert_array_equal(evaluate(make), [2.0, 4.0])


@pytest.mark.parametrize("is_tensor", [False, True])
def test_towers_without_rows_count_for_nothing(evaluate, is_tensor):
    def make():
        no, yes = (tf.constant(False), tf.constant(True)) if is_tensor else (False, True)
        dense = reductions.mask_rows([tf.constant([1.0]), tf.constant([np.nan])], [yes, no])
        first, second = reductions.mask_rows([slices([[1.0]], [2])] * 2, [yes, no])
        return dense, first.values, second.values, second.indices

    dense, first, second, indices = evaluate(make)
    np.testing.assert_array_equal(dense, [[1.0], [0.0]])
    np.testing.assert_array_equal(first, [[1.0]])
    assert (second.shape, indices.shape) == ((0, 1), (0,))


def test_one_tensor_costs_one_copy_on_the_device_that_is_open_or_named(fresh_graph):
    tensor = tf.constant([1.0])
    before = len(fresh_graph.get_operations())
    mean_onto([tensor], CPU_1)
    assert [op.type for op in fresh_graph.get_operations()[before:]] == ["Identity"]
    with tf.device("/device:CPU:2"):
        assert reductions.sum_onto([tensor], "").device == "/device:CPU:2"


@pytest.mark.parametrize(
    ("reduce", "make", "kind", "text"),
    [
        (
            reductions.sum_onto,
            lambda: [tf.constant([1.0]), slices([[1.0]], [1])],
            errors.TowerMismatchError,
            "tower 1 has the kind IndexedSlices, tower 0",
        ),
        (
            reductions.sum_onto,
            lambda: [tf.constant([1.0]), tf.constant([1.0], tf.float16)],
            errors.TowerMismatchError,
            "tower 1 has the dtype float16",
        ),
        (
            reductions.sum_onto,
            lambda: each(tf.constant, [1.0], [1.0, 1.0]),
            errors.TowerMismatchError,
            r"tower 1 has the shape \(2,\), tower 0",
        ),
        (
            reductions.concat_onto,
            lambda: each(tf.zeros, [1, 2], [3, 1]),
            errors.TowerMismatchError,
            "tower 1 has the shape of a row",
        ),
        (reductions.sum_onto, lambda: each(tf.constant, True, True), TypeError, "cast them"),
    ],
)
def test_what_cannot_be_reduced_is_refused(reduce, make, kind, text):
    with pytest.raises(kind, match=text):
        reduce(make(), CPU_1)
