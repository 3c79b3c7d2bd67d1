"""Models of every kind, split over K devices, compute what one device does.

Each is run three steps from the same weights, on 7, 2 and 1 rows: losses, everything that it
names, all variables. `CORPUS_FULL=1 pytest tests/splitting/test_corpus.py` takes them all on
2, 3, 4 and 8 devices, dynamic and static. `corpus/run.py` runs one from the command line.
"""

import os

import pytest

from tests.splitting.corpus import running, table

FULL = "CORPUS_FULL" in os.environ
WIDE = ("simclr", "norm_layers_2d", "lstm_dynamic_with_lengths", "embedding", "dropout", "bert")
OWN = [name for name in table.MODELS if not name.startswith("law: ")]
LAW = [name for name in table.MODELS if name.startswith("law: ")]


def settings():
    """Returns what is run: every model on three devices, many on more and on less."""
    for name, model in table.MODELS.items():
        for is_static in model.statics if FULL else sorted(model.statics)[:1]:
            for num_devices in (2, 3, 4, 8) if FULL else numbers_of(name):
                yield from of_sizes(name, is_static, num_devices)
        if not FULL and name in OWN[::3] + LAW[::6] and True in model.statics:
            yield running.Setting(name, model.sizes[:1], True, 3)


def numbers_of(name):
    """How many devices a model is run on."""
    if name in WIDE:
        return (2, 3, 4, 8)
    return (3,) if name in LAW[1::2] else (2,) if name in LAW else (2, 3)


def of_sizes(name, is_static, num_devices):
    sizes = table.MODELS[name].sizes
    for rows in [(rows,) for rows in sizes] if is_static else [sizes]:
        yield running.Setting(name, rows, is_static, num_devices)


def told(setting):
    kind = "static" if setting.is_static else "dynamic"
    rows = ",".join(map(str, setting.sizes))
    return f"{setting.name}-K{setting.num_devices}-B{rows}-{kind}"


@pytest.mark.filterwarnings("ignore")  # the models' own, of TensorFlow's older functions
@pytest.mark.parametrize("setting", list(settings()), ids=told)
def test_a_split_model_is_one_devices(setting):
    found = running.faults(setting)
    assert not found, "\n".join(["", *found[:20]])
