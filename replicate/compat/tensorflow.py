"""TensorFlow as the rest of the house sees it.

`tf` and `tf1` are the public modules. Each private name is reached through a
`Door`, which lists it together with the reason; an unlisted name is an
`AttributeError`, so the list is complete by construction and a test proves that
every listed name exists in each supported TensorFlow.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1


class Door:
    """A private module, or a class in one, and the names taken from it.

    Args:
        path: Dotted module, optionally followed by `:ClassName`.
        names: For each name, why it is needed.
    """

    def __init__(self, path: str, names: Mapping[str, str]):
        self.path = path
        self.names = MappingProxyType(dict(names))

    def target(self) -> Any:
        """Returns the module or class behind this door."""
        module, _, cls = self.path.partition(":")
        loaded = importlib.import_module(module)
        return getattr(loaded, cls) if cls else loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.names:
            raise AttributeError(f"{name!r} is not listed at the door of {self.path}")
        value = getattr(self.target(), name)
        self.__dict__[name] = value  # the next look-up costs nothing
        return value


ops = Door(
    "tensorflow.python.framework.ops",
    {
        "init_scope": "lifts variable creation out of functions and control flow",
    },
)


def doors() -> dict[str, Door]:
    """Returns every door of this room by its name here."""
    return {name: value for name, value in globals().items() if isinstance(value, Door)}
