"""Losses of what public code is made of, and which looks as if rows met in it."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness

LENGTH = 4


def _error(found, y):
    return tf.reduce_mean(tf.square(found - tf.cast(y["y"], found.dtype)))


def _table(rows, width=3):
    return tf1.get_variable("table", [rows, width], tf.float32, exactness.start)


def quotient_behind_a_padding(f, y, v):
    """A mean over the rows that count, of what is clipped or padded to a length."""
    tokens, length = f["tokens"], tf.shape(f["tokens"])[1]
    found = tf.cond(
        length > LENGTH,
        lambda: tokens[:, :LENGTH],
        lambda: tf.pad(tokens, [[0, 0], [0, LENGTH - length], [0, 0]]),
    )
    found = tf.reshape(found, [-1, LENGTH, 3])
    found = tf.reduce_max(tf.tanh(tf.tensordot(found, v.w, 1)), 1)
    return tf1.losses.mean_squared_error(y["y"], found, f["mask"][:, None])


def crossed_columns(f, y, v):
    column = tf.feature_column
    real = column.bucketized_column(column.numeric_column("real"), [0.2, 1.0])
    crossed = column.crossed_column([real, "kind"], 7)
    columns = [column.embedding_column(crossed, 2, initializer=exactness.start), real]
    kinds = tf.strings.as_string(tf.cast(f["mask"], tf.int32))
    found = tf1.feature_column.input_layer({"real": f["real"], "kind": kinds}, columns)
    return _error(tf.cast(found, v.w.dtype)[:, :3] @ v.w, y)


def tokens_of_texts(f, y, v):
    texts = tf.strings.reduce_join(tf.strings.as_string(y["words"]), 1, separator=" ")
    words = tf.strings.split(texts)
    ids = tf.strings.to_hash_bucket_fast(words.flat_values, 6)
    found = words.with_flat_values(tf.nn.embedding_lookup(_table(6), ids))
    return _error(tf.reduce_mean(found, 1), y)


def without_padding(f, y, v):
    """Layers that see no padding, which is taken out before and put back behind them."""
    shape = tf.shape(f["tokens"])
    places = tf.cast(tf.where(tf.reshape(f["is_token"], [-1]) > 0.0), tf.int32)
    found = tf.tanh(tf.gather_nd(tf.reshape(f["tokens"], [-1, 3]), places) @ v.w)
    found = tf.scatter_nd(places, found, [shape[0] * shape[1], 3])
    return _error(tf.reduce_sum(tf.reshape(found, shape), 1), y)


def _lengths_of(f):
    return tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)


def _scores_of(f, v):
    """Of three labels and a blank, [T, B, 4]."""
    scores = tf.tensordot(
        tf.transpose(f["tokens"], [1, 0, 2]), tf.concat([v.w, v.b[:, None]], 1), 1
    )
    return tf.cast(scores, tf.float32)


def ctc_of_dense_labels(f, y, v):
    labels = tf.cast(y["words"][:, :1], tf.int32)
    ones = tf.ones_like(labels[:, 0])
    losses = tf.nn.ctc_loss(labels, _scores_of(f, v), ones, _lengths_of(f), blank_index=3)
    return tf.reduce_mean(losses)


def vectorized_map(f, y, v):
    return _error(tf.vectorized_map(lambda x: tf.tanh(tf.linalg.matvec(v.w, x)), f["x"]), y)


def ragged_lengths(f, y, v):
    ragged = tf.RaggedTensor.from_tensor(f["tokens"], _lengths_of(f))
    hidden = ragged.with_flat_values(tf.tanh(ragged.flat_values @ v.w))
    sums = tf.reduce_sum(hidden, 1)
    return _error(sums / tf.cast(ragged.row_lengths(), sums.dtype)[:, None], y)


def sampled_softmax(f, y, v):
    labels = tf.cast(y["class"], tf.int64)[:, None]
    x = tf.cast(f["x"] @ v.w, tf.float32)
    biases = tf.zeros([20])
    return tf.reduce_mean(tf.nn.sampled_softmax_loss(_table(20), biases, labels, x, 4, 20, seed=5))
