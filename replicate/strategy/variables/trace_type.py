"""A distributed variable as the argument of a `tf.function`."""

import weakref
from collections.abc import Sequence
from typing import Any

from replicate.compat.tensorflow import tf


class VariableTraceType(tf.types.experimental.TraceType):
    """Stands for one variable: a function is traced once for each that it is given.

    Args:
        variable: The distributed variable.
    """

    def __init__(self, variable: Any):
        self._variable = weakref.ref(variable)
        self._key = id(variable)

    def is_subtype_of(self, other: Any) -> bool:
        """See base class."""
        return self == other

    def most_specific_common_supertype(self, others: Sequence) -> Any:
        """See base class."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any = None) -> Any:
        """Returns the variable itself, which the function captures."""
        del placeholder_context
        return self._variable()

    def to_tensors(self, value: Any) -> list:
        """Returns nothing: the copies are captured, not passed."""
        del value
        return []

    def from_tensors(self, tensors: Any) -> Any:
        """See `placeholder_value`."""
        del tensors
        return self._variable()

    def flatten(self) -> list:
        """See `to_tensors`."""
        return []

    def cast(self, value: Any, casting_context: Any) -> Any:
        """See base class."""
        del casting_context
        return value

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, VariableTraceType):
            return NotImplemented
        mine, theirs = self._variable(), other._variable()
        return mine is not None and mine is theirs

    def __hash__(self) -> int:
        return self._key
