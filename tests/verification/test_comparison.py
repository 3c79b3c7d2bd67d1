"""One device and towers, value by value."""

import numpy as np
import pytest

from replicate.verification import comparison, runs

LOSS, METRIC, WEIGHT = (
    runs.Key(what, name)
    for what, name in ((runs.LOSS, "train"), (runs.METRICS, "a"), (runs.WEIGHTS, "w"))
)


def test_what_only_one_side_has_differs():
    value = runs.Quantity((np.float32(1),))
    found = comparison._measures("batch 1", {LOSS: value}, {METRIC: value, WEIGHT: value}, None, ())
    assert [(one.key, one.fault) for one in found] == [
        (LOSS, "the towers have no train"),
        (METRIC, "only the towers have a"),
        (WEIGHT, "only the towers have w"),
    ]


def test_where_one_device_can_do_nothing_its_first_error_is_raised():
    class Failed:
        measures = ()

        def __init__(self, error):
            self.error = error

    modes = {"train": Failed(KeyError("first")), "eval": Failed(ValueError("second"))}
    with pytest.raises(KeyError, match="first"):
        comparison._judged(modes, None)
