"""`replicate.estimator` is `tf.estimator` of TensorFlow 2.15, on every TensorFlow."""

import json
import types

import pytest

from replicate import estimator
from replicate.compat import estimator as estimators
from replicate.compat import versions
from replicate.compat.tensorflow import tf
from replicate.strategy.cluster import membership

PARTS = {
    "export": [
        "ClassificationOutput",
        "EvalOutput",
        "ExportOutput",
        "PredictOutput",
        "RegressionOutput",
        "ServingInputReceiver",
        "TensorServingInputReceiver",
        "build_parsing_serving_input_receiver_fn",
        "build_raw_serving_input_receiver_fn",
    ],
    "experimental": [
        "InMemoryEvaluatorHook",
        "LinearSDCA",
        "RNNClassifier",
        "RNNEstimator",
        "build_raw_supervised_input_receiver_fn",
        "call_logit_fn",
        "make_early_stopping_hook",
        "make_stop_at_checkpoint_step_hook",
        "stop_if_higher_hook",
        "stop_if_lower_hook",
        "stop_if_no_decrease_hook",
        "stop_if_no_increase_hook",
    ],
}
HAS_ESTIMATOR = versions.parse(tf.__version__) < (2, 16)


def public(module):
    return {name for name in dir(module) if not name.startswith("_")}


@pytest.mark.parametrize("name", estimator.__all__)
def test_listed_name_exists(name):
    assert getattr(estimator, name) is not None


def test_the_list_is_complete():
    assert public(estimators.load_v2()) == {*estimator.__all__} - {"install", "v1"}
    assert public(estimator.v1) == public(estimators.load_v2()) | {"inputs", "tpu"}


@pytest.mark.skipif(not HAS_ESTIMATOR, reason="this TensorFlow has no tf.estimator")
def test_the_list_is_that_of_tf_estimator():
    assert public(tf.estimator) == {*estimator.__all__} - {"install", "v1"}
    ours = {
        n for n in public(tf.estimator) if getattr(tf.estimator, n) is not getattr(estimator, n)
    }
    assert ours == {"train_and_evaluate"}  # which also trains over workers
    assert public(tf.compat.v1.estimator) == public(estimator.v1)
    assert tf.compat.v1.estimator.Estimator is estimator.v1.Estimator


@pytest.mark.parametrize("part", PARTS)
def test_parts_are_complete(part):
    assert public(getattr(estimator, part)) == {*PARTS[part]}


def test_classes_are_the_version_2_ones():
    assert estimator.Estimator is not estimator.v1.Estimator
    assert issubclass(estimator.Estimator, estimator.v1.Estimator)


def test_v1_has_inputs_and_tpu():
    assert callable(estimator.v1.inputs.numpy_input_fn)
    assert isinstance(estimator.v1.tpu.TPUEstimator, type)


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'Estimater'"):
        estimator.Estimater  # noqa: B018 - the look-up is what is tested


PUBLIC_MODULES = """
import types
import tensorflow as tf
import replicate

def public_names():
    # A lazy module of TensorFlow becomes the module itself when it is used.
    found, seen, waiting = {}, set(), [("tf", tf)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, value in list(vars(module).items()):
            full, is_lazy = f"{path}.{name}", "Lazy" in type(value).__name__
            found[full] = "lazy" if is_lazy else id(value)
            is_module = isinstance(value, types.ModuleType) and not is_lazy
            if is_module and "._api." in value.__name__:
                waiting.append((full, value))
    return found

before = public_names()
replicate.estimator.Estimator, replicate.estimator.v1.tpu
after = public_names()
lazy = [name for name, value in before.items() if value == "lazy"]
print(len(before) > 1000)
print([n for n in before if before[n] not in ("lazy", after.get(n))])
print([n for n in after if n not in before and not n.startswith(tuple(lazy))])
"""


@pytest.mark.thorough
def test_loading_changes_no_public_module(run_python):
    assert run_python(PUBLIC_MODULES).splitlines() == ["True", "[]", "[]"]


