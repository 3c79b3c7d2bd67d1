"""Sums over rows that are multiplied by infinity, and means of floats of eight bits."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf
from tests.splitting import alike

WEIGHT = np.array([[np.inf, 1.0], [1.0, 1.0], [1.0, 1.0]])


def part(x):
    """A sum over rows; what devices hold of it differs in its signs."""
    return tf.matmul(x, tf.sin(x - 0.4), transpose_a=True)


def product(x):
    return tf.matmul(part(x), WEIGHT)


def einsum(x):
    return tf.einsum("bi,bj,jk->ik", x, tf.sin(x), WEIGHT)


def added(x, made, width):
    start = tf.zeros([3, width], tf.float64)
    body = lambda i, total: (i + 1, total + made(x))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, body, [0, start])[1]


def in_a_loop(x):
    return added(x, product, 2)


def scaled_in_a_loop(x):
    return added(x, lambda x: part(x) * tf.constant(WEIGHT[:, :1]), 3)


@pytest.mark.parametrize("make", [product, einsum, in_a_loop, scaled_in_a_loop])
def test_infinity_times_a_sum_is_what_it_is_on_one_device(make, either_control_flow):
    batches = [alike.numbers(5, 3, seed=seed) for seed in range(4)]
    alike.require_alike(lambda x: [make(x)], batches)


def test_a_mean_of_eight_bits_counts_all_rows():
    # 257 rows would be 256: eight bits hold no more.
    values = np.random.RandomState(0).uniform(1, 2, [257, 3])
    batches = [values.astype(tf.bfloat16.as_numpy_dtype)]
    alike.require_alike(lambda x: [tf.cast(tf.reduce_mean(x, 0), tf.float32)], batches, (2,))
