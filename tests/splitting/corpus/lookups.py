"""Models of ids, words and sparse values."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus.model import F64, model, squares, weight


def table(name="table", rows=6, width=3):
    return tf1.get_variable(name, [rows, width], F64, exactness.start)


@model
def embedding_of_a_partitioned_table(f, y):
    partitioner = tf1.fixed_size_partitioner(2)
    v = tf1.get_variable("t", [6, 3], F64, tf1.ones_initializer(), partitioner=partitioner)
    found = tf1.nn.embedding_lookup(v, f["ids"], partition_strategy="div")
    return squares(tf.reduce_sum(found, 1), y), {"found": found}


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
def one_hot_and_scatter(f, y):
    """Counts of ids in the batch weigh its rows."""
    numbers = tf.math.bincount(tf.cast(f["ids"][:, 0], tf.int32), minlength=6, maxlength=6)
    weights = 1.0 / tf.cast(tf.gather(numbers, f["ids"][:, 0]), F64)
    found = tf.matmul(tf.one_hot(f["ids"][:, 1], 6, dtype=F64), weight("w", 6, 3))
    losses = tf.reduce_sum(tf.square(found - y["y"]), 1)
    return tf.reduce_sum(losses * weights), {"numbers": numbers}
