"""Workers of some towers each, in processes of their own, are one device."""

import json
import pathlib
import sys

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.cluster import cases, once, processes

pytestmark = pytest.mark.thorough

WORKS = ["core", "refusals", "leaving", "ending", "many", *cases.CASES, "exporting"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """A folder with what two workers of two towers made of all cases."""

    def train(folder):
        ended = processes.run(folder, WORKS)
        assert ended.codes == [0, 0], "\n".join(ended.logs)
        return folder

    return once.made(tmp_path_factory, "two_workers", train)


def one_device(case: cases.Case, mode: str, start: dict | None = None, times: int = 1) -> dict:
    """Returns what one device makes of all workers' rows: variables, or metrics.

    Args:
        case: The case.
        mode: `"train"` or `"eval"`.
        start: With what variables to begin.
        times: How often the batches come.
    """
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        batches = cases.batches_of_all(case) * times
        dataset = cases.dataset(case._replace(is_static=False), batches)
        features, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
        model = cases.model_of(case, estimator.EstimatorSpec)
        if case.options:  # one tower has options as well
            model = model_fn.replicate_model_fn(model, case.optimizer, ["/cpu:0"], **case.options)
        spec = model(features, labels, mode)
        metrics = spec.eval_metric_ops or {}
        update = spec.train_op
        if mode == "eval":
            update = tf1.group(*[op for _, op in metrics.values()])
        elif case.train is None and not case.options:
            update = case.optimizer().minimize(spec.loss, step)
        variables = {v.op.name.replace("/", "|"): v for v in tf1.global_variables()}
        with tf1.Session(config=exactness.session_config()) as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for name in variables if start else ():
                given = {variables[name].initial_value: start[name]}
                session.run(variables[name].initializer, given)
            for _ in batches:  # in one step more TensorFlow may let averages of slices decay
                session.run(update)
            if mode == "train":
                return session.run(variables)
            return {name: session.run(value) for name, (value, _) in metrics.items()}


def copies(found, variable):
    """Returns a variable of a worker in each of the copies that there are."""
    keys = [key for key in found if key.rpartition(" of tower ")[0] == variable]
    assert keys, f"there is no {variable}"
    return [found[key] for key in keys]


def require_alike(folder, name, case, expected, workers):
    """Requires of each worker the variables that are expected."""
    far, near = (1e-9, 1e-11) if case.dtype == tf.float64 else (1e-5, 1e-5)
    for worker in range(workers):
        found = exactness.arrays(folder / f"{name}-{worker}.npz")
        for variable, value in expected.items():
            for copy in copies(found, variable):
                np.testing.assert_allclose(copy, value, far, near, err_msg=variable)


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if not case.is_random])
def test_two_workers_are_one_device(trained, name):
    case = cases.CASES[name]
    require_alike(trained, name, case, one_device(case, "train"), workers=2)


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if case.is_evaluated])
def test_an_evaluation_of_all_workers_counts_every_row_once(trained, name):
    case = cases.CASES[name]
    expected = one_device(case, "eval", one_device(case, "train"))
    for worker in range(2):
        found = exactness.arrays(trained / f"{name}-{worker}.npz")
        for metric, value in expected.items():
            np.testing.assert_allclose(found[f"metric {metric}"], value, 1e-5, err_msg=metric)


def test_what_is_random_is_the_same_in_all_workers(trained):
    first, second = (exactness.arrays(trained / f"noisy-{worker}.npz") for worker in range(2))
    assert set(second) == set(first)
    for key in first:
        variable = key.rpartition(" of tower ")[0]
        for copy in (*copies(first, variable), *copies(second, variable)):
            np.testing.assert_array_equal(copy, first[key], err_msg=key)


def test_all_end_where_one_of_them_stops(trained):
    steps = [
        exactness.arrays(trained / f"leaving-{worker}.npz")["global_step of tower 0"]
        for worker in (0, 1)
    ]
    assert steps == [2, 2]


