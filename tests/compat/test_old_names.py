"""Old private names: each is needed by somebody's code, and there after `install()`."""

import json

import pytest

from replicate.compat import estimator, old_names, versions
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
    "tensorflow.python.ops.array_ops.stack": """
from tensorflow.python.ops import array_ops
with tf.Graph().as_default():
    assert array_ops.stack([tf.ones([2]), tf.ones([2])], axis=1).shape == (2, 2)
""",
    "tensorflow.python.ops.array_ops.unstack": """
from tensorflow.python.ops import array_ops
with tf.Graph().as_default():
    assert len(array_ops.unstack(tf.ones([3, 2]))) == 3
""",
    "tensorflow.python.ops.control_flow_ops.cond": """
from tensorflow.python.ops import control_flow_ops
with tf.Graph().as_default():
    is_late = tf.compat.v1.placeholder(tf.bool, [])
    control_flow_ops.cond(is_late, lambda: tf.zeros([2]), lambda: tf.ones([2]))
""",
    "tensorflow.python.ops.control_flow_ops.while_loop": """
from tensorflow.python.ops import control_flow_ops
with tf.Graph().as_default():
    control_flow_ops.while_loop(
        cond=lambda time: time < 3, body=lambda time: time + 1, loop_vars=[tf.constant(0)],
        parallel_iterations=32, swap_memory=False,
    )
""",
    "tensorflow.python.util.nest.is_sequence": """
from tensorflow.python.util import nest
assert nest.is_sequence((1, 2)) and not nest.is_sequence(tf.ones([2]))
""",
    "tensorflow.python.training.gen_training_ops": """
from tensorflow.python.training import gen_training_ops
assert gen_training_ops.ResourceApplyAdam
""",
    "tensorflow.python.training.training_ops": """
from tensorflow.python.training import optimizer, training_ops
with tf.Graph().as_default():
    w = tf.compat.v1.get_variable("w", [2], use_resource=True)
    training_ops.resource_apply_gradient_descent(w.handle, 0.1, tf.ones([2]), use_locking=False)
""",
    "tensorflow.python.distribute.distribution_strategy_context": """
from tensorflow.python.distribute import distribution_strategy_context as ds_context
assert not ds_context.has_strategy() and not ds_context.in_cross_replica_context()
assert ds_context.get_replica_context().replica_id_in_sync_group == 0
""",
    "tensorflow.python.distribute.estimator_training": """
from tensorflow.python.distribute import estimator_training as distribute_coordinator_training
config = estimator.RunConfig()
assert not distribute_coordinator_training.should_run_distribute_coordinator(config)
""",
    "tensorflow.python.pywrap_tensorflow.NewCheckpointReader": """
from tensorflow.python import pywrap_tensorflow
with tempfile.TemporaryDirectory() as directory:
    path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).save(directory + "/model")
    found = pywrap_tensorflow.NewCheckpointReader(path).get_variable_to_shape_map()
assert [2] in found.values()
""",
    "tensorflow.python.util.tf_export.estimator_export": """
from tensorflow.python.util.tf_export import estimator_export
@estimator_export("estimator.experimental.Mine")
class Mine:
    pass
""",
    "tensorflow.python.tpu.tpu_config": """
from tensorflow.python.tpu import tpu_config
assert tpu_config.RunConfig(tpu_config=tpu_config.TPUConfig(iterations_per_loop=2))
""",
    "tensorflow.python.tpu.tpu_context": """
from tensorflow.python.tpu import tpu_context
assert tpu_context.TPUContext
""",
    "tensorflow.python.tpu.tpu_estimator": """
from tensorflow.python.tpu import tpu_estimator
with tf.Graph().as_default():
    tpu_estimator.TPUEstimatorSpec("infer", predictions={"x": tf.ones([2])})
""",
    "tf_keras.legacy_tf_layers": """
from tensorflow.python.layers import normalization
with tf.Graph().as_default():
    layer = normalization.BatchNormalization(name="norm")
    assert layer.apply(tf.ones([2, 3]), training=True).shape == (2, 3)
""",
    "tensorflow.python.estimator": """
from tensorflow.python.estimator import gc, run_config, util
from tensorflow.python.estimator.canned import metric_keys
from tensorflow.python.estimator.canned.head import _Head
from tensorflow.python.estimator.canned.optimizers import get_optimizer_instance
from tensorflow.python.estimator.exporter import Exporter, _SavedModelExporter
from tensorflow.python.estimator.training import _ContinuousEvalListener, _TrainingExecutor
import tensorflow.python.estimator.canned.linear as linear
from tensorflow_estimator.python.estimator.canned import head
assert _Head is head._Head and linear.LinearClassifier
""",
}
ROWS = [*old_names.ROWS, *(row for row in estimator.ROWS if row.name in USES)]

# A child for each use runs it, and says how that went.
RUN_EACH = """
import json, os, sys, tempfile
from replicate import estimator
from replicate.compat import old_names
from replicate.compat.tensorflow import tf

{install}
outcomes = {{}}
for name, use in json.loads({uses!r}).items():
    reader, writer = os.pipe()
    if not os.fork():
        try:
            exec(use)
            said = "runs"
        except BaseException as e:
            said = f"{{type(e).__name__}}: {{e}}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    outcomes[name] = os.fdopen(reader).read()
    os.wait()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(run_python):
    """What became of each use, without `install()` and after two calls of it."""

    def said(install):
        found = run_python(RUN_EACH.format(install=install, uses=json.dumps(USES)))
        return json.loads(found.splitlines()[-1])

    return said(""), said("estimator.install(); estimator.install()")


def test_every_row_has_a_use():
    assert set(USES) == {row.name for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_needed_where_it_is_missing_and_there_after_install(outcomes, row):
    without, after = (found[row.name] for found in outcomes)
    if versions.parse(tf.__version__) >= versions.parse(row.missing_since):
        assert without.startswith(("AttributeError", "ImportError", "ModuleNotFoundError"))
    else:
        assert without == "runs"
    assert after == "runs"
