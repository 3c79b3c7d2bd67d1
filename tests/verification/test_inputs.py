"""Batches outside of a graph, cut and put into another order; and into a graph again."""

import functools

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import inputs

SETTINGS = tf1.ConfigProto()


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


DENSE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
SPARSE = [[0, 1, 0, 0], [0, 0, 0, 0], [2, 0, 3, 0]]
RAGGED = [[1], [], [2, 3, 4]]
NESTED = [[[1], []], [], [[2, 3, 4]]]


def every_kind():
    features = {
        "dense": tf.constant(DENSE),
        "nested": tf.ragged.constant(NESTED, tf.int64),
        "none": None,
        "ragged": tf.ragged.constant(RAGGED, tf.int64),
        "scalar": 5.0,
        "sparse": tf.sparse.from_dense(SPARSE),
    }
    return features, [0, 1, 2]


def read(input_fn, count=1):
    return inputs.read(input_fn, {"mode": "train"}, count, SETTINGS)


def values_of(form, batch):
    """Returns what comes out of placeholders that get a batch: lists of all rows, by name."""
    with tf.Graph().as_default(), tf1.Session() as session:
        holders = inputs.placeholders(form, batch.row_count)
        found = session.run({**holders.features, "none": []}, inputs.feed(holders, batch))
        dense = session.run(tf.sparse.to_dense(tf.sparse.reorder(found["sparse"])))
    lists = {name: np.asarray(found[name]).tolist() for name in ("dense", "scalar")}
    nests = {name: found[name].to_list() for name in ("nested", "ragged")}
    return {**lists, **nests, "sparse": dense.tolist()}


def of_rows(*order):
    """Returns what `values_of` gives for some of the rows, in an order."""
    rows = {"dense": DENSE, "nested": NESTED, "ragged": RAGGED, "sparse": SPARSE}
    return {"scalar": 5.0, **{name: [all_[i] for i in order] for name, all_ in rows.items()}}


@pytest.mark.parametrize("is_static", [True, False])
def test_rows_of_every_kind_come_out_as_they_came_cut_and_in_other_orders(is_static):
    def input_fn():
        features, labels = every_kind()
        scalar, none = features.pop("scalar"), features.pop("none")
        if is_static:
            return {**features, "scalar": scalar, "none": none}, labels
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(3)
        return dataset.map(lambda features, labels: ({**features, "scalar": scalar}, labels))

    form, batches = read(input_fn)
    assert form.is_static() is is_static
    come, cut, single = inputs.rounds(form, batches, 3, 1, SETTINGS)
    assert [one.label for one in (come, cut, single)] == [
        "as they come",
        "cut to 2 rows",
        "cut to 1 row",
    ]
    for one, order in ((come, (0, 1, 2)), (cut, (0, 1)), (single, (0,))):
        assert values_of(form, one.batches[0]) == of_rows(*order)
        for (other,), (numbers,) in one.reordered():
            assert sorted(numbers) == list(order)
            assert values_of(form, other) == of_rows(*numbers)
    _, (reverse,) = next(come.reordered())
    assert reverse.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("spec", "row_count", "shape"),
    [
        (lambda: tf.TensorSpec([None, 2]), 3, [None, 2]),
        (lambda: tf.TensorSpec([7, 2]), 3, [3, 2]),  # of other batches
        (lambda: tf.TensorSpec([7, 2]), None, [None, 2]),
        (lambda: tf.TensorSpec([]), 3, []),
        (lambda: tf.TensorSpec(None, tf.int64), 3, None),
        (lambda: tf.SparseTensorSpec([None, 4]), 3, [None, 4]),
        (lambda: tf.SparseTensorSpec([7, 4]), 3, [3, 4]),
        (lambda: tf.RaggedTensorSpec([None, None], tf.int64), 3, [None, None]),
        (lambda: tf.RaggedTensorSpec([7, None], tf.int64), 3, [3, None]),
        (lambda: tf.RaggedTensorSpec([7, None, None], tf.int64), 3, [3, None, None]),
        (lambda: tf.RaggedTensorSpec(None, tf.int64, 1), 3, None),
    ],
)
def test_placeholders_know_what_batches_have_in_common(fresh_graph, spec, row_count, shape):
    made = inputs.placeholders(inputs.Form(spec(), None), row_count)
    assert made.labels is None
    assert made.features.shape == tf.TensorShape(shape)


@pytest.mark.parametrize(
    ("features", "labels", "text"),
    [
        (lambda: tf.sparse.from_dense(SPARSE), [1.0, 2.0], "got 2 and 3 rows"),
        (lambda: tf.constant(1.0), None, "got no rows"),
        (lambda: tf.zeros([0, 2]), None, "got 0 rows"),
    ],
)
def test_all_leaves_need_the_same_rows(features, labels, text):
    with pytest.raises(errors.BatchError, match=text):
        read(lambda: (features(), None if labels is None else tf.constant(labels)))


@pytest.mark.parametrize("count", [1, 2])
def test_an_input_may_be_tensors_without_a_dataset(count):
    def input_fn():
        return {"x": tf.constant([1.0, 2.0])}, tf.constant([3, 4])

    form, found = read(input_fn, count)
    assert (form.features["x"].shape, form.labels.dtype) == ([2], tf.int32)
    assert (form.has_labels(), form.is_static()) == (True, True)
    assert len(found) == count
    np.testing.assert_array_equal(found[-1].arrays[0], [1, 2])


def test_an_input_that_hides_what_it_takes_is_given_nothing():
    form, (batch,) = read(functools.partial(dict, x=np.float32([1, 2])))
    assert (list(form.features), form.has_labels()) == (["x"], False)
    np.testing.assert_array_equal(batch.arrays[0], [1, 2])


def test_an_input_gets_what_it_names_and_has_not_been_given():
    seen = []

    def input_fn(mode, params):
        seen.append((mode, params))
        return tf.zeros([2])

    inputs.read(functools.partial(input_fn, params=1), {"mode": "train", "params": 2}, 1, SETTINGS)
    assert seen == [("train", 1)]
