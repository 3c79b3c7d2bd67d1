"""Rules for TensorArrays and stacks of TensorFlow 1, and for tensor lists.

If a list's elements have rows, or are partial sums, each device has a list of its own. What stacks
and arrays hold is known from what is written to them in the same pass; what a list holds, which
goes through loops as a value, is assumed where it is made: see `loops.Assumptions`.
"""

from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import control_flow, registry
from replicate.splitting.states import (
    COPIED,
    FLOW,
    OWN,
    SIZE,
    SUM,
    WHOLE,
    ListOf,
    Rows,
    Split,
    WholeError,
)
from replicate.splitting.structure import loops

# TensorArrays.


@registry.rule("TensorArrayV3", always=True)
def _array(case: registry.Case) -> Split | None:
    """(size) -> handle, flow; what is written tells the state of the elements."""
    if case.assumptions.is_array_whole(case.op):
        return None
    writes = case.structure.array_writes(case.op)
    axes = {n for write in writes for n in _axes_with_rows(case, write)}
    return Split([WHOLE], [WHOLE, FLOW], attributes=_with_open_elements(case, axes))


@registry.rule("TensorArrayWriteV3", "TensorArrayScatterV3", always=True)
def _array_write(case: registry.Case) -> Split | None:
    """(handle, index, value, flow) -> flow; a scatter writes what is along the first axis."""
    array = _own_array(case)
    if array is None:
        return None
    _, index, value, _ = case.inputs
    first = case.type == "TensorArrayScatterV3"
    if not states.is_rows(value) or value.axis < first or index not in (WHOLE, SIZE):
        case.assumptions.let_array_be_whole(array, "what is written has no rows")
    element = Rows(value.axis - first, value.space)
    if case.assumptions.elements.setdefault(array, element) != element:
        case.assumptions.let_array_be_whole(array, "elements have different rows")
    return Split([WHOLE, WHOLE, value, FLOW], [FLOW])


@registry.rule("TensorArrayReadV3", "TensorArrayGatherV3", always=True)
def _array_read(case: registry.Case) -> Split | None:
    """(handle, index, flow) -> value; a gather reads elements along a new first axis."""
    array = _own_array(case)
    if array is None:
        return None
    element = case.assumptions.elements.get(array)
    if not isinstance(element, Rows):
        case.assumptions.let_array_be_whole(array, "it is read before it is written")
    if case.type == "TensorArrayReadV3":
        return Split([WHOLE, WHOLE, FLOW], [element])
    attributes = _with_open_elements(case, {element.axis})
    return Split([WHOLE, WHOLE, FLOW], [element.at(element.axis + 1)], attributes=attributes)


@registry.rule("TensorArraySizeV3", always=True)
def _array_size(case: registry.Case) -> Split | None:
    """(handle, flow) -> size, which is the same on all devices."""
    return Split([WHOLE, FLOW], [COPIED]) if _own_array(case) is not None else None


@registry.rule("TensorArrayGradV3", always=True)
def _array_gradient(case: registry.Case) -> Split | None:
    """(handle, flow) -> handle, flow of an array of gradients, one for each element."""
    array = _own_array(case)
    if array is None:
        return None
    if array not in case.assumptions.elements:
        case.assumptions.let_array_be_whole(array, "its gradient is taken before it is written")
    case.assumptions.elements[case.op] = case.assumptions.elements[array]
    return Split([WHOLE, FLOW], [WHOLE, FLOW])


@registry.rule("TensorArrayConcatV3", "TensorArrayGradWithShape", "TensorArraySplitV3", always=True)
def _array_rest(case: registry.Case) -> None:
    """Joined or cut along the first axis, rows would not stay in order."""
    array = _own_array(case)
    if array is not None:
        case.assumptions.let_array_be_whole(array, f"{case.type} uses it")


