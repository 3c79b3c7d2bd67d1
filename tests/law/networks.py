"""Networks in which no row meets another, though some look so."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness

double = tf.float64


def _start_dense(x, width, activation=None):
    return tf1.layers.dense(x, width, activation, kernel_initializer=exactness.start)


def attention(f, y):
    """Every token looks at every token of its row."""
    tokens, mask = f["tokens"], f["is_token"]
    query, key, value = (_start_dense(tokens, 3) for _ in range(3))
    scores = tf.matmul(query, key, transpose_b=True) + (mask[:, None, :] - 1.0) * 1e4
    seen = tf.matmul(tf.nn.softmax(scores), value)
    mean = tf.reduce_mean(seen, [1, 2], keepdims=True)
    return _start_dense((seen - mean)[:, 0], 3)


def causal_attention(f, y):
    tokens = _start_dense(f["tokens"], 3)
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


def normalised_units(f, y):
    hidden = _start_dense(f["x"], 3)
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
    hidden = _start_dense(f["tokens"], 3)
    shape = tf.shape(hidden)
    places = tf.cast(tf.argmax(f["picked"], 1), tf.int32)[:, None]
    offsets = tf.reshape(tf.range(0, shape[0]) * shape[1], [-1, 1])
    flat = tf.reshape(hidden, [shape[0] * shape[1], 3])
    return tf.gather(flat, tf.reshape(places + offsets, [-1]))


def flattened_tokens(f, y):
    shape = tf.shape(f["tokens"])
    flat = _start_dense(tf.reshape(f["tokens"], [-1, 3]), 3, tf.nn.relu)
    return tf.reduce_sum(tf.reshape(flat, [shape[0], shape[1], 3]), 1)


def masked_lengths(f, y):
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    mask = tf.sequence_mask(lengths, tf.shape(f["tokens"])[1], double)
    hidden = _start_dense(f["tokens"], 3) * mask[:, :, None]
    return tf.reduce_sum(hidden, 1) / tf.reduce_sum(mask, 1, keepdims=True)


def time_first(f, y):
    turned = tf.transpose(_start_dense(f["tokens"], 3), [1, 0, 2])
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


def attention_of_two_heads(f, y):
    query = _start_dense(f["tokens"], 4)
    rows, length = tf.unstack(tf.shape(query)[:2])
    heads = tf.transpose(tf.reshape(query, [rows, length, 2, 2]), [0, 2, 1, 3])
    weights = tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True) / 2.0)
    seen = tf.transpose(tf.matmul(weights, heads), [0, 2, 1, 3])
    return tf.reduce_sum(_start_dense(tf.reshape(seen, [rows, length, 4]) + query, 3), 1)


def chosen_tokens(f, y):
    """The last token of each row, the one with the highest score, the two highest scores."""
    hidden = _start_dense(f["tokens"], 3)
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    last = tf.gather_nd(hidden, tf.stack([tf.range(tf.shape(hidden)[0]), lengths - 1], 1))
    best = tf.gather(hidden, tf.argmax(f["tokens"][:, :, 0], 1)[:, None], batch_dims=1)
    return last + best[:, 0] + tf.reduce_sum(tf.math.top_k(hidden[:, 0], 2)[0], 1)[:, None]
