"""Runs what a model_fn does beside its loss, in double precision, on one device and on several."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from replicate.compat.tensorflow import tf1
from replicate.strategy.policies import parameter_server
from tests import exactness
from tests.law import losses

TOLERANCE = (1e-9, 1e-11)  # reassociation alone
SINGLE = (1e-5, 1e-6)  # in float32


class Setting(NamedTuple):
    """How a model is run.

    Attributes:
        strategy: The strategy's name; `"sliced"` is `"balanced"` with all variables in slices.
        devices: K.
        rows: The rows of each batch.
        is_static: Whether the graph knows how many rows there are.
        micro_batches: In how many parts each device computes its rows.
    """

    strategy: str
    devices: int
    rows: tuple[int, ...]
    is_static: bool = False
    micro_batches: int = 1

    def __str__(self):
        kind = "static" if self.is_static else "dynamic"
        parts = f"x{self.micro_batches}" if self.micro_batches > 1 else ""
        return f"{self.strategy}-K{self.devices}{parts}-B{','.join(map(str, self.rows))}-{kind}"

    def options(self) -> dict[str, Any]:
        """Returns the strategy and the devices, as `replicate_model_fn` takes them."""
        parts = {"micro_batches": self.micro_batches} if self.micro_batches > 1 else {}
        if self.strategy != "sliced":
            return {"strategy": self.strategy, "devices": self.devices, **parts}
        sliced = parameter_server.LocalParameterServerStrategy(
            self.devices, placement="balanced", slice_bytes=1
        )
        return {"strategy": sliced, **parts}


# Every number of devices, of rows that do not divide, of fewer rows than devices, and of one.
SETTINGS = (
    Setting("parameter_server", 3, (7, 5, 2, 1)),
    Setting("mirrored", 2, (5, 5, 5), is_static=True),
    Setting("round_robin", 8, (7, 2, 1, 5)),
    Setting("parameter_server", 2, (7, 7, 7), is_static=True),
    Setting("mirrored", 4, (5, 1, 7, 2)),
    Setting("parameter_server", 4, (2, 2, 2), is_static=True),
    Setting("mirrored", 8, (7, 5, 1, 2)),
    Setting("round_robin", 3, (7, 7, 7), is_static=True),
    Setting("balanced", 4, (7, 5, 1, 2)),
    Setting("mirrored", 3, (1, 1, 1), is_static=True),
    Setting("sliced", 4, (7, 5, 1, 2)),
    Setting("sliced", 3, (5, 5, 5), is_static=True),
    Setting("parameter_server", 1, (7, 5, 2, 1), micro_batches=3),
    Setting("mirrored", 2, (7, 7, 7), is_static=True, micro_batches=2),
    Setting("balanced", 2, (5, 1, 7, 2), micro_batches=2),
)


def in_turn(cases: Iterable, settings: Sequence[Setting] = SETTINGS) -> list:
    """Returns parameters: each case with the setting whose turn it is."""
    return [
        pytest.param(case, setting, id=f"{getattr(case, '__name__', case)}-{setting}")
        for i, case in enumerate(cases)
        for setting in [settings[i % len(settings)]]
    ]


def batches(*sizes: int, is_static: bool = False) -> list:
    """Returns batches of so many rows, padded to lengths of their own where they may be."""
    return [losses.batch(rows, i, 4 if is_static else 3 + i % 3) for i, rows in enumerate(sizes)]


def require_exact(
    model: Callable, setting: Setting, mode: str = "train", given: list | None = None, **options
) -> exactness.Run:
    """Requires K devices to be one device to `TOLERANCE`; options are `require_one_device`'s.

    Args:
        model: A model_fn.
        setting: How it is run.
        mode: The mode key.
        given: The batches; None: those of the law's losses.
        **options: Of `require_one_device`.
    """
    if given is None:
        given = batches(*setting.rows, is_static=setting.is_static)
    options = {"tolerance": TOLERANCE, **setting.options(), **options}
    return exactness.require_one_device(model, given, mode, is_static=setting.is_static, **options)


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


def momentum():
    return tf1.train.MomentumOptimizer(0.05, 0.9)


def apply(pairs: Any, optimizer: tf1.train.Optimizer | None = None):
    """Applies pairs of gradients and variables, and counts the step."""
    return (optimizer or adam()).apply_gradients(list(pairs), tf1.train.get_global_step())


def trained(v: losses.Weights) -> list:
    """Returns the variables that are made so far, as a model finds them."""
    assert len(v.variables) == len(tf1.trainable_variables())
    return tf1.trainable_variables()
