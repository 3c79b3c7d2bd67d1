"""The one hook: whatever gradients a tower asks for are the whole batch's.

A scalar that a tower derives is a function of row reductions r and of weights. Across towers
the tail, copied once, is derived by the joined values R and by the weights; each tower then
derives its own r_i, given the derivative of the whole by R times that of R by r_i. What the
towers find adds up, together with what the tail brings by itself, to the gradient that one
device has: a penalty on weights is part of the tail, and counts once.

What a tower is given may be derived again. A joined gradient is a sum over towers, as a row
reduction is; where later gradients reach one, they go on behind it in the same two steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicate import errors
from replicate.compat import gradients as gradient_calls
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, tails, whole
from replicate.strategy import context, values
from replicate.training import derivation

_OPTIONS = (
    "name",
    "colocate_gradients_with_ops",
    "gate_gradients",
    "aggregation_method",
    "stop_gradients",
    "unconnected_gradients",
)


class Gradients:
    """Takes the gradients of K towers.

    Args:
        joining: Joins what the towers made of their rows.
        declared: How losses are reduced, whatever the model says; None: as it says.
        is_accumulated: Whether gradients of several batches become one update.
        derived: Told of each tensor without rows that is derived: the first tower's, and how
            it is made.
    """

    def __init__(
        self,
        joining: whole.Whole,
        declared: str | None,
        is_accumulated: bool,
        derived: Callable[[tf.Tensor, tails.Tail], None],
    ):
        self._whole = joining
        self._derived = derived
        self._declared = declared
        self._is_accumulated = is_accumulated
        self._log = derivation.Log([], {}, [])
        self._current: Any = None
        self._before: set | None = None  # ids of the variables there were at the first gradient

    def taker(self, tower: Any) -> Callable:
        """Returns what takes the gradients that a tower asks for; see `compat.gradients`."""

        def take(own: Callable, ys: Any, xs: Any, *args, **kwargs) -> list:
            mode = context.current()
            is_towers = mode is not None and mode.tower is tower and tower.can_meet
            composite = any(map(_is_composite, [*derivation.listed(ys), *derivation.listed(xs)]))
            if self._before is None and is_towers:
                self._before = {id(variable) for variable in tf1.global_variables()}
            if not is_towers or composite:
                return own(ys, xs, *args, **kwargs)  # of composites, it asks again for the parts
            with gradient_calls.taken_by(None):
                if tower.is_single_tower:
                    return self._observe(own, ys, xs, *args, **kwargs)
                return self.take(tower, own, ys, xs, *args, **kwargs)

        return take

    def made_since(self) -> tuple:
        """Returns the variables made since the first gradients were taken, but those trained."""
        known = self._before
        made = [v for v in tf1.global_variables() if known is not None and id(v) not in known]
        return tuple(variable for variable in made if not variable.trainable)

    def _observe(self, own: Callable, ys: Any, xs: Any, *args, **kwargs) -> list:
        """Takes one device's gradients, and notes whether they are sums over rows."""
        found = own(ys, xs, *args, **kwargs)
        if self._is_accumulated:
            is_sum = all(self._is_sum_of_rows(own, y) for y in derivation.listed(ys))
            for gradient in tf.nest.flatten(found, expand_composites=True):
                if gradient is not None:
                    self._log.results[gradient.op] = is_sum
        return found

    def _is_sum_of_rows(self, own: Callable, y: tf.Tensor) -> bool:
        if self._whole.has_rows(y):
            return True
        parts = [part for part in self._whole.tail([y]).reductions if part.column[0] is not y]
        ends = [part.column[0] for part in parts if part.column[0].dtype.is_floating]
        with self._whole.at_home():
            by_ends = own([y], ends, stop_gradients=ends) if ends else []
        constant = all(g is None or ancestry.is_constant(g) for g in by_ends)
        kinds = {part.kind for part in self._whole.tail([y]).reductions}
        return constant and kinds == {"sum"}

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
        ys = [tf.convert_to_tensor(y) for y in derivation.listed(ys)]
        xs = [_target(x) for x in derivation.listed(xs)]
        given = [None] * len(ys) if grad_ys is None else derivation.listed(grad_ys)
        step = tower.merge_call(self._begin, derivation.Asked(ys, xs, given, options, own))
        while isinstance(step, derivation.Request):
            step = tower.merge_call(self._continue, _derived(own, xs, step, options))
        found = list(step)
        if any(each is None for each in found) and _wants_zeros(options):
            none = tf.constant(0.0)  # to which nothing is connected
            zeros = own([none], xs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            found = [z if g is None else g for g, z in zip(found, zeros, strict=True)]
        return found

    def _begin(self, strategy: Any, asked: Any) -> Any:
        with tf1.name_scope(whole.SCOPE):
            return self._began(strategy, asked)

    def _began(self, strategy: Any, asked: Any) -> Any:
        towers = strategy.unwrap(asked)
        _require_alike(towers)
        self._current = derivation.Derivation(self._whole, strategy, towers, self._log)
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
        results = self._log.results
        found = [results[op] for op in ancestry.made_from(parts, ends=results) if op in results]
        return bool(found) and all(found)


def _wants_zeros(options: dict) -> bool:
    asked = options.get("unconnected_gradients") or tf.UnconnectedGradients.NONE
    return tf.UnconnectedGradients(asked) == tf.UnconnectedGradients.ZERO


def _is_composite(value: Any) -> bool:
    return isinstance(value, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor))


def _target(x: Any) -> tf.Tensor:
    """Returns the tensor by which TensorFlow derives: of a variable, its handle."""
    handle = getattr(x, "handle", None)
    return x if handle is None else handle


def _derived(
    own: Callable, xs: list, request: derivation.Request, options: dict
) -> derivation.Found:
    """Derives what a tower is asked to."""
    targets = [*xs, *request.through]
    if not request.ys:
        return derivation.Found([None] * len(targets))
    stops = [*derivation.listed(options.get("stop_gradients") or []), *request.through]
    # NOTE: `tf.gradients` asks for it; what a loop reads of variables elsewhere cannot have it.
    options = {**options, "stop_gradients": stops or None, "colocate_gradients_with_ops": False}
    return derivation.Found(own(request.ys, targets, request.grad_ys, **options))


def _require_alike(towers: Sequence[derivation.Asked]) -> None:
    first = towers[0]
    for i, tower in enumerate(towers):
        for what, here, there in (("ys", tower.ys, first.ys), ("xs", tower.xs, first.xs)):
            if len(here) != len(there):
                raise errors.TowerMismatchError(
                    f"Every tower must ask for the same gradients: tower {i} has {len(here)} "
                    f"{what}, tower 0 has {len(there)} ({_names(here)}; {_names(there)}). Look "
                    "for a branch on the tower in model_fn."
                )
        for n, (here, there) in enumerate(zip(tower.xs, first.xs, strict=True)):
            if tf.resource in (here.dtype, there.dtype) and _variable(here) is not _variable(there):
                raise errors.TowerMismatchError(
                    "Every tower must ask for gradients by the same variables, in the same order: "
                    f"number {n} is {_variable(here).name} in tower {i}, {_variable(there).name} "
                    "in tower 0. "
                    "Look for a list of variables whose order depends on the tower."
                )


def _variable(x: tf.Tensor) -> Any:
    """Returns which variable of all towers a handle is of; else the tensor itself."""
    container = values.container_of(x) if x.dtype == tf.resource else None
    return x if container is None else container


def _names(tensors: Sequence[tf.Tensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors[:5])
