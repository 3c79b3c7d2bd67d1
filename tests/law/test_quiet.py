"""Networks as people write them, in which no row meets another: nothing is said of them.

The graphs are built, for batches of which nothing is known before the run but the inner
shapes, and not run: `test_warnings` runs what looks most as if rows met.
"""

import logging

import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]
single = tf.float32
layers = tf.keras.layers


def dense(x, width=2):
    return tf1.layers.dense(x, width)


def table():
    return tf1.get_variable("table", [10, 4])


# Batches.


def tokens():
    return tf1.placeholder(single, [None, None, 4])


def tokens_of_known_shape():
    return tf1.placeholder(single, [7, 5, 4])


def words():
    return tf1.placeholder(tf.int32, [None, None])


def sparse():
    shape = [None, None]
    return {
        "ids": tf1.sparse_placeholder(tf.int64, shape),
        "w": tf1.sparse_placeholder(single, shape),
    }


def ragged_tokens():
    return tf1.ragged.placeholder(single, 1, [4])


def ragged_words():
    return tf1.ragged.placeholder(tf.int64, 1, [])


def images():
    return tf1.placeholder(single, [None, 8, 8, 3])


# Networks.


def recurrent_sequences(x):
    return dense(layers.LSTM(3, return_sequences=True)(x))


def both_ways(x):
    return dense(layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x))


def masked_recurrent(x):
    return layers.GRU(3)(layers.Masking()(x))


def recurrent_before(x):
    lengths = tf.cast(tf.reduce_sum(tf.cast(x[:, :, 0] > 0, single), 1), tf.int32)
    outputs, _ = tf1.nn.dynamic_rnn(tf1.nn.rnn_cell.LSTMCell(3), x, lengths, dtype=single)
    return dense(outputs)


def attention_of_two_heads(x):
    query = dense(x, 4)
    rows, length = tf.unstack(tf.shape(query)[:2])
    heads = tf.transpose(tf.reshape(query, [rows, length, 2, 2]), [0, 2, 1, 3])
    weights = tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True) / 2.0)
    seen = tf.transpose(tf.matmul(weights, heads), [0, 2, 1, 3])
    return layers.LayerNormalization()(tf.reshape(seen, [rows, length, 4]) + query)


def added_places(x):
    places = tf1.get_variable("places", [10, 4])
    length = tf.shape(x)[1]
    sliced = tf.slice(places, [0, 0], [length, -1])
    return tf.nn.embedding_lookup(table(), x) + places[None, :length] + sliced[None]


def mean_of_words(x):
    lengths = tf.reduce_sum(tf.cast(x > 0, tf.int32), 1)
    mask = tf.sequence_mask(lengths, tf.shape(x)[1], single)
    found = tf.nn.embedding_lookup(table(), x) * mask[..., None]
    return tf.reduce_sum(found, 1) / tf.reduce_sum(mask, 1, keepdims=True)


def one_hot(x):
    return dense(tf.one_hot(x, 10))


def chain(x):
    """The forward pass of a linear-chain CRF."""
    moves = tf1.get_variable("moves", [4, 4])

    def step(scores, token):
        return tf.reduce_logsumexp(scores[:, :, None] + moves[None], 1) + token

    return tf.foldl(step, tf.transpose(x, [1, 0, 2])[1:], initializer=x[:, 0])


def last_token(x):
    lengths = tf.reduce_sum(tf.cast(x[:, :, 0] > 0, tf.int32), 1)
    return tf.gather_nd(dense(x), tf.stack([tf.range(tf.shape(x)[0]), lengths - 1], 1))


def highest_token(x):
    return tf.gather(dense(x), tf.argmax(x[:, :, 0], 1)[:, None], batch_dims=1)


def highest_scores(x):
    return tf.math.top_k(dense(x, 7), 2)[0]


def dropped_out(x):
    return tf.nn.dropout(dense(x), rate=0.5)


