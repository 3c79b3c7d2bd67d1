"""Distributed variables in checkpoints: written once, restored everywhere.

A checkpoint holds one value under the plain name, so that a checkpoint of any
strategy restores under any other and under none. What each copy gets of a restored
value is the variable's own rule: `DistributedVariable.spread`.
"""

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def restore(variable, tensor):
    """Assigns the value of a checkpoint to the copies of a distributed variable.

    Args:
        variable: A `DistributedVariable`.
        tensor: Its saved value, of the variable's shape.

    Returns:
        One operation (None when eager).
    """
    assigned = []
    for member, part in zip(variable.members, variable.spread(tensor), strict=True):
        if part is not None:
            with tf.device(member.device):
                assigned.append(member.assign(tf.identity(part), read_value=False))
    return None if tf.executing_eagerly() else tf1.group(*assigned)


def serialize(variable) -> dict:
    """Returns what `tf.train.Checkpoint` writes for a distributed variable."""
    return {tfc.trackable.VARIABLE_VALUE_KEY: variable.read_across()}


def deserialize(variable, tensors: dict):
    """Restores what `serialize` wrote."""
    return restore(variable, tensors[tfc.trackable.VARIABLE_VALUE_KEY])


def saveable(variable, name: str):
    """Returns what a `tf.compat.v1.train.Saver` writes for a distributed variable."""
    spec = tfc.saveable_object.SaveSpec(
        variable.read_across, "", name, dtype=variable.dtype, device=variable.members[0].device
    )

    def restore_variable(restored_tensors, restored_shapes):
        del restored_shapes  # the variable knows its own
        return restore(variable, tf.ensure_shape(restored_tensors[0], variable.shape))

    made = tfc.saveable_object.SaveableObject(variable.read_across, [spec], name)
    made.restore = restore_variable
    return made
