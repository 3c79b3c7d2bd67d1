"""Functions that a config names are found when used, or their absence is explained."""

import sys

import pytest

from replicate import errors
from replicate.app.config import functions


@pytest.fixture(name="folder")
def make_folder(tmp_path, monkeypatch):
    """Makes a folder with modules, importable while the test runs."""
    (tmp_path / "user_code.py").write_text(
        "def make(mode, batch_size=3): return mode, batch_size\n"
        "def everything(**offered): return offered\n"
        "def greedy(mode, shuffle): return 1\n"
        "value = 3\n"
    )
    (tmp_path / "user_broken.py").write_text("\nraise KeyError('k')\n")
    (tmp_path / "user_script.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "user_json.py").write_text("import json\njson.loads('')\n")
    (tmp_path / "user_typo.py").write_text("def f(\n")
    (tmp_path / "user_needs.py").write_text("import not_there_at_all\n")
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    with functions.importable(str(tmp_path)):
        yield tmp_path


def test_a_function_is_called_with_what_it_names(folder):
    offered = {"mode": "train", "params": {}, "batch_size": 8}
    make = functions.load("user_code:make", "train.input.function")
    assert functions.call_with_named(make, offered, "k") == ("train", 8)
    everything = functions.load("user_code:everything", "k")
    assert functions.call_with_named(everything, offered, "k") == offered
    greedy = functions.load("user_code:greedy", "k")
    with pytest.raises(
        errors.RunError, match=r"missing a required.* 'shuffle'. Give that a default"
    ):
        functions.call_with_named(greedy, offered, "k")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("user_cod:make", "model_fn: user_cod:make: the module user_cod cannot be found"),
        ("user_code:mak", "user_code must have mak. Did you mean make?"),
        ("user_code:value", "must be a function, got int"),
        ("user_broken:f", "user_broken.py:2: KeyError: 'k'. Correct it there."),
        ("user_script:f", "user_script.py:2: SystemExit: 0"),
        ("user_json:f", "user_json.py:2: JSONDecodeError: Expecting value"),
        ("user_typo:f", "importing user_typo failed: SyntaxError: "),
        ("user_needs:f", "the module not_there_at_all cannot be found"),
        ("user_code.part:f", "the module user_code.part cannot be found"),
    ],
)
def test_what_cannot_be_found_is_explained(folder, name, fault):
    with pytest.raises(errors.RunError) as caught:
        functions.load(name, "model_fn")
    assert fault in str(caught.value)


def test_the_search_path_is_as_before(tmp_path):
    before = list(sys.path)
    with functions.importable(str(tmp_path)):
        assert str(tmp_path) in sys.path
    assert sys.path == before
