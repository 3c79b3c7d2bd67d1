"""One call of the hook, in all towers: across them, in each, and across them again.

Across towers the tail is derived by the joined values and by the weights. Each tower then
derives its row reductions, and what the towers find is added up. See `gradients`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf
from replicate.graph import ancestry, columns, reductions, tails, whole
from replicate.strategy import cloning, values
from replicate.training import packed_reduction


@dataclasses.dataclass(frozen=True)
class Asked(cloning.Carried):
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

    def mapped(self, fn):
        """See base class."""
        found = {name: fn(getattr(self, name)) for name in ("ys", "xs", "grad_ys")}
        return dataclasses.replace(self, **found)


@dataclasses.dataclass(frozen=True)
class Request(cloning.Carried):
    """What one tower is to derive by itself.

    Attributes:
        ys: Tensors of the tower.
        grad_ys: The whole's derivatives by them; None: ones.
        through: Values of the whole behind which the gradient goes on across towers.
    """

    ys: list
    grad_ys: list
    through: list

    def mapped(self, fn):
        """See base class."""
        return Request(fn(self.ys), fn(self.grad_ys), fn(self.through))


@dataclasses.dataclass(frozen=True)
class Found(cloning.Carried):
    """What one tower derived: by each of its xs, then by each of what it goes through."""

    gradients: list

    def mapped(self, fn):
        """See base class."""
        return Found(fn(self.gradients))


@dataclasses.dataclass(frozen=True)
class Given:
    """A value of the whole that towers were given, and that may be derived again.

    Attributes:
        column: The K towers' tensors, which may be one and the same.
        parts: K tensors that it is the sum of; none: it was made across towers alone.
        across: Tensors across towers that it is the sum of, the parts aside.
        reductions: The row reductions that these are made of.
    """

    column: tuple
    parts: tuple
    across: tuple
    reductions: tuple


class Log(NamedTuple):
    """What towers were given so far.

    Attributes:
        given: What may be derived again.
        results: The operations that make the first tower's gradients, each with whether these
            are sums of rows' own parts, constant factors aside.
        slices: K tensors of the values of each gradient that is sparse.
    """

    given: list[Given]
    results: dict
    slices: list


class Derivation:
    """One call of the hook, in all towers."""

    def __init__(self, joining: whole.Whole, strategy: Any, towers: Sequence, log: Log):
        self._whole = joining
        self._strategy = strategy
        self._towers = towers
        self._log = log
        self._columns: list[tuple] = []  # what towers are to derive, with the derivatives by it
        self._across: list[tuple] = []  # tensors across towers, with the derivatives by them
        self._reductions: dict[Any, tails.Reduction] = {}
        self._through: list[Given] = []
        self._copies: dict = {}
        self._parts: list[list] = [[] for _ in towers[0].xs]
        self._direct: list[list] = [[] for _ in towers[0].xs]
        self._behind_direct: dict[Any, tails.Reduction] = {}
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

    def _all_xs(self) -> list:
        return [tower.xs for tower in self._towers]

    def _note(self, found: Sequence[tails.Reduction]) -> None:
        for part in found:
            dtype = part.column[0].dtype
            if dtype.is_floating or dtype.is_complex:
                self._reductions[part.column[0].ref()] = part

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
        return listed(self._towers[0].options.get("stop_gradients") or [])

    def _hand_over(self, part: tails.Reduction, gradient: Any, parts: Sequence) -> None:
        """Lets towers derive a row reduction, given the derivative by its joined value."""
        if tf.is_tensor(gradient):
            constant = tf.get_static_value(gradient)
            if constant is None:
                column = (gradient,) * len(self._towers)
                self._log.given.append(Given(column, (), (gradient,), tuple(parts)))
            else:
                gradient = constant
        is_constant = not tf.is_tensor(gradient) or ancestry.is_constant(gradient)
        self._is_sum &= part.kind == "sum" and is_constant
        factors = self._whole.joined(part).factors or [1.0] * len(self._towers)
        given = self._whole.for_each(
            lambda tensor, factor: _product(gradient, factor, tensor), part.column, factors
        )
        self._whole.meetings.clear(columns.made(given))
        self._columns.append((part.column, given))

    def _reached(self, ys: Sequence[tf.Tensor]) -> list[Given]:
        """Returns those values that towers were given before of which ys are made."""
        if not self._log.given and not self._log.slices:
            return []
        behind = ancestry.made_from(ys)
        is_own = any(len(set(map(id, x))) > 1 for x in zip(*self._all_xs(), strict=True))
        for column in self._log.slices:
            if column[0].op in behind and (is_own or column[0] is not column[1]):
                raise ValueError(
                    "Gradients of the gradient of a table, which is sparse, need one copy of the "
                    f"table; {column[0].name} has one in each tower. Use another strategy than "
                    "'mirrored' and derive by the table itself, or make the gradient dense: look "
                    "rows up in table * 1.0, and derive by the table."
                )
        return [
            given
            for given in self._log.given
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
        """Goes on behind a value of the whole, by which towers have found derivatives.

        Their sum is a value of the whole as well, which a third derivative goes behind.
        """
        with self._whole.at_home():
            own = tuple(tf.convert_to_tensor(gradient) for gradient in column)
        part = tails.Reduction("sum", own, own[0])
        total = self._whole.joined(part).value
        self._whole.meetings.clear([total])
        self._log.given.append(Given((total,) * len(own), (), (total,), (part,)))
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
                self._whole.meetings.part(each for each in own[:1] if each is not None)
            elif own:
                own[0] = self._with_direct(n, own[0])
                pairs[n] = (values.PerDevice(own, self._whole.rows.devices), _place(x))
            elif self._direct[n]:
                total = self._direct_of(n)
                results[n] = self._strategy.broadcast(total, _place(x))
        reduced = packed_reduction.batch_sum(self._whole, self._strategy, list(pairs.values()))
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
        """Whether what the tail brings by itself is added where towers' parts are one already.

        NOTE: of several workers, the first tower may have no rows, and count for nothing.
        """
        if self._whole.rows.across is not None:
            return True
        dense = [not isinstance(gradient, tf.IndexedSlices) for gradient in self._direct[n]]
        return any(dense) and isinstance(part, tf.IndexedSlices)

    def _finished(self, n: int, found: Any) -> Any:
        """Adds what the tail brings by itself where it could not be a tower's part."""
        copies = found.values if isinstance(found, values.Mirrored) else (found,)
        if not (self._direct[n] and self._is_mixed(n, copies[0])):
            return found
        made, direct = [], self._direct_of(n)
        for copy in copies:
            with tf.device(reductions.device_of(copy)):
                made.append(_added([copy, direct]))
        return made[0] if len(made) == 1 else values.Mirrored(made, found.devices)

    def _direct_of(self, n: int) -> Any:
        """Returns what the tail brings by itself; what is random in it is the first worker's."""
        direct, across = _added(self._direct[n]), self._whole.rows.across
        parts = tf.nest.flatten(direct, expand_composites=True)
        if across is None or ancestry.is_repeatable(parts, self._whole.ends):
            return direct
        return across.from_first([direct])[0]

    def _note_given(self, n: int, found: Any, parts: Sequence) -> None:
        column = tuple(values.select_tower(i, found) for i in range(len(self._towers)))
        for tensor in tf.nest.flatten(column[0], expand_composites=True):
            self._log.results[tensor.op] = self._is_sum
        if isinstance(column[0], tf.IndexedSlices):
            self._log.slices.append([slices.values for slices in column])
            self._whole.note([slices.values for slices in column])
            self._whole.note([slices.indices for slices in column])
            return
        parts = tuple(parts) if all(isinstance(part, tf.Tensor) for part in parts) else ()
        across = tuple(map(tf.convert_to_tensor, self._direct[n]))
        behind = tuple(self._behind_direct.values()) if across else ()
        self._log.given.append(Given(column, parts, across, behind))
        self._whole.note(column, "sum" if parts else tails.WHOLE, parts)


def listed(nest: Any) -> list:
    """Returns what may be one tensor or several as a list."""
    return list(nest) if isinstance(nest, (list, tuple)) else [nest]


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
