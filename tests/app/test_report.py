"""Results for people."""

import numpy as np

from replicate.app.console import json_output


def test_what_is_no_number_is_called_so():
    metrics = {
        "loss": np.float32("nan"),
        "worst": np.array(-np.inf),
        "rate": 0.125,
        "global_step": 3,
    }
    assert json_output.summary_line(metrics) == "loss nan  rate 0.125  worst -inf"
    several = {"each": np.float32([0.5, np.nan]), "word": b"a", "count": np.int64(12345678)}
    assert json_output.summary_line(several) == "count 12345678  each [0.5, None]  word a"
