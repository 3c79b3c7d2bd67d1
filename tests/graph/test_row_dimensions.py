"""Which dimensions are rows: by what is unknown, by two probes, by the whole batch's graph."""

import logging

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, row_dimensions


def dimensions(*given):
    """The dimensions of one tower's tensors that are rows."""
    return row_dimensions.RowDimensions(given, ancestry.Descent([tensor.op for tensor in given]))


# Nothing but the rows is unknown.


def test_what_is_unknown_is_rows(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 3])
    found = dimensions(x)
    assert found.of(x) == (0,)
    assert found.of(tf.exp(x)) == (0,)
    assert found.of(tf.transpose(x)) == (1,)
    assert found.of(tf.expand_dims(x, 0)) == (1,)
    assert found.of(tf.matmul(x, x, transpose_b=True)) == (0, 1)
    assert found.of(tf.reduce_sum(x, 0)) == ()
    assert found.of(tf.reduce_sum(x)) == ()
    assert found.of(tf.matmul(x, x, transpose_a=True)) == ()


def test_weights_have_no_rows(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 3])
    other = tf1.placeholder(tf.float32, [None, 3])  # unknown, and not made from the batch
    found = dimensions(x)
    assert found.of(tf.ones([7, 3])) == ()
    assert found.of(other) == ()
    assert found.of(other * 2.0, is_certain=True) == ()
    assert found.of(x * other[:1]) == (0,)


def test_an_unknown_rank_is_not_told(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 3])
    found = dimensions(x)
    shape = tf.concat([tf.shape(x), tf.range(tf.size(x))], 0)
    reshaped = tf.reshape(x, shape)
    assert reshaped.shape.rank is None
    assert found.of(reshaped) is None
    unrelated = tf1.placeholder(tf.float32, None)
    assert found.of(unrelated) == ()


def test_a_batch_of_unknown_rank_is_not_told(fresh_graph):
    x, y = tf1.placeholder(tf.float32, None), tf1.placeholder(tf.float32, [None, 3])
    found = dimensions(x, y)
    assert found.of(x) is None
    assert found.of(tf.exp(x)) is None
    assert found.of(y) == (0,)


# What TensorFlow infers once the batch is known.


def test_a_length_that_is_inferred_once_the_batch_is_known_is_no_rows(fresh_graph):
    """B rows of 4 numbers, taken apart and put together: 4 B / B columns, says a run alone."""
    x = tf1.placeholder(tf.float32, [None, 4])
    again = tf.reshape(tf.reshape(x, [-1]), tf.stack([tf.shape(x)[0], -1]))
    assert again.shape.as_list() == [None, None]
    found = dimensions(x)
    assert found.of(again) == (0, 1)  # which costs nothing
    assert found.of(again, is_certain=True) == (0,)
    assert found.of(tf.reduce_sum(again, 0), is_certain=True) == ()


def test_a_reshape_to_one_axis_keeps_its_rows(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 4])
    found = dimensions(x)
    for is_certain in (False, True):
        assert found.of(tf.reshape(x, [-1]), is_certain=is_certain) == (0,)
        assert found.of(tf.reshape(x, [-1, 2]), is_certain=is_certain) == (0,)
        assert found.of(tf.reshape(x, [4, -1]), is_certain=is_certain) == (1,)


def test_what_depends_on_the_data_is_rows(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 3])
    found = dimensions(x)
    kept = tf.boolean_mask(x, x[:, 0] > 0.0)
    places = tf.where(x > 0.0)
    unique, _ = tf.unique(x[:, 0])
    for is_certain in (False, True):
        assert found.of(kept, is_certain=is_certain) == (0,)
        assert found.of(places, is_certain=is_certain) == (0,)
        assert found.of(unique, is_certain=is_certain) == (0,)


# Padded sequences.


def test_time_is_no_rows(fresh_graph):
    tokens = tf1.placeholder(tf.float32, [None, None, 4])
    found = dimensions(tokens)
    assert found.of(tokens) == (0,)
    assert found.of(tf.transpose(tokens, [1, 0, 2])) == (1,)
    assert found.of(tf.reduce_sum(tokens, 0)) == ()
    assert found.of(tf.reduce_sum(tokens, 1)) == (0,)
    assert found.of(tf.matmul(tokens, tokens, transpose_b=True)) == (0,)
    assert found.of(tf.reshape(tokens, [-1, 4])) == (0,)
    assert found.of(tf.reshape(tokens, [-1])) == (0,)


def test_what_is_made_of_lengths_is_no_rows(fresh_graph):
    tokens = tf1.placeholder(tf.float32, [None, None, 4])
    found = dimensions(tokens)
    length, rows = tf.shape(tokens)[1], tf.shape(tokens)[0]
    assert found.of(tf.ones(tf.stack([length, length]))) == ()
    assert found.of(tf.range(length)) == ()
    assert found.of(tf.range(rows)) == (0,)
    assert found.of(tf.zeros(tf.stack([length, rows]))) == (1,)


def test_masked_tokens_are_rows(fresh_graph):
    tokens = tf1.placeholder(tf.float32, [None, None])
    kept = tf.boolean_mask(tokens, tokens > 0.0)
    assert dimensions(tokens).of(kept) == (0,)


def test_several_tensors_share_their_rows(fresh_graph):
    tokens = tf1.placeholder(tf.float32, [None, None])
    labels = tf1.placeholder(tf.float32, [None])
    found = dimensions(tokens, labels)
    assert found.of(tokens * labels[:, None]) == (0,)
    assert found.of(labels[None] * tf.transpose(tokens)) == (1,)


