"""The part of a config that says how weights are updated: an optimizer, a learning rate.

The arguments of each optimizer and schedule are those of `catalog`; the section that reads
them is made from its row when it is needed.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_core import core_schema as core_schema_of

from replicate.app.config import catalog, checks

__all__ = ["Optimizer", "OptimizerOrFunction", "Schedule", "plain"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A learning rate that changes with the global step.

    Attributes:
        name: A function of `tf.compat.v1.train`, e.g. exponential_decay.
        arguments: Its arguments, all of them.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of `tf.compat.v1.train`.

    Attributes:
        name: Its name there without the ending Optimizer, e.g. Momentum.
        arguments: Its arguments, all of them; learning_rate may be a Schedule.
    """

    name: str
    arguments: Mapping[str, Any]


class _Arguments(checks.Section):
    """The arguments of one optimizer or schedule, and its name."""

    KIND: ClassVar[str]
    name: str

    @classmethod
    def missing_text(cls, name: str) -> str:
        """See base class."""
        own = cls.model_fields["name"].default
        return f"the {cls.KIND} {own} needs the key {name}. Add it: {{name: {own}, {name}: ...}}"

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments without the name."""
        return {name: one for name, one in self.__dict__.items() if name != "name"}


class _OptimizerArguments(_Arguments):
    KIND = "optimizer"


class _ScheduleArguments(_Arguments):
    KIND = "schedule"

    @pydantic.model_validator(mode="after")
    def _fit(self) -> "_ScheduleArguments":
        if self.name != "piecewise_constant":
            return self
        boundaries, values, broken = self.boundaries, self.values, []
        if list(boundaries) != sorted(set(boundaries)):
            broken.append((("boundaries",), list(boundaries), checks.expected("rising steps")))
        if len(values) != len(boundaries) + 1:
            rule = f"a list of {len(boundaries) + 1} values, one more than boundaries"
            broken.append((("values",), list(values), checks.expected(rule)))
        if broken:
            checks.refuse(*broken)
        return self


def _rate(value: Any, info: pydantic.ValidationInfo) -> Any:
    """Takes a schedule for a learning rate."""
    if isinstance(value, dict):
        return _read(value, info, catalog.SCHEDULES, _ScheduleArguments, Schedule)
    return value


class _OneOf:
    """Says in a JSON Schema that a value has the keys of one of several rows of `catalog`."""

    def __init__(self, table: Mapping[str, Any], base: type[_Arguments]):
        self._table = table
        self._base = base

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """See pydantic."""
        found = []
        for name in self._table:
            section = _section(name, self._base)
            section.model_rebuild()
            # As a definition, so that each one stands in the schema once.
            own = core_schema_of.definitions_schema(section.__pydantic_core_schema__, [])
            found.append(handler(own))
        return {"oneOf": found}


_TYPES = {
    "boundaries": checks.listing(checks.whole(0), 1),
    "decay_steps": checks.whole(1),
    "first_decay_steps": checks.whole(1),
    "initial_accumulator_value": checks.number(0),
    "initial_gradient_squared_accumulator_value": checks.number(above=0),
    "l1_regularization_strength": checks.number(0),
    "l2_regularization_strength": checks.number(0),
    "l2_shrinkage_regularization_strength": checks.number(0),
    "learning_rate": checks.number(0),
    "values": checks.listing(checks.number(0), 2),
}
_Rate = checks.choice(
    lambda value: "schedule" if isinstance(value, Schedule) else "number",
    {
        "number": _TYPES["learning_rate"],
        "schedule": Annotated[
            pydantic.InstanceOf[Schedule], _OneOf(catalog.SCHEDULES, _ScheduleArguments)
        ],
    },
    "",
)


def _type_of(argument: str, default: Any) -> Any:
    """Returns the type of an argument, by its name or the type of its default."""
    if argument in _TYPES:
        return _TYPES[argument]
    return checks.Boolean if isinstance(default, bool) else checks.number()


@functools.lru_cache
def _section(name: str, base: type[_Arguments]) -> type[_Arguments]:
    """Makes the section that reads one optimizer's, or schedule's, arguments."""
    is_optimizer = base is _OptimizerArguments
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    table = catalog.OPTIMIZERS if is_optimizer else catalog.SCHEDULES
    for argument, default in table[name].items():
        kind = _type_of(argument, default)
        if is_optimizer and argument == "learning_rate":
            kind = Annotated[_Rate, pydantic.BeforeValidator(_rate)]
        fields[argument] = (kind, ... if default is catalog.REQUIRED else default)
    made = pydantic.create_model(name, __base__=base, **fields)
    made.__doc__ = f"`tf.compat.v1.train.{name}{'Optimizer' if is_optimizer else ''}`."
    return made


def _read(
    value: dict[str, Any],
    info: pydantic.ValidationInfo,
    table: Mapping[str, Any],
    base: type[_Arguments],
    made: type,
) -> Any:
    """Reads `name` and arguments against a table."""
    name = value.get("name")
    if name is None:
        raise checks.fault(f"the key name is required here: one of {', '.join(table)}. Add it.")
    if not isinstance(name, str) or name not in table:
        checks.refuse((("name",), name, checks.one_of(list(table), name)))
    name = str(name)  # without what `documents` notes on texts
    read = _section(name, base).model_validate(value, context=info.context)
    return made(name, read.arguments())


def _optimizer(value: Any, info: pydantic.ValidationInfo) -> Any:
    """Takes a function's name, an optimizer's name, or its `name` and arguments."""
    if isinstance(value, Optimizer) or (isinstance(value, str) and ":" in value):
        return value
    if isinstance(value, str) and value in catalog.OPTIMIZERS:
        value = {"name": value}
    if not isinstance(value, dict):
        near = checks.nearest(str(value), catalog.OPTIMIZERS)
        then = f"Did you mean {{name: {near}, ...}}?" if near else ""
        rule = "{name: Adam, ...}, or a function's name as package.module:function"
        raise checks.expected(rule, then)
    return _read(value, info, catalog.OPTIMIZERS, _OptimizerArguments, Optimizer)


def _is_ready(row: Mapping[str, Any]) -> bool:
    """Tells whether an optimizer needs no arguments."""
    return catalog.REQUIRED not in row.values()


OptimizerOrFunction = Annotated[
    checks.choice(
        lambda value: "function" if isinstance(value, str) else "optimizer",
        {
            "function": checks.Function,
            "optimizer": Annotated[
                pydantic.InstanceOf[Optimizer], _OneOf(catalog.OPTIMIZERS, _OptimizerArguments)
            ],
        },
        "",
    ),
    pydantic.BeforeValidator(_optimizer),
    checks.OrText({"enum": [name for name, row in catalog.OPTIMIZERS.items() if _is_ready(row)]}),
]


def plain(value: Optimizer | Schedule) -> dict[str, Any]:
    """Returns an optimizer, or a schedule, as a config has it."""
    arguments = {
        name: plain(one) if isinstance(one, Schedule) else one
        for name, one in value.arguments.items()
    }
    return {"name": value.name, **arguments}
