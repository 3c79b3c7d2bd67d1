"""Checks, as `tf.debugging` makes them, on rows that devices have."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike


@pytest.mark.usefixtures("new_control_flow")
@pytest.mark.parametrize("of_rows", [True, False], ids=["made", "given"])
def test_check_fails_where_one_devices_does(fresh_graph, of_rows):
    x = tf1.placeholder(tf.float64, [None, 2])
    checked = tf.exp(x) if of_rows else x
    check = tf1.Assert(tf.reduce_all(checked < 9.0), [checked])
    with tf.control_dependencies([check]):
        loss = tf.reduce_sum(tf.identity(x))
    result = alike.split([x], [loss, check.outputs[0]])
    # What the batch gives is whole where the check is: nothing is won by checking it apart.
    guard = next(op for op in fresh_graph.get_operations() if op.type == "If")
    assert result.how(guard) == ("split" if of_rows else "whole")
    values = np.zeros([5, 2])
    with alike.session() as session:
        assert session.run(result.fetch, {x: values}) == [0.0, True]
        values[4, 1] = 10.0
        for fetch in result.fetch:
            with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
                session.run(fetch, {x: values})
