"""Large variables in slices, a run of rows on each of several devices.

What uses such a variable is written as what it does to each slice. So everything else sees one
device's graph, in which there are more variables, and smaller ones.

    ReadVariableOp                the slices' values, end to end
    ResourceGather                the ids, parted by slices; what each slice has for its own,
                                  stitched together
    ResourceSparseApply...        on each slice, with its own ids and their gradients
    ResourceApply..., Assign...   on each slice, with its rows of the gradient or the value

Rows of what an optimizer makes entry by entry, of variables with the same slices, are made of the
slices' own rows: no device ever has all of them.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from replicate.compat.tensorflow import tf
from replicate.graph import operations, placement
from replicate.splitting.rules import elementwise
from replicate.splitting.structure import loops, nodes, order, replacing
from replicate.splitting.structure.replacing import Moved

_INDICES = "indices"
_ROWS = ("delta", "grad", "updates", "value")  # what a write has for rows; else it has numbers
_LOOKUP = "ResourceGather"
_READS = ("ReadVariableOp", "VarIsInitializedOp", "VariableShape", _LOOKUP)
_EACH = frozenset(elementwise.EACH) - {"Select"}  # whose condition may be of another rank


@dataclasses.dataclass(frozen=True)
class Slicing:
    """What is to be cut.

    Attributes:
        variables: The graph's variables that a strategy has placed.
        most_bytes: How large a variable may be that stays whole.
        devices: Where the slices of each other one lie.
        home: Where ids are parted by slices, and rows are stitched together.
    """

    variables: Sequence[tf.Variable] = ()
    most_bytes: int = 0
    devices: Sequence[str] = ()
    home: str = ""

    def is_large(self, variable: tf.Variable) -> bool:
        """Whether a variable is to be cut, if it can be; no part of one is."""
        is_part = getattr(variable, "_save_slice_info", None) is not None
        size = placement.size_in_bytes(variable.shape, variable.dtype)
        return len(self.devices) > 1 and size > self.most_bytes and not is_part

    def has_rows(self, variable: tf.Variable) -> bool:
        """Whether a variable has a row for each slice."""
        shape = variable.shape
        return shape.is_fully_defined() and shape[:1].num_elements() >= len(self.devices)


NOTHING: Final = Slicing()


@dataclasses.dataclass(frozen=True)
class Slice:
    """A run of a variable's rows.

    Attributes:
        begin: The first row.
        rows: How many there are.
        handle: The variable that has them.
        value: What it reads, for whoever fetches it.
        check: Whether it has a value.
        initializer: What gives it its first one.
    """

    begin: int
    rows: int
    handle: tf.Tensor
    value: tf.Tensor
    check: tf.Tensor
    initializer: tf.Operation


class Sliced:
    """A graph's large variables in slices.

    Args:
        graph: The graph; its functions are lowered, and loops read no variable.
        slicing: What is to be cut.

    Attributes:
        variables: The variables that are cut, by what holds them whole: nothing uses that.
        joined: The values of whole variables, of which slices are put together.
    """

    def __init__(self, graph: tf.Graph, slicing: Slicing):
        self._graph = graph
        self._devices, self._home = slicing.devices, slicing.home
        self.variables = _cuttable(slicing)
        self.joined: list[tf.Tensor] = []
        self._moved: Moved = {}
        self._seen: set[tf.Operation] = set()
        self._written: dict[tf.Operation, list[tf.Operation]] = {}
        self._reads: dict[Any, list[tf.Tensor]] = {}
        self._made: dict[tuple[object, ...], list[tf.Tensor]] = {}
        self._handles = {each.outputs[0].ref(): self._hold(each) for each in self.variables}
        self._first: set[tf.Operation] = set()
        for variable in self.variables.values():
            self._first |= _begin_on_host(variable.initial_value)
        if self.variables:
            self._leave_whole()

    def _leave_whole(self) -> None:
        """Takes home what was put beside a variable that nothing uses any more."""
        names = {holder.name for holder in self.variables}
        for op in self._graph.get_operations():
            is_free = op.type not in placement.VARIABLE_TYPES and not operations.variable_of(op)
            if is_free and not names.isdisjoint(operations.colocated_with(op)):
                op._clear_attr("_class")
                op._set_device(self._home)

    def lower(self) -> Moved:
        """Writes all that uses the variables as what it does to their slices.

        Returns:
            What is in place of these operations and their tensors.

        Raises:
            ValueError: If one that was made later cannot be done slice by slice.
        """
        for op in self._unseen():
            self._seen.add(op)
            self._require(op)
            if op.type in _READS:
                self._moved |= replacing.replace(op, [self._read(op)])
            else:
                self._write(op)
        return self._moved

    def require_lowered(self) -> None:
        """Refuses what was made too late to be lowered: it would use what has no value.

        Raises:
            ValueError: If there is any.
        """
        for op in self._unseen():
            raise ValueError(
                "What uses a variable in slices is made by the model_fn, or by a hook in begin(); "
                f"got {op.name}, of type {op.type}, which was made later. Make it there."
            )

    def _unseen(self) -> list[tf.Operation]:
        """Returns what uses the variables and is not lowered, as it was made."""
        handles = [holder.outputs[0] for holder in self.variables]
        users = {user for handle in handles for user in operations.users(handle)}
        return order.as_made(users.difference(self._seen))

    def _require(self, op: tf.Operation) -> None:
        if not _is_cuttable(op, self.variables):
            raise ValueError(
                "What uses a variable in slices, behind the model_fn, reads it, looks up rows or "
                f"writes it, and is in no loop and no function; got {op.name}, of type {op.type}. "
                "Make it in the model_fn, so that the variable stays whole, or raise slice_bytes."
            )

    # The slices.

    def _bounds(self, rows: int) -> list[tuple[int, int]]:
        """Returns where each slice of so many rows begins, and how many it has."""
        least, more = divmod(rows, len(self._devices))
        return [(k * least + min(k, more), least + (k < more)) for k in range(len(self._devices))]

    def _hold(self, holder: tf.Operation) -> list[tf.Tensor]:
        """Makes the variables that are slices."""
        rows, *row = _shape(holder)
        given: dict[str, Any] = {"dtype": holder.get_attr("dtype")}
        found = []
        for k, (device, (_, own)) in enumerate(zip(self._devices, self._bounds(rows), strict=True)):
            name = self._graph.unique_name(f"{holder.name}/part_{k}")
            given |= {"shape": tf.TensorShape([own, *row]), "shared_name": name.encode()}
            attributes = {key: nodes.attribute(each) for key, each in given.items()}
            with replacing.written("", self._graph, device):
                kind, resource, name = holder.type, [tf.resource], name + "/"
                made = self._graph.create_op(kind, [], resource, attrs=attributes, name=name)
            found.append(made.outputs[0])
        return found

    def slices(self, variable: tf.Variable) -> list[Slice]:
        """Returns the slices of a variable."""
        found = []
        first = self._written.get(variable.initializer, [variable.initializer] * len(self._devices))
        handles = self._handles[variable.handle.ref()]
        for bounds, handle, initializer in zip(
            self._bounds(variable.shape[0]), handles, first, strict=True
        ):
            with replacing.written(f"{handle.op.name}/", self._graph, handle.device):
                value = tf.raw_ops.ReadVariableOp(
                    resource=handle, dtype=variable.dtype, name="Read"
                )
                check = tf.raw_ops.VarIsInitializedOp(resource=handle)
            found.append(Slice(*bounds, handle, value, check, initializer))
        return found

    def _handles_of(self, handle: tf.Tensor) -> list[tf.Tensor]:
        """Returns what stands for slices where a variable's handle stands for all."""
        if handle.ref() not in self._handles:
            op, dtypes = handle.op, [tf.resource] * len(handle.op.outputs)
            columns = []
            for own in self._handles_of(op.inputs[0]):
                with self._beside(op, own.device):
                    inputs, attributes = [own, *op.inputs[1:]], nodes.attributes_of(op)
                    columns.append(replacing.create(op.type, inputs, dtypes, attributes))
            for old, new in zip(op.outputs, zip(*columns, strict=True), strict=True):
                self._handles[old.ref()] = list(new)
        return self._handles[handle.ref()]

    # What reads.

    def _read(self, op: tf.Operation) -> tf.Tensor:
        """Returns what the slices have of what an operation reads of a variable."""
        shape = _shape(operations.made_by(op.inputs[0]))
        if op.type == _LOOKUP:
            return self._looked_up(op, shape)
        dtype = op.outputs[0].dtype
        if op.type == "VariableShape":
            with self._beside(op):
                return tf.constant(shape, dtype)
        parts = [
            self._made_like(op, [handle], handle.device)
            for handle in self._handles_of(op.inputs[0])
        ]
        # NOTE: who waits for the read must not wait for all rows in one place.
        replacing.wait_instead(op._control_outputs, op, [part.op for part in parts])
        with self._beside(op):
            if op.type != "ReadVariableOp":
                return tf.reduce_all(tf.stack(parts))
            whole = tf.concat(parts, 0)
        if op._get_control_flow_context() is None:
            self.joined.append(whole)
        self._reads[whole.ref()] = parts
        return whole

    def _looked_up(self, op: tf.Operation, shape: Sequence[int]) -> tf.Tensor:
        """Returns what the slices have for ids."""
        handles, ids = self._handles_of(op.inputs[0]), op.inputs[1]
        flat = self._flat(op, ids, [])
        way = _Way(shape[0], op._get_control_flow_context(), flat)
        own = self._numbered(way, handles)
        found = [
            self._made_like(op, [handle, numbers], handle.device)
            for handle, numbers in zip(handles, own, strict=True)
        ]
        with self._free(way):
            numbers = tf.raw_ops.Range(start=0, limit=tf.raw_ops.Size(input=flat), delta=1)
        places = self._parts(numbers, way)
        with self._beside(op):
            stitched = tf.raw_ops.DynamicStitch(indices=places, data=found)
            return tf.reshape(stitched, tf.concat([tf.shape(ids), shape[1:]], 0))

    # What writes.

    def _write(self, op: tf.Operation) -> None:
        """Puts what writes each slice in place of what writes a variable."""
        made, attributes = [], nodes.attributes_of(op)
        for own in zip(*self._columns(op), strict=True):
            with self._beside(op, own[0].device):
                made.append(self._graph.create_op(op.type, list(own), [], attrs=attributes))
        self._written[op] = made
        replacing.wait_instead(op._control_outputs, op, made)
        with self._beside(op):
            self._moved[op] = tf.group(*made)

    def _columns(self, op: tf.Operation) -> list[list[tf.Tensor]]:
        """Returns for each input of an operation what those read that write slices."""
        handles = self._handles_of(op.inputs[0])
        rows, *row = _shape(operations.made_by(op.inputs[0]))
        named = dict(zip([each.name for each in op.op_def.input_arg], op.inputs, strict=True))
        context, ids = op._get_control_flow_context(), named.get(_INDICES)
        way = _Way(rows, context, None if ids is None else self._flat(op, ids, []))
        found = []
        for name, tensor in named.items():
            if tensor.dtype == tf.resource:
                found.append(self._handles_of(tensor))
            elif name == _INDICES:
                found.append(self._numbered(way, handles))
            elif name in _ROWS and tensor.shape.rank != 0:
                if ids is not None:
                    tensor = self._flat(op, tensor, row)
                elif not tensor.shape.is_fully_defined():
                    with self._free(way):
                        tensor = tf.ensure_shape(tensor, [rows, *row])
                found.append(self._parts(tensor, way))
            else:
                found.append([tensor] * len(handles))
        return found

    # Parts of a tensor, by the slices that have its rows, or its ids.

    def _parts(self, tensor: tf.Tensor, way: "_Way") -> list[tf.Tensor]:
        """Returns the parts of a tensor.

        What is made entry by entry is made of parts, beside the slices.
        """
        if way.ids is None and tensor.ref() in self._reads:
            return self._reads[tensor.ref()]
        key = (tensor.ref(), way.key)
        if key not in self._made:
            with_rows, op = _with_rows(tensor), tensor.op
            if with_rows:
                columns = [
                    self._parts(each, way)
                    if each.ref() in with_rows
                    else [each] * len(self._devices)
                    for each in op.inputs
                ]
                self._made[key] = [
                    self._made_like(op, own, device)
                    for *own, device in zip(*columns, self._devices, strict=True)
                ]
            else:
                self._made[key] = self._cut(tensor, way)
        return self._made[key]

    def _cut(self, tensor: tf.Tensor, way: "_Way") -> list[tf.Tensor]:
        """Cuts a tensor into parts, where it is; or makes them, where all entries are alike."""
        bounds = self._bounds(way.rows)
        if way.ids is not None:
            key = ("numbers", way.key)
            with self._free(way):
                if key not in self._made:
                    self._made[key] = [self._numbers(way.ids, way.rows)]
                return tf.dynamic_partition(tensor, self._made[key][0], len(bounds))
        row, value, found = tensor.shape.as_list()[1:], _entry(tensor), []
        place = tensor.device if tensor.op in self._first else ""
        for device, (begin, rows) in zip(self._devices, bounds, strict=True):
            with self._free(way, place if value is None else device):
                if value is not None:
                    found.append(tf.fill([rows, *row], value))
                else:
                    found.append(tf.slice(tensor, [begin, *[0] * len(row)], [rows, *row]))
        return found

    def _numbers(self, ids: tf.Tensor, rows: int) -> tf.Tensor:
        """Returns which slice has each id; the first ones may have a row more than the others."""
        least, more = divmod(rows, len(self._devices))
        if not more:
            return tf.cast(ids // least, tf.int32)
        return tf.cast(tf.maximum(ids // (least + 1), (ids - more) // least), tf.int32)

    def _numbered(self, way: "_Way", handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns for each slice which of its rows have its ids."""
        found = []
        parts, bounds = self._parts(way.ids, way), self._bounds(way.rows)
        for part, (begin, _), handle in zip(parts, bounds, handles, strict=True):
            with self._free(way, handle.device):
                found.append(part - tf.constant(begin, part.dtype))
        return found

    def _flat(self, op: tf.Operation, tensor: tf.Tensor, row: Sequence[int]) -> tf.Tensor:
        """Returns rows of a shape along one dimension."""
        if tensor.shape.rank == 1 + len(row):
            return tensor
        key = (tensor.ref(), *row, op._get_control_flow_context())
        if key not in self._made:
            with self._free(_Way(0, op._get_control_flow_context())):
                self._made[key] = [tf.reshape(tensor, [-1, *row])]
        return self._made[key][0]

    # What is in place of an operation.

    def _beside(
        self, op: tf.Operation, device: str = ""
    ) -> contextlib.AbstractContextManager[None]:
        """Makes operations that stand for one: in its branch, after what it waits for."""
        context, name = op._get_control_flow_context(), f"{op.name}/slices/"
        device = device or self._home
        return replacing.written(name, self._graph, device, context, op.control_inputs)

    def _free(self, way: "_Way", device: str = "") -> contextlib.AbstractContextManager[None]:
        """Makes operations that wait for nothing but what they read, in a branch or in none."""
        return replacing.written("slices/", self._graph, device or self._home, way.context)

    def _made_like(self, op: tf.Operation, inputs: Sequence[tf.Tensor], device: str) -> tf.Tensor:
        """Returns what an operation's kind makes of other inputs, on another device."""
        with self._beside(op, device):
            kinds, attributes = [op.outputs[0].dtype], nodes.attributes_of(op)
            return replacing.create(op.type, inputs, kinds, attributes)[0]


class _Way(NamedTuple):
    """How tensors are parted by slices.

    Attributes:
        rows: How many the variable has.
        context: The branch in which that is done, or None.
        ids: The id of each entry, in one dimension; None: entries are the variable's rows.
    """

    rows: int
    context: Any
    ids: tf.Tensor | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same way."""
        return self.rows, self.context, None if self.ids is None else self.ids.ref()


def _with_rows(tensor: tf.Tensor) -> set[Any]:
    """Returns those operands, as `ref()`s, that have an entry for each one of a tensor's rows.

    They are none if the tensor is not made entry by entry, or if that is not known.
    """
    op = tensor.op
    if op.type not in _EACH or op._get_control_flow_context() is not None:
        return set()
    operands = [each for each in op.inputs if each.shape.rank != 0]
    if len({each.ref() for each in operands}) != 1:
        if not all(each.shape.is_fully_defined() for each in (tensor, *operands)):
            return set()
        operands = [each for each in operands if each.shape[:1] == tensor.shape[:1]]
    return {each.ref() for each in operands if each.shape.rank == tensor.shape.rank}


def _entry(tensor: tf.Tensor) -> tf.Tensor | None:
    """Returns the entry that all entries of a constant or a fill are, if they are alike."""
    op = tensor.op
    if op.type == "Fill":
        return op.inputs[1]
    if op.type != "Const":
        return None
    given = op.get_attr("value")
    values = [value for _, value in given.ListFields() if hasattr(value, "extend")]
    if given.tensor_content or [len(value) for value in values] != [1]:
        return None
    given.ClearField("tensor_shape")
    return tf.constant(tf.make_ndarray(given), tensor.dtype)


def _begin_on_host(value: tf.Tensor) -> set[tf.Operation]:
    """Makes a variable's first value, which has all rows, where there is most memory.

    Returns:
        The operations that make it.
    """
    found = operations.made_from([value])
    for op in found:
        if op.type not in placement.VARIABLE_TYPES and operations.variable_of(op) is None:
            op._set_device(placement.host_of(op.device))
    return found


def _cuttable(slicing: Slicing) -> Mapping[tf.Operation, tf.Variable]:
    """Returns the large variables all of whose uses can be written slice by slice."""
    large = filter(slicing.is_large, slicing.variables)
    found = {each.handle.op: each for each in large if slicing.has_rows(each)}
    while True:
        kept = {
            holder: variable
            for holder, variable in found.items()
            if all(_is_cuttable(op, found) for op in operations.users(holder.outputs[0]))
        }
        if len(kept) == len(found):
            return kept
        found = kept


def _is_cuttable(op: tf.Operation, holders: Collection[tf.Operation]) -> bool:
    """Whether what an operation does to variables can be done to their slices."""
    if loops.root(op) is not None:
        return False
    if op.type in _READS:
        return op.type != _LOOKUP or not op.get_attr("batch_dims")
    is_write = op.type.startswith(operations.WRITES) and not op.outputs
    if not is_write or op.type.startswith(("ResourceScatterNd", "ResourceStrided")):
        return False
    used = [operations.made_by(each) for each in op.inputs if each.dtype == tf.resource]
    if any(holder not in holders for holder in used):
        return False
    return len({_shape(holder)[0] for holder in used}) == 1


def _shape(holder: tf.Operation) -> list[int]:
    """Returns the shape of the variable that an operation holds."""
    return tf.TensorShape(holder.get_attr("shape")).as_list()
