"""What later towers would build of what the first one has built, copied when it is asked for.

The model is called once, as the first tower. What a later tower has in place of a tensor of
the first one is found by a walk back from it: what the towers were given (shards, values
joined across towers) is each tower's own, what was made before the towers or across them is
everybody's, and the operations in between are copied, all towers' at once. Nothing is copied
that nobody asks for: what comes after a value that is the whole batch's is built once.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from replicate.compat import importing
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import (
    copied_definitions,
    copied_functions,
    copied_state,
    functions,
    placement,
    shared_reads,
)

_BESIDE = b"loc:@"
_READ = "ReadVariableOp"
_EXITS = ("Exit", "RefExit")
_MAX_BYTES = 1 << 28  # a message of protobuf holds less than 2 GiB


class TowerCopies:
    """The later towers' copies of what the first tower builds in the current graph.

    Args:
        devices: The K towers' devices.
        prefixes: What the K towers' names begin with.
        resource_of: From a later tower's number and the first one's handle of a variable to
            the later one's.
    """

    def __init__(
        self,
        devices: Sequence[str],
        prefixes: Sequence[str],
        resource_of: Callable[[int, tf.Tensor], tf.Tensor],
    ):
        self._graph = tf1.get_default_graph()
        self._devices = devices
        self._prefixes = prefixes
        self._resource_of = resource_of
        self._later = range(1, len(devices))
        self._edges: list[int] = []  # where the first tower's spans begin and end, by turns
        self._looked_at = self._graph.version
        self._copies: list[dict] = [{} for _ in devices]
        self._given: list[dict] = [{} for _ in devices]
        self._calls: dict[tf.Operation, tuple[int, int]] = {}
        self._reads = shared_reads.SharedReads(devices)
        self._waits = copied_state.Waits()
        self._passed: set[tf.Operation] = set()
        self._scopes: set[str] = set()
        self._scoped = 0  # in how many operations scopes were looked for
        self._placed: dict[tf.Operation, str] = {}
        self._places: dict[tf.Operation, Any] = {}
        self._merged: dict[tuple[int, _Place], str] = {}
        self.state = copied_state.State(self._graph)
        self._functions = copied_functions.Functions(self._graph, devices, self._placed)

    # What is the first tower's own.

    def device_function(self, op: tf.Operation) -> str:
        """Notes that an operation has the tower's device, but for what the user named."""
        self._placed[op] = op.device
        return op.device

    def begin(self) -> None:
        """Notes that the first tower runs from now on."""
        self._edges.append(self._graph.version)

    def end(self) -> None:
        """Notes that the first tower runs no longer."""
        self._edges.append(self._graph.version)

    def is_own(self, op: tf.Operation) -> bool:
        """Whether the first tower has made an operation, by itself."""
        if op.graph is not self._graph:
            return False
        made_at = op._id - 2  # the graph's version then
        return bisect.bisect_right(self._edges, made_at) % 2 == 1

    def reason_against(self) -> str | None:
        """Returns why what the first tower has made since cannot be copied; None: it can."""
        looked_at, self._looked_at = self._looked_at, self._graph.version
        for op in self._graph.get_operations()[looked_at:]:
            if self.is_own(op) and not self._is_shared(op):
                reason = self.state.reason_against(op)
                if reason is not None:
                    return reason
        return None

    # What towers were given.

    def give(self, column: Sequence[tf.Tensor]) -> None:
        """Takes note of K tensors, one for each tower, made before the towers or across them."""
        self._waits.end(column[0].op)
        first = column[0].ref()
        for i in self._later:
            self._given[i][first] = column[i]

    # What later towers have.

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """Returns the copies that a later tower has."""
        return set(self._copies[tower_id].values())

    def has(self, op: tf.Operation) -> bool:
        """Whether an operation of the first tower has been copied."""
        return op in self._copies[-1]

    def of(self, wanted: Iterable[Any]) -> list[list]:
        """Returns what the later towers have in place of the first one's.

        Args:
            wanted: N tensors and operations of the first tower.

        Returns:
            K - 1 lists of N. What is not the first tower's own is everybody's.

        Raises:
            ValueError: If something behind them holds a state of which there is one.
        """
        wanted = list(wanted)
        asked = [w for w in wanted if isinstance(w, tf.Operation) or not self._is_given(w)]
        self._grow()
        self._copy(self._needed(asked))
        return [[self._twin(i, each) for each in wanted] for i in self._later]

    def differs(self, each: Any) -> bool:
        """Whether later towers have something else in place of the first one's."""
        if isinstance(each, tf.Tensor):
            if self._is_given(each):
                return True
            if each.op.type == "VarHandleOp":
                return self._resource_of(1, each) is not each
            each = each.op
        return self.is_own(each) and not self._is_shared(each)

    def _is_given(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self._given[-1]

    def _twin(self, i: int, each: Any) -> Any:
        if isinstance(each, tf.Operation):
            return self._copies[i].get(each, each)
        each = self._resolved(each)
        given = self._given[i].get(each.ref())
        if given is not None:
            return given
        if each.op.type == "VarHandleOp":
            return self._resource_of(i, each)
        copy = self._copies[i].get(each.op)
        return each if copy is None else copy.outputs[each.value_index]

    def _is_shared(self, op: tf.Operation) -> bool:
        """Whether all towers use one operation: a variable, or what is read of it at once."""
        if op.type == _READ and not op.control_inputs:
            handle = op.inputs[0]
            return handle.op.type == "VarHandleOp" and self._resource_of(1, handle) is handle
        return self.state.is_shared(op)

    def _needed(self, asked: Sequence[Any]) -> list[tf.Operation]:
        """Returns what is to be copied for tensors and operations, each once."""
        waiting = [getattr(each, "op", each) for each in asked]
        kept = {each for each in asked if isinstance(each, tf.Operation)}
        copied = self._copies[-1]
        found: dict[tf.Operation, None] = {}
        while waiting:
            op = waiting.pop()
            if op in found or op in copied or not self.is_own(op) or self._is_shared(op):
                continue
            if op in self._passed and op not in kept:
                waiting.extend(tensor.op for tensor in op.inputs if not self._is_given(tensor))
                continue
            # NOTE: TensorFlow lets the gradients of one operation wait for each other, by two
            # identities for each: a third of all operations, and the devices schedule each.
            if op.type == "Identity" and op not in kept and not self._waits.matters(op):
                self._passed.add(op)
                waiting.append(op)
                continue
            self.state.require_copied(op)
            found[op] = None
            waiting.extend(tensor.op for tensor in op.inputs if not self._is_given(tensor))
            waiting.extend(filter(self._is_waited_for, op.control_inputs))
        return sorted(found, key=lambda op: op._id)

    def _is_waited_for(self, op: tf.Operation) -> bool:
        return self._waits.matters(op) and not self.state.is_once(op)

    def _resolved(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor itself behind identities that are left out."""
        while tensor.op in self._passed and not self._is_given(tensor):
            tensor = tensor.op.inputs[0]
        return tensor

    # Copying.

    def _copy(self, operations: list[tf.Operation]) -> None:
        if operations:
            batch = copied_definitions.Definitions(
                self._names(operations),
                self._graph.graph_def_versions,
                self._resolved,
                self._is_given,
                self._is_waited_for,
                self.state.may_differ,
            )
            self._reads.send([t for t in batch.inputs.values() if t.op.type == _READ])
            self._import(batch)
        calls = [op for op in operations if functions.is_call(op)]
        self._calls.update((op, (len(op.inputs), len(op.outputs))) for op in calls)

    def _names(self, operations: list[tf.Operation]) -> dict[tf.Operation, str]:
        """Returns what the names of all copies end with: new names behind each prefix."""
        names, used, scopes = {}, self._graph._names_in_use, self._scopes_of_later()
        chosen: set[str] = set()
        for op in operations:
            name = op.name.removeprefix(self._prefixes[0])
            while name.lower() in chosen or any(
                f"{prefix}{name}".lower() in used or f"{prefix}{name}" in scopes
                for prefix in self._prefixes[1:]
            ):
                name += "_copy"
            chosen.add(name.lower())
            names[op] = name
        return names

    def _scopes_of_later(self) -> set[str]:
        """Returns the scopes in which later towers have operations.

        NOTE: what is imported may be named as no scope is, though what Python makes may be.
        """
        prefixes, made = tuple(self._prefixes[1:]), self._graph.get_operations()
        begin, self._scoped = self._scoped, len(made)
        for op in made[begin:]:
            name = op.name
            if name.startswith(prefixes):
                scope = name.rpartition("/")[0]
                while scope and scope not in self._scopes:
                    self._scopes.add(scope)
                    scope = scope.rpartition("/")[0]
        return self._scopes

    def _import(self, batch: copied_definitions.Definitions) -> None:
        """Makes the copies of all later towers, as many of them at once as one message holds."""
        at_once = max(_MAX_BYTES // max(batch.size, 1), 1)
        for begin in range(0, len(self._later), at_once):
            towers = self._later[begin : begin + at_once]
            inputs, waits = {}, {}
            for i in towers:
                prefix = self._prefixes[i]
                self._define(i, batch)
                for name, tensor in batch.inputs.items():
                    inputs[f"{prefix}{name}"] = self._reads.received(i, self._twin(i, tensor))
                for name, op in batch.waits.items():
                    waits[f"{prefix}{name}"] = self._twin(i, op)
            self._functions.add()
            self._take(towers, batch.names, importing.add(batch.take(), inputs, waits))

    def _take(self, towers: Sequence[int], names: dict, made: dict[str, tf.Operation]) -> None:
        """Notes which of the operations that were made are whose copies."""
        for i in towers:
            copies, prefix = self._copies[i], self._prefixes[i]
            for op, name in names.items():
                copies[op] = made[f"{prefix}{name}"]
                # NOTE: a gradient of version 1 asks all exits between xs and ys for their loops,
                # the copies as well, though it is never taken by what is behind them.
                if op.type in _EXITS:
                    copies[op]._set_control_flow_context(op._get_control_flow_context())

    def _define(self, i: int, batch: copied_definitions.Definitions) -> None:
        """Adds tower i's definitions to a batch."""
        for op, node in batch.define(self._prefixes[i]):
            node.device = self._device(i, op)
            if op in batch.special:
                self.state.change(i, op, node)
                for attr in node.attr.values():
                    self._functions.change(i, attr)

    def _device(self, i: int, op: tf.Operation) -> str:
        """Returns the device of tower i's copy: its own, but for what the user named."""
        if op not in self._places:
            self._places[op] = self._place(op)
        place = self._places[op]
        if isinstance(place, tf.Tensor):
            return self._twin(i, place).device
        if (i, place) not in self._merged:
            self._merged[i, place] = (
                placement.merged(self._devices[i], place.named) if place.is_tower else place.named
            )
        return self._merged[i, place]

    def _place(self, op: tf.Operation) -> Any:
        """Returns where copies are: beside each tower's own of a tensor, or a `_Place`."""
        for beside in (placement.variable_of(op), *self._beside(op)):
            outputs = [] if beside is None else beside.outputs
            for tensor in outputs:
                if beside.type == "VarHandleOp" or self._is_given(tensor):
                    return tensor
            if beside in self._placed:
                op = beside
                break
        is_tower = op in self._placed
        return _Place(is_tower, self._placed[op] if is_tower else op.device)

    def _beside(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the operations on whose device one was put."""
        try:
            names = op.get_attr(copied_definitions.COLOCATION)
        except ValueError:
            return []
        names = [name.removeprefix(_BESIDE).decode() for name in names if name.startswith(_BESIDE)]
        return [self._graph.get_operation_by_name(name) for name in names if name != op.name]

    # NOTE: where TensorFlow derives a branch, a loop or a function, it changes the operation
    # that calls it in place, so that it gives out what its gradient needs.

    def _grow(self) -> None:
        """Changes copies as what they are copied from has been changed."""
        for op, (read, given) in list(self._calls.items()):
            if len(op.outputs) > given:
                new = list(op.inputs)[read:]
                self._copy(self._needed([t for t in new if not self._is_given(t)]))
                for i in self._later:
                    self._grow_copy(i, op, new, list(op.outputs)[given:])
                self._calls[op] = (len(op.inputs), len(op.outputs))

    def _grow_copy(self, i: int, op: tf.Operation, read: list, given: list) -> None:
        copy, node = self._copies[i][op], op.node_def
        for attr in node.attr.values():
            self._functions.change(i, attr)
        self._functions.add()
        for name, attr in node.attr.items():
            if name not in (copied_definitions.COLOCATION, "_output_shapes"):
                copy._set_attr(name, attr)
        if read:
            copy._add_while_inputs([self._twin(i, tensor) for tensor in read])
        copy._add_outputs([t.dtype for t in given], [t.shape for t in given])


class _Place(NamedTuple):
    """Where copies of an operation are.

    Attributes:
        is_tower: Whether each is on its tower's device, but for what the user named.
        named: What the user named; or the device itself.
    """

    is_tower: bool
    named: str
