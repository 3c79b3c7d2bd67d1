"""Mirrored variables in a split graph: each device reads and writes a copy of its own.

The model is built with plain variables on the first device, the *primaries*. Each gets a copy on
every later device, which that device reads instead; it also makes there what is made of variables
and joined values alone, as a cast or a normalised weight. Each write of a primary, by an optimizer,
an initializer or a checkpoint, is repeated for each copy, from the same values: cheap ones that are
the same anywhere are made on each device, others are made once and sent. The write of the primary
waits for those of the copies, so that whoever runs it, or waits for it, does so of them as well.

A write that cannot be repeated, as one in a loop, is followed by writes of the primary's new value
to the copies.

NOTE: on GPUs a `ResourceScatterAdd` adds entries of one row in any order, as in TensorFlow's own
mirrored variables: there copies may differ by rounding.
"""

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

from replicate.compat.tensorflow import tf
from replicate.splitting.mirroring import mirrored_functions, repeating
from replicate.splitting.structure import definitions, effects, kinds, loops, order
from replicate.splitting.structure.nodes import (
    Node,
    Reference,
    Waited,
    attributes_of,
    output,
    shapes_of,
)
from replicate.splitting.writing import writer as writers

Copies: TypeAlias = dict[tf.Operation, list[str]]
"""The operations that hold variables, and the names of those that hold copies, by devices."""


def mirror(
    written: writers.Writer, variables: Sequence[tf.Variable], fetch: list[list[Waited]]
) -> Copies:
    """Gives variables copies on all devices but the first, and lets these read and write them.

    Args:
        written: The split graph, with all `writes` of the variables.
        variables: The variables.
        fetch: What will be run, in groups; changed in place.
    """
    pass_ = _Mirroring(written, variables)
    pass_.run(fetch)
    return pass_.handles


def copy_name(op: tf.Operation, k: int | str) -> str:
    """Returns the name of the copy on device k of an operation that runs once."""
    return f"tower_{k}/whole/{op.name}"


def read_name(handle: str) -> str:
    """Returns the name of the operation by which a session reads a copy."""
    return f"{handle}/Read/ReadVariableOp"


def check_name(handle: str) -> str:
    """Returns the name of the operation that tells whether a copy has a value."""
    return f"{handle}/IsInitialized/VarIsInitializedOp"


