"""Sums over rows that are multiplied by infinity, and means of floats of eight bits."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter

DEVICES = [f"/device:CPU:{k}" for k in range(3)]
WEIGHT = np.array([[np.inf, 1.0], [1.0, 1.0], [1.0, 1.0]])


def product(x):
    """A sum of x.T @ sin(x) times a weight; what devices hold of it differs in its signs."""
    return tf.matmul(tf.matmul(x, tf.sin(x - 0.4), transpose_a=True), WEIGHT)


def einsum(x):
    return tf.einsum("bi,bj,jk->ik", x, tf.sin(x), WEIGHT)


def in_a_loop(x):
    def body(i, total):
        return i + 1, total + product(x)

    return tf.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([3, 2], tf.float64)])[1]


def scaled_in_a_loop(x):
    def body(i, total):
        part = tf.matmul(x, tf.sin(x - 0.4), transpose_a=True)
        return i + 1, total + part * tf.constant(WEIGHT[:, :1])

    return tf.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([3, 3], tf.float64)])[1]


def both(make, dtype, values, num_devices=3):
    """Returns what one device gives, and what several do."""
    found = []
    for is_split in (False, True):
        with tf.Graph().as_default():
            x = tf1.placeholder(dtype, [None, 3])
            fetch = make(x)
            if is_split:
                given, devices = [x], DEVICES[:num_devices]
                fetch = splitter.split_graph(given, devices, [fetch], home=DEVICES[0]).fetch[0]
            config = tf1.ConfigProto(device_count={"CPU": 8})
            with tf1.Session(config=config) as session:
                found.append(session.run(fetch, {x: values}))
    return found


@pytest.mark.parametrize("is_new", [False, True], ids=["version_1", "version_2"])
@pytest.mark.parametrize("make", [product, einsum, in_a_loop, scaled_in_a_loop])
def test_infinity_times_a_sum_is_what_it_is_on_one_device(make, is_new):
    before = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if is_new else tf1.disable_control_flow_v2)()
    try:
        for seed in range(4):
            values = np.random.RandomState(seed).uniform(-1, 1, [5, 3])
            wanted, found = both(make, tf.float64, values)
            np.testing.assert_allclose(found, wanted, 1e-12)
    finally:
        (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()


def test_a_mean_of_eight_bits_counts_all_rows():
    # 257 rows would be 256: eight bits hold no more.
    values = np.random.RandomState(0).uniform(1, 2, [257, 3])
    wanted, found = both(
        lambda x: tf.reduce_mean(x, 0), tf.bfloat16, values.astype(tf.bfloat16.as_numpy_dtype), 2
    )
    np.testing.assert_array_equal(np.asarray(found, float), np.asarray(wanted, float))
