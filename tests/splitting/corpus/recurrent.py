"""Recurrent models, of version 1 and 2, static and dynamic, and loops over time."""

from replicate.compat.tensorflow import tf, tf1
from tests.splitting.corpus.model import F64, SINGLE, adam, hidden, model, squares, weight


def cell(kind="LSTMCell", width=3, **options):
    options = {"dtype": F64, **options}
    return getattr(tf1.nn.rnn_cell, kind)(width, **options)


@model
def lstm_dynamic_with_lengths(f, y):
    outputs, state = tf1.nn.dynamic_rnn(cell(), f["tokens"], f["lengths"], dtype=F64)
    return squares(state.h, y), {"outputs": outputs, "c": state.c}


@model
def lstm_zero_state(f, y):
    """From a zero state of so many rows, time first."""
    made = cell()
    start = made.zero_state(tf.shape(f["tokens"])[0], F64)
    inputs = tf.transpose(f["tokens"], [1, 0, 2])
    _, state = tf1.nn.dynamic_rnn(made, inputs, initial_state=start, time_major=True)
    return squares(state.h, y), {"h": state.h}


@model
def lstm_bidirectional(f, y):
    cells = cell(width=2), cell(width=2, name="backward")
    (forward, backward), states = tf1.nn.bidirectional_dynamic_rnn(
        *cells, f["tokens"], f["lengths"], dtype=F64
    )
    x = tf.concat([forward, backward], 2)
    found = hidden(tf.concat([states[0].h, states[1].h], 1), 3)
    return squares(found, y) + 0.1 * tf.reduce_mean(tf.square(x)), {"x": x}


@model
def lstm_static_with_lengths(f, y):
    steps = [f["x"], f["other"], f["x"] * f["other"]]
    outputs, state = tf1.nn.static_rnn(cell(), steps, dtype=F64, sequence_length=f["group"] + 1)
    return squares(state.h, y), {"last": outputs[-1]}


@model
def scan_over_time(f, y):
    inputs = tf.transpose(f["tokens"], [1, 0, 2])
    w = weight("w", 3, 3)
    states = tf.scan(lambda h, x: tf.tanh(tf.matmul(h, w) + x), inputs, tf.zeros_like(f["x"]))
    return squares(states[-1], y), {"states": states}


@model
def scan_over_rows(f, y):
    """From row to row: nothing that devices can do each for itself."""
    w = weight("w", 3, 3)
    step = lambda h, x: tf.tanh(tf.linalg.matvec(w, h) + x)  # noqa: E731
    states = tf.scan(step, f["x"], tf.zeros([3], F64))
    return squares(states, y), {"states": states}


@model(optimizer=adam)
def map_over_rows(f, y):
    w = weight("w", 3, 3)
    found = tf.map_fn(lambda x: tf.tanh(tf.linalg.matvec(w, x)), f["x"])
    return squares(found, y), {"found": found}


@model
def fold_over_rows(f, y):
    w = weight("w", 3, 3)
    found = tf.foldl(lambda a, x: tf.tanh(a + tf.linalg.matvec(w, x)), f["x"], tf.zeros([3], F64))
    return squares(found, y), {"found": found}


@model
def loop_until_a_row_is_done(f, y):
    """Ends when the largest entry of all rows is small."""
    w = 0.5 * weight("w", 3, 3)

    def goes_on(i, x):
        return (tf.reduce_max(tf.abs(x)) > 0.05) & (i < 6)

    number, x = tf.while_loop(goes_on, lambda i, x: (i + 1, tf.matmul(x, w)), (0, f["x"]))
    return squares(x, y), {"number": number}


@model
def loop_with_a_batch_mean(f, y):
    """A body that takes the mean of all rows off."""
    w = weight("w", 3, 3)

    def step(i, x):
        x = tf.tanh(tf.matmul(x, w))
        return i + 1, x - tf.reduce_mean(x, 0)

    return squares(tf.while_loop(lambda i, x: i < 3, step, (0, f["x"]))[1], y), {}


@model
def loop_as_long_as_the_batch(f, y):
    """As many times as there are rows, each with a row of its own."""
    w, rows = weight("w", 3, 3), tf.shape(f["x"])[0]
    step = lambda i, x: (i + 1, tf.tanh(tf.matmul(x, w)) + f["x"][i])  # noqa: E731
    return squares(tf.while_loop(lambda i, x: i < rows, step, (0, f["x"]))[1], y), {}


@model
def loops_in_loops(f, y):
    w = weight("w", 3, 3)

    def inner(j, x):
        return j + 1, tf.tanh(tf.matmul(x, w))

    def outer(i, x):
        return i + 1, tf.while_loop(lambda j, x: j < 2, inner, (0, x))[1] + f["x"]

    return squares(tf.while_loop(lambda i, x: i < 3, outer, (0, f["x"]))[1], y), {}


@model
def loop_with_a_tensor_array(f, y):
    w, steps = weight("w", 3, 3), tf.shape(f["tokens"])[1]
    inputs = tf.TensorArray(F64, steps).unstack(tf.transpose(f["tokens"], [1, 0, 2]))
    outputs = tf.TensorArray(F64, steps)

    def step(i, x, outputs):
        x = tf.tanh(tf.matmul(x, w) + inputs.read(i))
        return i + 1, x, outputs.write(i, x)

    _, x, outputs = tf.while_loop(lambda i, *_: i < steps, step, (0, f["x"], outputs))
    found = outputs.stack()
    return squares(x, y) + tf.reduce_mean(tf.square(found)), {"found": found}


