"""A worker's input that has ended is lent rows; what workers do together is in `tests/cluster`."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations
from replicate.strategy.cluster import ends


class Two(collectives.CollectiveWorkers):
    """A worker that adds a second one's numbers to its own, and meets nobody."""

    def __init__(self, *others):
        super().__init__(collectives.Options(2, 0), "/device:CPU:0")
        self._others = others
        self.left = None

    def note_left(self, leaving):
        """Called where the input ends, with how many others leave."""
        self.left = int(leaving)

    def max(self, tensors):
        return [tf.maximum(tensor, 4) for tensor in tensors]

    def table(self, own):
        return tf.stack([own, tf.constant(self._others[0])])

    def sum(self, tensors):
        return [
            tensor + tf.constant(other) for tensor, other in zip(tensors, self._others, strict=True)
        ]


def element(*specs):
    """Returns what an input_fn's dataset gives of one batch of three rows and then ends."""
    dense = tf.data.Dataset.from_tensors((np.ones([3, 2], np.float32), np.arange(3)))
    dataset = dense.map(lambda x, y: ({"x": x, **{name: make(x) for name, make in specs}}, y))
    return tf1.data.make_one_shot_iterator(_of_any_size(dataset)).get_next()


def _of_any_size(dataset):
    return dataset.unbatch().batch(3)


def steps(session, joined, number):
    """Runs steps on what is lent, and returns what each had."""
    with tf1.control_dependencies(joined.checks):
        fetched = tf.nest.map_structure(tf.identity, joined.features, expand_composites=True)
    own = joined.numbers.own
    return [session.run((fetched, own)) for _ in range(number)]


def test_what_has_ended_is_lent_a_row_of_zeros(session):
    features, labels = element()
    joined = ends.joined(features, labels, Two([1, 4, 0]), False)
    (first, own), (lent, none) = steps(session, joined, 2)
    assert (own, none) == (3, 0)
    assert first["x"].tolist() == [[1.0, 1.0]] * 3
    assert lent["x"].tolist() == [[0.0, 0.0]]


def test_sparse_and_ragged_rows_are_lent_too(session):
    specs = [
        ("sparse", lambda x: tf.sparse.from_dense(x)),
        ("ragged", lambda x: tf.RaggedTensor.from_tensor(x, lengths=[2, 0, 1])),
    ]
    features, labels = element(*specs)
    joined = ends.joined(features, labels, Two([1, 4, 0]), False)
    (first, _), (lent, none) = steps(session, joined, 2)
    assert first["ragged"].to_list() == [[1.0, 1.0], [], [1.0]]
    assert first["sparse"].dense_shape.tolist() == [3, 2]
    assert lent["ragged"].to_list() == [[0.0]]
    assert (lent["sparse"].values.tolist(), lent["sparse"].dense_shape.tolist()) == ([0.0], [1, 2])
    assert none == 0


def test_a_row_is_lent_as_wide_as_the_others_are(session):
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([np.ones([3, 2])]), output_signature=tf.TensorSpec([None, None], tf.float64)
    )
    features = tf1.data.make_one_shot_iterator(dataset).get_next()
    joined = ends.joined({"x": features}, None, Two([1, 4, 0]), False)
    (first, _), (lent, _) = steps(session, joined, 2)
    assert first["x"].shape == (3, 2)
    assert lent["x"].tolist() == [[0.0] * 4]


@pytest.mark.parametrize("others", [[0, 0, 0], [1, 4, 1]], ids=["all have ended", "one leaves"])
def test_the_input_ends_for_all(session, others):
    across = Two(others)
    joined = ends.joined(*element(), across, False)
    session.run(joined.numbers.own)  # the only batch
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run(joined.checks)
    assert across.left == others[2]


def test_batches_of_a_static_size_that_are_left_fail_an_evaluation(session):
    dataset = tf.data.Dataset.from_tensors((np.ones([3, 2], np.float32), np.arange(3)))
    features, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
    joined = ends.joined(features, labels, Two([0, 0, 0]), True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="An evaluation counts every row"):
        session.run(joined.checks)


def test_input_of_no_dataset_is_given_back_with_a_warning(fresh_graph, caplog):
    x = tf.zeros([3, 2])
    two = Two([0, 0, 0])
    assert ends.joined(x, None, two, False) == ends.Input(x, None, two)
    assert "no tf.data.Dataset" in caplog.text


@pytest.mark.parametrize("is_static", [False, True])
def test_nothing_is_joined_in_a_step_that_ends(fresh_graph, is_static):
    features, labels = element()
    if is_static:
        features["x"].set_shape([3, 2])
    across = collectives.CollectiveWorkers(collectives.Options(2, 0), "/device:CPU:0")
    joined = ends.joined(features, labels, across, False)
    across.sum([tf.random.normal([])])  # which no batch has to come for
    first, last = across.made
    assert joined.end.ended.op in operations.executed_by([last])
    assert joined.end.ended.op not in operations.executed_by([first])
