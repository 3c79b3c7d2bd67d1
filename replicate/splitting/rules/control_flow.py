"""Rules for loops and branches of TensorFlow 1.

A loop's variable goes `Enter` -> `Merge` -> `Switch` -> body -> `NextIteration` -> `Merge`, and
leaves through `Exit`. Rules are asked in this order: that of `Merge` assumes the variable's state
in the body, and that of `NextIteration` checks whether the body returns it in that state.
"""

from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting import states
from replicate.splitting.rules import registry
from replicate.splitting.states import COPIED, FLOW, SIZE, SUM, WHOLE, ListOf, Split, WholeError
from replicate.splitting.structure import kinds, loops

_SUMS = ("Add", "AddV2", "AddN")


@registry.rule("Enter", "RefEnter", "Exit", "RefExit")
def _pass(case: registry.Case) -> Split | None:
    """Passes on one value."""
    (state,) = case.inputs
    if states.is_held(state) or state in (SUM, COPIED):
        return Split([state], [state])
    return None


@registry.rule("LoopCond")
def _condition(case: registry.Case) -> Split | None:
    """Whether a loop goes on is one whole truth."""
    raise WholeError("the condition of a loop is made from rows")


@registry.rule("Switch")
def _switch(case: registry.Case) -> Split | None:
    """`data` goes to one of the outputs, as `pred` says, which is one whole truth."""
    data, which = case.inputs
    if states.is_rows(which) or not (states.is_held(data) or data == SUM):
        return None
    return Split([data, WHOLE], [data, data])


@registry.rule("Merge", always=True)
def _merge(case: registry.Case) -> Split | None:
    """The one input that has a value, and its number."""
    if FLOW in case.inputs or _sums_flows(case):
        return _merge_flows(case)
    if _sums_parts(case):
        return Split([SUM, SUM], [SUM, WHOLE])
    given = [n for n, tensor in enumerate(case.op.inputs) if not _is_way_back(tensor)]
    is_loop = len(given) < len(case.inputs)
    state = next((case.inputs[n] for n in given if states.is_held(case.inputs[n])), None)
    if state is None:
        is_sum = not is_loop and all(each == SUM for each in case.inputs)
        return Split(case.inputs, [SUM, WHOLE]) if is_sum else None
    if isinstance(state, ListOf):
        case.assumptions.want_lists(case.op.outputs[0], state.element)
    if any(case.inputs[n] != state and not may_have_rows(case, n, state) for n in given):
        raise WholeError("branches or loops give different rows")
    return Split([state] * len(case.inputs), [state, WHOLE])


_CHECKING = {"Assert", "Const", "Identity", "NoOp", "Placeholder"}


@registry.rule("If")
def _check(case: registry.Case) -> Split:
    """A check, whose branch fails with a message: each device checks its own rows."""
    bodies = operations.bodies(case.op)
    if not bodies or not len(case.op.outputs):
        raise WholeError("its branches are not known")
    graphs = [body.outputs[0].graph for body in bodies]
    if any(op.type not in _CHECKING for graph in graphs for op in graph.get_operations()):
        raise WholeError("its branches do more than fail")
    operands = zip(case.op.inputs, case.inputs, strict=True)
    if not any(states.is_rows(state) and not case.is_at_hand(tensor) for tensor, state in operands):
        raise WholeError("all that it tells of is at hand")
    if states.is_rows(case.inputs[0]) or any(tensor.dtype != tf.bool for tensor in case.op.outputs):
        raise WholeError("what it gives is more than that it did not fail")
    wants = [state if states.is_rows(state) else WHOLE for state in case.inputs]
    return Split(wants, [COPIED] * len(case.op.outputs))


def _merge_flows(case: registry.Case) -> Split | None:
    """Flows of the devices' own arrays; a loop's sum of flows begins with a whole zero."""
    wants = []
    for tensor, state in zip(case.op.inputs, case.inputs, strict=True):
        is_zero = state is WHOLE and tensor.op.type == "Enter"
        if state is not FLOW and not is_zero and not _is_way_back(tensor):
            return None
        wants.append(WHOLE if is_zero else FLOW)
    return Split(wants, [FLOW, WHOLE])


