"""Public kinds of models, unchanged, are one device's: by `verify`, and through Estimators.

docs/ported.md tells of some of them.
"""

import itertools
import pathlib
import runpy

import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.models import canned, deepfm, every, gan, ranking, resnet, tpu, wide_and_deep
from tests.splitting import estimators

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]
ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ported.md").read_text(encoding="utf-8")
# What depends on a rate that reads the step, which the train_op counts in no order to that.
OPEN = {
    "simclr": {"loss", "weights", "slots", "other variables"},
}


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "ported.py"))


def test_the_page_has_a_table_of_each_model_that_it_tells_of(script):
    told = script["verified"](PAGE)
    assert PAGE.count("The towers give what one device gives") == len(told) > 10
    for name in told:
        assert name in every.MODELS
        assert f"`tests/models/{name}.py`" in PAGE


def test_a_table_is_written_in_its_place(script):
    page = "<!-- verify one -->\n```text\nold\n```\n<!-- verify two -->\n```text\nold\n```\n"
    written = script["with_table"](page, "two", "new")
    assert written == page[: -len("old\n```\n")] + "new\n```\n"


# Of those of the page, one of each kind that the models below are not; `scripts/ported.py` has all.
VERIFIED = ("bert", "simclr", "vae")


@pytest.mark.thorough
@pytest.mark.parametrize("name", VERIFIED)
def test_a_model_gives_what_one_device_gives(name):
    with exactness.quiet():
        found = every.MODELS[name].verified()
    verdicts = {row.what: row.verdict for row in found.rows}
    if name == "bert":
        # Softmax takes no notice of a bias of keys: what its gradient of 0 rounds to moves it.
        assert verdicts.pop("weights") in ("equal", "depends on rounding"), str(found)
    left_open = {what for what, verdict in verdicts.items() if verdict == "open in the model"}
    assert left_open == OPEN.get(name, set()), str(found)
    compared = verdicts.keys() - left_open
    assert {verdicts[what] for what in compared} == {"equal"}, str(found)


# Through Estimators.

TOLERANCE = (1e-4, 1e-5)  # in float32
STEPS = 3


def of_model_fn(made, params=None):
    """An Estimator of a model_fn and params of a user's own."""

    def make(config, on):
        replicated = made if on is None else model_fn.replicate_model_fn(made, **on)
        return estimator.Estimator(replicated, config=config, params=params)

    return make


def of_tpu(config, on):
    """A TPUEstimator, which gives the model_fn its batch size."""
    replicated = tpu.model_fn if on is None else model_fn.replicate_model_fn(tpu.model_fn, **on)
    config = estimator.v1.tpu.RunConfig(
        model_dir=config.model_dir, tf_random_seed=1, session_config=config.session_config
    )
    sizes = dict.fromkeys(["train_batch_size", "eval_batch_size", "predict_batch_size"], 7)
    params = {"host_dir": f"{config.model_dir}/host"}
    return estimator.v1.tpu.TPUEstimator(
        replicated, config=config, params=params, use_tpu=False, **sizes
    )


def of_canned(made):
    """A canned estimator, whose model_fn is replicated."""

    def make(config, on):
        one = made(config)
        if on is None:
            return one
        replicated = model_fn.replicate_model_fn(one.model_fn, **on)
        return estimator.Estimator(replicated, config=config)

    return make


CLASSES, TARGETS = (canned.input_fn(labels) for labels in (canned.CLASSES, canned.TARGETS))
DEEPFM = of_model_fn(deepfm.model_fn, {"l2": 0.01})
RANKING = of_model_fn(ranking.model_fn, {"losses": ["pairwise", "listwise"]})
WIDE_AND_DEEP = wide_and_deep.input_fn
ESTIMATORS = {
    "deepfm": (DEEPFM, deepfm.input_fn, "parameter_server", 3),
    "ranking": (RANKING, ranking.input_fn, "mirrored", 4),
    "gan": (of_model_fn(gan.model_fn), gan.input_fn, "mirrored", 3),
    "resnet": (of_model_fn(resnet.model_fn), resnet.input_fn, "parameter_server", 2),
    "tpu": (of_tpu, tpu.input_fn, "parameter_server", 4),
    "wide and deep": (of_canned(wide_and_deep.classifier), WIDE_AND_DEEP, "round_robin", 2),
    "classifier": (of_canned(canned.classifier_of_sums), CLASSES, "parameter_server", 3),
    "regressor": (of_canned(canned.regressor_of_means), TARGETS, "mirrored", 2),
}


def made(name, directory, is_split):
    """Returns the estimator of a model, on one device or on several, and its input_fn."""
    make, input_fn, strategy, devices = ESTIMATORS[name]
    session_config = exactness.session_config()
    session_config.allow_soft_placement = False
    config = estimator.RunConfig(str(directory), tf_random_seed=1, session_config=session_config)
    return make(config, {"strategy": strategy, "devices": devices} if is_split else None), input_fn


class Losses(tf1.train.SessionRunHook):
    """Keeps the loss of each step, as the Estimator shows it."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(tf1.get_collection(tf1.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Returns a function that runs a model once: its directory, and what came out."""
    known = {}

    def of(name, is_split):
        if (name, is_split) not in known:
            directory, losses = tmp_path_factory.mktemp("run"), Losses()
            with exactness.quiet():
                run, input_fn = made(name, directory, is_split)
                run.train(input_fn, hooks=[losses], max_steps=STEPS)
                found = {
                    "losses": losses.seen,
                    "variables": estimators.variables_of(run),
                    "metrics": run.evaluate(input_fn, steps=3),
                    "predictions": list(itertools.islice(run.predict(input_fn), 19)),
                }
            known[name, is_split] = directory, found
        return known[name, is_split]

    return of


@pytest.mark.thorough("deepfm", "tpu")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_model_trains_evaluates_and_predicts_as_on_one_device(name, outcomes):
    (_, found), (_, expected) = outcomes(name, True), outcomes(name, False)
    exactness.compare(found, expected, *TOLERANCE)


def written_by_host(directory) -> list:
    """Returns what a host call wrote: triples of step, tag and number, in their order."""
    return sorted(
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for file in directory.glob("host/*")
        for event in tf1.train.summary_iterator(str(file))
        for value in event.summary.value
    )


def test_a_host_call_writes_the_whole_batchs_numbers_once_a_step(outcomes):
    expected = written_by_host(outcomes("tpu", False)[0])
    assert [written[:2] for written in expected] == [
        (step, tag) for step in range(STEPS) for tag in ("host/loss", "host/rate")
    ]
    exactness.compare(written_by_host(outcomes("tpu", True)[0]), expected, *TOLERANCE)
