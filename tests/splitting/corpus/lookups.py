"""Models of ids, words and sparse values."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus.model import F64, SINGLE, adam, hidden, model, weight


def squares(found, y):
    return tf.reduce_mean(tf.square(found - y["y"]))


def table(name="table", rows=6, width=3):
    return tf1.get_variable(name, [rows, width], F64, exactness.start)


def bags(f):
    """A sparse tensor of the ids that are not -1."""
    return tf.sparse.from_dense(f["bags"] + 1)


@model(optimizer=adam)
def embedding(f, y):
    found = tf.nn.embedding_lookup(table(), f["ids"])
    return squares(tf.reduce_sum(found, 1), y), {"found": found}


@model
def embedding_of_a_partitioned_table(f, y):
    partitioner = tf1.fixed_size_partitioner(2)
    v = tf1.get_variable("t", [6, 3], F64, tf1.ones_initializer(), partitioner=partitioner)
    found = tf1.nn.embedding_lookup(v, f["ids"], partition_strategy="div")
    return squares(tf.reduce_sum(found, 1), y), {"found": found}


@model
def embedding_of_sparse_ids(f, y):
    ids = bags(f)
    ids = tf.SparseTensor(ids.indices, ids.values - 1, ids.dense_shape)
    found = {
        combiner: tf.nn.embedding_lookup_sparse(table(combiner), ids, None, combiner=combiner)
        for combiner in ("sum", "mean", "sqrtn")
    }
    return squares(tf.add_n(list(found.values())), y), found


@model
def embedding_of_weighted_sparse_ids(f, y):
    ids = bags(f)
    weights = tf.SparseTensor(ids.indices, tf.sqrt(tf.cast(ids.values, F64)), ids.dense_shape)
    ids = tf.SparseTensor(ids.indices, ids.values - 1, ids.dense_shape)
    found = tf.nn.embedding_lookup_sparse(table(), ids, weights, combiner="mean")
    return squares(found, y), {"found": found}


@model
def embedding_safe_of_sparse_ids(f, y):
    """Rows without ids are zeros."""
    kept = tf.where(f["mask"][:, None] > 0.0, f["bags"], -tf.ones_like(f["bags"]))
    ids = tf.sparse.from_dense(kept + 1)
    ids = tf.SparseTensor(ids.indices, ids.values - 1, ids.dense_shape)
    found = tf.nn.safe_embedding_lookup_sparse(table(), ids)
    return squares(found, y), {"found": found}


@model
def sparse_product(f, y):
    """One hot of several ids, times a dense matrix."""
    ids = bags(f)
    values = tf.cast(ids.values, F64)
    sparse = tf.SparseTensor(ids.indices, values, ids.dense_shape)
    found = tf.sparse.sparse_dense_matmul(sparse, weight("w", 3, 3))
    return squares(found, y), {"found": found, "sums": tf.sparse.reduce_sum(sparse, 1)}


@model
def ragged_means(f, y):
    ragged = tf.RaggedTensor.from_tensor(f["bags"], padding=-1)
    found = tf.ragged.map_flat_values(
        lambda ids: tf.gather(weight("w", 6, 3), tf.maximum(ids, 0)), ragged
    )
    return squares(tf.reduce_mean(found, 1), y), {"lengths": ragged.row_lengths()}


@model
def hashed_words(f, y):
    ids = tf.strings.to_hash_bucket_fast(f["words"], 6)
    crossed = tf.strings.to_hash_bucket_fast(
        tf.strings.join([f["words"][:, 0], f["words"][:, 1]], "_"), 6
    )
    found = (
        tf.nn.embedding_lookup(table(), ids)
        + tf.nn.embedding_lookup(table("crossed"), crossed)[:, None]
    )
    return squares(tf.reduce_sum(found, 1), y), {"ids": ids}


@model
def words_of_a_vocabulary(f, y):
    keys, values = tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
    made = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
    found = tf.nn.embedding_lookup(table(), made.lookup(f["words"]))
    return squares(tf.reduce_sum(found, 1), y), {"found": found}


@model(optimizer=adam, tolerance=SINGLE)
def feature_columns(f, y):
    """Embeddings of feature columns are of 32 bits."""
    column = tf.feature_column
    words = column.categorical_column_with_hash_bucket("words", 5)
    ids = column.categorical_column_with_identity("ids", 6)
    start = tf1.constant_initializer(0.1)
    columns = [
        column.embedding_column(words, 2, initializer=start),
        column.indicator_column(ids),
        column.numeric_column("x", 3, dtype=F64),
        column.bucketized_column(column.numeric_column("real", dtype=F64), [0.2, 1.0]),
    ]
    names = ("words", "ids", "x", "real")
    x = tf1.feature_column.input_layer({name: f[name] for name in names}, columns)
    return squares(hidden(tf.cast(x, F64), 3), y), {"x": x}


@model
def one_hot_and_scatter(f, y):
    """Counts of ids in the batch weigh its rows."""
    numbers = tf.math.bincount(tf.cast(f["ids"][:, 0], tf.int32), minlength=6, maxlength=6)
    weights = 1.0 / tf.cast(tf.gather(numbers, f["ids"][:, 0]), F64)
    found = tf.matmul(tf.one_hot(f["ids"][:, 1], 6, dtype=F64), weight("w", 6, 3))
    losses = tf.reduce_sum(tf.square(found - y["y"]), 1)
    return tf.reduce_sum(losses * weights), {"numbers": numbers}


@model
def sampled_softmax(f, y):
    """Negatives that are drawn; one device's."""
    w, b = table("w", 8), tf1.get_variable("b", [8], F64, tf1.zeros_initializer())
    labels = tf.cast(f["ids"][:, :1], tf.int64)
    sampled = tf.random.uniform_candidate_sampler(labels, 1, 3, True, 8, seed=5)
    kinds = (sampled[0], tf.cast(sampled[1], F64), tf.cast(sampled[2], F64))
    losses = tf.nn.sampled_softmax_loss(w, b, labels, f["x"], 3, 8, sampled_values=kinds)
    return tf.reduce_mean(losses), {"losses": losses}
