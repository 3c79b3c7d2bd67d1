"""The README's examples run as they stand, one after the other."""

import importlib.util
import logging
import pathlib
import re

import numpy as np
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # an Estimator's temporary folder
]


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(source, folder):
    (folder / "readme.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme", folder / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


class _Kept(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """What somebody has who runs all but the last example, and the warnings on the way."""
    folder, kept = tmp_path_factory.mktemp("readme"), _Kept()
    logging.getLogger("replicate").addHandler(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = run("\n".join(examples()[:3]), folder)
    logging.getLogger("replicate").removeHandler(kept)
    with names["predictor"]:
        yield names, kept.texts


def test_the_example_learns_the_line(reader):
    model = reader[0]["model"]
    # The data lie on y = 3 x.
    np.testing.assert_allclose(model.get_variable_value("line/kernel"), [[3.0]], atol=0.02)
    np.testing.assert_allclose(model.get_variable_value("line/bias"), [0.0], atol=0.02)


def test_the_example_has_as_many_lines_as_it_promises():
    lines = [line for line in examples()[0].splitlines() if line.strip()]
    assert len(lines) == 17
    assert "## Seventeen lines" in README.read_text(encoding="utf-8")


def test_nothing_warns(reader):
    assert reader[1] == []


def test_two_towers_are_verified(reader):
    found = reader[0]["found"]
    assert found.holds
    assert len(found.devices) == 2


def test_the_export_predicts_the_line(reader):
    (found,) = reader[0]["predictor"]({"x": np.ones([5, 1], np.float32)}).values()
    np.testing.assert_allclose(found, np.full([5, 1], 3.0), atol=0.05)


def test_the_loop_of_ones_own_equals_one_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(examples()[3], tmp_path)
    copies = [copy.numpy() for copy in names["w"].members]
    # One device: the mean of (w x - y)^2 over (1, 3), (2, 6) has the gradient
    # (2 (w - 3) + 2 * 2 (2 w - 6)) / 2 = 5 (w - 3).
    w = 10.0
    for _ in range(100):
        w -= 0.1 * 5.0 * (w - 3.0)
    np.testing.assert_allclose(copies, [w, w], rtol=1e-6)
