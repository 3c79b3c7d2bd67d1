"""Importing the package changes nothing of TensorFlow."""

import subprocess
import sys

PROGRAM = """
import importlib, sys, types
import tensorflow as tf
tf.keras, tf.compat.v1.layers  # loaded on first use: not by us, then

def public():
    held = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("tensorflow") and isinstance(module, types.ModuleType):
            if "._api." in name or name == "tensorflow":
                held[name] = {k: id(v) for k, v in vars(module).items() if not k.startswith("__")}
    return held

before = public()
import replicate, replicate.strategy
after = public()
for name, attributes in before.items():
    changed = {k for k in attributes if after[name].get(k) != attributes[k]}
    added = set(after[name]) - set(attributes)
    if changed or added:
        sys.exit(f"{name}: changed {changed}, added {added}")
print("unchanged", len(before))
"""


def test_importing_leaves_tensorflow_as_it_was():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "unchanged" in done.stdout
