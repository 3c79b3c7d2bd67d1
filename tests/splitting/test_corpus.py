"""Models of every kind, split over K devices, compute what one device does.

Each trains some steps: losses, everything that it names, all variables. `corpus/run.py` runs one
from the command line.
"""

import pytest

from tests.law import table as law
from tests.splitting.corpus import table

# What takes longest, of operations that smaller models have, too; widths of 2B, beside those of B.
LARGE = (
    *("lstm_static_with_lengths", "lstm_dynamic_with_lengths", "lstm_bidirectional"),
    *("keras_lstm_masked", "beam_search", "deep_columns"),
)
THOROUGH = [*LARGE, *(name for name in table.MODELS if name.endswith("_doubled"))]


@pytest.mark.filterwarnings("ignore")  # the models' own, of TensorFlow's older functions
@pytest.mark.parametrize(("model", "setting"), [*law.in_two_turns(table.MODELS, THOROUGH)])
def test_a_split_model_is_one_devices(model, setting):
    model.require_exact(setting)
