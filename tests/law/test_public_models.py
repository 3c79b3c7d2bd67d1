"""Public kinds of models, unchanged, through an Estimator: several devices are one.

Each model is run once on one device and once on several; what is asked of them shares these runs.
"""

import itertools
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.models import bert, canned, crf, deepfm, gan, ranking, resnet, tpu, wide_and_deep

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]

TOLERANCE = (1e-4, 1e-5)  # in float32
STEPS, MORE = 3, 4


class Public(NamedTuple):
    """A model.

    Attributes:
        model_fn: The model_fn; of a canned estimator, what makes the estimator of a config.
        input_fn: Its batches, which do not divide.
        params: The params, or None.
        is_canned: Whether `model_fn` makes an estimator.
    """

    model_fn: Callable
    input_fn: Callable
    params: dict | None = None
    is_canned: bool = False


MODELS = {
    "bert": Public(bert.model_fn, bert.input_fn, {}),
    "ranking": Public(ranking.model_fn, ranking.input_fn, {"losses": ["pairwise", "listwise"]}),
    "deepfm": Public(deepfm.model_fn, deepfm.input_fn, {"l2": 0.01}),
    "crf": Public(crf.model_fn, crf.input_fn),
    "gan": Public(gan.model_fn, gan.input_fn),
    "resnet": Public(resnet.model_fn, resnet.input_fn),
    "tpu": Public(tpu.model_fn, tpu.input_fn, {"batch_size": 7}),
    "wide and deep": Public(wide_and_deep.classifier, wide_and_deep.input_fn, is_canned=True),
    "classifier": Public(
        canned.classifier_of_sums, canned.input_fn(canned.CLASSES), is_canned=True
    ),
    "regressor": Public(canned.regressor_of_means, canned.input_fn(canned.TARGETS), is_canned=True),
}
ON = {
    "bert": ("balanced", 2),
    "ranking": ("mirrored", 4),
    "deepfm": ("parameter_server", 3),
    "crf": ("mirrored", 2),
    "gan": ("mirrored", 3),
    "resnet": ("parameter_server", 2),
    "tpu": ("parameter_server", 4),
    "wide and deep": ("round_robin", 2),
    "classifier": ("parameter_server", 3),
    "regressor": ("mirrored", 2),
}
CONTINUED = ["deepfm", "resnet"]


def several(name) -> dict:
    """Returns on which devices a model is run beside one."""
    strategy, number = ON[name]
    return {"strategy": strategy, "devices": number}


class Losses(tf1.train.SessionRunHook):
    """Keeps the loss of each step, as the Estimator shows it."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        loss = tf1.get_collection(tf1.GraphKeys.LOSSES)[-1]
        return tf1.train.SessionRunArgs(loss)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


class Outcome(NamedTuple):
    """What came out of `STEPS` steps.

    Attributes:
        directory: Where the checkpoint is.
        found: Losses, variables (slots as well), metrics and predictions.
        host: What a host call wrote: triples of step, tag and number.
    """

    directory: Any
    found: dict
    host: list


def made(public: Public, directory, devices: dict | None = None) -> Any:
    """Returns the estimator of a model, on one device or on several."""
    session_config = exactness.session_config()
    session_config.allow_soft_placement = False
    options = {"tf_random_seed": 1, "session_config": session_config}
    params = None if public.params is None else {**public.params}
    config = estimator.RunConfig(str(directory), **options)
    made = public.model_fn(config).model_fn if public.is_canned else public.model_fn
    if devices is not None:
        made = model_fn.replicate_model_fn(made, **devices)
    if public.model_fn is not tpu.model_fn:
        return estimator.Estimator(made, config=config, params=params)
    config = estimator.v1.tpu.RunConfig(model_dir=str(directory), **options)
    size, params["host_dir"] = params.pop("batch_size"), str(directory / "host")
    sizes = dict.fromkeys(["train_batch_size", "eval_batch_size", "predict_batch_size"], size)
    return estimator.v1.tpu.TPUEstimator(made, config=config, params=params, use_tpu=False, **sizes)


def variables_of(run) -> dict:
    return {name: run.get_variable_value(name) for name in run.get_variable_names()}


def written_by_host(directory) -> list:
    """Returns what a host call wrote: triples of step, tag and number, in their order."""
    files = sorted(directory.glob("host/*"))
    found = []
    for file in files:
        for event in tf1.train.summary_iterator(str(file)):
            found += [
                (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
            ]
    return sorted(found)


def outcome(public: Public, directory, devices: dict | None = None) -> Outcome:
    """Trains, evaluates and predicts; nothing is warned of."""
    losses = Losses()
    with exactness.quiet():
        run = made(public, directory, devices)
        run.train(public.input_fn, hooks=[losses], max_steps=STEPS)
        found = {
            "losses": losses.seen,
            "variables": variables_of(run),
            "metrics": run.evaluate(public.input_fn, steps=3),
            "predictions": list(itertools.islice(run.predict(public.input_fn), 19)),
        }
    return Outcome(directory, found, written_by_host(directory))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Returns a function from a model's name and devices to their outcome, made once."""
    known = {}

    def of(name, devices=None):
        key = (name, *(devices or {}).values())
        if key not in known:
            known[key] = outcome(MODELS[name], tmp_path_factory.mktemp("run"), devices)
        return known[key]

    return of


@pytest.fixture(scope="module")
def continued(outcomes, tmp_path_factory):
    """Returns a function that goes on from a checkpoint, on one device or on several."""

    def of(name, begun=None, devices=None):
        directory = tmp_path_factory.mktemp("more") / "copy"
        shutil.copytree(outcomes(name, begun).directory, directory)
        run = made(MODELS[name], directory, devices)
        run.train(MODELS[name].input_fn, max_steps=MORE)
        return variables_of(run)

    return of


@pytest.mark.thorough("deepfm", "tpu")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_evaluates_and_predicts_as_on_one_device(name, outcomes):
    found, expected = outcomes(name, several(name)), outcomes(name)
    exactness.compare(found.found, expected.found, *TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTINUED)
def test_checkpoints_go_both_ways(name, continued):
    expected = continued(name)
    with exactness.named("one device goes on from several"):
        exactness.compare(continued(name, begun=several(name)), expected, *TOLERANCE)
    with exactness.named("several go on from one device"):
        exactness.compare(continued(name, devices=several(name)), expected, *TOLERANCE)


def test_a_host_call_writes_the_whole_batchs_numbers_once_a_step(outcomes):
    expected = outcomes("tpu").host
    assert [written[:2] for written in expected] == [
        (step, tag) for step in range(STEPS) for tag in ("host/loss", "host/rate")
    ]
    exactness.compare(outcomes("tpu", several("tpu")).host, expected, *TOLERANCE)
