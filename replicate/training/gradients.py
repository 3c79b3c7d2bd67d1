"""The one hook: whatever gradients a tower asks for are the whole batch's.

A scalar that a tower derives is a function of row reductions r and of weights. Across towers
the tail, copied once, is derived by the joined values R and by the weights; each tower then
derives its own r_i, given the derivative of the whole by R times that of R by r_i. What the
towers find adds up, together with what the tail brings by itself, to the gradient that one
device has: a penalty on weights is part of the tail, and counts once.

What a tower is given may be derived again. A joined gradient is a sum over towers, as a row
reduction is; where later gradients reach one, they go on behind it in the same two steps.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicate import errors
from replicate.compat import gradients as gradient_calls
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, reductions, row_reductions, whole
from replicate.strategy import context, values, variables

_OPTIONS = (
    "name",
    "colocate_gradients_with_ops",
    "gate_gradients",
    "aggregation_method",
    "stop_gradients",
    "unconnected_gradients",
)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The gradients that one tower asks for; see `tf.gradients`.

    Attributes:
        ys: What is derived.
        xs: By what it is derived: tensors, handles of variables.
        grad_ys: The derivatives by the ys; None: ones.
        options: What else TensorFlow's function is given.
        own: TensorFlow's function.
    """

    ys: list
    xs: list
    grad_ys: list
    options: dict
    own: Callable


@dataclasses.dataclass(frozen=True)
class Request:
    """What one tower is to derive by itself.

    Attributes:
        ys: Tensors of the tower.
        grad_ys: The whole's derivatives by them; None: ones.
        through: Values of the whole behind which the gradient goes on across towers.
    """

    ys: list
    grad_ys: list
    through: list


@dataclasses.dataclass(frozen=True)
class Found:
    """What one tower derived: by each of its xs, then by each of what it goes through."""

    gradients: list


@dataclasses.dataclass(frozen=True)
class Given:
    """A value of the whole that towers were given, and that may be derived again.

    Attributes:
        column: The K towers' tensors, which may be one and the same.
        parts: K tensors that it is the sum of; none: it was made across towers alone.
        across: Tensors across towers that it is the sum of, the parts aside.
        reductions: The row reductions that these are made of.
        is_sum: Whether it is a sum of rows' own parts, constant factors aside.
    """

    column: tuple
    parts: tuple
    across: tuple
    reductions: tuple
    is_sum: bool = False


class Gradients:
    """Takes the gradients of K towers.

    Args:
        joining: Joins what the towers made of their rows.
        declared: How losses are reduced, whatever the model says; None: as it says.
        derived: Told of each tensor without rows that is derived: the first tower's, and how
            it is made.
    """

    def __init__(
        self,
        joining: whole.Whole,
        declared: str | None,
        derived: Callable[[tf.Tensor, whole.Tail], None],
    ):
        self._whole = joining
        self._derived = derived
        self._declared = declared
        self._given: list[Given] = []
        self._current: Any = None

    def taker(self, tower: Any) -> Callable:
        """Returns what takes the gradients that a tower asks for; see `compat.gradients`."""

        def take(own: Callable, ys: Any, xs: Any, *args, **kwargs) -> list:
            mode = context.current()
            is_towers = mode is not None and mode.tower is tower and tower.can_meet
            composite = any(map(_is_composite, [*_listed(ys), *_listed(xs)]))
            if not is_towers or tower.is_single_tower or composite:
                return own(ys, xs, *args, **kwargs)  # of composites, it asks again for the parts
            with gradient_calls.taken_by(None):
                return self.take(tower, own, ys, xs, *args, **kwargs)

        return take

    def take(self, tower: Any, own: Callable, ys: Any, xs: Any, grad_ys: Any = None, *args, **kw):
        """Returns the gradients that a tower asks for; all towers meet.

        Args:
            tower: The tower's context.
            own: TensorFlow's function, whose arguments all others are.
            ys: See `tf.gradients`.
            xs: See `tf.gradients`.
            grad_ys: See `tf.gradients`.
            *args: Further arguments.
            **kw: Further arguments.

        Raises:
            TowerMismatchError: If towers ask for different gradients.
        """
        options = {**dict(zip(_OPTIONS, args, strict=False)), **kw}
        ys, xs = [_tensor(y) for y in _listed(ys)], [_target(x) for x in _listed(xs)]
        given = [None] * len(ys) if grad_ys is None else _listed(grad_ys)
        step = tower.merge_call(self._begin, Asked(ys, xs, given, options, own))
        while isinstance(step, Request):
            step = tower.merge_call(self._continue, _derived(own, xs, step, options))
        return list(step)

    def _begin(self, strategy: Any, asked: Any) -> Any:
        with tf1.name_scope(whole.SCOPE):
            return self._began(strategy, asked)

    def _began(self, strategy: Any, asked: Any) -> Any:
        towers = strategy.unwrap(asked)
        _require_alike(towers)
        self._current = _Derivation(self._whole, strategy, towers, self._given)
        for n in range(len(towers[0].ys)):
            column = [tower.ys[n] for tower in towers]
            given = [tower.grad_ys[n] for tower in towers]
            tail = self._current.derive(column, given, self._declared)
            if tail is not None:
                self._derived(column[0], tail)
        return self._next()

    def _continue(self, strategy: Any, found: Any) -> Any:
        with tf1.name_scope(whole.SCOPE):
            self._current.collect([tower.gradients for tower in strategy.unwrap(found)])
            return self._next()

    def _next(self) -> Any:
        """Returns what each tower is to derive next, or what all are given in the end."""
        requests = self._current.next()
        if requests is not None:
            return values.PerDevice(requests)
        current, self._current = self._current, None
        return current.joined()

    def is_sum(self, gradient: Any) -> bool:
        """Whether a gradient is made of sums over rows alone, constant factors aside."""
        parts = tf.nest.flatten(gradient, expand_composites=True)
        behind = ancestry.made_from(parts)
        found = [given for given in self._given if given.parts and given.column[0].op in behind]
        return bool(found) and all(given.is_sum for given in found)


