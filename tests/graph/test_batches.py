"""Splitting: rows in order, shards that differ by at most one row, clear refusals."""

import collections
import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.graph import rows as row_runs

Pair = collections.namedtuple("Pair", ["left", "right"])
MODES = ("eager", "graph", "function")


def run(mode, make):
    """Builds and evaluates `make()` eagerly, in a graph's session, or in a function."""
    if mode == "eager":
        return evaluated(make())
    if mode == "function":
        return evaluated(tf.function(make, autograph=False)())
    with tf.Graph().as_default(), tf1.Session() as session:
        made = make()
        return tf.nest.map_structure(
            lambda leaf: _plain(session.run(leaf)) if tf.is_tensor(leaf) else leaf, made
        )


def evaluated(nest):
    return tf.nest.map_structure(lambda leaf: None if leaf is None else _plain(leaf), nest)


def _plain(value):
    """Turns a tensor or its value into an array; sparse ones become dense, ragged ones lists."""
    if isinstance(value, tf1.SparseTensorValue):
        dense = np.zeros(value.dense_shape, value.values.dtype)
        dense[tuple(value.indices.T)] = value.values
        return dense
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value).numpy()
    if isinstance(value, (tf.RaggedTensor, tf1.ragged.RaggedTensorValue)):
        return value.to_list()
    return value.numpy() if isinstance(value, tf.Tensor) else value


def dynamic(array):
    """A tensor whose first dimension only a run tells."""
    tensor = tf1.placeholder_with_default(tf.constant(array), [None, *np.shape(array)[1:]])
    return tensor


def rows(count, width=2):
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def sparse_rows(count):
    """Row i holds i + 1 in column i % 3."""
    indices = [[i, i % 3] for i in range(count)]
    return tf.SparseTensor(
        np.array(indices, np.int64), tf.range(1, count + 1), np.array([count, 3], np.int64)
    )


def ragged_rows(count):
    """Row i holds i % 3 numbers."""
    return tf.ragged.constant([list(range(i % 3)) for i in range(count)], dtype=tf.int32)


def expected_counts(total, num_towers):
    """The law itself: one row after the other is dealt, then towers keep runs."""
    counts = [0] * num_towers
    for row in range(total):
        counts[row % num_towers] += 1
    return counts


def unknown(value):
    """The same tensor, whose number of rows only a run tells."""
    if isinstance(value, tf.SparseTensor):
        shape = tf1.placeholder_with_default(value.dense_shape, [2])
        return tf.SparseTensor(value.indices, value.values, shape)
    if isinstance(value, tf.RaggedTensor):
        splits = tf1.placeholder_with_default(value.row_splits, [None])
        return tf.RaggedTensor.from_row_splits(value.values, splits, validate=False)
    return tf1.placeholder_with_default(value, [None, *value.shape[1:]])


LEAVES = {
    "dense": lambda count: tf.constant(rows(count)),
    "vector": lambda count: tf.range(count),
    "truths": lambda count: tf.range(count) % 3 > 0,
    "strings": lambda count: tf.strings.as_string(tf.range(count)),
    "sparse": sparse_rows,
    "ragged": ragged_rows,
    "scalar": lambda count: tf.constant(3),
    "none": lambda count: None,
}
NESTS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(st.sampled_from("abc"), parts, max_size=3),
        st.tuples(parts, parts),
        st.builds(Pair, parts, parts),
    ),
    max_leaves=6,
)


def dealt(kind, total, num_towers, tower_id):
    """What tower `tower_id` should get of a leaf, cut by NumPy."""
    if kind in ("scalar", "none"):
        return 3 if kind == "scalar" else None
    counts = expected_counts(total, num_towers)
    begin = sum(counts[:tower_id]) if counts[tower_id] else 0
    whole = _plain(LEAVES[kind](total))
    return whole[begin : begin + max(counts[tower_id], 1)]


