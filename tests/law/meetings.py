"""Losses in which rows meet, and loops that read variables."""

from replicate.compat.tensorflow import tf
from tests.law import losses


def the_hardest_row(f, y, v):
    return tf.reduce_max(losses.cross(f, y, v))


def a_branch(f, y, v):
    rows = losses.cross(f, y, v)
    return tf.cond(
        tf.reduce_sum(v.b) > 0.0, lambda: tf.reduce_mean(rows), lambda: tf.reduce_sum(rows)
    )


def centred_rows(f, y, v):
    """A mean of rows, which flows back into each row."""
    hidden = losses.logits(f, v)
    hidden = hidden - tf.reduce_mean(hidden, 0)
    return tf.reduce_mean(tf.square(hidden - y["y"]))


def own_widths(f, y, v):
    """A mask as wide as the longest of all rows."""
    lengths = tf.cast(tf.reduce_sum(f["is_token"], 1), tf.int32)
    mask = tf.sequence_mask(lengths, dtype=tf.float64)
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


def a_loop_of_rows(f, y, v):
    """A loop whose body reads a variable, and in which no rows meet."""
    start = (0, tf.tanh(losses.logits(f, v)))
    w = v.variables["w"]

    def step(i, hidden):
        return i + 1, tf.tanh(tf.matmul(hidden, w.read_value()))

    _, hidden = tf.while_loop(lambda i, hidden: i < 3, step, start)
    return tf.reduce_mean(tf.square(hidden - y["y"]))
