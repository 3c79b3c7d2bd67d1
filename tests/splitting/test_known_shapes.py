"""Copies know the lengths that their originals know: shape functions may ask for them."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import control_flow
from tests.splitting import alike

F64 = tf.float64


def diagonal(x):
    """[B, 1] of [B, 1, 1], and a gradient whose shape function asks for the diagonal's length."""
    part = tf.linalg.diag_part(tf.tanh(x))
    return [part, *tf.gradients(tf.reduce_sum(part), [x])]


def in_a_loop(x):
    """A diagonal's gradient in a loop of version 1, where importers infer no shapes."""

    def turn(n, y):
        return n + 1, tf.tanh(tf.linalg.diag(tf.linalg.diag_part(y), num_rows=1, num_cols=1))

    with control_flow.of_version(1):
        _, y = tf.while_loop(lambda n, y: n < 2, turn, [0, x])
    return [y, *tf.gradients(tf.reduce_sum(y), [x])]


@pytest.mark.parametrize("model", [diagonal, in_a_loop])
@pytest.mark.parametrize("static_rows", [None, 2, 7])
def test_a_copy_knows_the_lengths_that_its_original_knows(model, static_rows):
    rows = [static_rows] if static_rows else [7, 2, 1]
    batches = [np.linspace(-1, 2, n).reshape(-1, 1, 1) for n in rows]
    alike.require_alike(model, batches, is_static=static_rows is not None)


def test_a_copy_knows_the_lengths_of_what_is_cut_and_of_what_is_joined(fresh_graph):
    x = tf1.placeholder(F64, [None, 3])
    by_python = tf.reshape(tf.numpy_function(np.abs, [x], F64), tf.shape(x))
    joined = tf.reduce_max(tf.tanh(x), 0)
    fetches = [
        tf.multiply(tf.tanh(x), each, name) for name, each in (("cut", by_python), ("all", joined))
    ]
    alike.split([x], fetches)
    for k in range(3):
        cut, whole = (
            fresh_graph.get_operation_by_name(f"tower_{k}/{name}") for name in ("cut", "all")
        )
        assert cut.inputs[1].shape.as_list() == [None, 3]
        assert whole.inputs[1].shape.as_list() == [3]
