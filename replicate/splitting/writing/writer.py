"""Makes the copies of what is split, and the joins between them and the rest.

The writer goes back from what will be run to what that reads, and makes nothing else. An operation
that is whole stays, and reads joined values. One that is split gets a copy on each device, which
reads its inputs in the views that the rule asks for.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from replicate import types
from replicate.compat.tensorflow import tf
from replicate.graph import operations
from replicate.splitting import analysis as analyses
from replicate.splitting import states
from replicate.splitting.inference.extents import Extent
from replicate.splitting.rules import random
from replicate.splitting.states import (
    COPIED,
    FLOW,
    OWN,
    SIZE,
    WHOLE,
    ListOf,
    Local,
    Partial,
    RowNumbers,
    Rows,
)
from replicate.splitting.structure import effects, kinds, order
from replicate.splitting.structure import nodes as definitions
from replicate.splitting.structure.nodes import Nodes, Reference, Waited, output
from replicate.splitting.writing import (
    copied,
    different,
    joins,
    known_shapes,
    loop_copies,
    workers,
)

OfDevice: TypeAlias = Callable[[int], Reference]
"""Returns what a device, given by its number, reads."""

_PASSED = ("Identity", "StopGradient", "PreventGradient", "Snapshot")
_OF_NUMBERS = ("Range", *analyses.SPREADS)


class Writer:
    """Writes the copies of one graph.

    Args:
        analysis: The states of its tensors.
        devices: The device of each part, those of one device together: K, or K * m.
        home: Where joined values and small whole numbers are.
        place: Which rows this worker has.
        nodes: Where new operations are added.
        micro_batches: How many parts each device has, m.

    Attributes:
        changes: What becomes of operations that are whole.
        run_whole: The operations that run once, in the order in which they were wanted.
        run_split: The operations whose copies run.
        run_of_all: Those whose copies make a loop's sizes of all rows, beside the devices' own.
        run_aside: Operations, and names of new ones, that no step runs.
        place: As given.
        is_finishing: Whether what is written is wanted though no step runs it.
        joins: What joins devices' values.
        copied: What writes copies of what the first device runs itself.
        in_loops: What writes devices' own loops.
    """

    def __init__(
        self,
        analysis: analyses.Analysis,
        devices: tuple[str, ...],
        home: str,
        place: workers.Place,
        nodes: Nodes,
        micro_batches: int = 1,
    ):
        self.analysis = analysis
        self.structure = analysis.structure
        self.devices = devices
        self.micro_batches = micro_batches
        self.home = home
        self.nodes = nodes
        self.changes = definitions.Changes()
        self.run_whole: dict[tf.Operation, None] = {}
        self.run_split: set[tf.Operation] = set()
        self.run_of_all: set[tf.Operation] = set()
        self.run_aside: set[Waited] = set()
        self.place = place
        self.joins = joins.Joins(self)
        self.is_finishing = False
        self.in_loops = loop_copies.LoopCopies(self)
        # NOTE: by `id`, which is fast; tensors live as long as the graph.
        self._wholes: dict[int, Reference] = {}
        self._owns: dict[int, OfDevice] = {}
        self._passes: dict[tf.Operation, bool] = {}
        self._queue: list[tuple[Callable[[tf.Operation], None], tf.Operation]] = []
        self._taken = {op.name for op in nodes.graph.get_operations()}
        self._names: dict[tuple[tf.Operation, bool], list[str]] = {}
        self.copied = copied.Copied(self)

    # Parts.

    @property
    def later_devices(self) -> range:
        """The first parts of all devices but the first one."""
        return range(self.micro_batches, len(self.devices), self.micro_batches)

    def first_part(self, k: int) -> int:
        """Returns the first part of the device of part k: its parts share what is copied."""
        return k - k % self.micro_batches

    def parts(self) -> dict[definitions.Maker, int]:
        """Returns the parts of copies, by their names; of nothing, if each device has one."""
        if self.micro_batches == 1:
            return {}
        split = [(op, False) for op in self.run_split] + [(op, True) for op in self.run_of_all]
        found = {name: k for each in split for k, name in enumerate(self._copy_names(*each))}
        return {name: k for name, k in found.items() if name in self.nodes.by_name}

    # What is wanted.

    def fetch(self, wanted: types.Fetch) -> Waited:
        """Returns what is run in place of a tensor or an operation."""
        found = wanted if isinstance(wanted, tf.Operation) else self.whole(wanted)
        if isinstance(found, str):
            return found
        # NOTE: not what it passes on, which may be no value to fetch.
        self.want_whole(getattr(wanted, "op", wanted))
        return wanted

    def finish(self) -> None:
        """Makes everything that is wanted, and what writes copies though no step runs it."""
        self._empty_queue()
        step, self.is_finishing = set(self.run_whole), True
        for op in self.analysis.mirrored.writes:
            self.want_whole(op)
        self._empty_queue()
        self.run_aside |= self.run_whole.keys() - step
        self.analysis.mirrored.functions.add()
        self.in_loops.finish()

    def is_aside(self, each: definitions.Maker) -> bool:
        """Whether no step runs an operation, or a new one; nor what that is a copy of."""
        original = self.nodes.original(each) if isinstance(each, str) else None
        return each in self.run_aside or original in self.run_aside

    def _empty_queue(self) -> None:
        while self._queue:
            make, op = self._queue.pop()
            make(op)

    def want_whole(self, op: tf.Operation) -> None:
        """Has an operation run once, on whole values."""
        if op not in self.run_whole:
            self.run_whole[op] = None
            self._queue.append((self._keep, op))

    def want_copies(self, op: tf.Operation, of_all: bool = False) -> None:
        """Has an operation's copies run.

        Args:
            op: The operation.
            of_all: Whether these are the copies that make a loop's sizes of all rows.
        """
        copies = self.run_of_all if of_all else self.run_split
        if op not in copies:
            copies.add(op)
            self._queue.append((functools.partial(self._copy, of_all=of_all), op))

    def later(self, make: Callable[[tf.Operation], None], op: tf.Operation) -> None:
        """Has a function called with an operation, in its turn."""
        self._queue.append((make, op))

    def order_of(self, op: tf.Operation) -> list[tf.Operation] | None:
        """Returns what stands for an operation waits for, if it does not read its inputs.

        None: these come after an effect, or copies are waited for.
        """
        controls = order.as_made(op.control_inputs)
        if self.structure.is_free(op):
            return []
        has_copies = any(map(self.analysis.has_copies, controls))
        if has_copies or not self.structure.only_waits_for_effects(op):
            return None
        for control in controls:
            self.want_whole(control)
        return controls

    # Views of a tensor.

    def whole(self, tensor: tf.Tensor) -> Reference:
        """Returns a tensor as one device has it."""
        key = id(tensor)
        if key not in self._wholes:
            self._wholes[key] = self._whole(tensor)
        return self._wholes[key]

    def _whole(self, tensor: tf.Tensor) -> Reference:
        state = self.analysis.state(tensor)
        if state is COPIED and not self.analysis.is_split(tensor.op):
            state = WHOLE
        if self._is_in_own_loop(tensor.op):
            raise ValueError(
                f"Nothing is joined in a loop that each device runs for itself; {tensor.name} is "
                f"wanted whole, and is {state}. This is an error in replicate; please report it."
            )
        if self.analysis.is_at_hand(tensor) and self.analysis.has_copies(tensor.op):
            return self.own_copies(tensor)[0]
        if state is WHOLE or self.analysis.is_at_hand(tensor):
            found = self.joins.run_once(tensor)
            return self.copied.value(tensor) if found is tensor else found
        passed = self._passed(tensor) if isinstance(state, (Rows, Partial)) else tensor
        if passed is not tensor:
            return self.whole(passed)
        op = tensor.op
        if isinstance(state, (Rows, Partial)) and self._is_of_numbers(op):
            return self.joins.run_once(tensor)
        if state is SIZE:
            if op.type in analyses.LEAVES and self.analysis.how.get(op) is SIZE:
                return self.joins.whole_size(tensor)
            if op.type == "TensorListElementShape":
                return self.constant(self.analysis.facts.literal(tensor), None)
            self.want_whole(op)
            return tensor
        if state is COPIED:
            return self.own(tensor, 0)
        if isinstance(state, Partial):
            return self.nodes.know(self.joins.of_parts(tensor, state), tensor.shape)
        if isinstance(state, Rows):
            return self.nodes.know(self.joins.of_rows(tensor, state), tensor.shape)
        if isinstance(state, Local):
            return different.joined(self, tensor, state)
        raise ValueError(
            f"What is joined has rows or parts; {tensor.name} is {state}. This is an error in "
            "replicate; please report it."
        )

    def _is_of_numbers(self, op: tf.Operation) -> bool:
        """Whether rows are made of their number alone, so that no device has to send its own."""
        read = (self.analysis.state(each) for each in op.inputs)
        return op.type in _OF_NUMBERS and all(each in (WHOLE, COPIED, SIZE) for each in read)

    def whole_on(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns a whole value as device k reads it: its own, where it has one."""
        if self.analysis.state(tensor) is COPIED:
            return self.own(tensor, k)
        if self.analysis.is_at_hand(tensor) and self.analysis.has_copies(tensor.op):
            return self.own_copies(tensor)[k]
        if not self._is_in_own_loop(tensor.op):
            return self.whole(tensor)
        return self.in_loops.size_of_all(tensor, k)

    def _is_in_own_loop(self, op: tf.Operation) -> bool:
        """Whether an operation's outputs are in a loop that each device runs for itself."""
        return op in self.analysis.how and self.structure.loop(op) is not None

    def view(self, tensor: tf.Tensor, want: states.View, k: int) -> Reference:
        """Returns a tensor as a copy on device k wants it."""
        return self._view(tensor, want)(k)

    def _view(self, tensor: tf.Tensor, want: states.View) -> OfDevice:
        """Returns what returns, for each device, a tensor as its copy wants it."""
        state = self.analysis.state(tensor)
        if want is WHOLE or (want is OWN and state is not SIZE):
            return functools.partial(self.whole_on, tensor)
        if isinstance(want, states.Shape):
            return functools.partial(self.joins.own_shape, tensor, want)
        if want is OWN or want is FLOW or isinstance(want, ListOf) or state == want:
            return self._own(tensor)
        if isinstance(want, Partial):
            if state is COPIED and tensor.op.type == "Enter":
                # Zeros, in front of a loop that adds.
                return self._own(tensor)
            raise ValueError(f"A part of {tensor.name} is wanted, which is {state}: {want}.")
        if not isinstance(want, Rows):
            raise ValueError(f"{tensor.name} is {state}, and cannot become {want}.")
        if isinstance(state, Local) and state.fits(want):
            return self._own(tensor)
        tensor = self._passed(tensor)
        state = self.analysis.state(tensor)
        if isinstance(state, Rows) and state.plain == want.plain:
            if isinstance(state, RowNumbers) and not isinstance(want, RowNumbers):
                return functools.partial(self.joins.plain, tensor, state)
            return self._own(tensor)
        return functools.partial(self.joins.cut, tensor, want)

    def own(self, tensor: tf.Tensor, k: int) -> Reference:
        """Returns what device k holds of a tensor, in the state that it has."""
        return self._own(tensor)(k)

    def _own(self, tensor: tf.Tensor) -> OfDevice:
        """Returns what returns, for each device, what it holds of a tensor."""
        key = id(tensor)
        if key not in self._owns:
            self._owns[key] = self._find_own(tensor)
        return self._owns[key]

    def _find_own(self, tensor: tf.Tensor) -> OfDevice:
        given = self.analysis.given.get(tensor.ref())
        if given is not None and given.parts:
            return given.parts.__getitem__
        state = self.analysis.state(tensor)
        if state is COPIED and not self.analysis.is_split(tensor.op):
            return functools.partial(self.copied.view, tensor)
        if isinstance(state, (Rows, Partial)):
            passed = self._passed(tensor)
            if passed is not tensor:
                return self._own(passed)
        if self.analysis.is_at_hand(tensor) and isinstance(state, Rows):
            return functools.partial(self.joins.cut, tensor, state)
        if state is SIZE and self.structure.is_free(tensor.op):
            value = self.analysis.facts.constant(tensor)
            if value is not None:
                return functools.partial(
                    self.constant, np.asarray(value, tensor.dtype.as_numpy_dtype)
                )
        is_leaf = state is SIZE and tensor.op.type in analyses.LEAVES
        if is_leaf and self.micro_batches > 1:  # what is known of all parts is known at once
            sizes = [known_shapes.from_rows(self, tensor, k) for k in range(len(self.devices))]
            own = [each for each in sizes if each is not None]
            if len(own) == len(sizes):
                return own.__getitem__
        if isinstance(state, Local) and different.is_short(tensor, state):
            return different.lengthened(self, tensor, state).__getitem__
        return self.own_copies(tensor).__getitem__

    def own_copies(self, tensor: tf.Tensor, of_all: bool = False) -> list[str]:
        """Returns what an operation's copies make, device by device; see `want_copies`."""
        self.want_copies(tensor.op, of_all)
        names = self._copy_names(tensor.op, of_all)
        return [output(name, tensor.value_index) for name in names]

    def _passed(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor before operations that do nothing to a device's part."""
        analysis = self.analysis
        while not analysis.is_at_hand(tensor) and analysis.is_split(tensor.op):
            op = tensor.op
            if op not in self._passes:
                self._passes[op] = self._does_nothing(op)
            if not self._passes[op]:
                break
            tensor = op.inputs[0]
        return tensor

    def _does_nothing(self, op: tf.Operation) -> bool:
        """Whether a device's part of an operation's output is that of its first input."""
        if op.type not in (*_PASSED, "Sum", "Reshape") or not self.structure.may_be_passed(op):
            return False
        facts, (given, made) = self.analysis.facts, (op.inputs[0], op.outputs[0])
        if self.analysis.state(given) != self.analysis.state(made):
            return False
        if op.type == "Sum":
            axes = facts.value(op.inputs[1])
            if axes is None or axes.size:
                return False
        if op.type == "Reshape":
            before, after = facts.shape(given), facts.shape(made)
            is_known = before is not None and all(map(_is_known, before))
            # NOTE: a device with one row may sum over other axes of length 1 than all rows have.
            is_ranked = made.shape.rank is not None and self._passed(given).shape.rank is not None
            if not is_known or before != after or not is_ranked:
                return False
        return not any(map(effects.is_waited_for, op.control_inputs))

    def device_of(self, op: tf.Operation) -> str:
        """Returns where an operation that runs once is; what uses a variable is where that is."""
        variable = operations.variable_of(op)
        found = op.device if variable is None else variable.device
        return found if found in self.devices else self.home

    # Making.

    def _keep(self, op: tf.Operation) -> None:
        """Lets an operation that runs once read joined values."""
        for n, tensor in enumerate(op.inputs):
            found = self.whole(tensor)
            if found is not tensor:
                self.changes.inputs.append((op, n, found))
        controls: list[Waited] = list(self.copied.writes(op))
        is_changed = bool(controls)
        # NOTE: what goes over workers is made in the same order by all.
        for control in order.as_made(op.control_inputs):
            if not self.analysis.has_copies(control):
                self.want_whole(control)
                controls.append(control)
                continue
            is_changed = True
            # NOTE: nothing in devices' loops, which have frames of their own, has an effect.
            if control.outputs and self.structure.own_loop(control) is None:
                self.want_copies(control)
                controls += [self.copy_name(control, k) for k in range(len(self.devices))]
        if is_changed:
            self.changes.controls.append((op, controls))

    def _copy(self, op: tf.Operation, of_all: bool = False) -> None:
        split = self._split_of(op)
        self.in_loops.before_copies(op, of_all)
        attributes = self._attributes(op, split)
        shapes = known_shapes.of_copies(self, op)
        views: list[OfDevice]
        if of_all:
            views = [functools.partial(self.in_loops.of_all, tensor) for tensor in op.inputs]
        else:
            views = [self._view(*each) for each in zip(op.inputs, split.wants, strict=True)]
        controls = self.in_loops.controls(op) if op.control_inputs else ()
        for k, place in enumerate(self._places(op, split)):
            name, known = self.copy_name(op, k, of_all), shapes[k]
            node = self.nodes.copy(op, name, place, attributes, known)
            node.op = split.type or op.type
            self._set_seed(node, k)
            if op.type in kinds.ENTERS:
                node.set("frame_name", self.in_loops.frame(node.attr["frame_name"].s, k))
            node.input.extend([self.nodes.name(view(k)) for view in views])
            for each in controls:
                has_copy = each in self.run_split
                waits = [self.copy_name(each, k)] if has_copy else self.copied.waits(each, k)
                node.input.extend(map(self.nodes.wait, waits))

    def _split_of(self, op: tf.Operation) -> states.Split:
        """Returns how an operation's copies are made, those of sizes too."""
        how = self.analysis.how[op]
        if isinstance(how, states.Split):
            return how
        wants: list[states.View] = []
        for tensor in op.inputs:
            state = self.analysis.state(tensor)
            is_own = state is SIZE or op.type not in analyses.LEAVES
            wants.append(OWN if is_own else state)
        return states.Split(wants, [SIZE] * len(op.outputs))

    def _attributes(self, op: tf.Operation, split: states.Split) -> dict[str, Any]:
        """Returns the attributes that an operation's copies share."""
        found = definitions.attributes_of(op)
        found |= {key: definitions.attribute(value) for key, value in split.attributes.items()}
        static_rows = self.analysis.facts.static_rows
        for value in found.values() if static_rows else ():
            for dimension in value.shape.dim if value.HasField("shape") else ():
                if dimension.size > 0 and dimension.size % static_rows == 0:
                    dimension.size = -1
        return found

    def _set_seed(self, node: definitions.Node, k: int) -> None:
        if node.op in random.SEEDED and (node.attr["seed"].i or node.attr["seed2"].i):
            node.set(
                "seed2", random.seed_of_copy(node.attr["seed2"].i, self.place.first_device + k)
            )

    def _places(self, op: tf.Operation, split: states.Split) -> Sequence[str]:
        """Returns where an operation's copies run; the device stays if the model names it.

        NOTE: TensorFlow gives what is to be beside another operation the device of that.
        """
        device = op.device
        is_named = device not in ("", self.home, self.devices[0]) and not _is_beside_another(op)
        is_held = any(self.analysis.state(each) is COPIED for each in op.inputs if split.is_beside)
        is_beside = split.is_beside and not is_held
        return [device] * len(self.devices) if is_beside or is_named else self.devices

    def copy_name(self, op: tf.Operation, k: int, of_all: bool = False) -> str:
        """Returns the name of an operation's copy on device k; see `want_copies`."""
        return self._copy_names(op, of_all)[k]

    def _copy_names(self, op: tf.Operation, of_all: bool) -> list[str]:
        if (op, of_all) not in self._names:
            names, own = [], f"of_all/{op.name}" if of_all else op.name
            for k in range(len(self.devices)):
                name = f"tower_{k}/{own}"
                while name in self._taken:
                    name += "_copy"
                self._taken.add(name)
                names.append(name)
            self._names[op, of_all] = names
        return self._names[op, of_all]

    def constant(self, value: Any, k: int | None) -> str:
        """Returns a constant on device k, or at home if that is None."""
        return self.nodes.constant(value, self.home if k is None else self.devices[k])


def _is_beside_another(op: tf.Operation) -> bool:
    """Whether an operation is where another one is, as an optimizer's are beside a variable."""
    return op.colocation_groups() != [f"loc:@{op.name}".encode()]


def _is_known(extent: Extent) -> bool:
    """Whether a length, or how it follows from the rows, is known."""
    return extent.size is not None or bool(extent.multiple)
