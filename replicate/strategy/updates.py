"""How each copy of a variable is updated, on its device: update, update_non_slot."""

import contextlib
from collections.abc import Mapping, Sequence

from replicate import types
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import communication, context
from replicate.strategy.variables import values, variables


class Updates(communication.Communication):
    """The verbs of a strategy that update variables."""

    def update(
        self, var: tf.Variable, fn: types.Function, *args: types.Nest, **kwargs: types.Nest
    ) -> types.Nest:
        """Runs `fn(copy, ...)` on each device of a variable.

        Args:
            var: A variable of this strategy.
            fn: Takes a copy, and the arguments' copies on its device.
            *args: Mirrored arguments are unwrapped.
            **kwargs: Likewise.

        Returns:
            The results, merged.

        Raises:
            ValueError: If an argument differs between towers, and would part the copies; those
                of a tower-local variable are each tower's own.
        """
        self._require_cross_tower("update")
        if not isinstance(var, variables.TowerLocalVariable):
            _require_reduced("update", (args, kwargs))
        if isinstance(var, variables.DistributedVariable):
            return self._update_on(var.devices, var.members, fn, args, kwargs)
        return self._update_on(self.destinations_of(var), (var,), fn, args, kwargs)

    def update_non_slot(
        self,
        colocate_with: Sequence[str],
        fn: types.Function,
        *args: types.Nest,
        **kwargs: types.Nest,
    ) -> types.Nest:
        """Runs `fn(...)` on each non-slot device.

        Args:
            colocate_with: What `non_slot_devices()` returned.
            fn: Takes the arguments' copies.
            *args: Mirrored arguments are unwrapped.
            **kwargs: Likewise.

        Returns:
            The results, merged.

        Raises:
            ValueError: If an argument differs between towers.
        """
        self._require_cross_tower("update_non_slot")
        _require_reduced("update_non_slot", (args, kwargs))
        places = self.destinations_of(colocate_with)
        return self._update_on(places, None, fn, args, kwargs)

    def _update_on(
        self,
        places: Sequence[str],
        members: Sequence[tf.Variable] | None,
        fn: types.Function,
        args: Sequence[types.Nest],
        kwargs: Mapping[str, types.Nest],
    ) -> types.Nest:
        mode = context.required()
        results = []
        for i, place in enumerate(places):
            updating = mode._replace(update_device=place)
            with context.entered(updating), tf.device(place), self._copy_scope(i):
                chosen = values.select_device(place, i, tuple(args))
                named = values.select_device(place, i, dict(kwargs))
                first = () if members is None else (members[i],)
                results.append(fn(*first, *chosen, **named))
        return values.regroup(results, values.Mirrored, places)

    @staticmethod
    def _copy_scope(index: int) -> contextlib.AbstractContextManager[object]:
        """Copies after the first are updated under a name scope of their own."""
        return tf1.name_scope(f"tower_{index}") if index > 0 else contextlib.nullcontext()

    def non_slot_devices(self, var_list: Sequence[tf.Variable]) -> Sequence[str]:
        """Returns where an optimizer's variables live that belong to no single variable."""
        return self.destinations_of(min(var_list, key=lambda v: v.name))


def _require_reduced(method: str, nest: types.Nest) -> None:
    """Refuses what differs between towers as an argument of an update.

    NOTE: in merge calls of TensorFlow's own kind it is taken as it is: Keras reduces gradients
    in the towers, and clips them there, so that each brings an equal tensor of its own.
    """
    if context.required().is_tensorflows:
        return

    def leaf(value: types.Nest) -> None:
        if values.differs(value):
            raise ValueError(
                f"{method}() takes what is the same for all copies, a plain or a Mirrored value: "
                f"got {value!r}, which may differ between towers. Reduce it first: "
                "strategy.reduce(aggregation, value, destinations=variable)."
            )

    values.map_nest(leaf, nest)
