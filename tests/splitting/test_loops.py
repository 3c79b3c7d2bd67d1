"""A loop or a list of which something is assumed is looked at again, and no more than it must."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import analysis
from tests import control_flow
from tests.splitting import alike


@pytest.mark.parametrize("number", [4, 8])
def test_an_assumption_costs_what_lies_between_it_and_the_first_to_ask(
    fresh_graph, monkeypatch, number
):
    # Each branch keeps values for its gradient, in a list of which nothing is assumed at first.
    decided = []
    decide = analysis.Analysis._decide
    monkeypatch.setattr(
        analysis.Analysis, "_decide", lambda self, op: decided.append(op) or decide(self, op)
    )
    x = tf1.placeholder(tf.float32, [None, 4])
    y = x
    with control_flow.of_version(2):
        for _ in range(number):
            y = tf.cond(tf.reduce_sum(y) > 0.0, lambda y=y: tf.tanh(y), lambda y=y: tf.sin(y))
        (gradient,) = tf.gradients(y, x)
    alike.split([x], [gradient], 2)
    assert len(decided) < 2 * len(set(decided))
