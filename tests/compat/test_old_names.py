"""Old private names: each is needed by somebody's code, and there after `install()`."""

import pytest

from replicate.compat import old_names, versions
from replicate.compat.tensorflow import tf

# What users of each name do, in the words of their code.
USES = {
    "tensorflow.python.framework.ops.Tensor": """
from tensorflow.python.framework import ops
assert isinstance(tf.constant(1.0), ops.Tensor)
""",
    "tensorflow.python.framework.ops.IndexedSlices": """
from tensorflow.python.framework import ops
assert isinstance(ops.IndexedSlices(tf.ones([1]), tf.constant([0])), tf.IndexedSlices)
""",
    "tf_keras.legacy_tf_layers": """
from tensorflow.python.layers import normalization
with tf.Graph().as_default():
    layer = normalization.BatchNormalization(name="norm")
    assert layer.apply(tf.ones([2, 3]), training=True).shape == (2, 3)
""",
    "tensorflow.python.estimator": """
from tensorflow.python.estimator.canned.head import _Head
from tensorflow.python.estimator.canned.optimizers import get_optimizer_instance
import tensorflow.python.estimator.canned.linear as linear
from tensorflow_estimator.python.estimator.canned import head
assert _Head is head._Head and linear.LinearClassifier
""",
}

RUN = """
from replicate import estimator
from replicate.compat import old_names
from replicate.compat.tensorflow import tf
missing = [row.name for row in old_names.ROWS if row.is_missing()]
{install}
try:
{use}
    print("runs", {name!r} in missing)
except (AttributeError, ImportError) as e:
    print("fails", {name!r} in missing)
"""


def said(run_python, name, install):
    use = "".join(f"    {line}\n" for line in USES[name].splitlines())
    return run_python(RUN.format(install=install, use=use, name=name)).split()[-2:]


def test_every_row_has_a_use():
    assert set(USES) == {row.name for row in old_names.ROWS}


@pytest.mark.thorough("*ops.Tensor")
@pytest.mark.parametrize("row", old_names.ROWS, ids=lambda row: row.name)
def test_a_row_is_needed_where_it_is_missing_and_there_after_install(run_python, row):
    is_missing = versions.parse(tf.__version__) >= versions.parse(row.missing_since)
    without = said(run_python, row.name, "")
    assert without == (["fails", "True"] if is_missing else ["runs", "False"])
    assert said(run_python, row.name, "estimator.install(); estimator.install()")[0] == "runs"