class _Mirroring:
    """Does what `mirror` says.

    Args:
        written: The split graph.
        variables: The variables.

    Attributes:
        handles: See `mirror`.
    """

    def __init__(self, written: writers.Writer, variables: Sequence[tf.Variable]):
        self._written = written
        self._nodes = written.nodes
        self._devices = written.devices
        self._later = range(1, len(written.devices))
        self._changed = {(op, n): found for op, n, found in written.changes.inputs}
        self._controls = dict(written.changes.controls)
        self._functions = mirrored_functions.OwnFunctions(written.nodes.graph, written.devices)
        self.handles: Copies = {each.handle.op: self._hold(each.handle.op) for each in variables}
        self._names = {name for names in self.handles.values() for name in names}
        found = [op for op in written.run_whole if self._has_copies_of(op)]
        found = [op for op in found if effects.changes_state(op)]
        can = (written.structure, self.handles, self._functions)
        self._rewritten = {op: None for op in found if repeating.can_be_repeated(op, *can)}
        self._once = [op for op in found if op not in self._rewritten]
        self._synced: dict[tf.Operation, list[str]] = {}
        self._outputs: dict[Hashable, list[str]] = {}
        self._asked: set[tuple[tf.Operation, int]] = set()
        self._todo: list[tuple[tf.Operation, int]] = []

    def run(self, fetch: list[list[Waited]]) -> None:
        """Does what `mirror` says."""
        split = list(self._nodes.by_name)
        self._write_after()
        self._follow_outputs()
        self._learn()
        self._move_reads()
        self._wait_at_home(split)
        for op in self._rewritten:
            for k in self._later:
                self._want(op, k)
        while self._todo:
            self._copy(*self._todo.pop())
        for op in self._rewritten:
            copies = [copy_name(op, k) for k in self._later]
            self._controls[op] = [*self._waited_by(op), *copies]
        self._written.changes.controls = list(self._controls.items())
        self._functions.add()
        fetch[:] = [[self._fetched(each) for each in group] for group in fetch]

    # The copies.

    def _hold(self, handle: tf.Operation) -> list[str]:
        """Makes what holds a variable's copies, and what a session reads of them."""
        names = []
        kind = tf.as_dtype(handle.get_attr("dtype"))
        for k in self._later:
            device, name = self._devices[k], self._written.copy_name(handle, k)
            node = self._nodes.copy(handle, name, device, attributes_of(handle))
            for key in ("shared_name", "debug_name"):
                if key in node.attr:
                    node.set(key, name)
            read, check = read_name(name), check_name(name)
            self._nodes.add("ReadVariableOp", [name], device, name=read, dtype=kind)
            self._nodes.add("VarIsInitializedOp", [name], device, name=check)
            self._written.run_aside.update((read, check))
            names.append(name)
        return names

    def _has_copies_of(self, op: tf.Operation) -> bool:
        """Whether an operation uses a variable that has copies."""
        return any(handle in self.handles for handle in repeating.handles_of(op))

    # What is known of operations that run once.

    def _read_by(self, op: tf.Operation) -> list[Reference]:
        """Returns what an operation reads: tensors, and names of joined values."""
        return [self._changed.get((op, n), tensor) for n, tensor in enumerate(op.inputs)]

    def _waited_by(self, op: tf.Operation) -> Sequence[Waited]:
        """Returns what an operation waits for: operations and names."""
        return self._controls.get(op, op.control_inputs)

    def _learn(self) -> None:
        """Finds what may be made on each device, what is worth it, and what waits for writes."""
        self._of_batch: set[tf.Operation] = set()
        self._useful: set[tf.Operation] = set()
        self._copyable: set[tf.Operation] = set()
        self._touching: set[tf.Operation] = set()
        given = {each.tensor.op for each in self._written.analysis.given.values()}
        run = self._written.run_whole.keys()
        for op in order.ordered(run, {op: op.control_inputs for op in run}):
            read = self._read_by(op)
            tensors = [each for each in read if isinstance(each, tf.Tensor)]
            big = (t.op for t in tensors if t.dtype != tf.resource and t.shape.rank != 0)
            if op in given or any(each in self._of_batch for each in big):
                self._of_batch.add(op)
            if self._may_be_copied(op):
                self._copyable.add(op)
                is_joined = len(tensors) < len(read)
                before = (tensor.op in self._useful for tensor in tensors)
                if self._is_read(op) or is_joined or any(before):
                    self._useful.add(op)
            if self._touches(op, tensors):
                self._touching.add(op)

    def _is_read(self, op: tf.Operation) -> bool:
        return op.type in kinds.READS and self._has_copies_of(op)

    def _may_be_copied(self, op: tf.Operation) -> bool:
        """Whether an operation makes the same on each device, at little cost."""
        if self._written.structure.own_loop(op) is not None:
            return False
        if self._is_read(op):
            return op.type != "VarIsInitializedOp"
        if (
            op.type in mirrored_functions.MADE_ONCE
            or op.op_def.is_stateful
            or definitions.called(op.node_def)
        ):
            return False
        if op.device not in ("", self._written.home, self._devices[0]):
            return False
        dtypes = [tensor.dtype for tensor in op.outputs]
        if tf.resource in dtypes:
            return op.type in ("Identity", "Switch") and self._has_copies_of(op)
        is_plain = not any(dtype == tf.variant or dtype._is_ref_dtype for dtype in dtypes)
        return is_plain and op not in self._of_batch

    def _touches(self, op: tf.Operation, tensors: list[tf.Tensor]) -> bool:
        """Whether waiting for an operation is waiting for reads or writes that devices repeat."""
        if op in self._rewritten or op in self._synced:
            return True
        if op.type in kinds.READS_OF_VARIABLES:
            return op in self._copyable
        if kinds.uses_handle(op.type) and kinds.changes_state(op.type):
            return False
        found = {each for each in self._waited_by(op) if isinstance(each, tf.Operation)}
        if op.type == "Identity":
            found |= {tensor.op for tensor in tensors}
        return any(each in self._touching for each in found)

    # What later devices have in place of what is at home.

    def _want(self, op: tf.Operation, k: int) -> str:
        """Has an operation copied to device k; returns the copy's name."""
        if (op, k) not in self._asked:
            self._asked.add((op, k))
            self._todo.append((op, k))
        return copy_name(op, k)

    def _view(self, reference: Reference, k: int) -> Reference:
        """Returns a value as device k reads it, from a copy or as it is."""
        if isinstance(reference, str):
            return reference
        op = reference.op
        if op in self.handles:
            return self.handles[op][k - 1]
        is_constant = op.type == "Const"
        if is_constant and op._get_control_flow_context() is None and not op.control_inputs:
            return reference  # each device has constants of its own
        if op in self._useful or (is_constant and op in self._copyable):
            return self._output(reference, k)
        if reference.dtype == tf.resource and op in self._copyable:
            return self._output(reference, k)
        return reference

    def _output(self, tensor: tf.Tensor, k: int) -> str:
        return output(self._want(tensor.op, k), tensor.value_index)

    def _waits(self, waited: Waited, k: int) -> list[Waited]:
        """Returns what device k waits for, if the first one waits for something."""
        if isinstance(waited, str):
            return [waited] if self._place(waited) == k else []
        if waited in self._synced:
            return [waited, self._synced[waited][k - 1]]
        if waited in self._rewritten or (waited in self._copyable and self._is_read(waited)):
            return [self._want(waited, k)]
        if waited not in self._touching:
            is_constant = waited.type == "Const" and waited._get_control_flow_context() is None
            return [] if is_constant and not waited.control_inputs else [waited]
        if waited.type == "NoOp":
            return [self._want(waited, k)]
        found = [each for before in self._waited_by(waited) for each in self._waits(before, k)]
        if waited.type == "Identity":
            made_from = [each.op for each in self._read_by(waited) if not isinstance(each, str)]
            found += [each for op in made_from for each in self._waits(op, k)]
        return [*found, waited]

    def _place(self, name: str) -> int | None:
        """Returns the number of a new operation's device, or None if it is none of them."""
        if self._nodes.original(name) is not None:
            return int(name.split("/")[0].removeprefix("tower_"))
        device = self._nodes.by_name[name].device
        return self._devices.index(device) if device in self._devices else None

    def _copy(self, op: tf.Operation, k: int) -> None:
        """Copies an operation to device k."""
        attributes, shapes = attributes_of(op), shapes_of(op)
        node = self._nodes.copy(op, copy_name(op, k), self._devices[k], attributes, shapes)
        for value in node.attr.values():
            self._functions.change(value, k)
        decides = 1 if op.type == "Switch" else 0 if op.type in definitions.BRANCHES else None
        waits: list[Waited] = []
        for n, reference in enumerate(self._read_by(op)):
            # NOTE: a branch is taken on all devices or on none.
            found = reference if n == decides else self._view(reference, k)
            node.input.append(self._nodes.name(found))
            waits += self._behind(reference)[k - 1 : k]
        for waited in self._waited_by(op):
            waits += self._waits(waited, k)
        node.input.extend(dict.fromkeys(self._nodes.wait(each) for each in waits))

    def _behind(self, reference: Reference) -> list[str]:
        """Returns what each later device waits for if it reads an output of a write."""
        if isinstance(reference, str):
            return []
        return self._synced.get(reference.op) or self._outputs.get(reference.ref(), [])

    # What later devices' parts of the graph read.

    def _move_reads(self) -> None:
        """Lets the parts of later devices read the copies."""
        own = [(self._place(name), self._nodes.by_name[name]) for name in self._nodes.by_name]
        for k, node in own:
            if k and node.name not in self._written.run_aside:
                self._move_reads_of(node, k)
        for k, node in own:
            if k and node.op in kinds.READS and self._is_of_copy(node.input[0]):
                node.device = self._devices[k]

    def _move_reads_of(self, node: Node, k: int) -> None:
        inputs: list[str] = []
        waits: list[str] = []
        for written in node.input:
            if written.startswith("^"):
                waited = self._nodes.waited(written)
                if waited in self._touching:
                    waits += map(self._nodes.wait, self._waits(waited, k))
                else:
                    waits.append(written)
                continue
            tensor = self._nodes.tensors.get(written)
            inputs.append(self._moved(written, tensor, k))
            if tensor is not None:
                waits += map(self._nodes.wait, self._behind(tensor)[k - 1 : k])
        node.input[:] = [*inputs, *dict.fromkeys(waits)]

    def _wait_at_home(self, names: Iterable[str]) -> None:
        """Lets what is not on a later device wait for all writes of copies that it comes after."""
        for node in map(self._nodes.by_name.__getitem__, names):
            if not self._place(node.name):
                tensors = [self._nodes.tensors[n] for n in node.input if n in self._nodes.tensors]
                waits = [each for tensor in tensors for each in self._behind(tensor)]
                node.input.extend(dict.fromkeys(map(self._nodes.wait, waits)))

    def _moved(self, written: str, tensor: tf.Tensor | None, k: int) -> str:
        """Returns what a node of device k reads in place of an input."""
        if tensor is None or (
            tensor.dtype == tf.resource and repeating.made_by(tensor) not in self.handles
        ):
            return written
        return self._nodes.name(self._view(tensor, k))

    def _is_of_copy(self, written: str) -> bool:
        """Whether an input, as it is written, is the handle of a copy."""
        while written not in self._names:
            node = self._nodes.by_name.get(written.split(":")[0])
            if node is None or node.op not in repeating.PASSING:
                return False
            written = node.input[0]
        return True

    # Writes that are not repeated.

    def _write_after(self) -> None:
        """Updates copies after writes of primaries that are not repeated."""
        # Where variables are written: in a loop, or by an operation in none.
        written: dict[loops.Context | tf.Operation, dict[tf.Operation, None]]
        written = collections.defaultdict(dict)
        for op in self._once:
            handles = [handle for handle in repeating.handles_of(op) if handle in self.handles]
            written[self._written.structure.root(op) or op].update(dict.fromkeys(handles))
        for where, found in written.items():
            ops = [where] if isinstance(where, tf.Operation) else self._exits(where)
            names = self._sync(ops, found)
            self._synced.update(dict.fromkeys(ops, names))
        for op, names in self._synced.items():
            users = [user for tensor in op.outputs for user in tensor.consumers()]
            self._let_wait([*users, *op._control_outputs], names)

    def _let_wait(self, users: Iterable[tf.Operation], names: Sequence[str]) -> None:
        """Lets operations wait for new ones."""
        for user in users:
            is_outside = self._written.structure.own_loop(user) is None
            if user in self._written.run_whole and is_outside and user not in self._synced:
                self._controls[user] = list(dict.fromkeys([*self._waited_by(user), *names]))

    def _follow_outputs(self) -> None:
        """Lets what reads an output of a call that writes wait for the outputs of its copies.

        NOTE: of a function only what its outputs that are read need runs.
        """
        for op in self._rewritten:
            for n, tensor in enumerate(op.outputs if definitions.called(op.node_def) else ()):
                names = []
                for k in self._later:
                    name = self._want(op, k)
                    made = self._nodes.add(
                        "Identity",
                        [output(name, n)],
                        self._devices[k],
                        name=f"{name}/output_{n}",
                        T=tensor.dtype,
                    )
                    names.append(made)
                self._outputs[tensor.ref()] = names
                self._let_wait(tensor.consumers(), names)

    def _exits(self, root: loops.Context) -> list[tf.Operation]:
        structure = self._written.structure
        ops = [op for op in self._written.run_whole if op.type in kinds.EXITS]
        return [op for op in ops if structure.root(op) is root and structure.loop(op) is None]

    def _sync(self, ops: Sequence[tf.Operation], handles: Iterable[tf.Operation]) -> list[str]:
        """Writes primaries' values to copies behind operations; returns what waits for that."""
        written: dict[int, list[str]] = {k: [] for k in self._later}
        is_aside = all(op in self._written.run_aside for op in ops)
        done = self._done(ops)
        names = [each for each in done if isinstance(each, str)]
        for handle in handles:
            kind = tf.as_dtype(handle.get_attr("dtype"))
            device = handle.device or self._written.home
            source = handle.outputs[0]
            read = self._nodes.add("ReadVariableOp", [source], device, controls=done, dtype=kind)
            names.append(read)
            for k in self._later:
                inputs = [self.handles[handle][k - 1], read]
                made = self._nodes.add("AssignVariableOp", inputs, self._devices[k], dtype=kind)
                written[k].append(made)
        if is_aside:
            self._written.run_aside.update(names)
            self._written.run_aside.update(name for each in written.values() for name in each)
        return [
            self._nodes.add("NoOp", [], self._devices[k], controls=waits)
            for k, waits in written.items()
        ]

    def _done(self, ops: Sequence[tf.Operation]) -> list[Waited]:
        """Returns what to wait for until operations are over.

        NOTE: what waits for a call alone, not for its outputs, may run before its writes do.
        """
        found: list[Waited] = list(ops)
        for op in ops:
            for tensor in op.outputs if definitions.called(op.node_def) else ():
                device = op.device or self._written.home
                found.append(self._nodes.add("Identity", [tensor], device, T=tensor.dtype))
        return found

    def _fetched(self, wanted: Waited) -> Waited:
        """Returns what is run in place of something, so that copies are written too."""
        home = self._written.home
        if isinstance(wanted, tf.Operation) and wanted in self._synced:
            waits = [*self._done([wanted]), *self._synced[wanted]]
            return self._nodes.add("NoOp", [], home, controls=waits)
        if not isinstance(wanted, tf.Tensor) or not (waits := self._behind(wanted)):
            return wanted
        return self._nodes.add("Identity", [wanted], home, controls=waits, T=wanted.dtype)
