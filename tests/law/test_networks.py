"""Models in which rows meet, and models that only look so: all are one device's, quietly."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import control_flow, exactness
from tests.law import losses, running

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
double = tf.float64


# Losses in which rows meet.


def the_hardest_row(f, y, v):
    return tf.reduce_max(losses.cross(f, y, v))


def a_branch(f, y, v):
    rows = losses.cross(f, y, v)
    return tf.cond(
        tf.reduce_sum(v.b) > 0.0, lambda: tf.reduce_mean(rows), lambda: tf.reduce_sum(rows)
    )


def a_function(f, y, v):
    @tf.function
    def total(rows):
        return tf.reduce_sum(rows) / 7.0

    return total(losses.cross(f, y, v))


def centred_rows(f, y, v):
    """A mean of rows, which flows back into each row."""
    hidden = losses.logits(f, v)
    hidden = hidden - tf.reduce_mean(hidden, 0)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


def own_widths(f, y, v):
    """A mask as wide as the longest of all rows."""
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    mask = tf.sequence_mask(lengths, dtype=double)
    return tf.reduce_mean(mask) * tf.reduce_sum(v.b)


def a_sum_in_a_function(f, y, v):
    """Both of a quotient's sums are hidden in a function."""

    @tf.function
    def quotient(rows, weights):
        return tf.math.divide_no_nan(tf.reduce_sum(rows * weights), tf.reduce_sum(weights))

    return quotient(losses.cross(f, y, v), f["mask"])


def a_loop_of_means(f, y, v):
    """A loop whose body takes the mean of all rows off, and reads two variables."""
    start = (0, tf.tanh(losses.logits(f, v)))
    w, b = v.variables["w"], v.variables["b"]

    def step(i, hidden):
        hidden = tf.tanh(tf.matmul(hidden, w.read_value()) + b.read_value())
        return i + 1, hidden - tf.reduce_mean(hidden, 0)

    _, hidden = tf.while_loop(lambda i, hidden: i < 3, step, start)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


MEETING = [
    own_widths,
    the_hardest_row,
    a_branch,
    a_function,
    a_sum_in_a_function,
    centred_rows,
]


# Networks in which no row meets another.


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


def masked_recurrent(f, y):
    """Padding is known by its zeros, and ends a row."""
    tokens = tf.keras.layers.Masking(dtype=double)(f["tokens"] * f["is_token"][:, :, None])
    return tf.keras.layers.GRU(
        3,
        kernel_initializer=exactness.start,
        recurrent_initializer=exactness.start,
        dtype=double,
    )(tokens)


def recurrent_both_ways(f, y):
    """Of each token, what went before and what comes."""
    start = tf.keras.initializers.Constant(0.3)
    options = {"kernel_initializer": start, "recurrent_initializer": start, "dtype": double}
    layer = tf.keras.layers.SimpleRNN(2, return_sequences=True, **options)
    both = tf.keras.layers.Bidirectional(layer, dtype=double)(f["tokens"])
    return tf.reduce_max(start_dense(both, 3), 1)


def attention_of_two_heads(f, y):
    query = start_dense(f["tokens"], 4)
    rows, length = tf.unstack(tf.shape(query)[:2])
    heads = tf.transpose(tf.reshape(query, [rows, length, 2, 2]), [0, 2, 1, 3])
    weights = tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True) / 2.0)
    seen = tf.transpose(tf.matmul(weights, heads), [0, 2, 1, 3])
    return tf.reduce_sum(start_dense(tf.reshape(seen, [rows, length, 4]) + query, 3), 1)


def chosen_tokens(f, y):
    """The last token of each row, the one with the highest score, the two highest scores."""
    hidden = start_dense(f["tokens"], 3)
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    last = tf.gather_nd(hidden, tf.stack([tf.range(tf.shape(hidden)[0]), lengths - 1], 1))
    best = tf.gather(hidden, tf.argmax(f["tokens"][:, :, 0], 1)[:, None], batch_dims=1)
    return last + best[:, 0] + tf.reduce_sum(tf.math.top_k(hidden[:, 0], 2)[0], 1)[:, None]


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
    masked_recurrent,
    recurrent_both_ways,
    attention_of_two_heads,
    chosen_tokens,
]


def training(loss):
    def step(f, y, v):
        return loss(f, y, v), tf1.no_op()

    return running.training(step)


def over(network):
    def loss(f, y, v):
        return tf.reduce_mean(tf.square(network(f, y) - y["y"]))

    return loss


@pytest.mark.parametrize(("loss", "setting"), running.in_turn(MEETING))
def test_rows_that_meet_are_those_of_the_whole_batch(loss, setting):
    running.require_exact(training(loss), setting, optimizer_fn=running.momentum)


@pytest.mark.parametrize(("network", "setting"), running.in_turn(NETWORKS))
def test_rows_that_never_meet_are_exact(network, setting):
    running.require_exact(training(over(network)), setting, optimizer_fn=running.momentum)


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", ["parameter_server", "round_robin", "balanced", "mirrored"])
def test_a_loop_that_runs_once_reads_variables_wherever_they_are(strategy):
    setting = running.SETTINGS[0]._replace(strategy=strategy)
    running.require_exact(training(a_loop_of_means), setting, optimizer_fn=running.momentum)


def a_loop_of_rows(f, y, v):
    """A loop whose body reads a variable, and in which no rows meet."""
    start = (0, tf.tanh(losses.logits(f, v)))
    w = v.variables["w"]

    def step(i, hidden):
        return i + 1, tf.tanh(tf.matmul(hidden, w.read_value()))

    _, hidden = tf.while_loop(lambda i, hidden: i < 3, step, start)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


@pytest.mark.parametrize("strategy", ["parameter_server", "round_robin", "balanced", "mirrored"])
@pytest.mark.parametrize("loss", [a_loop_of_means, a_loop_of_rows])
def test_what_a_loop_of_version_1_keeps_of_variables_is_kept_anywhere(loss, strategy):
    def model(features, labels, mode):
        value = loss(features, labels, losses.Weights())
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(value, colocate_gradients_with_ops=True)
        step = optimizer.apply_gradients(pairs, tf1.train.get_global_step())
        return exactness.spec_of(mode, value, train_op=step)

    with control_flow.of_version(1):
        running.require_exact(model, running.SETTINGS[0]._replace(strategy=strategy))
