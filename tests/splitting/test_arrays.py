"""TensorArrays of version 1: each device has its own, and what counts elements is the same."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from replicate.splitting.structure import loops

DEVICES = [f"/device:CPU:{k}" for k in range(3)]


@pytest.fixture(autouse=True)
def old_control_flow():
    was_new = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if was_new:
        tf1.enable_control_flow_v2()


def test_an_arrays_size_is_that_of_each_devices():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None, 3, 4], name="x")
        array = tf.TensorArray(tf.float64, 3, dynamic_size=True)
        array = array.unstack(tf.transpose(x, [1, 0, 2]))
        size = array.size()
        found = tf.reduce_sum(array.stack() * tf.cast(size, tf.float64), [0, 2])
        result = splitter.split_graph([x], DEVICES, [found], home=DEVICES[0])
        kinds = {op.type for op in graph.get_operations() if result.how(op) == "split"}
        assert "TensorArraySizeV3" in kinds
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 8})) as session:
            for rows in (5, 2, 1):
                values = np.random.RandomState(rows).randn(rows, 3, 4)
                split = session.run(result.fetch[0], {x: values})
                np.testing.assert_allclose(split, 3 * values.sum((1, 2)), rtol=1e-12)


def test_a_flow_leads_to_its_array(fresh_graph):
    made, other = (tf.raw_ops.TensorArrayV3(size=2, dtype=tf.float32) for _ in range(2))
    written = tf.raw_ops.TensorArrayWriteV3(
        handle=made.handle, index=0, value=1.0, flow_in=other.flow
    )
    assert loops.flow_source(tf.identity(made.flow)) is made.handle.op
    assert loops.flow_source(written) is made.handle.op
    assert loops.flow_source(tf.add_n([other.flow, made.flow])) is other.handle.op
    assert loops.flow_source(tf.constant(0.0)) is None
