"""Batches outside of a graph, cut and put into another order."""

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf1
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
