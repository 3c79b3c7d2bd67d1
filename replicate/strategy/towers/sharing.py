"""One copy of the weights: the towers' variables are matched by order of creation.

The first tower makes variables and writes a log. Every other tower asks for the same
variables in the same order, and is given them. Names made by `get_variable` and names
that TensorFlow numbers by itself both arrive here, because each tower begins with
counters and stores as they were before all towers.
"""

import re
import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

from replicate import errors, types
from replicate.compat.tensorflow import tf
from replicate.graph import isolation
from replicate.strategy import context
from replicate.strategy.variables import creation

# What a tower's own prefix, and numbers that TensorFlow adds, make of a name.
_PREFIX = re.compile(r"(^|/)tower_\d+/")
_NUMBERED = re.compile(r"_\d+(?=/|$)")


class Request(NamedTuple):
    """What a tower asked to be made.

    Attributes:
        name: The name it asked for, None where TensorFlow is to choose.
        shape: The shape as text; `"?"` where an initializer decides.
        dtype: The dtype's name; `"?"` where an initializer decides.
        trainable: Whether the variable is trained.
        scope: The name scope it was asked for in, a tower's own prefix aside.
        collections: The collections it asked for; None where it named none.
    """

    name: str | None
    shape: str
    dtype: str
    trainable: bool
    scope: str = ""
    collections: tuple[Hashable, ...] | None = None

    def matches(self, other: "Request") -> bool:
        """Whether `other` may serve this request, numbers that TensorFlow added aside."""
        return (
            self._plain(self.name) == self._plain(other.name)
            and ("?" in (self.shape, other.shape) or self.shape == other.shape)
            and ("?" in (self.dtype, other.dtype) or self.dtype == other.dtype)
            and self.trainable == other.trainable
        )

    @staticmethod
    def _plain(name: str | None) -> str:
        return _NUMBERED.sub("", _PREFIX.sub(r"\1", name or "Variable"))

    def __str__(self) -> str:
        kind = "trainable" if self.trainable else "non-trainable"
        return f"{self.name or 'an unnamed variable'} ({kind}, shape {self.shape}, {self.dtype})"


class Creations:
    """The log of one `call_for_each_tower`: what was made, and who has come how far.

    Towers that run at the same time may ask for a variable before the first tower has
    made it: they wait until it stands at a merge call, or has ended.

    Args:
        num_towers: K.
    """

    def __init__(self, num_towers: int):
        self._made: list[tuple[Request, tf.Variable]] = []
        self._next = [0] * num_towers
        self._taken: list[set[int]] = [set() for _ in range(num_towers)]
        self._first_is_making = False
        self._first_paused = threading.Event()
        self._first_paused.set()  # until towers run
        self._views = isolation.Views()

    def watch(self, views: isolation.Views) -> None:
        """Takes note of what the towers make in a graph."""
        self._views = views

    def operations(self, tower_id: int) -> set[tf.Operation]:
        """Returns what a tower has made in the graph; what merge calls make is the first one's."""
        return self._views.operations(tower_id)

    def make(self, request: Request, create: Callable[[], tf.Variable]) -> tf.Variable:
        """Makes a variable in the first tower and writes it down."""
        if self._first_is_making:  # an initializer that makes variables of its own
            return create()
        self._first_is_making = True
        try:
            variable = create()
        finally:
            self._first_is_making = False
        self._made.append((request, variable))
        return variable

    def find(self, tower_id: int, request: Request) -> tf.Variable:
        """Returns the first tower's variable for what tower `tower_id` asks.

        Raises:
            TowerMismatchError: If the first tower made no such variable, or made it in
                another order.
        """
        self._first_paused.wait()
        position = self._position(tower_id, request)
        if position is None:
            raise self._mismatch(tower_id, request)
        self._next[tower_id] = position + 1
        self._taken[tower_id].add(position)
        return self._made[position][1]

    def pause_first(self, paused: bool) -> None:
        """Notes that the first tower stands at a merge call or has ended, or goes on."""
        (self._first_paused.set if paused else self._first_paused.clear)()

    def untaken(self, tower_id: int) -> list[tuple[Request, tf.Variable]]:
        """Returns what the first tower made and tower `tower_id` never asked for."""
        taken = self._taken[tower_id]
        return [logged for i, logged in enumerate(self._made) if i not in taken]

    def unasked(self, tower_id: int) -> list[isolation.Listed]:
        """Returns `untaken` as pairs of a variable and the collections that it is listed in."""
        return [
            (variable, creation.collections_of({"collections": request.collections}, variable))
            for request, variable in self.untaken(tower_id)
        ]

    def all(self) -> list[tf.Variable]:
        """Returns the variables in the order in which the first tower made them."""
        return [variable for _, variable in self._made]

    def _position(self, tower_id: int, request: Request) -> int | None:
        """Finds the next match: of the same full name, of the same name, or alike."""
        ahead = range(self._next[tower_id], len(self._made))
        alike = [i for i in ahead if request.matches(self._made[i][0])]
        named = [i for i in alike if self._made[i][0].name == request.name]
        exact = [i for i in named if self._made[i][0].scope == request.scope]
        if exact or named:
            return (exact or named)[0]
        names = {logged.name for logged, _ in self._made}
        return alike[0] if alike and request.name not in names - {None} else None

    def _mismatch(self, tower_id: int, request: Request) -> errors.TowerMismatchError:
        step = self._next[tower_id]
        expected = str(self._made[step][0]) if step < len(self._made) else "no further variable"
        return errors.TowerMismatchError(
            "Every tower must create the same variables in the same order: as its number "
            f"{step + 1}, tower {tower_id} created {request} where tower 0 created {expected}. "
            "Look for a branch on the tower, or a name that changes from call to call."
        )


def variable_for(
    tower: context.TowerContext | None, kwargs: types.Arguments, make: Callable[[], tf.Variable]
) -> tf.Variable:
    """Returns a new variable, in later towers of several the one that the first has made.

    Args:
        tower: The `TowerContext` that asks; None across towers.
        kwargs: What the variable creator was given.
        make: Makes the variable.
    """
    if tower is None or tower.creations is None:
        return make()
    creations: Creations = tower.creations
    request = request_of(kwargs)
    if tower.position == 0:
        return creations.make(request, make)
    variable = creations.find(tower.position, request)
    creation.add_to_collections(variable, kwargs)
    return variable


def request_of(kwargs: types.Arguments) -> Request:
    """Describes what a variable creator was asked for."""
    value, dtype = kwargs.get("initial_value"), kwargs.get("dtype")
    shape = kwargs.get("shape")
    if shape is None and not callable(value):
        shape = getattr(value, "shape", None)
        if shape is None and isinstance(value, (bool, int, float, list, tuple)):
            shape = tf.TensorShape(_extent(value))
    if dtype is None and not callable(value):
        dtype = getattr(value, "dtype", None)
    dtype = getattr(dtype, "name", dtype)
    return Request(
        name=kwargs.get("name"),
        shape="?" if shape is None else str(shape),
        dtype="?" if dtype is None else str(dtype),
        trainable=kwargs.get("trainable") is not False,
        scope=_PREFIX.sub(r"\1", f"{tf.get_current_name_scope()}/"),
        collections=None if kwargs.get("collections") is None else tuple(kwargs["collections"]),
    )


def _extent(value: object) -> list[int]:
    """Returns the shape of nested lists of numbers or tensors."""
    if isinstance(value, (list, tuple)):
        return [len(value), *(_extent(value[0]) if value else [])]
    return list(getattr(value, "shape", ()))
