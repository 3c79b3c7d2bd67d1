"""What the package calls of TensorFlow is deprecated only where there is nothing in its place."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

TOP = pathlib.Path(__file__).parents[1]
ESTIMATORS = "Use tf.keras instead."
KEPT = {
    "tf1.io.tf_record_iterator": "datasets are read by eager execution, or in a session",
    "tf1.saved_model.get_tensor_from_tensor_info": "nothing else knows composite tensors",
    "tf1.saved_model.load": "nothing else loads into a session",
    "tf1.train.SyncReplicasOptimizer": "is one of those that are replicated",
}


def named(node):
    """Returns the parts of a dotted name; none of anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def is_deprecated(found):
    """Tells whether TensorFlow advises against a function or a class that is no Estimators'."""
    makers = []
    if isinstance(found, type):
        makers = [vars(found).get(name) for name in ("__init__", "__new__")]
    texts = [re.sub(r"\s+", " ", getattr(one, "__doc__", "") or "") for one in (found, *makers)]
    advised = [text for text in texts if "IS DEPRECATED" in text]
    return bool(advised) and not any(ESTIMATORS in text for text in texts)


def test_names_of_tensorflow_are_not_deprecated():
    roots, deprecated = {"tf": tf, "tf1": tf1, "estimator": estimator}, {}
    files = [one for one in (TOP / "replicate").rglob("*.py") if "examples" not in one.parts]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            first, *parts = named(node) or [""]
            found = roots.get(first)
            for part in parts:
                found = getattr(found, part, None)
            if parts and is_deprecated(found):
                deprecated.setdefault(".".join((first, *parts)), f"{file.name}:{node.lineno}")
    assert {name: place for name, place in deprecated.items() if name not in KEPT} == {}
    assert deprecated.keys() >= {"tf1.saved_model.load"}  # it is looked at the right place


# TensorFlow tells of each name once in a process, whoever calls it first: here it forgets that.
PROGRAM = r"""
import importlib, json, logging, pkgutil, sys, warnings

warnings.filterwarnings("error", module=r"replicate\.")
# What examples are made of, as model_fns are.
warnings.filterwarnings("ignore", "`tf.layers", UserWarning)
import replicate
from replicate.compat.tensorflow import tf
from tensorflow.python.util import deprecation

for module in pkgutil.walk_packages(replicate.__path__, "replicate."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

class Forgetful(dict):
    def __contains__(self, key):
        return False

deprecation._PRINTED_WARNING = Forgetful()
told = []

def note(record):
    told.append(record.getMessage())
    return True

tf.get_logger().filters.insert(0, note)  # ahead of those that drop advice
from replicate.app.command import cli

config, folder, *options = sys.argv[1:]
for line in (
    ["train", "--train.steps", "3", "--eval.every_steps", "2"],
    ["evaluate"],
    ["predict", "--output", folder + "/p.csv"],
    ["export"],
    ["describe"],
    *([["verify"]] if "split" in options else []),  # which calls the same of either
):
    code = cli.main([line[0], config, "--model-dir", folder + "/run", *options, *line[1:]])
    if code:
        sys.exit(f"{line}: exit code {code}")
print(json.dumps([text for text in told if "deprecated" in text]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("building", ["split", "call"])
def test_no_command_calls_what_is_deprecated(tmp_path, building):
    line = [sys.executable, "-c", PROGRAM, str(TOP / "configs" / "digits.yaml"), str(tmp_path)]
    line += ["--devices", "{cpu: 2}", "--tower_building", building]
    done = subprocess.run(line, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    ours = [text for text in told if f"From {TOP / 'replicate'}" in text]
    assert ours  # Estimators are
    assert [text for text in ours if ESTIMATORS not in text] == []
