import subprocess
import sys

import pytest

from replicate.app.config import config
from replicate.app.inspect import absences

DIGITS = "replicate.examples.digits:model_fn"
MODULE = """
import tensorflow_that_nobody_has as tf
from os import path as paths

class Model:
    def build(self): inside = 1

if tf.is_new:
    def model_fn(features, labels, mode): pass

rows, hook = tf.made()
"""


def _found(tmp_path, **keys):
    """Returns what `check` warns of, of a config with these lines."""
    keys = {"model_fn": DIGITS} | keys
    path = tmp_path / "c.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    return absences.warnings(config.load(str(path)))


@pytest.mark.parametrize(
    "name", ["mine:model_fn", "mine:Model.build", "mine:paths", "mine:tf", "mine:rows", DIGITS]
)
def test_functions_that_a_module_has_are_found_without_importing_it(tmp_path, monkeypatch, name):
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MODULE)
    assert _found(tmp_path, model_fn=name) == []
    assert "mine" not in sys.modules


def test_check_names_functions_and_modules_that_are_not_there(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "folder").mkdir()
    found = _found(
        tmp_path,
        model_fn="mine:model_fnn",
        optimizer="nobody_has_this:optimizer_fn",
        train="{steps: 1, hooks: ['mine:hook', 'mine:outside'], input: 'folder.deep:rows'}",
        eval="{input: 'folder:rows'}",
        predict="{input: {kind: npz, file: none.npz}}",
    )
    assert found == [
        f"predict.input.file: warning: there is no {tmp_path / 'none.npz'} yet",
        "model_fn: warning: mine has no model_fnn. Did you mean model_fn?",
        "optimizer: warning: there is no module nobody_has_this here",
        "train.input.function: warning: there is no module folder.deep here",
        "eval.input.function: warning: folder has no rows",
        "train.hooks[1]: warning: mine has no outside",
    ]


def test_the_first_rows_of_csv_files_are_looked_at(tmp_path):
    (tmp_path / "a.csv").write_text("id,rent,size\n1,2,3\n")
    (tmp_path / "b.csv").write_text("ident,rent\n1,x\n")
    columns = "columns: {ident: int32, rent: float32}"
    found = _found(
        tmp_path,
        train=f"{{steps: 1, input: {{kind: csv, file: [a.csv, 'b*.csv', c.csv], {columns}}}}}",
        eval=f"{{input: {{kind: csv, file: a.csv, {columns}}}}}",
        predict="{input: {kind: csv, file: c.csv, columns: {a: int32}}}",
    )
    a, b, c = (tmp_path / name for name in ("a.csv", "b.csv", "c.csv"))
    # What several sections name is told once.
    assert found == [
        f"train.input.file: warning: there is no {c} yet",
        f"train.input: warning: {a}:1: the header must have the column 'ident' once, "
        "got id, rent, size. Did you mean id?",
        f"train.input: warning: {b}:2: rent must be float32, got 'x'. Correct the cell, or "
        "columns.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import *",
        "def __getattr__(name): return print",
        "globals().update(model_fn=print)",
        "locals()['model_fn'] = print",
        "import sys\nsys.modules[__name__].model_fn = print",
        "def make():\n    global model_fn\n    model_fn = print\nmake()",
        "",
    ],
)
def test_of_modules_that_may_have_more_nothing_is_said(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    expected = [] if text else ["model_fn: warning: mine has no model_fn"]
    assert _found(tmp_path, model_fn="mine:model_fn") == expected


@pytest.mark.parametrize("name", ["math:sqrt", "six.moves:input", "tensorflow.keras:Model"])
def test_modules_without_a_text_of_their_own_are_believed(tmp_path, name):
    assert _found(tmp_path, model_fn=name) == []


def test_to_look_for_functions_imports_no_tensorflow(tmp_path):
    (tmp_path / "c.yaml").write_text("model_fn: tensorflow.compat.v1:no_such\n")
    code = (
        "import sys\n"
        "from replicate.app.command import cli\n"
        "code = cli.main(['check', 'c.yaml'])\n"
        "sys.exit(code or 'tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
