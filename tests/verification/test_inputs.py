"""Batches outside of a graph, cut and put into another order; and into a graph again."""

import functools

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import inputs

SPARSE = tf1.SparseTensorValue(
    np.int64([[0, 1], [2, 0], [2, 2]]), np.float32([1, 2, 3]), np.int64([3, 4])
)
RAGGED = tf1.ragged.RaggedTensorValue(np.int64([1, 2, 3, 4]), np.int64([0, 1, 1, 4]))


@pytest.mark.parametrize(
    ("row_count", "num_towers", "sizes"),
    [
        (64, 2, [63, 1]),
        (7, 3, [5, 2, 1]),  # 6 divides; 2 rows are fewer than towers
        (8, 3, [7, 2, 1]),
        (3, 8, [2, 1]),
        (1, 4, []),
        (6, 1, [1]),
    ],
)
def test_sizes_are_those_at_which_splits_go_wrong(row_count, num_towers, sizes):
    assert inputs.cut_sizes(row_count, num_towers) == sizes


def test_rows_are_taken_in_the_order_of_an_index():
    np.testing.assert_array_equal(inputs.take(np.array([5, 6, 7]), [2, 0]), [7, 5])
    assert inputs.take(None, [0]) is None
    np.testing.assert_array_equal(inputs.take(np.float32(2.5), [0]), 2.5)


def test_rows_of_sparse_values_keep_their_entries():
    taken = inputs.take(SPARSE, [2, 1, 0])
    np.testing.assert_array_equal(taken.indices, [[0, 0], [0, 2], [2, 1]])
    np.testing.assert_array_equal(taken.values, [2, 3, 1])
    np.testing.assert_array_equal(taken.dense_shape, [3, 4])
    np.testing.assert_array_equal(inputs.take(SPARSE, [1]).indices, np.zeros([0, 2]))


def test_rows_of_ragged_values_keep_their_lengths():
    assert inputs.take(RAGGED, [2, 0, 1]).to_list() == [[2, 3, 4], [1], []]
    nested = tf1.ragged.RaggedTensorValue(RAGGED, np.int64([0, 2, 3]))
    assert inputs.take(nested, [1, 0]).to_list() == [[[2, 3, 4]], [[1], []]]


def test_all_leaves_need_the_same_rows():
    assert inputs.row_count([SPARSE, None, RAGGED, np.zeros(3), np.float32(1)]) == 3
    with pytest.raises(errors.BatchError, match="got 2 and 3 rows"):
        inputs.row_count([SPARSE, np.zeros(2)])
    with pytest.raises(errors.BatchError, match="got no rows"):
        inputs.row_count([np.float32(1)])


NESTED = tf1.ragged.RaggedTensorValue(RAGGED, np.int64([0, 1, 1, 3]))


@pytest.mark.parametrize(
    ("spec", "value", "shape"),
    [
        (lambda: tf.TensorSpec([None, 2]), np.float32([[1, 2]] * 3), [None, 2]),
        (lambda: tf.TensorSpec([7, 2]), np.float32([[1, 2]] * 3), [3, 2]),  # of other batches
        (lambda: tf.TensorSpec([]), np.float32(5), []),
        (lambda: tf.TensorSpec(None, tf.int64), np.int64([[1], [2], [3]]), None),
        (lambda: tf.SparseTensorSpec([None, 4]), SPARSE, [None, 4]),
        (lambda: tf.SparseTensorSpec([7, 4]), SPARSE, [3, 4]),
        (lambda: tf.RaggedTensorSpec([None, None], tf.int64), RAGGED, [None, None]),
        (lambda: tf.RaggedTensorSpec([7, None], tf.int64), RAGGED, [3, None]),
        (lambda: tf.RaggedTensorSpec([7, None, None], tf.int64), NESTED, [3, None, None]),
        (lambda: tf.RaggedTensorSpec(None, tf.int64, 1), RAGGED, None),
    ],
)
def test_a_batch_comes_out_of_its_placeholders_as_it_went_in(session, spec, value, shape):
    form = inputs.Form((0, 1), (spec(), None))
    made = inputs.placeholders(form, 3)
    assert made.labels is None
    assert made.features.shape == tf.TensorShape(shape)
    found = session.run(made.features, made.feed([value, None]))
    for one, other in zip(_parts(found), _parts(value), strict=True):
        np.testing.assert_array_equal(one, other)


def _parts(value):
    """Returns the arrays that make a value up."""
    if isinstance(value, tf1.SparseTensorValue):
        return [*value]
    if isinstance(value, tf1.ragged.RaggedTensorValue):
        return [*_parts(value.values), value.row_splits]
    return [np.asarray(value)]


@pytest.mark.parametrize("count", [1, 2])
def test_an_input_may_be_tensors_without_a_dataset(count):
    def input_fn():
        return {"x": tf.constant([1.0, 2.0])}, [3, 4]

    form, found = inputs.read(input_fn, {}, count, tf1.ConfigProto())
    assert form.nest == ({"x": 0}, [1, 2])
    assert (form.has_labels(), form.is_static()) == (True, True)
    assert len(found) == count
    np.testing.assert_array_equal(found[-1][0], [1, 2])


def test_an_input_that_hides_what_it_takes_is_given_nothing():
    input_fn = functools.partial(dict, x=np.float32([1, 2]))
    form, (batch,) = inputs.read(input_fn, {"mode": "train"}, 1, tf1.ConfigProto())
    assert (form.nest[0], form.has_labels()) == ({"x": 0}, False)
    np.testing.assert_array_equal(batch[0], [1, 2])
