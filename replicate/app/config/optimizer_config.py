"""How weights are updated: an optimizer, a learning rate.

The arguments of each optimizer and schedule are those of its row in `catalog`; the section that
reads them is made from the row.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

import pydantic
from pydantic import Field

from replicate.app.config import catalog, types


class _Named(types.Section):
    """The name and the arguments of something that `tf.compat.v1.train` has."""

    model_config = pydantic.ConfigDict(use_attribute_docstrings=False)  # made without a source
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments, by their names."""
        return {name: one for name, one in self.__dict__.items() if name != "name"}


class Schedule(_Named):
    """A learning rate that changes with the global step; by its function's name."""

    warmup_steps: types.NotNegative = Field(
        0, description="In so many steps the rate rises from 0; the schedule begins behind them."
    )


class _Steps(Schedule):
    """A rate for each stretch between boundaries."""

    boundaries: types.Several[types.NotNegative]
    values: types.Several[types.AtLeastZero]

    def faults(self) -> Iterator[tuple[types.KeyPath, str]]:
        """See base class."""
        boundaries, count, wanted = list(self.boundaries), len(self.values), len(self.boundaries)
        if count != wanted + 1:
            rule = f"must be a list of {wanted + 1} values, one more than boundaries, got {count}."
            yield ("values",), rule
        if boundaries != sorted(set(boundaries)):
            yield ("boundaries",), f"must be rising steps, got {boundaries}."


class Optimizer(_Named):
    """An optimizer, by its class's name without the ending; its learning_rate may be a Schedule."""


_S = TypeVar("_S", bound=_Named)
_OWN = {
    "AdamW": "Adam with a decay of weights of its own, <https://arxiv.org/abs/1711.05101>.",
    "LAMB": "AdamW whose steps go by a variable's norm, <https://arxiv.org/abs/1904.00962>.",
    "constant": "One rate, to be reached by `warmup_steps`.",
    "inverse_sqrt_decay": "learning_rate / sqrt(1 + step / decay_steps).",
}
_AT_LEAST_ZERO = ("initial_accumulator_value", "learning_rate", "weight_decay")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("decay_steps", "first_decay_steps"), types.Positive),
    **dict.fromkeys(_AT_LEAST_ZERO, types.AtLeastZero),
    "boundaries": types.Several[types.NotNegative],
    "exclude_from_decay": types.Items[types.Text],
    "initial_gradient_squared_accumulator_value": types.AboveZero,
    "values": types.Several[types.AtLeastZero],
}


def _section(base: type[_S], name: str, row: Mapping[str, Any], rate: Any) -> type[_S]:
    """Makes the section that reads the arguments of one row, by their names or defaults."""
    known = {**_TYPES, "learning_rate": rate}
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for argument, default in row.items():
        kind = bool if isinstance(default, bool) else types.Number
        kind = types.AtLeastZero if argument.endswith("regularization_strength") else kind
        default = ... if default is catalog.REQUIRED else default
        fields[argument] = (known.get(argument, kind), default)
    made = pydantic.create_model(name, __base__=base, **fields)
    of_tensorflow = f"`tf.compat.v1.train.{name}{'Optimizer' if base is Optimizer else ''}`."
    made.__doc__ = _OWN.get(name, of_tensorflow)
    return made


def _one_of(sections: Iterable[type[_Named]]) -> pydantic.GetPydanticSchema:
    """Returns what reads a mapping by the section that its name says."""
    union: Any = Annotated[Union[tuple(sections)], Field(discriminator="name")]  # noqa: UP007
    return pydantic.GetPydanticSchema(lambda _, handler: handler.generate_schema(union))


_Schedules = _one_of(
    _section(_Steps if "boundaries" in row else Schedule, name, row, types.AtLeastZero)
    for name, row in catalog.SCHEDULES.items()
)
_Rate: Any = types.AtLeastZero | Annotated[Schedule, _Schedules]
_Optimizers = _one_of(_section(Optimizer, n, row, _Rate) for n, row in catalog.OPTIMIZERS.items())
_READY = [name for name, row in catalog.OPTIMIZERS.items() if catalog.REQUIRED not in row.values()]


def _spelt_out(value: object) -> object:
    """Takes an optimizer's bare name for a mapping."""
    is_name = isinstance(value, str) and not {":", "."} & set(value)
    return {"name": value} if is_name else value


_Either = types.Function | Annotated[Optimizer, _Optimizers]
OptimizerOrFunction = Annotated[
    _Either,
    pydantic.BeforeValidator(_spelt_out, json_schema_input_type=Literal[tuple(_READY)] | _Either),
]
