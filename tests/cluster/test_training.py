"""Two workers of two towers each, in processes of their own, are one device."""

import pathlib

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.cluster import cases, processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """A folder with what two workers made of all cases."""
    folder = tmp_path_factory.mktemp("cluster")
    ended = processes.run(folder, list(cases.CASES))
    assert ended.codes == [0, 0], "\n".join(ended.logs)
    return folder


def one_device(case: cases.Case, mode: str, start: dict | None = None) -> dict:
    """Returns what one device makes of all workers' rows: variables, or metrics."""
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        dataset = cases.dataset(cases.batches_of_all(case), is_static=False)
        features, labels = tf1.data.make_one_shot_iterator(dataset).get_next()
        model = cases.model_of(case, estimator.EstimatorSpec)
        if case.options:  # one tower, which has them as well
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
            while True:
                try:
                    session.run(update)
                except tf.errors.OutOfRangeError:
                    break
            if mode == "train":
                return session.run(variables)
            return {name: session.run(value) for name, (value, _) in metrics.items()}


@pytest.mark.parametrize("name", cases.CASES)
def test_two_workers_are_one_device(trained, name):
    case = cases.CASES[name]
    expected = one_device(case, "train")
    for worker in range(2):
        found = np.load(trained / f"{name}-{worker}.npz")
        for variable, value in expected.items():
            for tower in range(2 if variable != "global_step" else 1):
                key = f"{variable} of tower {tower}"
                np.testing.assert_allclose(found[key], value, 1e-9, 1e-11, err_msg=key)


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if case.is_evaluated])
def test_an_evaluation_of_all_workers_counts_every_row_once(trained, name):
    case = cases.CASES[name]
    expected = one_device(case, "eval", one_device(case, "train"))
    for worker in range(2):
        found = np.load(trained / f"{name}-{worker}.npz")
        for metric, value in expected.items():
            np.testing.assert_allclose(found[f"metric {metric}"], value, 1e-5, err_msg=metric)


def test_the_chief_alone_writes_checkpoints(trained):
    written = sorted(path.name for path in (trained / "sgd").glob("model.ckpt-*.index"))
    assert written == ["model.ckpt-0.index", "model.ckpt-4.index"]  # four steps
    assert len(list((trained / "sgd").glob("events.out.tfevents.*"))) == 1