@pytest.mark.thorough
def test_install_sets_tf_estimator(run_python):
    said = run_python(
        "import tensorflow as tf\n"
        "from replicate import estimator\n"
        "estimator.install()\n"
        "first = tf.estimator, tf.compat.v1.estimator, tf.compat.v2.estimator\n"
        "estimator.install()\n"
        "second = tf.estimator, tf.compat.v1.estimator, tf.compat.v2.estimator\n"
        "print(all(a is b for a, b in zip(first, second)))\n"
        "print(tf.estimator.Estimator is estimator.Estimator)\n"
        "print(tf.compat.v2.estimator.Estimator is estimator.Estimator)\n"
        "print(tf.compat.v1.estimator.Estimator is estimator.v1.Estimator)\n"
        "from tensorflow.estimator import Estimator\n"
        "from tensorflow.estimator.export import PredictOutput\n"
        "import tensorflow.compat.v1 as tf1\n"
        "print(tf1.estimator.Estimator is estimator.v1.Estimator)\n"
    )
    assert said.split() == ["True"] * 5


@pytest.mark.thorough
def test_old_code_runs_as_it_is_after_install(run_python, tmp_path):
    # The mean of the loss's only weight: (w - 1)^2 from 0 by 0.5 * 2 is 1 after one step.
    said = run_python(
        "import replicate; replicate.estimator.install()\n"
        "import tensorflow as tf\n"
        "def model_fn(features, labels, mode):\n"
        "    w = tf.compat.v1.get_variable('w', [], initializer=tf.zeros_initializer())\n"
        "    loss = tf.reduce_mean((w * features - labels) ** 2)\n"
        "    step = tf.compat.v1.train.get_global_step()\n"
        "    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.5).minimize(loss, step)\n"
        "    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)\n"
        "def input_fn():\n"
        "    return tf.data.Dataset.from_tensors((tf.ones([2]), tf.ones([2])))\n"
        f"estimator = tf.estimator.Estimator(model_fn, {str(tmp_path)!r})\n"
        "print(estimator.train(input_fn, steps=1).get_variable_value('w'))\n"
    )
    assert float(said) == 1.0


class Worker:
    """Takes the place of the Estimator of a task in a cluster."""

    def __init__(self, job, is_in_cluster=True, is_chief=False):
        strategy = types.SimpleNamespace(is_in_cluster=is_in_cluster, is_chief=is_chief)
        self.config = types.SimpleNamespace(task_type=job)
        self._model_fn = types.SimpleNamespace(strategy=lambda mode, config: strategy)
        self.given = None

    def train(self, **given):
        self.given = given


TRAIN = types.SimpleNamespace(
    input_fn="rows", max_steps=5, hooks=("hook",), saving_listeners=("l",)
)


@pytest.mark.parametrize(("is_chief", "listeners"), [(True, ("l",)), (False, None)])
def test_a_worker_trains_with_the_server_of_its_strategy(is_chief, listeners):
    made = Worker("worker", is_chief=is_chief)
    assert estimator.train_and_evaluate(made, TRAIN, None) is None
    assert made.given == {
        "input_fn": "rows",
        "max_steps": 5,
        "hooks": ["hook"],
        "saving_listeners": listeners,
    }


@pytest.mark.parametrize(("job", "is_in_cluster"), [("worker", False), ("master", True)])
def test_others_train_as_tensorflow_has_it(monkeypatch, job, is_in_cluster):
    told = []
    own = types.SimpleNamespace(train_and_evaluate=lambda *given: told.append(given))
    monkeypatch.setattr(estimators, "load_v2", lambda: own)
    made = Worker(job, is_in_cluster)
    estimator.train_and_evaluate(made, TRAIN, "eval")
    assert (made.given, told) == (None, [(made, TRAIN, "eval")])


def test_a_server_keeps_variables_until_it_is_ended(monkeypatch):
    class EndedError(Exception):
        pass

    def serve(task):
        raise EndedError(task.name)

    jobs = {"chief": ["127.0.0.1:9"], "ps": ["127.0.0.1:10"]}
    named = {"cluster": jobs, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(named))
    monkeypatch.setattr(membership, "serve", serve)
    with pytest.raises(EndedError, match="ps:0"):
        estimator.train_and_evaluate(Worker("ps"), TRAIN, None)


def test_all_names_are_listed():
    assert set(estimator.__all__) < set(dir(estimator))