def test_a_probe_asks_about_each_tensor_once(fresh_graph):
    tokens = tf1.placeholder(tf.float32, [None, None, 4])
    found = dimensions(tokens)
    first = tf.exp(tokens)
    assert found.of(first) == (0,)
    (probe, _) = found._probes
    before = len(probe._graph.get_operations())
    assert found.of(first) == (0,)
    assert len(probe._graph.get_operations()) == before
    assert found.of(tf.sqrt(first)) == (0,)
    assert len(probe._graph.get_operations()) == before + 1


def test_a_model_that_no_probe_fits_falls_back_to_what_is_unknown(fresh_graph, caplog):
    """Sixteen rows are fine; the probe's 2520 do not stand beside a table of 16."""
    tokens = tf1.placeholder(tf.float32, [None, None])
    found = dimensions(tokens)
    table = tf.zeros([16, 3])
    rows = tf.shape(tokens)[0]
    padded = tf.concat([table, tf.zeros(tf.stack([rows, 3]))], 1)
    assert padded.shape.as_list() == [16, 6]
    late = tokens * tf.reduce_sum(padded)
    with caplog.at_level(logging.DEBUG, "replicate"):
        assert found.of(late) == (0, 1)
    assert "cannot be inferred" in caplog.text
    assert found.of(tf.exp(tokens)) == (0, 1)  # nobody asks again
    assert found.of(tf.reduce_sum(late)) == ()


def test_a_length_that_no_probe_knows_falls_back(fresh_graph):
    """A table of 16 places does not take the probe's 48 tokens."""
    tokens = tf1.placeholder(tf.float32, [None, None])
    places = tf.ones([16])
    placed = tokens + tf.reshape(places, [1, 16])
    assert placed.shape.as_list() == [None, 16]
    found = dimensions(tokens)
    assert found.of(placed * 2.0) == (0,)
    assert found.of(tokens) == (0, 1)  # nobody knows better any more


# A static batch, beside the graph of the whole one.


@pytest.fixture
def two_graphs(fresh_graph):
    """Builds a tensor on a tower's 3 rows and, in another graph, on the batch's 7."""

    def build(make, inner=(3,)):
        x = tf1.placeholder(tf.float32, [3, *inner])
        with tf.Graph().as_default():
            whole = make(tf1.placeholder(tf.float32, [7, *inner]))
        return dimensions(x), make(x), whole

    return build


@pytest.mark.parametrize(
    ("make", "axes"),
    [
        (lambda x: x, (0,)),
        (tf.transpose, (1,)),
        (lambda x: tf.reshape(x, [-1]), (0,)),
        (lambda x: tf.matmul(x, x, transpose_b=True), (0, 1)),
        (lambda x: tf.matmul(x, x, transpose_a=True), ()),
        (lambda x: tf.reduce_sum(x, 0), ()),
        (lambda x: tf.ones([3, 3]), ()),
        (lambda x: tf.zeros([x.shape[0], 3]), (0,)),  # folded, and as many as rows
        (lambda x: tf.boolean_mask(x, x[:, 0] > 0.0), (0,)),
        (lambda x: tf.reduce_sum(x[:2]), ()),
    ],
)
def test_what_differs_from_the_whole_batch_is_rows(two_graphs, make, axes):
    found, tensor, whole = two_graphs(make)
    assert found.of(tensor, whole) == axes


def test_as_many_rows_as_columns_are_told_apart(two_graphs):
    found, tensor, whole = two_graphs(lambda x: tf.concat([x, tf.transpose(x)[:, :3]], 0))
    assert tensor.shape.as_list() == [6, 3]
    assert found.of(tensor, whole) == (0,)


def test_without_the_whole_batch_a_static_batch_shows_nothing(two_graphs):
    found, tensor, _ = two_graphs(tf.exp)
    assert found.of(tensor) == ()


def test_ranks_that_differ_show_nothing(two_graphs):
    found, tensor, _ = two_graphs(tf.exp)
    assert found.of(tensor, tf.zeros([7])) == ()


# Slices of lists, as shapes are sliced.


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda shape: shape[0], [10]),
        (lambda shape: shape[-1], [30]),
        (lambda shape: shape[1:], [20, 30]),
        (lambda shape: shape[:2], [10, 20]),
        (lambda shape: shape[::2], [10, 30]),
        (lambda shape: shape[:], [10, 20, 30]),
        (lambda shape: shape[:-1], [10, 20]),
        (lambda shape: shape[::-1], [30, 20, 10]),
    ],
)
def test_slices_are_those_of_lists(fresh_graph, take, expected):
    shape = tf.shape(tf1.placeholder(tf.float32, [None, None, None]))
    assert row_dimensions.sliced(take(shape).op, [10, 20, 30]) == expected


def test_a_slice_that_only_a_run_knows_is_not_told(fresh_graph):
    shape = tf.shape(tf1.placeholder(tf.float32, [None, None, None]))
    place = tf1.placeholder(tf.int32, [])
    assert row_dimensions.sliced(shape[place].op, [10, 20, 30]) is None
    assert row_dimensions.sliced(shape[:place].op, [10, 20, 30]) is None
    assert row_dimensions.sliced(shape[tf.newaxis, 1:].op, [10, 20, 30]) is None