def test_a_step_that_fails_in_all_tears_no_meeting_behind_it(trained):
    assert all((trained / f"ending-{worker}.json").exists() for worker in range(2))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("work", ["many", "ending"], ids=["Estimator", "tf1.Session"])
def test_steps_leave_no_threads_behind(trained, work):
    for worker in range(2):
        first, last = json.loads((trained / f"{work}-{worker}.json").read_text())
        assert last - first < 50  # of 270 steps, each of which joins more than once


def test_no_worker_goes_on_before_the_chief_has_saved(trained):
    saved = [
        exactness.arrays(trained / f"{cases.SAVED}-{worker}.npz")["saved"] for worker in range(2)
    ]
    assert saved == [cases.STEPS, cases.STEPS]


def test_the_chief_alone_exports_what_all_have_trained(trained):
    made, refused = (json.loads((trained / f"exporting-{n}.json").read_text()) for n in (0, 1))
    for text in refused:
        assert "The chief of a cluster writes exports" in text
        assert "worker:1 was asked for one" in text
    found = exactness.arrays(trained / f"{cases.SAVED}-1.npz")
    x = np.eye(cases.WIDTH)  # of which w's own rows come out
    expected = np.tanh(found["w of tower 0"] + found["b of tower 0"])
    for path in made:
        with tf.Graph().as_default(), tf1.Session(config=exactness.session_config()) as session:
            signatures = tf1.saved_model.load(session, ["serve"], path).signature_def
            served = signatures["serving_default"]
            y = session.run(served.outputs["y"].name, {served.inputs["x"].name: x})
        np.testing.assert_allclose(y, expected, 1e-12)


def test_models_of_one_process_share_names_and_no_variables(trained):
    # Their workers trained one after the other, with one server.
    masked = ("momentum_masked", "momentum_masked_single")
    found = {
        name: exactness.arrays(trained / f"{name}-1.npz") for name in ("wide", "steep", *masked)
    }
    shapes = [found[name]["scale of tower 0"].shape for name in ("wide", "steep")]
    assert shapes == [(), (cases.WIDTH,)]
    dtypes = [found[name]["w of tower 0"].dtype for name in masked]
    assert dtypes == [np.float64, np.float32]


def test_the_chief_alone_writes_checkpoints(trained):
    written = sorted(path.name for path in (trained / cases.SAVED).glob("model.ckpt-*.index"))
    assert written == [f"model.ckpt-{step}.index" for step in (0, cases.STEPS)]
    assert len(list((trained / cases.SAVED).glob("events.out.tfevents.*"))) == 1


def test_the_core_joins_over_workers(trained):
    # The towers' numbers are 1, 2, 3, 4: their sum is 10, their mean 2.5. On the core a loss is
    # a mean over towers: w = 10 - (1 + 2 + 3 + 4) / 4. v is the first worker's 10, and 10 more.
    for worker in range(2):
        found = exactness.arrays(trained / f"core-{worker}.npz")
        numbers = {key: found[key].tolist() for key in found}
        assert numbers == {
            "sum": 10.0,
            "mean": 2.5,
            "slices": [1.0, 2.0, 3.0, 4.0],
            "read": 10.0,
            "begun with": 10.0,
            "broadcast": 3.0,
            "v": 20.0,
            "w": 7.5,
            "count": 4,
        }


@pytest.mark.parametrize(
    ("what", "texts"),
    [
        (
            "config",
            ["the config's optimizer.learning_rate", "worker:0 has 0.1", "worker:1 has 0.2"],
        ),
        ("model", ["the variable same. worker:0 has same (2,) float32; worker:1 has none"]),
        ("options", ["the option accumulate_steps", "worker:1 has accumulate_steps=2"]),
    ],
)
def test_workers_that_differ_are_refused_at_the_start(trained, what, texts):
    for worker in range(2):
        said = json.loads((trained / f"refusals-{worker}.json").read_text())[what]
        for text in texts:
            assert text in said