class _Derivation:
    """One call of the hook, in all towers."""

    def __init__(self, joining: whole.Whole, strategy: Any, towers: Sequence, given: list[Given]):
        self._whole = joining
        self._strategy = strategy
        self._towers = towers
        self._given = given
        self._columns: list[tuple] = []  # what towers are to derive, with the derivatives by it
        self._across: list[tuple] = []  # tensors across towers, with the derivatives by them
        self._reductions: dict[Any, whole.Reduction] = {}
        self._through: list[Given] = []
        self._copies: dict = {}
        self._parts: list[list] = [[] for _ in towers[0].xs]
        self._direct: list[list] = [[] for _ in towers[0].xs]
        self._behind_direct: dict[Any, whole.Reduction] = {}
        self._is_sum = True

    def derive(self, column: Sequence, given: Sequence, declared: str | None) -> Any:
        """Takes in K ys, with the K derivatives by them; returns the tail of one without rows."""
        if self._whole.is_lone or self._whole.has_rows(column[0]):
            self._columns.append((tuple(column), given))
            return None
        total = None if given[0] is None else self._whole.value(given)
        tail, copies = self._whole.copied(column, declared)
        self._copies.update(copies)
        self._note(tail.reductions)
        self._across.append((copies[column[0].ref()], total))
        return tail

    def _note(self, found: Sequence[whole.Reduction]) -> None:
        floating = [part for part in found if part.column[0].dtype.is_floating]
        self._reductions.update((part.column[0].ref(), part) for part in floating)

    def next(self) -> list[Request] | None:
        """Returns what each tower is to derive next; None: nothing is left."""
        if self._across:
            self._derive_across()
        if not self._columns:
            return None
        columns, self._columns = self._columns, []
        self._through = self._reached([column[0] for column, _ in columns])
        return [
            Request(
                [column[i] for column, _ in columns],
                [None if given is None else given[i] for _, given in columns],
                [value.column[i] for value in self._through],
            )
            for i in range(len(self._towers))
        ]

    def _derive_across(self) -> None:
        """Derives what was computed across towers: by joined values, and by weights."""
        pending, self._across = self._across, []
        parts, self._reductions = list(self._reductions.values()), {}
        ends = [self._whole.joined(part).value for part in parts]
        ys, given = [y for y, _ in pending], [total for _, total in pending]
        if [y.ref() for y in ys] == [end.ref() for end in ends]:  # there is no tail
            found = [1.0 if total is None else total for total in given]
        else:
            xs = [self._copies.get(x.ref(), x) for x in self._towers[0].xs]
            found = self._take([*ends, *xs], ys, given, ends)
            self._behind_direct.update((part.column[0].ref(), part) for part in parts)
            for direct, gradient in zip(self._direct, found[len(ends) :], strict=True):
                direct.extend([] if gradient is None else [gradient])
        for part, gradient in zip(parts, found, strict=False):
            if gradient is not None:
                self._hand_over(part, gradient, parts)

    def _take(self, xs: list, ys: list, given: list, ends: list) -> list:
        """Asks TensorFlow for gradients across towers."""
        own = {"stop_gradients": [*ends, *self._stops()]}
        options = {"gate_gradients", "aggregation_method"} & self._towers[0].options.keys()
        own.update((name, self._towers[0].options[name]) for name in options)
        with self._whole.at_home():
            return self._towers[0].own(ys, xs, given, **own)

    def _stops(self) -> list:
        return _listed(self._towers[0].options.get("stop_gradients") or [])

    def _hand_over(self, part: whole.Reduction, gradient: Any, parts: Sequence) -> None:
        """Lets towers derive a row reduction, given the derivative by its joined value."""
        if tf.is_tensor(gradient):
            constant = tf.get_static_value(gradient)
            if constant is None:
                column = (gradient,) * len(self._towers)
                self._given.append(Given(column, (), (gradient,), tuple(parts)))
            else:
                gradient = constant
        self._is_sum &= part.kind == "sum" and not tf.is_tensor(gradient)
        factors = self._whole.joined(part).factors or [1.0] * len(self._towers)
        given = []
        for tensor, factor, device in zip(
            part.column, factors, self._whole.rows.devices, strict=True
        ):
            with reductions.alone_on(device, whole.SCOPE):
                given.append(_product(gradient, factor, tensor))
        self._columns.append((part.column, given))

    def _reached(self, ys: Sequence[tf.Tensor]) -> list[Given]:
        """Returns those values that towers were given before of which ys are made."""
        if not self._given:
            return []
        behind = ancestry.made_from(ys)
        return [
            given
            for given in self._given
            if given.column[0].op in behind and not any(given.column[0] is y for y in ys)
        ]

    def collect(self, towers: Sequence[Sequence]) -> None:
        """Takes in what each tower derived."""
        columns = list(zip(*towers, strict=True))
        number = len(self._parts)
        for parts, column in zip(self._parts, columns[:number], strict=True):
            if any(gradient is not None for gradient in column):
                parts.append(column)
        for given, column in zip(self._through, columns[number:], strict=True):
            if column[0] is not None:
                self._go_behind(given, column)

    def _go_behind(self, given: Given, column: Sequence) -> None:
        """Goes on behind a value of the whole, by which towers have found derivatives."""
        rows = self._whole.rows
        join = row_reductions.Join(rows.has_rows, rows.devices, rows.home, rows.weights)
        with self._whole.at_home():
            total, _ = join.sum([tf.convert_to_tensor(gradient) for gradient in column])
        if given.parts:
            self._columns.append((given.parts, [total] * len(given.parts)))
        self._across.extend((tensor, total) for tensor in given.across)
        self._note(given.reductions)

    # What towers are given.

    def joined(self) -> list:
        """Returns the gradients by each x, one of each tower or all towers' one."""
        xs = list(zip(*[tower.xs for tower in self._towers], strict=True))
        results: list = [None] * len(xs)
        pairs = {}
        for n, x in enumerate(xs):
            own = [_added(list(parts)) for parts in zip(*self._parts[n], strict=True)]
            if not self._is_weight(x[0]):
                results[n] = self._of_rows(n, own)
                self._whole.meetings.clear(each for each in own[:1] if each is not None)
            elif own:
                own[0] = self._with_direct(n, own[0])
                pairs[n] = (values.PerDevice(own, self._whole.rows.devices), _place(x))
            elif self._direct[n]:
                total = _added(self._direct[n])
                results[n] = self._strategy.broadcast(total, _place(x))
        reduced = self._strategy.batch_reduce(variables.SUM, list(pairs.values()))
        for n, found in zip(pairs, reduced, strict=True):
            results[n] = self._finished(n, found)
        for n, found in enumerate(results):
            if found is not None and self._is_weight(xs[n][0]):
                self._note_given(n, found, pairs[n][0].values if n in pairs else ())
        return results

    def _is_weight(self, x: tf.Tensor) -> bool:
        return x.dtype == tf.resource or x.op not in self._whole.varying

    def _of_rows(self, n: int, own: list) -> Any:
        """Returns the gradients by a tensor of the towers' own: each tower's part."""
        direct = _added(self._direct[n]) if self._direct[n] else None
        if not own:
            return direct
        if direct is not None:
            own = [_added([part, direct]) for part in own]
        return values.PerDevice(own)

    def _with_direct(self, n: int, part: Any) -> Any:
        """Adds what the tail brings by itself to the first tower's part, if both are alike."""
        if not self._direct[n] or self._is_mixed(n, part):
            return part
        return _added([part, *self._direct[n]])

    def _is_mixed(self, n: int, part: Any) -> bool:
        dense = [not isinstance(gradient, tf.IndexedSlices) for gradient in self._direct[n]]
        return any(dense) and isinstance(part, tf.IndexedSlices)

    def _finished(self, n: int, found: Any) -> Any:
        """Adds what the tail brings by itself where towers bring slices, as one device does."""
        copies = found.values if isinstance(found, values.Mirrored) else (found,)
        if not (self._direct[n] and self._is_mixed(n, copies[0])):
            return found
        made = []
        for copy in copies:
            with tf.device(copy.values.device):
                made.append(_added([tf.convert_to_tensor(copy), *self._direct[n]]))
        return made[0] if len(made) == 1 else values.Mirrored(made, found.devices)

    def _note_given(self, n: int, found: Any, parts: Sequence) -> None:
        column = tuple(values.select_tower(i, found) for i in range(len(self._towers)))
        if isinstance(column[0], tf.IndexedSlices):
            self._whole.note([slices.values for slices in column])
            self._whole.note([slices.indices for slices in column])
            return
        parts = tuple(parts) if all(isinstance(part, tf.Tensor) for part in parts) else ()
        across = tuple(map(tf.convert_to_tensor, self._direct[n]))
        behind = tuple(self._behind_direct.values()) if across else ()
        self._given.append(Given(column, parts, across, behind, self._is_sum))
        self._whole.note(column, "sum" if parts else whole.WHOLE, parts)


