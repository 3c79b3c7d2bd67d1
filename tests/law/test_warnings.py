"""What cannot be seen is taken as a mean, with one warning; what can be is taken quietly."""

import logging
import re

import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import default
from tests import exactness
from tests.law import losses, running

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
double = tf.float64
PLACES = ["optimizer_fn", "inside"]


def warned(caplog):
    """Returns the texts of all warnings of the package."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.split(".")[0] == "replicate" and record.levelno >= logging.WARNING
    ]


def training(loss, step=None):
    def make(f, y, v):
        found = loss(f, y, v)
        return found, tf1.no_op() if step is None else step(found, v)

    return running.training(make)


def minimize(loss, v):
    return running.momentum().minimize(loss, tf1.train.get_global_step())


# Each culprit stands in a scope called odd.


def the_hardest_row(f, y, v):
    with tf.name_scope("odd"):
        return tf.reduce_max(losses.cross(f, y, v))


def a_branch(f, y, v):
    rows = losses.cross(f, y, v)
    with tf.name_scope("odd"):
        return tf.cond(
            tf.reduce_sum(v.b) > 0.0, lambda: tf.reduce_mean(rows), lambda: tf.reduce_sum(rows)
        )


def a_function(f, y, v):
    @tf.function
    def total(rows):
        return tf.reduce_sum(rows) / 7.0

    with tf.name_scope("odd"):
        return total(losses.cross(f, y, v))


def contrastive(f, y, v):
    """Each row against all others of its batch."""
    with tf.name_scope("odd"):
        unit = tf.math.l2_normalize(losses.logits(f, v), 1)
        similar = tf.matmul(unit, unit, transpose_b=True)
        places = tf.range(tf.shape(similar)[0])
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(places, similar * 5.0)
    return tf.reduce_mean(found)


def softmax_over_rows(f, y, v):
    with tf.name_scope("odd"):
        share = tf.nn.softmax(losses.logits(f, v), 0)
    return tf.reduce_mean(tf.square(share - y["y"]))


def centred_rows(f, y, v):
    """A mean of the tower's rows, which flows back into each row."""
    hidden = losses.logits(f, v)
    with tf.name_scope("odd"):
        hidden = hidden - tf.reduce_mean(hidden, 0)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


def sorted_rows(f, y, v):
    with tf.name_scope("odd"):
        highest, _ = tf.math.top_k(losses.cross(f, y, v), 1)
    return tf.reduce_mean(highest)


def neighbours(f, y, v):
    hidden = losses.logits(f, v)
    with tf.name_scope("odd"):
        hidden = hidden - tf.roll(hidden, 1, 0)
    return tf.reduce_mean(tf.square(hidden))


def accumulated_rows(f, y, v):
    with tf.name_scope("odd"):
        hidden = tf.cumsum(losses.logits(f, v), 0)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


def own_widths(f, y, v):
    """A mask as wide as the longest of a tower's own rows."""
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    with tf.name_scope("odd"):
        mask = tf.sequence_mask(lengths, dtype=double)
    return tf.reduce_mean(mask) * tf.reduce_sum(v.b)


LOUD = [
    own_widths,
    the_hardest_row,
    a_branch,
    a_function,
    contrastive,
    softmax_over_rows,
    centred_rows,
    sorted_rows,
    neighbours,
    accumulated_rows,
]


