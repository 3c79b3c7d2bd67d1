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
from typing import Any, Final

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
        """Whether a variable is to be cut, if it can be."""
        shape, is_part = variable.shape, getattr(variable, "_save_slice_info", None) is not None
        if is_part or not shape.rank or not shape.is_fully_defined():
            return False
        size = placement.size_in_bytes(shape, variable.dtype)
        return len(self.devices) > 1 and size > self.most_bytes and shape[0] >= len(self.devices)


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
    """

    begin: int
    rows: int
    handle: tf.Tensor
    value: tf.Tensor
    check: tf.Tensor


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
        self._handles: dict[tuple[Any, int], tf.Tensor] = {}
        self._cuts: dict[tuple[Any, int], tf.Tensor | None] = {}
        self._parts: dict[tuple[object, ...], list[tf.Tensor]] = {}
        for holder, variable in self.variables.items():
            _begin_on_host(variable.initial_value)
            for k, device in enumerate(self._devices):
                self._handles[holder.outputs[0].ref(), k] = self._holder(holder, k, device)
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
        handles = [holder.outputs[0] for holder in self.variables]
        users = {user for handle in handles for user in operations.users(handle)}
        for op in order.as_made(users.difference(self._seen)):
            self._seen.add(op)
            self._require(op)
            if op.type in _READS:
                self._moved |= replacing.replace(op, [self._read(op)])
            else:
                self._write(op)
        return self._moved

    def slices(self, variable: tf.Variable) -> list[Slice]:
        """Returns the slices of a variable."""
        return [self._slice(variable, k) for k in range(len(self._devices))]

    def _require(self, op: tf.Operation) -> None:
        if not _is_cuttable(op, self.variables):
            raise ValueError(
                "What uses a variable in slices, behind the model_fn, reads it, looks up rows or "
                f"writes it, and is in no loop and no function; got {op.name}, of type {op.type}. "
                "Make it in the model_fn, so that the variable stays whole, or raise slice_bytes."
            )

    # The slices.

    def _bounds(self, rows: int, k: int) -> tuple[int, int]:
        """Returns where slice k of so many rows begins, and how many it has."""
        least, more = divmod(rows, len(self._devices))
        return k * least + min(k, more), least + (k < more)

    def _holder(self, holder: tf.Operation, k: int, device: str) -> tf.Tensor:
        """Makes the variable that is slice k."""
        shape = _shape(holder)
        shape = tf.TensorShape([self._bounds(shape[0], k)[1], *shape[1:]])
        name = self._graph.unique_name(f"{holder.name}/part_{k}")
        given = {"dtype": holder.get_attr("dtype"), "shape": shape, "shared_name": name.encode()}
        attributes = {key: nodes.attribute(each) for key, each in given.items()}
        with replacing.written("", self._graph, device):
            kind, resource, name = holder.type, [tf.resource], name + "/"
            made = self._graph.create_op(kind, [], resource, attrs=attributes, name=name)
        return made.outputs[0]

    def _slice(self, variable: tf.Variable, k: int) -> Slice:
        """Returns slice k as the graph holds it."""
        handle = self._handles[variable.handle.ref(), k]
        with replacing.written(f"{handle.op.name}/", self._graph, handle.op.device):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype, name="Read")
            check = tf.raw_ops.VarIsInitializedOp(resource=handle)
        return Slice(*self._bounds(variable.shape[0], k), handle, value, check)

    def _handle(self, handle: tf.Tensor, k: int) -> tf.Tensor:
        """Returns what stands for slice k where a variable's handle stands for all."""
        if (handle.ref(), k) not in self._handles:
            op = handle.op
            own = self._handle(op.inputs[0], k)
            with self._beside(op, own.device):
                dtypes = [tf.resource] * len(op.outputs)
                inputs, attributes = [own, *op.inputs[1:]], nodes.attributes_of(op)
                made = replacing.create(op.type, inputs, dtypes, attributes)
            for old, new in zip(op.outputs, made, strict=True):
                self._handles[old.ref(), k] = new
        return self._handles[handle.ref(), k]

    def _handles_of(self, op: tf.Operation, n: int = 0) -> list[tf.Tensor]:
        """Returns what stands for the slices of an operation's input n."""
        return [self._handle(op.inputs[n], k) for k in range(len(self._devices))]

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
        parts = [self._made_like(op, [handle], handle.device) for handle in self._handles_of(op)]
        # NOTE: who waits for the read must not wait for all rows in one place.
        replacing.wait_instead(op._control_outputs, op, [part.op for part in parts])
        with self._beside(op):
            if op.type != "ReadVariableOp":
                return tf.reduce_all(tf.stack(parts))
            whole = tf.concat(parts, 0)
        if op._get_control_flow_context() is None:
            self.joined.append(whole)
        self._cuts |= {(whole.ref(), k): part for k, part in enumerate(parts)}
        return whole

    def _looked_up(self, op: tf.Operation, shape: Sequence[int]) -> tf.Tensor:
        """Returns what the slices have for ids."""
        ids = op.inputs[1]
        flat, found = self._flat(op, ids, []), []
        parts = self._by_slice(op, flat, flat, shape[0])
        for k, handle in enumerate(self._handles_of(op)):
            own = self._numbered(op, parts[k], handle, shape[0], k)
            found.append(self._made_like(op, [handle, own], handle.device))
        with self._beside(op):
            numbers = tf.raw_ops.Range(start=0, limit=tf.raw_ops.Size(input=flat), delta=1)
        places = self._by_slice(op, numbers, flat, shape[0])
        with self._beside(op):
            stitched = tf.raw_ops.DynamicStitch(indices=places, data=found)
            return tf.reshape(stitched, tf.concat([tf.shape(ids), shape[1:]], 0))

    def _numbered(
        self, op: tf.Operation, ids: tf.Tensor, handle: tf.Tensor, rows: int, k: int
    ) -> tf.Tensor:
        """Returns which rows of slice k have ids that it has."""
        with self._beside(op, handle.device):
            return ids - tf.constant(self._bounds(rows, k)[0], ids.dtype)

    def _flat(self, op: tf.Operation, tensor: tf.Tensor, row: Sequence[int]) -> tf.Tensor:
        """Returns rows of a shape along one dimension."""
        if tensor.shape.rank == 1 + len(row):
            return tensor
        with self._beside(op):
            return tf.reshape(tensor, [-1, *row])

    def _by_slice(
        self, op: tf.Operation, data: tf.Tensor, ids: tf.Tensor, rows: int
    ) -> list[tf.Tensor]:
        """Returns entries of `data` by the slices, of so many rows in all, that have their ids.

        What is made of entries, each by itself, is made beside the slices.
        """
        made_by, inputs = data.op, [each for each in data.op.inputs if each.shape.rank != 0]
        is_each = made_by.type in _EACH and made_by._get_control_flow_context() is None
        if data is not ids and is_each and len({each.ref() for each in inputs}) == 1:
            if inputs[0].shape.rank == data.shape.rank:
                return [
                    self._made_like(
                        made_by,
                        [part if each is inputs[0] else each for each in made_by.inputs],
                        device,
                    )
                    for part, device in zip(
                        self._by_slice(op, inputs[0], ids, rows), self._devices, strict=True
                    )
                ]
        key = (data.ref(), ids.ref(), rows, op._get_control_flow_context())
        if key not in self._parts:
            numbers = self._parts.get(key[1:])
            with self._beside(op):
                numbers = self._parts[key[1:]] = numbers or [self._numbers(ids, rows)]
                count = len(self._devices)
                self._parts[key] = tf.dynamic_partition(data, numbers[0], count)
        return self._parts[key]

    def _numbers(self, ids: tf.Tensor, rows: int) -> tf.Tensor:
        """Returns which slice has each id; the first ones may have a row more than the others."""
        least, more = divmod(rows, len(self._devices))
        if not more:
            return tf.cast(ids // least, tf.int32)
        return tf.cast(tf.maximum(ids // (least + 1), (ids - more) // least), tf.int32)

    # What writes.

    def _write(self, op: tf.Operation) -> None:
        """Puts what writes each slice in place of what writes a variable."""
        made, attributes = [], nodes.attributes_of(op)
        for k, handle in enumerate(self._handles_of(op)):
            own = self._written(op, k, handle)
            with self._beside(op, handle.device):
                made.append(self._graph.create_op(op.type, own, [], attrs=attributes))
        replacing.wait_instead(op._control_outputs, op, made)
        with self._beside(op):
            self._moved[op] = tf.group(*made)

    def _written(self, op: tf.Operation, k: int, first: tf.Tensor) -> list[tf.Tensor]:
        """Returns what an operation reads that writes slice k, whose handle is the first of it."""
        shape, names = _shape(operations.made_by(op.inputs[0])), _names(op)
        ids = None
        if _INDICES in names:
            ids = self._flat(op, op.inputs[names.index(_INDICES)], [])
        found = []
        for name, tensor in zip(names, op.inputs, strict=True):
            if tensor.dtype == tf.resource:
                tensor = self._handle(tensor, k)
            elif name == _INDICES:
                own = self._by_slice(op, ids, ids, shape[0])[k]
                tensor = self._numbered(op, own, first, shape[0], k)
            elif name in _ROWS and tensor.shape.rank != 0:
                if ids is None:
                    tensor = self._cut(op, tensor, shape, k)
                else:
                    flat = self._flat(op, tensor, shape[1:])
                    tensor = self._by_slice(op, flat, ids, shape[0])[k]
            found.append(tensor)
        return found

    def _cut(self, op: tf.Operation, tensor: tf.Tensor, shape: Sequence[int], k: int) -> tf.Tensor:
        """Returns the rows of slice k of a value that is as long as a variable of a shape."""
        own = self._own(tensor, k)
        if own is not None:
            return own
        begin, rows = self._bounds(shape[0], k)
        with self._beside(op):
            if not tensor.shape.is_fully_defined():
                tensor = tf.ensure_shape(tensor, shape)
            others = [0] * (len(shape) - 1)
            return tf.slice(tensor, [begin, *others], [rows, *shape[1:]])

    def _own(self, tensor: tf.Tensor, k: int) -> tf.Tensor | None:
        """Returns the rows of slice k of what is made of slices entry by entry; else None."""
        key = (tensor.ref(), k)
        if key not in self._cuts:
            self._cuts[key] = self._made_of_slices(tensor, k)
        return self._cuts[key]

    def _made_of_slices(self, tensor: tf.Tensor, k: int) -> tf.Tensor | None:
        op = tensor.op
        if op.type not in _EACH or op._get_control_flow_context() is not None:
            return None
        if not all(each.shape.is_fully_defined() for each in (tensor, *op.inputs)):
            return None
        with_rows = [each for each in op.inputs if each.shape[:1] == tensor.shape[:1]]
        with_rows = [each for each in with_rows if each.shape.rank == tensor.shape.rank]
        owns = [own for each in with_rows if (own := self._own(each, k)) is not None]
        if not owns:
            return None
        inputs = [
            self._cut(op, each, each.shape.as_list(), k)
            if any(each is other for other in with_rows)
            else each
            for each in op.inputs
        ]
        return self._made_like(op, inputs, owns[0].device)

    # What is in place of an operation.

    def _beside(
        self, op: tf.Operation, device: str = ""
    ) -> contextlib.AbstractContextManager[None]:
        """Makes operations that stand for one: in its branch, after what it waits for."""
        context, name = op._get_control_flow_context(), f"{op.name}/slices/"
        device = device or self._home
        return replacing.written(name, self._graph, device, context, op.control_inputs)

    def _made_like(self, op: tf.Operation, inputs: Sequence[tf.Tensor], device: str) -> tf.Tensor:
        """Returns what an operation's kind makes of other inputs, on another device."""
        with self._beside(op, device):
            kinds, attributes = [op.outputs[0].dtype], nodes.attributes_of(op)
            return replacing.create(op.type, inputs, kinds, attributes)[0]


def _begin_on_host(value: tf.Tensor) -> None:
    """Makes a variable's first value, which has all rows, where there is most memory."""
    for op in operations.made_from([value]):
        if op.type not in placement.VARIABLE_TYPES and operations.variable_of(op) is None:
            op._set_device(placement.host_of(op.device))


def _cuttable(slicing: Slicing) -> Mapping[tf.Operation, tf.Variable]:
    """Returns the large variables all of whose uses can be written slice by slice."""
    found = {each.handle.op: each for each in slicing.variables if slicing.is_large(each)}
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


def _names(op: tf.Operation) -> list[str]:
    """Returns the names that an operation's kind gives to its inputs."""
    return [each.name for each in op.op_def.input_arg]


def _shape(holder: tf.Operation) -> list[int]:
    """Returns the shape of the variable that an operation holds."""
    return tf.TensorShape(holder.get_attr("shape")).as_list()