@model
def condition_on_a_batch_mean(f, y):
    x = hidden(f["x"], 3)
    mean = tf.reduce_mean(x)
    found = tf.cond(mean > 0.0, lambda: tf.exp(x), lambda: x - mean)
    return squares(found, y), {"found": found}


@model
def condition_around_layers(f, y):
    """A branch keeps for its gradients what it has made."""
    x = tf.cond(
        tf.reduce_mean(f["x"]) > 0.0,
        lambda: hidden(tf.sin(hidden(f["x"], 5)) * 2.0, 3, "out"),
        lambda: hidden(f["x"] - tf.reduce_mean(f["x"], 0), 3, "other"),
    )
    return squares(x, y), {"x": x}


@model
def condition_on_the_number_of_rows(f, y):
    x = hidden(f["x"], 3)
    found = tf.cond(tf.shape(x)[0] > 3, lambda: 2.0 * x, lambda: x - tf.reduce_mean(x, 0))
    return squares(found, y), {"found": found}


@model
def cases_of_a_step(f, y):
    x = hidden(f["x"], 3)
    step = tf1.train.get_global_step()
    found = tf.switch_case(
        tf.cast(step, tf.int32), [lambda: x, lambda: tf.exp(x), lambda: tf.reduce_mean(x, 0) + x]
    )
    return squares(found, y), {"found": found}


@model
def function_called(f, y):
    @tf.function
    def layer(x, w):
        if tf.reduce_sum(w) > 0.0:
            x = tf.tanh(tf.matmul(x, w))
        for _ in tf.range(3):
            x = tf.tanh(tf.matmul(x, w))
        return x

    return squares(layer(f["x"], weight("w", 3, 3)), y), {}


@model
def custom_gradient(f, y):
    @tf.custom_gradient
    def rounded(x):
        return tf.round(4.0 * x), lambda dy: dy * 2.0

    return squares(rounded(hidden(f["x"], 3)), y), {}


@model
def recomputed(f, y):
    @tf.recompute_grad
    def layer(x):
        return tf.tanh(tf.matmul(x, w)) * x

    w = weight("w", 3, 3)
    return squares(layer(f["x"]), y), {}


@model(tolerance=SINGLE)
def crf(f, y):
    """A linear chain (Lafferty et al. 2001): its likelihood, and its best tags."""
    from tests.models import crf as published

    scores = tf.cast(hidden(f["tokens"], published.TAGS), tf.float32)
    transitions = tf.cast(weight("transitions", 3, 3), tf.float32)
    mask = tf.cast(f["is_token"], tf.float32)
    likelihood = published.score_of(scores, y["words"], mask, transitions)
    likelihood -= published.log_normalizer(scores, mask, transitions)
    tags = published.best_tags(scores, mask, transitions)
    return tf.cast(tf.reduce_mean(-likelihood), F64), {"likelihood": likelihood, "tags": tags}


BEAMS, WORDS, STEPS = 2, 4, 3


@model
def beam_search(f, y):
    """Decodes the best sequences of words, behind a layer that is trained."""
    x = hidden(f["x"], WORDS)
    table = weight("table", WORDS, WORDS)
    rows = tf.shape(x)[0]
    scores = tf.tile(tf.constant([[0.0, -1e9]], F64), [rows, 1])
    words = tf.zeros([rows, BEAMS, 1], tf.int32)

    def step(i, scores, words):
        following = tf.nn.log_softmax(tf.gather(table, words[:, :, -1]) + x[:, None])
        total = tf.reshape(scores[:, :, None] + following, [rows, BEAMS * WORDS])
        scores, places = tf.math.top_k(total, BEAMS)
        words = tf.gather(words, places // WORDS, batch_dims=1)
        return i + 1, scores, tf.concat([words, places[:, :, None] % WORDS], 2)

    shapes = (tf.TensorShape([]), scores.shape, tf.TensorShape([None, BEAMS, None]))
    _, scores, words = tf.while_loop(
        lambda i, *_: i < STEPS, step, (0, scores, words), shape_invariants=shapes
    )
    return squares(x[:, :3], y) + 0.1 * tf.reduce_mean(scores), {"scores": scores, "words": words}


@model
def greedy_decoding_until_all_end(f, y):
    """Goes on until every row has said the last word."""
    x, table = hidden(f["x"], WORDS), weight("table", WORDS, WORDS)
    rows = tf.shape(x)[0]
    start = (0, tf.zeros([rows], tf.int32), tf.zeros([rows], bool), tf.zeros([rows], F64))

    def step(i, word, ended, score):
        found = tf.nn.log_softmax(tf.gather(table, word) + x + tf.cast(i, F64) * 0.3)
        word = tf.argmax(found, 1, output_type=tf.int32)
        score += tf.where(ended, tf.zeros_like(score), tf.reduce_max(found, 1))
        return i + 1, word, ended | tf.equal(word, 3), score

    number, word, _, score = tf.while_loop(
        lambda i, word, ended, score: ~tf.reduce_all(ended) & (i < 8), step, start
    )
    return squares(x[:, :3], y) - 0.1 * tf.reduce_mean(score), {"number": number, "word": word}