@pytest.mark.parametrize("loss", LOUD, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize(("place", "is_static"), [("optimizer_fn", True), ("inside", False)])
def test_what_cannot_be_seen_is_warned_of_once(loss, place, is_static, caplog):
    given = training(loss), running.momentum
    if place == "inside":
        given = training(loss, minimize), None
    towers = model_fn.replicate_model_fn(*given, 3)
    with caplog.at_level(logging.WARNING, "replicate"):
        exactness.run(towers, running.batches(7), is_static=is_static)
    (text,) = warned(caplog)
    assert "odd/" in text
    assert "tower_" not in text
    assert "replicate.verify" in text
    read = re.search(r"(\S+), which reads (\S+):\d", text)
    assert read is None or read[1] != read[2]  # an operation's own result says nothing


@pytest.mark.parametrize("loss", LOUD, ids=lambda loss: loss.__name__)
def test_one_tower_is_never_warned(loss, caplog):
    with caplog.at_level(logging.WARNING, "replicate"):
        running.require_exact(training(loss), None, "train", running.momentum, devices=1)
    assert not warned(caplog)


def taped(step):
    """A model whose gradient a tape takes."""

    def model(features, labels, mode):
        v = losses.Weights()
        with tf.GradientTape() as tape:
            loss = step(features, labels, v)
        gradients = tape.gradient(loss, running.trained(v))
        pairs = zip(gradients, running.trained(v), strict=True)
        return exactness.spec_of(mode, loss, train_op=running.apply(pairs))

    return model


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_tapes_gradient_is_taken_as_a_mean_with_a_warning(strategy, caplog):
    with caplog.at_level(logging.WARNING, "replicate"):
        running.require_exact(taped(losses.mean), strategy=strategy)
    (text,) = warned(caplog)
    assert "replicate.verify" in text
    assert "gradient" in text


@pytest.mark.parametrize("is_static", [True, False])
def test_a_mask_without_a_length_is_told_to_name_it(is_static, caplog):
    towers = model_fn.replicate_model_fn(training(own_widths), running.momentum, 3)
    with caplog.at_level(logging.WARNING, "replicate"):
        exactness.run(towers, running.batches(7), is_static=is_static)
    (text,) = warned(caplog)
    assert "odd/SequenceMask/Range" in text
    assert "maxlen" in text


# What a person says of what cannot be seen.


def hidden_sum(f, y, v):
    @tf.function
    def total(rows):
        return tf.reduce_sum(rows)

    return total(losses.cross(f, y, v))


def hidden_mean(f, y, v):
    @tf.function
    def mean(rows):
        return tf.reduce_mean(rows)

    return mean(losses.cross(f, y, v))


def hidden_quotient(f, y, v):
    @tf.function
    def quotient(rows, weights):
        return tf.math.divide_no_nan(tf.reduce_sum(rows * weights), tf.reduce_sum(weights))

    default.get_tower_context().set_loss_weight(tf.reduce_sum(f["mask"]))
    return quotient(losses.cross(f, y, v), f["mask"])


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (hidden_sum, {"loss_reduction": "sum"}),
        (hidden_mean, {"loss_reduction": "mean"}),
        (hidden_quotient, {}),
    ],
)
@pytest.mark.parametrize(
    ("place", "mode"), [("optimizer_fn", "train"), ("inside", "train"), ("optimizer_fn", "eval")]
)
def test_what_a_model_is_said_to_be_it_is_quietly(loss, options, place, mode, caplog):
    given = training(loss), None, mode, running.momentum
    if place == "inside":
        given = training(loss, minimize), None, mode
    with caplog.at_level(logging.WARNING, "replicate"):
        running.require_exact(*given, **options)
    assert not warned(caplog)


def of_parts(reduce, join):
    """What three towers' parts of a batch of seven rows, joined, are on one device."""

    def loss(f, y, v):
        parts = tf.split(losses.cross(f, y, v), [3, 2, 2])
        return join([reduce(part) for part in parts])

    return loss


def weighted(parts):
    return tf.add_n([part * rows / 7.0 for part, rows in zip(parts, (3, 2, 2), strict=True)])