@settings(max_examples=40, deadline=None)
@given(
    features=NESTS,
    labels=NESTS,
    total=st.integers(1, 40),
    num_towers=st.integers(1, 8),
    unknown_leaves=st.sets(st.integers(0, 12)),
    mode=st.sampled_from(MODES),
)
def test_every_nest_is_dealt_to_every_tower(
    features, labels, total, num_towers, unknown_leaves, mode
):
    kinds = tf.nest.flatten((features, labels))
    batched = [kind for kind in kinds if kind not in ("scalar", "none")]

    def make():
        leaves = []
        for i, kind in enumerate(kinds):
            leaf = LEAVES[kind](total)
            hidden = mode == "graph" and i in unknown_leaves and kind in batched
            leaves.append(unknown(leaf) if hidden else leaf)
        nests = tf.nest.pack_sequence_as((features, labels), leaves)
        return batches.split_batch(*nests, num_towers)

    if not batched and num_towers > 1:
        with tf.Graph().as_default(), pytest.raises(errors.BatchError, match=r"no rows|no tensors"):
            make()
        return
    expected = [[dealt(kind, total, num_towers, i) for kind in kinds] for i in range(num_towers)]
    batch = run(mode, make)
    if num_towers > 1:
        counts = expected_counts(total, num_towers)
        assert int(batch.total) == total
        assert [bool(truth) for truth in batch.parts.has_rows] == [n > 0 for n in counts]
        np.testing.assert_allclose(batch.parts.weights, [n / total for n in counts], rtol=1e-6)
    for i in range(num_towers):
        pair = (batch.features[i], batch.labels[i])
        for found, wanted in zip(flatten_up_to(features, labels, pair), expected[i], strict=True):
            np.testing.assert_equal(found, wanted)


def flatten_up_to(features, labels, pair):
    """Lists leaves in TensorFlow's order; a ragged leaf's nested lists stay whole."""
    found = []

    def visit(shallow, deep):
        if isinstance(shallow, dict):
            for key in sorted(shallow):
                visit(shallow[key], deep[key])
        elif isinstance(shallow, (list, tuple)):
            for part, value in zip(shallow, deep, strict=True):
                visit(part, value)
        else:
            found.append(deep)

    visit((features, labels), pair)
    return found


def test_static_batch_gives_static_shapes(fresh_graph):
    features = {
        "dense": tf.zeros([5, 7]),
        "sparse": tf.SparseTensor([[4, 1]], [1.0], [5, 3]),
        "ragged": ragged_rows(5),
    }
    batch = batches.split_batch(features, tf.zeros([5]), 2)
    assert [shard["dense"].shape.as_list() for shard in batch.features] == [[3, 7], [2, 7]]
    assert [shard["sparse"].shape.as_list() for shard in batch.features] == [[3, 3], [2, 3]]
    assert [shard["ragged"].shape.as_list() for shard in batch.features] == [[3, None], [2, None]]
    assert [shard.shape.as_list() for shard in batch.labels] == [[3], [2]]


def test_dynamic_batch_keeps_the_other_dimensions(fresh_graph):
    features = (
        tf1.placeholder(tf.float32, [None, 7]),
        tf1.sparse_placeholder(tf.float32, [None, 3]),
        tf1.placeholder(tf.float32, None),
    )
    batch = batches.split_batch(features, None, 2)
    assert [shard[0].shape.as_list() for shard in batch.features] == [[None, 7]] * 2
    assert [shard[1].shape.as_list() for shard in batch.features] == [[None, 3]] * 2
    assert [shard[2].shape.rank for shard in batch.features] == [None, None]


def test_one_known_batch_dimension_is_known_of_all(fresh_graph, session):
    features = {"a": dynamic(rows(5)), "b": tf.constant(rows(5))}
    batch = batches.split_batch(features, None, 2)
    assert batch.parts.weights == (3 / 5, 2 / 5)
    assert batch.features[0]["a"].shape.as_list() == [3, 2]
    np.testing.assert_array_equal(session.run(batch.features[1]["a"]), rows(5)[3:])


def test_one_tower_gets_what_came(fresh_graph):
    features, labels = {"x": np.zeros([3, 1])}, tf.zeros([3])
    before = len(fresh_graph.get_operations())
    batch = batches.split_batch(features, labels, 1)
    assert batch.features[0] is features
    assert batch.labels[0] is labels
    assert batch.parts == batches.WHOLE
    assert len(fresh_graph.get_operations()) == before