@registry.rule("NextIteration", "RefNextIteration", always=True)
def _next_iteration(case: registry.Case) -> Split | None:
    """What the body returns must be in the state in which the body got it."""
    (tensor,), (state,) = case.op.inputs, case.inputs
    merge = next(user for user in case.op.outputs[0].consumers() if user.type == "Merge")
    wanted = case.state_of(merge.outputs[0])
    if wanted is WHOLE or wanted is SIZE:
        return None
    if state == wanted or may_have_rows(case, 0, wanted):
        return Split([wanted], [wanted])
    if isinstance(wanted, ListOf):
        sources = case.structure.list_sources
        lists = dict.fromkeys([*sources(tensor), *sources(merge.outputs[0])])
        case.assumptions.let_lists_be_whole(list(lists), "a loop gives another list back")
    if wanted == SUM:
        case.assumptions.let_variable_be_joined(merge)
    case.assumptions.let_loop_be_whole(case.op, f"its body makes {state} from {wanted}")


def _is_way_back(tensor: tf.Tensor) -> bool:
    return tensor.op.type in kinds.WAYS_BACK


def may_have_rows(case: registry.Case, n: int, wanted: states.State) -> bool:
    """Whether input n, in another state, can be brought into one with rows."""
    state = case.inputs[n]
    if not states.is_rows(wanted) or isinstance(state, ListOf) or state is FLOW:
        return False
    is_known = states.is_rows(state) or not wanted.space.is_picked
    if not is_known or (states.is_rows(state) and state.space is not wanted.space):
        return False
    extents = case.facts.shape(case.op.inputs[n])
    if extents is None or wanted.axis >= len(extents):
        return False
    return extents[wanted.axis].has_rows(wanted.space)


def _sums_flows(case: registry.Case) -> bool:
    """Whether a loop's variable adds up flows of devices' own arrays."""
    if not _is_variable(case) or case.op.outputs[0].dtype != tf.float32:
        return False
    add = case.op.inputs[1].op.inputs[0].op
    flows = [tensor for tensor in add.inputs if loops.is_flow(tensor)]
    if add.type not in _SUMS or not flows:
        return False
    array = loops.flow_source(flows[0])
    return array is not None and not case.assumptions.is_array_whole(array)


def _sums_parts(case: registry.Case) -> bool:
    """Whether a loop's variable begins with zeros, and each iteration adds to it.

    If what is added is a partial sum, so is the variable; the rule of `NextIteration` finds out.
    """
    if not _is_variable(case) or not case.assumptions.may_be_sum(case.op):
        return False
    if case.inputs[0] is not WHOLE or not _is_zero(case.op.inputs[0].op.inputs[0]):
        return False
    add = _behind(case.op.inputs[1].op.inputs[0], "Identity").op
    added = [_behind(tensor, "Identity", "Switch").op for tensor in add.inputs]
    return add.type in _SUMS and case.op in added


def _is_variable(case: registry.Case) -> bool:
    """Whether a merge is that of a loop's variable."""
    inputs = case.op.inputs
    return len(inputs) == 2 and inputs[0].op.type == "Enter" and _is_way_back(inputs[1])


def _is_zero(tensor: tf.Tensor) -> bool:
    """Whether a tensor is of a floating dtype and zero, whatever its shape."""
    if not tensor.dtype.is_floating:
        return False
    while tensor.op.type in ("Identity", "Fill"):
        tensor = tensor.op.inputs[1 if tensor.op.type == "Fill" else 0]
    if tensor.op.type == "ZerosLike":
        return True
    value: Any = tf.get_static_value(tensor) if tensor.op.type == "Const" else None
    return value is not None and not np.any(value)


def _behind(tensor: tf.Tensor, *types: str) -> tf.Tensor:
    while tensor.op.type in types:
        tensor = tensor.op.inputs[0]
    return tensor
