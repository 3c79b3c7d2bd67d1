"""How weights are updated: an optimizer, a learning rate.

The arguments of each optimizer and schedule are those of its row in `catalog`; the section that
reads them is made from the row.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic

from replicate.app.config import catalog, types


class _Named(types.Section):
    """The name and the arguments of something that `tf.compat.v1.train` has."""

    KIND: ClassVar[str]
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments, by their names."""
        return {name: one for name, one in self.__dict__.items() if name != "name"}

    @classmethod
    def missing_text(cls, name: str) -> str:
        """See base class."""
        own = cls.model_fields["name"].default
        return f"the {cls.KIND} {own} needs the key {name}. Add it: {{name: {own}, {name}: ...}}"


class Schedule(_Named):
    """A learning rate that changes with the global step; by its function's name."""

    KIND = "schedule"
    warmup_steps: types.NotNegative = pydantic.Field(
        0, description="In so many steps the rate rises from 0; the schedule begins behind them."
    )


class _Steps(Schedule):
    """A rate for each stretch between boundaries."""

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def faults(self) -> Iterator[tuple[str, str]]:
        """See base class."""
        boundaries, count, wanted = list(self.boundaries), len(self.values), len(self.boundaries)
        if count != wanted + 1:
            rule = f"must be a list of {wanted + 1} values, one more than boundaries, got {count}."
            yield "values", rule
        if boundaries != sorted(set(boundaries)):
            yield "boundaries", f"must be rising steps, got {boundaries}."


class Optimizer(_Named):
    """An optimizer, by its class's name without the ending; its learning_rate may be a Schedule."""

    KIND = "optimizer"


_S = TypeVar("_S", bound=_Named)
_OWN = {
    "AdamW": "Adam with a decay of weights of its own, <https://arxiv.org/abs/1711.05101>.",
    "LAMB": "AdamW whose steps go by a variable's norm, <https://arxiv.org/abs/1904.00962>.",
    "constant": "One rate, to be reached by `warmup_steps`.",
    "inverse_sqrt_decay": "learning_rate / sqrt(1 + step / decay_steps).",
}
_Number = Annotated[float, types.number()]
_AtLeastZero = Annotated[float, types.number(ge=0)]
_TYPES: dict[str, types.Type] = {
    "boundaries": types.Several[types.NotNegative],
    "decay_steps": types.Positive,
    "exclude_from_decay": tuple[types.Text, ...],
    "first_decay_steps": types.Positive,
    "initial_accumulator_value": _AtLeastZero,
    "initial_gradient_squared_accumulator_value": types.AboveZero,
    "l1_regularization_strength": _AtLeastZero,
    "l2_regularization_strength": _AtLeastZero,
    "l2_shrinkage_regularization_strength": _AtLeastZero,
    "learning_rate": _AtLeastZero,
    "values": Annotated[tuple[_AtLeastZero, ...], pydantic.Field(min_length=2)],
    "weight_decay": _AtLeastZero,
}


def _section(
    base: type[_S], name: str, row: Mapping[str, Any], known: Mapping[str, types.Type]
) -> type[_S]:
    """Makes the section that reads the arguments of one row, by their names or defaults."""
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for argument, default in row.items():
        by_default = types.Boolean if isinstance(default, bool) else _Number
        is_required = default is catalog.REQUIRED
        fields[argument] = (known.get(argument, by_default), ... if is_required else default)
    made = pydantic.create_model(name, __base__=base, **fields)
    of_tensorflow = f"`tf.compat.v1.train.{name}{'Optimizer' if base is Optimizer else ''}`."
    made.__doc__ = _OWN.get(name, of_tensorflow)
    return made


_SCHEDULES = {
    name: _section(_Steps if "boundaries" in row else Schedule, name, row, _TYPES)
    for name, row in catalog.SCHEDULES.items()
}
_Rate = Annotated[
    Annotated[_AtLeastZero, types.tag("number")]
    | Annotated[
        Schedule, types.one_section(*_SCHEDULES.values(), key="name"), types.tag("mapping")
    ],
    types.either("a number of at least 0, or a schedule as {name: exponential_decay, ...}"),
]
_OPTIMIZERS = {
    name: _section(Optimizer, name, row, {**_TYPES, "learning_rate": _Rate})
    for name, row in catalog.OPTIMIZERS.items()
}


def _spelt_out(value: object) -> object:
    """Takes an optimizer's bare name for a mapping."""
    if not isinstance(value, str) or ":" in value:
        return value
    if value not in catalog.OPTIMIZERS:
        near = types.nearest(value, catalog.OPTIMIZERS)
        meant = types.with_colon(value) or (near and f"Did you mean {{name: {near}, ...}}?")
        raise types.expected(_RULE, value, meant)
    return {"name": value}


_RULE = "{name: Adam, ...}, or a function's name as package.module:function"
_READY = [name for name, row in catalog.OPTIMIZERS.items() if catalog.REQUIRED not in row.values()]
_Section = Annotated[
    Optimizer, types.one_section(*_OPTIMIZERS.values(), key="name"), types.tag("mapping")
]
_Either = Annotated[types.Function | _Section, types.either(_RULE)]
OptimizerOrFunction = Annotated[
    _Either,
    pydantic.BeforeValidator(_spelt_out, json_schema_input_type=Literal[tuple(_READY)] | _Either),
]
