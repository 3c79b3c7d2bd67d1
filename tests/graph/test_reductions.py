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


def test_dense_tensors_add_up(evaluate):
    tensors = [[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]
    summed = evaluate(lambda: reductions.sum_onto([tf.constant(t) for t in tensors], CPU_1))
    np.testing.assert_array_equal(summed, [111.0, 222.0])


def test_the_mean_of_three_divides_by_three(evaluate):
    mean = evaluate(lambda: mean_onto([tf.constant(x) for x in (1.0, 2.0, 6.0)], CPU_1))
    assert mean == 3.0


def test_a_mean_of_integers_keeps_the_dtype(evaluate):
    # 49 times 1: a product with 1/49 would round down to 0. 7 / 2 = 3.5, rounded down.
    assert evaluate(lambda: mean_onto([tf.constant(1)] * 49, CPU_1)) == 1
    mean = evaluate(lambda: mean_onto([tf.constant(3), tf.constant(4)], CPU_1))
    assert (mean, mean.dtype) == (3, np.int32)


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


def test_a_shape_that_one_tower_knows_is_kept():
    summed = reductions.sum_onto([slices([[1.0]], [2], None), slices([[1.0]], [1])], CPU_1)
    np.testing.assert_array_equal(summed.dense_shape, [4, 1])


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
        reductions.weighted_sum_onto(many, [0.5, tf.constant(0.5)], gpu),
        reductions.concat_onto(many, gpu),
        reductions.concat_onto(many[:1], gpu),
        reductions.copy_onto(many[0], gpu),
    ):
        assert value.device == gpu


def test_one_tensor_costs_one_copy(fresh_graph):
    (tensor,) = [tf.constant([1.0])]
    before = len(fresh_graph.get_operations())
    mean_onto([tensor], CPU_1)
    assert [op.type for op in fresh_graph.get_operations()[before:]] == ["Identity"]


def test_no_device_leaves_the_choice_open(fresh_graph):
    with tf.device("/device:CPU:2"):
        assert reductions.sum_onto([tf.constant(1.0)], "").device == "/device:CPU:2"
        assert reductions.copy_onto(tf.constant(1.0), None).device == "/device:CPU:2"


def test_weights_are_applied(evaluate):
    # 1 * 0.5 + 3 * 0.25 + 5 * 0.25 = 2.5
    def make():
        weights = [0.5, tf.constant(0.25), 0.25]
        return reductions.weighted_sum_onto(
            [tf.constant(x) for x in (1.0, 3.0, 5.0)], weights, CPU_1
        )

    assert evaluate(make) == 2.5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16, tf.float64])
def test_a_weight_of_zero_keeps_out_nan(evaluate, bad, is_tensor, dtype):
    def make():
        zero = tf.constant(0.0) if is_tensor else 0.0
        tensors = [tf.constant([2.0, 4.0], dtype), tf.constant([bad, bad], dtype)]
        weighted = reductions.weighted_sum_onto(tensors, [1.0, zero], CPU_1)
        return tf.cast(weighted, tf.float32)

    np.testing.assert_array_equal(evaluate(make), [2.0, 4.0])


def test_a_weight_of_zero_keeps_nan_out_of_gradients(session):
    x = tf.constant([2.0, -1.0])
    losses = [x[0] * 3.0, tf.sqrt(x[1])]  # the second is NaN; so would its gradient be
    total = reductions.weighted_sum_onto(losses, [1.0, tf.constant(0.0)], CPU_1)
    masked = reductions.mask_rows(losses, [True, tf.constant(False)])
    assert session.run(total) == 6.0
    assert session.run(masked) == [6.0, 0.0]


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


def test_rows_are_concatenated_in_order(evaluate):
    joined = evaluate(
        lambda: reductions.concat_onto(
            [tf.constant([[b"a"]]), tf.constant([[b"b"], [b"c"]])], CPU_1
        )
    )
    assert joined.tolist() == [[b"a"], [b"b"], [b"c"]]


def test_sparse_rows_are_concatenated_to_the_widest(evaluate):
    # 1 x 2 above 2 x 3: the result is 3 x 3.
    def make():
        parts = [
            tf.SparseTensor([[0, 1]], [7], [1, 2]),
            tf.SparseTensor([[1, 2]], [8], [2, 3]),
        ]
        return tf.sparse.to_dense(reductions.concat_onto(parts, CPU_1))

    np.testing.assert_array_equal(evaluate(make), [[0, 7, 0], [0, 0, 0], [0, 0, 8]])


def test_ragged_rows_are_concatenated(evaluate):
    def make():
        parts = [tf.ragged.constant([[1], []]), tf.ragged.constant([[2, 3]])]
        joined = reductions.concat_onto(parts, CPU_1)
        return joined.flat_values, joined.row_splits

    values, splits = evaluate(make)
    assert (values.tolist(), splits.tolist()) == ([1, 2, 3], [0, 1, 1, 3])


def test_none_of_all_towers_stays_none():
    assert reductions.concat_onto([None, None], CPU_1) is None


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        (
            tf.constant,
            lambda _: slices([[1.0]], [1]),
            "tower 1 has the kind IndexedSlices, tower 0",
        ),
        (tf.constant, lambda x: tf.constant(x, tf.float16), "tower 1 has the dtype float16"),
        (tf.constant, lambda x: tf.constant([*x, 1.0]), r"tower 1 has the shape \(2,\), tower 0"),
    ],
)
def test_towers_that_differ_are_named(first, second, shown):
    with pytest.raises(errors.TowerMismatchError, match=shown):
        reductions.sum_onto([first([1.0]), second([1.0])], CPU_1)


def test_rows_of_different_shapes_are_refused():
    with pytest.raises(errors.TowerMismatchError, match="tower 1 has the shape of a row"):
        reductions.concat_onto([tf.zeros([1, 2]), tf.zeros([3, 1])], CPU_1)


def test_scalars_have_no_rows_to_join():
    with pytest.raises(errors.TowerMismatchError, match="tower 0 returned"):
        reductions.concat_onto([tf.constant(1.0), tf.constant(2.0)], CPU_1)


def test_bools_have_no_sum():
    with pytest.raises(TypeError, match="cast them"):
        reductions.sum_onto([tf.constant(True), tf.constant(True)], CPU_1)
