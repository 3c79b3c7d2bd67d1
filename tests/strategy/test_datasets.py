"""The end of a dataset that towers share."""

import collections

import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows

TWO = ["/cpu:0", "/cpu:1"]
Point = collections.namedtuple("Point", "x y")
TEXT = r"a scalar has no rows.*Call\s+batch\(\)"


def scalars(count):
    return lambda: tf.data.Dataset.range(count)


# TensorFlow's own iterator over several devices asks a dataset for its options.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.parametrize("kind", ["one_shot", "initializable"])
@pytest.mark.parametrize("count", [3, 4])
def test_no_scalar_is_made_up_in_a_graph(session, kind, count):
    strategy = core.MirroredStrategy(TWO)
    dataset = strategy.distribute_dataset(scalars(count))
    iterator = getattr(dataset, f"make_{kind}_iterator")()
    element = strategy.unwrap(iterator.get_next())
    if kind == "initializable":
        session.run(iterator.initializer)
    assert session.run(element) == [0, 1]
    if count == 4:
        assert session.run(element) == [2, 3]
    refused = tf.errors.InvalidArgumentError if count == 3 else tf.errors.OutOfRangeError
    with pytest.raises(refused, match=TEXT if count == 3 else None):
        session.run(element)


def test_next_element_belongs_to_eager_code():
    iterator = iter(core.MirroredStrategy(TWO).distribute_dataset(scalars(4)))
    with pytest.raises(RuntimeError, match=r"Only eager code.*Call next\(\) outside"):
        tf.function(lambda: next(iterator).values)()


def test_batches_end_in_zero_rows(session):
    strategy = core.MirroredStrategy(TWO)
    dataset = strategy.distribute_dataset(lambda: tf.data.Dataset.range(3).batch(1))
    element = strategy.unwrap(tf1.data.make_one_shot_iterator(dataset).get_next())
    session.run(element)
    assert [part.tolist() for part in session.run(element)] == [[2], []]


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
@pytest.mark.parametrize("made", [tf.sparse.from_dense, tf.RaggedTensor.from_tensor])
def test_sparse_and_ragged_batches_end_in_zero_rows(session, made):
    strategy = core.MirroredStrategy(TWO)
    dataset = strategy.distribute_dataset(
        lambda: tf.data.Dataset.from_tensors(made(tf.constant([[1]]))).repeat(3)
    )
    parts = strategy.unwrap(tf1.data.make_one_shot_iterator(dataset).get_next())
    numbers = [rows.count(part) for part in parts]
    assert parts[1].shape.as_list()[0] is None
    assert session.run(numbers) == [1, 1]
    assert session.run(numbers) == [1, 0]


@pytest.mark.parametrize(
    "structure", [lambda x: (x,), lambda x: Point(x, x), lambda x: ({"a": x}, (x, x))]
)
def test_an_uneven_end_keeps_the_structure_of_elements(structure):
    strategy = core.MirroredStrategy([*TWO, "/cpu:2"])
    dataset = strategy.distribute_dataset(lambda: tf.data.Dataset.range(4).batch(1).map(structure))
    last = strategy.unwrap(list(dataset)[-1])
    assert len(last) == 3
    for part, length in zip(last, (1, 0, 0), strict=True):
        tf.nest.assert_same_structure(part, structure(0))
        assert {leaf.shape[0] for leaf in tf.nest.flatten(part)} == {length}


def test_batches_of_three_devices_are_each_on_its_own():
    strategy = core.MirroredStrategy([*TWO, "/cpu:2"])
    config = tf1.ConfigProto(allow_soft_placement=False, device_count={"CPU": 8})
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        dataset = strategy.distribute_dataset(lambda: tf.data.Dataset.range(4).batch(1))
        parts = strategy.unwrap(dataset.make_one_shot_iterator().get_next())
        assert [part.device[-1] for part in parts] == ["0", "1", "2"]
        assert [part.tolist() for part in session.run(parts)] == [[0], [1], [2]]
        assert [part.tolist() for part in session.run(parts)] == [[3], [], []]