def sparse_words(x):
    return tf1.nn.embedding_lookup_sparse(table(), x["ids"], None, combiner="mean")


def weighted_sparse_words(x):
    return tf1.nn.embedding_lookup_sparse(table(), x["ids"], x["w"], combiner="mean")


def safe_sparse_words(x):
    return tf1.nn.safe_embedding_lookup_sparse([table()], x["ids"], x["w"], combiner="sqrtn")


def sparse_product(x):
    values = x["w"]
    shape = [values.dense_shape[0], 10]
    wide = tf.SparseTensor(values.indices, values.values, shape)
    return tf.sparse.sparse_dense_matmul(wide, table())


def sparse_sums(x):
    return dense(tf.reshape(tf.sparse.reduce_sum(x["w"], 1), [-1, 1]))


def made_dense(x):
    return tf.reduce_sum(tf.sparse.to_dense(x["w"]), 1, keepdims=True) * table()[0]


def embedded_columns(x):
    column = tf.feature_column
    ids = column.categorical_column_with_identity("ids", 10)
    columns = [column.embedding_column(ids, 3), column.indicator_column(ids)]
    return dense(tf1.feature_column.input_layer(x, columns))


def linear_columns(x):
    ids = tf.feature_column.categorical_column_with_identity("ids", 10)
    return tf1.feature_column.linear_model(x, [ids])


def ragged_mean(x):
    return dense(tf.reduce_mean(x, 1))


def ragged_embedding(x):
    return tf.reduce_sum(tf.nn.embedding_lookup(table(), x), 1)


def ragged_made_dense(x):
    return dense(x.to_tensor(shape=[None, 5, 4]))


def convolutions(x):
    hidden = tf1.layers.conv2d(tf.image.resize(x, [6, 6]), 4, 3)
    return dense(tf1.layers.flatten(tf1.layers.max_pooling2d(hidden, 2, 2)))


def flipped(x):
    return tf1.layers.conv2d(tf.image.random_flip_left_right(x), 4, 3)


def transposed_convolution(x):
    return tf1.layers.conv2d_transpose(x, 4, 3)


def cropped(x):
    return tf1.layers.conv2d(
        tf.map_fn(lambda image: tf.image.random_crop(image, [6, 6, 3]), x), 4, 3
    )


def normalised_images(x):
    return (x - tf.reduce_mean(x, [1, 2], keepdims=True)) * tf1.get_variable("scale", [3])


BY_BATCH = {
    tokens: [
        recurrent_sequences,
        both_ways,
        masked_recurrent,
        recurrent_before,
        attention_of_two_heads,
        chain,
        last_token,
        highest_token,
        highest_scores,
        dropped_out,
    ],
    tokens_of_known_shape: [recurrent_sequences, attention_of_two_heads, last_token],
    words: [added_places, mean_of_words, one_hot],
    sparse: [
        sparse_words,
        weighted_sparse_words,
        safe_sparse_words,
        sparse_product,
        sparse_sums,
        made_dense,
        embedded_columns,
        linear_columns,
    ],
    ragged_tokens: [ragged_mean, ragged_made_dense],
    ragged_words: [ragged_embedding],
    images: [convolutions, flipped, transposed_convolution, cropped, normalised_images],
}


@pytest.mark.parametrize(
    ("batch", "network"),
    [(batch, network) for batch, networks in BY_BATCH.items() for network in networks],
    ids=lambda part: part.__name__,
)
def test_rows_that_never_meet_are_quiet(fresh_graph, batch, network, caplog):
    def model(features, labels, mode):
        loss = tf.reduce_mean(tf.square(network(features)))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        return exactness.spec_of(
            mode, loss, train_op=optimizer.minimize(loss, tf1.train.get_global_step())
        )

    tf1.train.create_global_step()
    with caplog.at_level(logging.WARNING, "replicate"):
        model_fn.replicate_model_fn(model, None, 3)(batch(), None, "train")
    assert not [r for r in caplog.records if r.name.split(".")[0] == "replicate"]
