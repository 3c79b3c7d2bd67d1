"""Random numbers that each device draws for its own rows."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.rules import random
from tests.splitting import alike

ROWS = 7


@pytest.mark.parametrize("static_rows", [None, ROWS], ids=["dynamic", "static"])
@pytest.mark.parametrize("seed", [None, 5])
def test_devices_draw_numbers_of_their_own(fresh_graph, static_rows, seed):
    x = tf1.placeholder(tf.float64, [static_rows, 3])
    shape = [static_rows, 3] if static_rows else tf.shape(x)
    noise = tf.random.normal(shape, dtype=tf.float64, seed=seed)
    of_weights = tf.random.uniform([3, 2], dtype=tf.float64, seed=seed)  # has no rows
    keep = [x + noise, x - noise, tf.matmul(x, of_weights)]
    draws = [op for op in fresh_graph.get_operations() if op.type.startswith("Random")]
    result = alike.split([x], keep, random_numbers="per_device", static_rows=static_rows)
    assert [result.how(op) for op in draws] == ["split", "whole"]
    with alike.session() as session:
        added, taken, product = session.run(result.fetch, {x: np.zeros([ROWS, 3])})
    np.testing.assert_array_equal(added, -taken)  # a draw is one draw to all that read it
    assert len(np.unique(added)) == ROWS * 3  # no device draws what another one draws
    np.testing.assert_array_equal(product, np.zeros([ROWS, 2]))


def test_a_seed_of_a_copy_is_a_positive_number_of_64_bits():
    step = random.seed_of_copy(0, 1)
    assert random.seed_of_copy(2**63 - 1 - step, 1) == 2**63 - 1
    assert random.seed_of_copy(2**63 - step, 1) == 0  # 2**63 - 2**63
    assert random.seed_of_copy(2**63 - 1, 2) == 2 * step - 1
