"""What leaves a loop waits for all that enters it, though it may not be made from that."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting import alike

X = np.random.RandomState(0).standard_normal((5, 4))


def trained(turn, turns, **options):
    """A model of a loop, which is trained."""

    def make(x):
        w = tf1.get_variable("w", [4, 4], tf.float64, tf1.ones_initializer(), use_resource=True)
        y = tf.while_loop(lambda n, _: n < turns, turn, [0, x @ w], **options)[1]
        loss = tf.reduce_mean(tf.square(y))
        return [loss, tf1.train.GradientDescentOptimizer(0.01).minimize(loss)]

    return make


# By default at most 10 turns are made at a time.
@pytest.mark.parametrize(("turns", "options"), [(2, {"parallel_iterations": 1}), (15, {})])
def test_a_loop_of_more_turns_than_run_at_a_time_does_not_wait_for_itself(turns, options):
    # It draws, so that it is whole; its gradient is split, and needs its counter.
    make = trained(lambda n, x: (n + 1, tf.nn.dropout(x, 0.1)), turns, **options)
    found = alike.run(make, [X], 2, random_numbers="one_device")
    if options:  # turns that overlap draw in any order
        exactness.compare(found, alike.run(make, [X]), *alike.EXACT)


def test_a_loop_may_be_on_several_devices(either_control_flow):
    def turn(n, x):
        with tf.device("/cpu:3"):
            x = x * 1.5
        return n + 1, tf.tanh(x) + tf.reduce_mean(x)  # so that the loop is whole

    alike.require_alike(trained(turn, 3), [X], (2,))