def _listed(nest: Any) -> list:
    return list(nest) if isinstance(nest, (list, tuple)) else [nest]


def _is_composite(value: Any) -> bool:
    return isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor))


def _tensor(y: Any) -> tf.Tensor:
    return tf.convert_to_tensor(y)


def _target(x: Any) -> tf.Tensor:
    """Returns the tensor by which TensorFlow derives: of a variable, its handle."""
    handle = getattr(x, "handle", None)
    return x if handle is None else handle


def _derived(own: Callable, xs: list, request: Request, options: dict) -> Found:
    """Derives what a tower is asked to."""
    targets = [*xs, *request.through]
    if not request.ys:
        return Found([None] * len(targets))
    stops = [*_listed(options.get("stop_gradients") or []), *request.through]
    options = {**options, "stop_gradients": stops or None}
    return Found(own(request.ys, targets, request.grad_ys, **options))


def _require_alike(towers: Sequence[Asked]) -> None:
    first = towers[0]
    for i, tower in enumerate(towers):
        for what, here, there in (("ys", tower.ys, first.ys), ("xs", tower.xs, first.xs)):
            if len(here) != len(there):
                raise errors.TowerMismatchError(
                    f"Every tower must ask for the same gradients: tower {i} has {len(here)} "
                    f"{what}, tower 0 has {len(there)} ({_names(here)}; {_names(there)}). Look "
                    "for a branch on the tower in model_fn."
                )