@pytest.mark.parametrize("mode", MODES)
def test_uniform_and_nested_ragged_dimensions_stay(mode):
    def make():
        values = tf.ragged.constant([[1], [2, 3], [], [4], [5], [6, 7]], dtype=tf.int32)
        uniform = tf.RaggedTensor.from_uniform_row_length(values, 2)
        nested = tf.RaggedTensor.from_row_lengths(
            tf.RaggedTensor.from_row_lengths(tf.constant([8, 9, 10]), [1, 2]), [2, 0, 0]
        )
        batch = batches.split_batch({"u": uniform, "n": nested}, None, 2)
        assert [shard["u"].shape.as_list() for shard in batch.features] == [
            [2, 2, None],
            [1, 2, None],
        ]
        return batch.features

    first, second = run(mode, make)
    assert first == {"u": [[[1], [2, 3]], [[], [4]]], "n": [[[8], [9, 10]], []]}
    assert second == {"u": [[[5], [6, 7]]], "n": [[]]}


def test_gradients_flow_to_every_row(session):
    whole = tf.constant(rows(3))
    batch = batches.split_batch({"x": whole}, None, 2)
    # d/dx of the first shard's sum plus 10 times the second's.
    loss = tf.reduce_sum(batch.features[0]["x"]) + 10.0 * tf.reduce_sum(batch.features[1]["x"])
    (gradient,) = tf1.gradients(loss, whole)
    np.testing.assert_array_equal(session.run(gradient), [[1, 1], [1, 1], [10, 10]])


@pytest.mark.parametrize(
    ("features", "labels", "text"),
    [
        ({"image": rows(10)}, rows(9), r'^features\["image"\] has 10 rows, labels have 9\.'),
        (
            {"a": [rows(1)]},
            Pair(None, rows(2)),
            r'features\["a"\]\[0\] has 1 row, labels.right has',
        ),
        (rows(0), None, "one row or more; features have 0 rows"),
        (None, None, "no tensors at all"),
        ({"a": 1.0}, None, r'scalars features\["a"\]'),
        ({"f": object()}, rows(2), r'features\["f"\] is object'),
    ],
)
def test_a_batch_whose_rows_do_not_agree_is_refused(features, labels, text):
    with pytest.raises(errors.BatchError, match=text):
        batches.split_batch(features, labels, 2)


@pytest.mark.thorough("graph")
@pytest.mark.parametrize("mode", ["graph", "function"])
def test_disagreement_in_a_run_is_an_invalid_argument(mode):
    @contextlib.contextmanager
    def refused():
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows differ between") as caught:
            yield
        assert 'features["x"], labels' in caught.value.message.replace("\\", "")
        assert "[4 3]" in caught.value.message

    if mode == "graph":
        with tf.Graph().as_default(), tf1.Session() as session:
            batch = batches.split_batch({"x": dynamic(rows(4))}, dynamic(rows(3)), 2)
            for part in (batch.features[0]["x"], batch.features[1]["x"], batch.labels[1]):
                with refused():
                    session.run(part)
        return

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2])])
    def split(x, y):
        return batches.split_batch({"x": x}, y, 2).features

    split(rows(4), rows(4))
    with refused():
        split(rows(4), rows(3))


def test_no_rows_in_a_run_are_an_invalid_argument(session):
    batch = batches.split_batch({"x": dynamic(rows(0))}, None, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one row or more"):
        session.run(batch.features[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("has_rows", "left"), [(False, 0), (True, 3)])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_all_rows_of_every_kind_are_kept_or_none(mode, has_rows, left, is_tensor):
    def make():
        nest = {"d": tf.constant(rows(3)), "s": sparse_rows(3), "r": ragged_rows(3)}
        has = tf.constant(has_rows) if is_tensor else has_rows
        return {name: row_runs.kept(leaf, has) for name, leaf in nest.items()}

    kept = run(mode, make)
    np.testing.assert_array_equal(kept["d"], rows(3)[:left])
    np.testing.assert_array_equal(kept["s"], np.array([[1, 0, 0], [0, 2, 0], [0, 0, 3]])[:left])
    assert kept["r"] == [[], [0], [0, 1]][:left]


def test_leaves_share_the_arithmetic_of_the_split(fresh_graph):
    def operations(num_leaves):
        with tf.Graph().as_default() as graph:
            features = [tf1.placeholder(tf.float32, [None, 2]) for _ in range(num_leaves)]
            before = len(graph.get_operations())
            batches.split_batch(features, None, 4)
            return len(graph.get_operations()) - before

    # A further leaf costs its row count, one gate, and K slices with their constants.
    assert operations(12) - operations(11) <= 5 + 1 + 4 * 7
