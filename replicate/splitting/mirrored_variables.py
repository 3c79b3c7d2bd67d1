"""Lists the variables of a split graph with their copies, as for Savers."""

from collections.abc import Sequence

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import nodes
from replicate.splitting.writing import copied
from replicate.strategy import base
from replicate.strategy.variables import variables as distributed


def list_copies(
    strategy: base.DistributionStrategy,
    variables: Sequence[tf.Variable],
    copies: copied.Holders,
    made: nodes.Made,
) -> None:
    """Lists each variable and its copies in collections, as one mirrored variable.

    Args:
        strategy: Whose variables they are.
        variables: The primaries; those without copies stay as they are.
        copies: The operations that hold copies.
        made: The new operations by their names.
    """
    found, devices = {}, strategy.worker_devices
    for variable in variables:
        if variable.handle.op not in copies:
            continue
        members = [_member(variable, holder, made) for holder in copies[variable.handle.op]]
        mirrored = distributed.MirroredVariable(
            strategy, [variable, *members], devices, distributed.NONE
        )
        if variable._save_slice_info is not None:
            mirrored._set_save_slice_info(variable._save_slice_info)
        found[id(variable)] = mirrored
    graph = tf1.get_default_graph()
    for key in graph.get_all_collection_keys():
        listed = graph.get_collection_ref(key)
        listed[:] = [found.get(id(each), each) for each in listed]


def _member(primary: tf.Variable, holder: copied.Holder, made: nodes.Made) -> tf.Variable:
    """Returns a copy as a variable."""
    name = holder.name
    tower = name.split("/")[0]
    handle = made[name].outputs[0]
    initializer = primary.initializer
    return tfc.resource_variable_ops.BaseResourceVariable(
        trainable=primary.trainable,
        shape=primary.shape,
        dtype=primary.dtype,
        handle=handle,
        constraint=primary.constraint,
        synchronization=primary.synchronization,
        aggregation=primary.aggregation,
        unique_id=name,
        handle_name=f"{name}:0",
        graph_element=made[holder.read].outputs[0],
        initial_value=primary.initial_value,
        initializer_op=made.get(f"{tower}/{initializer.name}", initializer),
        is_initialized_op=made[holder.check].outputs[0],
    )