def _names(tensors: Sequence[tf.Tensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors[:5])


def _place(x: Sequence[tf.Tensor]) -> Any:
    """Returns where the gradient by K towers' x goes: to the variable; else, to the towers."""
    if x[0].dtype == tf.resource:
        container = values.container_of(x[0])
        return x[0] if container is None else container
    return None if any(tensor is not x[0] for tensor in x) else x[0]


def _added(gradients: Sequence[Any]) -> Any:
    """Adds up gradients, as TensorFlow does: slices stay slices if all are."""
    if len(gradients) == 1:
        return gradients[0]
    if not all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return reductions.sum_onto(gradients, None)


def _product(gradient: Any, factor: Any, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the derivative by a tower's tensor: a tensor or number, times a number."""
    if not tf.is_tensor(gradient) and not tf.is_tensor(factor):
        if tensor.shape.is_fully_defined():
            return tf.constant(gradient * factor, tensor.dtype, tensor.shape)
        return tf.ones_like(tensor) * tf.constant(gradient * factor, tensor.dtype)
    if not tf.is_tensor(factor):
        return gradient if factor == 1.0 else gradient * tf.constant(factor, tensor.dtype)
    product = reductions.as_dtype(factor, tensor.dtype)
    if tf.is_tensor(gradient) or np.any(gradient != 1.0):
        product = product * tf.cast(gradient, tensor.dtype)
    return tf.broadcast_to(product, tf.shape(tensor)) if tensor.shape.rank else product
