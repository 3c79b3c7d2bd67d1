"""The README's examples run as they stand."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(source, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "readme.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme", folder / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # an Estimator's temporary folder
def test_the_example_learns_the_line(tmp_path, monkeypatch):
    names = run(examples()[0], tmp_path, monkeypatch)
    model = names["model"]
    # The data lie on y = 3 x.
    np.testing.assert_allclose(model.get_variable_value("line/kernel"), [[3.0]], atol=0.02)
    np.testing.assert_allclose(model.get_variable_value("line/bias"), [0.0], atol=0.02)


def test_the_example_has_at_most_the_lines_it_promises():
    lines = [line for line in examples()[0].splitlines() if line.strip()]
    assert len(lines) <= 18


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_export_predicts_the_line(tmp_path, monkeypatch):
    receiver = (
        "\ndef serving_input_receiver_fn():\n"
        "    x = tf.compat.v1.placeholder(tf.float32, [None, 1], name='x')\n"
        "    return estimator.export.ServingInputReceiver({'x': x}, {'x': x})\n"
    )
    names = run(examples()[0] + receiver + examples()[1], tmp_path, monkeypatch)
    with names["predictor"] as predictor:
        (found,) = predictor({"x": np.ones([5, 1], np.float32)}).values()
    np.testing.assert_allclose(found, np.full([5, 1], 3.0), atol=0.05)


def test_every_test_that_the_readme_names_exists():
    folder = README.parent / "tests"
    rows = re.findall(r"^\|.*\|.*`\S+\.py.*\|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 15
    for row in rows:
        room = None
        for named in re.findall(r"`([\w/]*(?:\.py)?)(?:::(\w+))?`", row):
            room = named[0] or room
            if room.endswith(".py"):
                text = (folder / room).read_text(encoding="utf-8")
                assert not named[1] or f"def {named[1]}(" in text, row


def test_the_loop_of_ones_own_equals_one_device(tmp_path, monkeypatch):
    names = run(examples()[2], tmp_path, monkeypatch)
    copies = [copy.numpy() for copy in names["w"].members]
    # One device: the mean of (w x - y)^2 over (1, 3), (2, 6) has the gradient
    # (2 (w - 3) + 2 * 2 (2 w - 6)) / 2 = 5 (w - 3).
    w = 10.0
    for _ in range(100):
        w -= 0.1 * 5.0 * (w - 3.0)
    np.testing.assert_allclose(copies, [w, w], rtol=1e-6)
