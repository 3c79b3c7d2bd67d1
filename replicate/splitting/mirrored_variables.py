"""The variables of a split graph with their copies, as Savers and hooks see them."""

import itertools
from collections.abc import Mapping, Sequence

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.structure import definitions, effects, nodes, order
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


class WritesHook(tf1.train.SessionRunHook):
    """Lets what other hooks have made, in `begin`, to write variables write the copies as well.

    Args:
        copies: The operations that hold copies.
        made: The new operations by their names.

    Raises:
        ValueError: If a write is in a branch, a loop or a function.
    """

    def __init__(self, copies: copied.Holders, made: nodes.Made):
        self._copies: Mapping[tf.Operation, Sequence[tf.Operation]] = {
            op: [made[holder.name] for holder in holders] for op, holders in copies.items()
        }
        self._known = {each for op in copies for each in operations.users(op.outputs[0])}
        self._known.update(made.values())

    def begin(self) -> None:
        """See base class."""
        for variable, copies in self._copies.items():
            new = [self._new(holder) for holder in (variable, *copies)]
            _read_first([variable, *copies], [*itertools.chain.from_iterable(new)])
            writes, those = new[:2]
            ends = [*(op._id for op in writes[1:]), float("inf")]
            for write, end in zip(writes, ends, strict=False):
                # NOTE: a mirrored variable writes the first copy and then all others.
                is_followed = any(
                    op.type == write.type and write._id < op._id < end for op in those
                )
                if not is_followed:
                    _repeat(write, variable, copies)

    def _new(self, holder: tf.Operation) -> list[tf.Operation]:
        """Returns what writes a variable and was not there when the graph was split, in order."""
        found = {op for op in operations.users(holder.outputs[0]) if op not in self._known}
        return order.as_made(filter(effects.changes_state, found))


def _read_first(holders: Sequence[tf.Operation], writes: Sequence[tf.Operation]) -> None:
    """Lets writes wait for reads of any copy, so that all devices see what was there before.

    A read that is more than a read, as a lookup is, would run a part of the step with the write.
    """
    users = [op for holder in holders for op in operations.users(holder.outputs[0])]
    reads = [op for op in users if _is_free(op)]
    for write in writes:
        if write._get_control_flow_context() is None:
            write._add_control_inputs([op for op in reads if op not in write.control_inputs])


def _repeat(write: tf.Operation, variable: tf.Operation, copies: Sequence[tf.Operation]) -> None:
    """Lets a write wait for the same one of each copy."""
    handle = variable.outputs[0]
    if definitions.called(write.node_def) or all(each is not handle for each in write.inputs):
        raise ValueError(
            f"What writes {variable.name}, of which each device has a copy, behind the model_fn is "
            f"outside of branches, loops and functions; {write.name} is not. Make it in the "
            'model_fn, or choose another strategy than "mirrored".'
        )
    attributes = {key: value for key, value in write.node_def.attr.items() if key != "_class"}
    kinds = [tensor.dtype for tensor in write.outputs]
    for copy in copies:
        inputs = [copy.outputs[0] if each is handle else each for each in write.inputs]
        with tf1.control_dependencies(None), tf.device(copy.device):
            with tf1.control_dependencies(write.control_inputs):
                graph = write.graph
                made = graph.create_op(write.type, inputs, kinds, attrs=attributes)
        write._add_control_input(made)


def _is_free(op: tf.Operation) -> bool:
    """Whether an operation reads a variable, and runs nothing else."""
    is_read = op.type == "ReadVariableOp" and op.inputs[0].op.type == "VarHandleOp"
    return is_read and not op.control_inputs