def _own_array(case: registry.Case) -> tf.Operation | None:
    """Returns the array that an operation uses, or None if it is whole.

    Where it is not known which array an operation uses, all arrays that it may use are whole.
    """
    array = loops.handle_of(case.op.inputs[0])
    if case.assumptions.is_array_whole(array):
        return None
    if array.type not in ("TensorArrayV3", "TensorArrayGradV3"):
        case.assumptions.let_array_be_whole(None, "branches give different arrays")
    if case.inputs[-1] is not FLOW:
        case.assumptions.let_array_be_whole(array, "the order of its operations is not known")
    return array


def _with_open_elements(case: registry.Case, axes: set[int]) -> dict[str, Any]:
    return {"element_shape": registry.opened(case.attribute("element_shape"), axes)}


def _axes_with_rows(case: registry.Case, write: tf.Operation) -> list[int]:
    """Returns the axes along which the elements that an operation writes may have rows."""
    extents = case.facts.shape(write.inputs[2])
    if extents is None or write.type == "TensorArraySplitV3":
        return list(range(tf.TensorShape(case.attribute("element_shape")).rank or 0))
    first = write.type == "TensorArrayScatterV3"
    return [n for n, extent in enumerate(extents[first:]) if extent.size is None]


# Stacks, which keep what a loop's gradient needs.


@registry.rule("StackPushV2", always=True)
def _push(case: registry.Case) -> registry.Answer:
    """(handle, value) -> value."""
    state = case.inputs[1]
    stack = loops.handle_of(case.op.inputs[0])
    if case.structure.push_of(case.op) is None or state is WHOLE or stack.type != "StackV2":
        return None
    if isinstance(state, ListOf):
        return None
    case.assumptions.elements[stack] = state
    return SIZE if state is SIZE else Split([WHOLE, state], [state])


@registry.rule("StackPopV2", always=True)
def _pop(case: registry.Case) -> registry.Answer:
    """(handle) -> value; comes after the push."""
    state = case.assumptions.elements.get(loops.handle_of(case.op.inputs[0]))
    if state is None or state is SIZE:
        return state
    return Split([WHOLE], [state])


# Tensor lists.


@registry.rule("EmptyTensorList", "TensorListReserve", always=True)
def _new_list(case: registry.Case) -> Split | None:
    """(element_shape, number) -> list."""
    element = case.assumptions.element(case.op)
    if element is None or element is WHOLE:
        return None
    return Split([_shape_of_new(case, 0, element), WHOLE], [ListOf(element)])


@registry.rule("TensorListFromTensor", always=True)
def _list_from_tensor(case: registry.Case) -> Split | None:
    """(tensor, element_shape) -> list of the elements along the first axis."""
    element, state = case.assumptions.element(case.op), case.inputs[0]
    if element is None:
        if states.is_rows(state) and state.axis > 0:
            case.assumptions.want_list(case.op, Rows(state.axis - 1, state.space))
        if state == SUM:
            case.assumptions.want_list(case.op, SUM)
        return None
    if element is WHOLE:
        return None
    wanted = element.at(element.axis + 1) if states.is_rows(element) else element
    if state != wanted and not control_flow.may_have_rows(case, 0, wanted):
        case.assumptions.let_lists_be_whole([case.op], "it is made from something else")
    return Split([wanted, _shape_of_new(case, 1, element)], [ListOf(element)])


def _shape_of_new(case: registry.Case, n: int, element: states.State) -> states.View:
    """Returns the view of input n, the shape of the elements of a list that is made."""
    try:
        return _shape_of_own(case, n, element)
    except WholeError as reason:
        case.assumptions.let_lists_be_whole([case.op], str(reason))
        raise


@registry.rule("TensorListPushBack", "TensorListSetItem")
def _list_write(case: registry.Case) -> Split | None:
    """(list, value) or (list, index, value) -> list."""
    held, value = case.inputs[0], case.inputs[-1]
    element = _written(case, held, value)
    return Split([held, *[WHOLE] * (len(case.inputs) - 2), element], [held])


