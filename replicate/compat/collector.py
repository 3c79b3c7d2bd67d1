"""Python's search for garbage in circles, and when it only costs time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Lets Python look for no garbage in circles.

    What only grows has none: a graph while it is built, a library while it is imported. Yet by its
    growth each object of it would be looked at again and again: a tenth of the time that eight
    towers take to build, a third of the time that TensorFlow takes to load.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
