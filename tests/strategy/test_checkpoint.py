"""Copies in checkpoints: what tests/conformance/test_checkpoints.py does not say."""

import threading

import numpy as np
import pytest

from replicate import replicated_variable
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1

STRATEGIES = {
    "mirrored": lambda: core.MirroredStrategy(["/cpu:0", "/cpu:1"]),
    "parameter_server": lambda: core.LocalParameterServerStrategy(["/cpu:0", "/cpu:1"]),
    "one_device": lambda: core.OneDeviceStrategy("/cpu:0"),
}
LOCAL = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
    "trainable": False,
}


class Held(tf.Module):
    """Holds up the thread that writes a checkpoint, until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def _serialize_to_tensors(self):
        self.go_on.wait(30)
        return {"held": tf.constant(0)}

    def _restore_from_tensors(self, restored_tensors):
        return restored_tensors["held"]

    def _copy_trackable_to_cpu(self, object_map):
        object_map.setdefault(self, self)


def assert_saved_as_of_now(made, directory):
    """Writes two checkpoints, and changes the variables before the thread comes to them."""
    held = Held()
    checkpoint = tf.train.Checkpoint(held=held, **made)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    for i in range(2):  # the second one finds copies in memory
        path = str(directory / f"model{i}")
        held.go_on.clear()
        for v in made.values():
            v.assign(tf.zeros_like(v) + i + 3)
        checkpoint.write(path, options)
        for v in made.values():
            v.assign(tf.zeros_like(v) + 70)
        held.go_on.set()
        checkpoint.sync()
        for key, v in made.items():
            found = tf.train.load_variable(path, f"{key}/.ATTRIBUTES/VARIABLE_VALUE")
            np.testing.assert_array_equal(found, np.zeros(v.shape) + i + 3)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_asynchronous_checkpoint_holds_the_values_of_when_it_was_asked_for(name, tmp_path):
    with STRATEGIES[name]().scope():
        made = {"w": tf.Variable([0.0, 0.0]), "seen": tf.Variable(0, **LOCAL)}
        assert_saved_as_of_now(made, tmp_path)


def test_an_asynchronous_checkpoint_of_a_replicated_variable_holds_its_value_of_then(tmp_path):
    v = replicated_variable.ReplicatedVariable("v", [tf.Variable(0.0), tf.Variable(0.0)])
    assert_saved_as_of_now({"v": v}, tmp_path)


def test_what_keras_feeds_reaches_every_copy(session):
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        variable = tf1.get_variable("v", initializer=[1.0, 2.0], use_resource=True)
    session.run(tf1.global_variables_initializer())
    session.run(variable._assign_op, {variable._assign_placeholder: [5.0, 6.0]})
    copies = session.run([member.read_value() for member in variable.members])
    assert [copy.tolist() for copy in copies] == [[5.0, 6.0], [5.0, 6.0]]
    assert variable._assign_op is variable._assign_op
