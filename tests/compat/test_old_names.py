"""Old private names: each is needed by somebody's code, and there after `install()`."""

import json

import pytest

from replicate.compat import estimator, old_names, versions
from replicate.compat.tensorflow import tf

ROWS = [
    *old_names.ROWS,
    *(row for row in estimator.ROWS if row.name.endswith("distribute.estimator_training")),
]

# What users of a name do, in the words of their code. The others import it, as what it is today.
_WORDS = {
    "tensorflow.python.ops.control_flow_ops.while_loop": """
with tf.Graph().as_default():
    found(
        cond=lambda time: time < 3, body=lambda time: time + 1, loop_vars=[tf.constant(0)],
        parallel_iterations=32, swap_memory=False,
    )
""",
    "tensorflow.python.training.training_ops": """
from tensorflow.python.training import optimizer, training_ops
with tf.Graph().as_default():
    w = tf.compat.v1.get_variable("w", [2], use_resource=True)
    training_ops.resource_apply_gradient_descent(w.handle, 0.1, tf.ones([2]), use_locking=False)
""",
    "tensorflow.python.distribute.distribution_strategy_context": """
assert not found.has_strategy() and not found.in_cross_replica_context()
assert found.get_replica_context().replica_id_in_sync_group == 0
""",
    "tensorflow.python.distribute.estimator_training": """
assert not found.should_run_distribute_coordinator(estimator.RunConfig())
""",
    "tensorflow.python.util.tf_export.estimator_export": """
@found("estimator.experimental.Mine")
class Mine:
    pass
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
from tensorflow.python.estimator.exporter import Exporter, _SavedModelExporter
from tensorflow.python.estimator.training import _ContinuousEvalListener, _TrainingExecutor
import tensorflow.python.estimator.canned.linear as linear
from tensorflow_estimator.python.estimator.canned import head
assert _Head is head._Head and linear.LinearClassifier
""",
}


def is_missing(row):
    return versions.parse(tf.__version__) >= versions.parse(row.missing_since)


def use_of(row):
    parent, _, name = row.name.rpartition(".")
    is_same = row.today and is_missing(row)
    same = f"\nassert found is pkgutil.resolve_name({row.today!r})" if is_same else ""
    return f"from {parent} import {name} as found" + same + _WORDS.get(row.name, "")


USES = {row.name: use_of(row) for row in ROWS}

# A child for each use runs it, and says how that went: before `install()`, and after two calls.
RUN_EACH = """
import json, os, pkgutil, sys
from replicate import estimator
from replicate.compat import old_names
from replicate.compat.tensorflow import tf

def outcomes():
    found = {{}}
    for name, use in json.loads({uses!r}).items():
        reader, writer = os.pipe()
        if not os.fork():
            try:
                exec(use, dict(globals()))
                said = "runs"
            except BaseException as e:
                said = f"{{type(e).__name__}}: {{e}}"
            os.write(writer, said.encode()[:4000])
            os._exit(0)
        os.close(writer)
        found[name] = os.fdopen(reader).read()
        os.wait()
    return found

before = outcomes()
estimator.install()
estimator.install()
print(json.dumps([before, outcomes()]))
"""


@pytest.fixture(scope="module")
def outcomes(run_python):
    """What became of each use, before `install()` and after it."""
    return json.loads(run_python(RUN_EACH.format(uses=json.dumps(USES))).splitlines()[-1])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_needed_where_it_is_missing_and_there_after_install(outcomes, row):
    without, after = (found[row.name] for found in outcomes)
    if is_missing(row):
        assert without.startswith(("AttributeError", "ImportError", "ModuleNotFoundError"))
    else:
        assert without == "runs"
    assert after == "runs"