def _written(case: registry.Case, held: states.State, value: states.State) -> states.View:
    """Returns the state in which a value is written to a list of each device's own."""
    if not isinstance(held, ListOf):
        if states.is_rows(value) or value == SUM or isinstance(value, ListOf):
            case.assumptions.want_lists(case.op.inputs[0], value)
        raise WholeError("the list is whole")
    n = len(case.inputs) - 1
    if value != held.element and not control_flow.may_have_rows(case, n, held.element):
        raise WholeError("a list holds values in different states")
    return held.element


@registry.rule("TensorListGetItem", "TensorListPopBack")
def _list_read(case: registry.Case) -> Split | None:
    """(list, index, element_shape) -> value, or (list, element_shape) -> list, value."""
    held, last = _own_list(case), len(case.inputs) - 1
    wants = [held, *[WHOLE] * (last - 1), _shape_of_own(case, last, held.element)]
    return Split(wants, [held, held.element][-len(case.op.outputs) :])


@registry.rule("TensorListStack")
def _stack(case: registry.Case) -> Split | None:
    """(list, element_shape) -> the elements along a new first axis."""
    held = _own_list(case)
    element = held.element
    if isinstance(element, ListOf):
        raise WholeError("lists are stacked")
    stacked = element.at(element.axis + 1) if states.is_rows(element) else element
    return Split([held, _shape_of_own(case, 1, element)], [stacked])


@registry.rule("TensorListLength")
def _length(case: registry.Case) -> Split | None:
    """(list) -> number of elements, which is the same on all devices."""
    return Split([_own_list(case)], [COPIED])


@registry.rule("TensorListElementShape")
def _list_shape(case: registry.Case) -> Split | None:
    """(list) -> shape of its elements, the same on all devices unless it has their rows."""
    held = _own_list(case)
    element, result = held.element, case.op.outputs[0]
    if states.is_rows(element) and case.facts.literal(result) is not None:
        entries = case.facts.shape_entries(result)
        if entries and entries[element.axis].has_rows(element.space):
            return Split([held], [SIZE])
    shape: Any = case.facts.value(result)
    if shape is None:
        raise WholeError("the shape of a list's elements is not known")
    if states.is_rows(element) and np.ndim(shape) and shape[element.axis] != -1:
        raise WholeError("the shape of a list's elements tells their rows")
    return Split([held], [COPIED])


def _own_list(case: registry.Case) -> ListOf:
    if not isinstance(case.inputs[0], ListOf):
        raise WholeError("the list is whole")
    return case.inputs[0]


def _shape_of_own(case: registry.Case, n: int, element: states.State) -> states.View:
    """Returns the view of input n, the shape of the elements of a device's own list."""
    if not states.is_rows(element):
        return WHOLE
    view = OWN if case.inputs[n] is SIZE else WHOLE
    shape = case.facts.value(case.op.inputs[n])
    is_open = shape is not None and (np.ndim(shape) == 0 or shape[element.axis] == -1)
    return view if is_open else case.shape_view(n, element)


# Optional values, which branches keep for their gradients: lists of one element or none.


@registry.rule("OptionalFromValue")
def _optional(case: registry.Case) -> Split | None:
    """(value) -> optional."""
    element = case.assumptions.element(case.op)
    state = case.inputs[0]
    if len(case.inputs) > 1 or not (states.is_rows(state) or state == SUM) or element is WHOLE:
        return None
    if element is None:
        case.assumptions.want_list(case.op, state)
    return Split([element], [ListOf(element)])


@registry.rule("OptionalNone", always=True)
def _no_value(case: registry.Case) -> Split | None:
    """() -> optional without a value, of a branch that was not taken."""
    element = case.assumptions.element(case.op)
    return None if element is None or element is WHOLE else Split([], [ListOf(element)])


@registry.rule("OptionalGetValue")
def _value_of(case: registry.Case) -> Split:
    """(optional) -> value."""
    element = _own_list(case).element
    (shape,) = case.attribute("output_shapes")
    shape = registry.opened(shape, [element.axis] if states.is_rows(element) else [])
    return Split([case.inputs[0]], [element], attributes={"output_shapes": [shape]})