@pytest.mark.parametrize(
    ("loss", "reduction", "expected"),
    [
        (losses.mean, "sum", of_parts(tf.reduce_mean, tf.add_n)),
        (losses.total, "mean", of_parts(tf.reduce_sum, weighted)),
        (losses.total, tf.VariableAggregation.MEAN, of_parts(tf.reduce_sum, weighted)),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_said_outdoes_what_is_seen(loss, reduction, expected, place):
    given = training(loss), running.batches(7, 7), "train", running.momentum
    reference = training(expected)
    if place == "inside":
        given = training(loss, minimize), running.batches(7, 7)
        reference = training(expected, minimize)
    running.require_exact(*given, loss_reduction=reduction, reference=reference)


# Rows that never meet, in models that look as if they did.


def start_dense(x, width, activation=None):
    return tf1.layers.dense(x, width, activation, kernel_initializer=exactness.start)


def attention(f, y):
    """Every token looks at every token of its row."""
    tokens, mask = f["tokens"], f["is_token"]
    query, key, value = (start_dense(tokens, 3) for _ in range(3))
    scores = tf.matmul(query, key, transpose_b=True) + (mask[:, None, :] - 1.0) * 1e4
    seen = tf.matmul(tf.nn.softmax(scores), value)
    mean = tf.reduce_mean(seen, [1, 2], keepdims=True)
    return start_dense((seen - mean)[:, 0], 3)


def causal_attention(f, y):
    tokens = start_dense(f["tokens"], 3)
    length = tf.shape(tokens)[1]
    past = tf.linalg.band_part(tf.ones([length, length], tokens.dtype), -1, 0)
    scores = tf.einsum("btd,bsd->bts", tokens, tokens) + (past - 1.0) * 1e4
    return tf.einsum("bts,bsd->bd", tf.nn.softmax(scores, 2), tokens)


def embedding(f, y):
    table = tf1.get_variable("table", [4, 3], double, exactness.start)
    places = tf1.get_variable("places", [8, 3], double, exactness.start)
    words = tf.nn.embedding_lookup(table, y["words"])
    words += tf.gather(places, tf.range(tf.shape(words)[1]))[None]
    return tf.reduce_max(words, 1) + tf.cumsum(words, 1)[:, -1]


def recurrent(f, y):
    layer = tf.keras.layers.LSTM(
        3,
        kernel_initializer=exactness.start,
        recurrent_initializer=exactness.start,
        dtype=double,
    )
    return layer(f["tokens"])


def recurrent_before(f, y):
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    with tf1.variable_scope("before", initializer=exactness.start):
        cell = tf1.nn.rnn_cell.GRUCell(3)
        outputs, state = tf1.nn.dynamic_rnn(cell, f["tokens"], lengths, dtype=double)
    return state + outputs[:, 0]


def normalised_units(f, y):
    hidden = start_dense(f["x"], 3)
    layer = tf.keras.layers.LayerNormalization(dtype=double)
    mean, variance = tf.nn.moments(hidden, [1], keepdims=True)
    return layer(hidden) + (hidden - mean) / tf.sqrt(variance + 1.0) + tf.nn.softmax(hidden)


def convolution(f, y):
    hidden = tf1.layers.conv1d(
        f["tokens"], 3, 2, padding="same", kernel_initializer=exactness.start
    )
    return tf.reduce_max(tf.nn.relu(hidden), 1) + tf.sort(hidden[:, 0], 1)


def gathered_tokens(f, y):
    """Places in each row, gathered from all rows in one go, as BERT's code has it."""
    hidden = start_dense(f["tokens"], 3)
    shape = tf.shape(hidden)
    places = tf.cast(tf.argmax(f["picked"], 1), tf.int32)[:, None]
    offsets = tf.reshape(tf.range(0, shape[0]) * shape[1], [-1, 1])
    flat = tf.reshape(hidden, [shape[0] * shape[1], 3])
    return tf.gather(flat, tf.reshape(places + offsets, [-1]))


def flattened_tokens(f, y):
    shape = tf.shape(f["tokens"])
    flat = start_dense(tf.reshape(f["tokens"], [-1, 3]), 3, tf.nn.relu)
    return tf.reduce_sum(tf.reshape(flat, [shape[0], shape[1], 3]), 1)


def masked_lengths(f, y):
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    mask = tf.sequence_mask(lengths, tf.shape(f["tokens"])[1], double)
    hidden = start_dense(f["tokens"], 3) * mask[:, :, None]
    return tf.reduce_sum(hidden, 1) / tf.reduce_sum(mask, 1, keepdims=True)


def time_first(f, y):
    turned = tf.transpose(start_dense(f["tokens"], 3), [1, 0, 2])
    return turned[0] + turned[-1] + tf.concat([turned, turned], 0)[1]


NETWORKS = [
    attention,
    causal_attention,
    embedding,
    recurrent,
    recurrent_before,
    normalised_units,
    convolution,
    gathered_tokens,
    flattened_tokens,
    masked_lengths,
    time_first,
]


def over(network):
    def loss(f, y, v):
        return tf.reduce_mean(tf.square(network(f, y) - y["y"]))

    return loss


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
@pytest.mark.parametrize("is_static", [True, False])
def test_rows_that_never_meet_are_exact_and_quiet(network, is_static, caplog):
    with caplog.at_level(logging.WARNING, "replicate"):
        running.require_exact(
            training(over(network)), None, "train", running.momentum, is_static=is_static
        )
    assert not warned(caplog)


@pytest.mark.parametrize("is_static", [True, False])
def test_dropout_and_noise_are_quiet(is_static, caplog):
    def network(f, y):
        hidden = tf1.layers.dropout(start_dense(f["x"], 8), 0.5, training=True)
        noise = tf.random.normal(tf.shape(hidden), dtype=double)
        return start_dense(
            tf.keras.layers.Dropout(0.5, dtype=double)(hidden + noise, training=True), 3
        )

    towers = model_fn.replicate_model_fn(training(over(network)), running.momentum, 3)
    with caplog.at_level(logging.WARNING, "replicate"):
        exactness.run(towers, running.batches(7), is_static=is_static)
    assert not warned(caplog)
