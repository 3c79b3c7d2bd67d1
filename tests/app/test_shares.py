"""Workers take their rows of each batch: each row once, and no worker two more than another."""

import numpy as np
import pytest

from replicate.app.config import config, input_config
from replicate.app.data import inputs, section_inputs
from replicate.app.training import estimators, running, steps
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts, progress
from replicate.strategy.cluster import cluster


def task_of(position, size, **jobs):
    """Returns the cluster of a worker."""
    known = {"chief": ["h:1"], "worker": [f"h:{n + 1}" for n in range(1, size)], **jobs}
    job, index = ("worker", position - 1) if position else ("chief", 0)
    return cluster.of({"cluster": known, "task": {"type": job, "index": index}})


def elements(make):
    """Returns all elements of a dataset."""
    with tf.Graph().as_default(), tf1.Session() as session:
        element, found = tf1.data.make_one_shot_iterator(make()).get_next(), []
        while True:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("is_static", [False, True])
def test_each_row_of_a_batch_is_one_workers(size, is_static):
    def part(position):
        rows = tf.data.Dataset.range(4 * (size + 1) if is_static else 10)
        batches = rows.batch(4, drop_remainder=is_static)
        return inputs.own_part(batches.map(lambda x: {"x": x}), task_of(position, size))

    each = [[e["x"] for e in elements(lambda p=p: part(p))] for p in range(size)]
    whole = [np.concatenate(parts).tolist() for parts in zip(*each, strict=True)]
    expected = [e.tolist() for e in elements(lambda: tf.data.Dataset.range(10).batch(4))]
    if not is_static:
        assert whole == expected  # 4, 4 and 2 rows, in their order
    for parts in zip(*each, strict=True):
        sizes = [len(one) for one in parts]
        assert max(sizes) - min(sizes) <= 1


def test_a_static_size_stays_known_where_it_divides():
    batches = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    assert inputs.own_part(batches, task_of(1, 2)).element_spec.shape == [2]
    assert inputs.own_part(batches, task_of(1, 3)).element_spec.shape.as_list() == [None]


def test_sparse_and_ragged_rows_and_scalars_are_shared_too():
    def make():
        rows = tf.ragged.constant([[1], [2, 3], [], [4]])
        sparse = tf.sparse.from_dense(np.eye(4))
        data = tf.data.Dataset.from_tensors({"r": rows, "s": sparse, "c": tf.constant(7)})
        return inputs.own_part(data, task_of(1, 2))

    (found,) = elements(make)
    assert found["r"].to_list() == [[], [4]]
    assert found["s"].indices.tolist() == [[0, 2], [1, 3]]
    assert found["s"].dense_shape.tolist() == [2, 4]
    assert found["c"] == 7


def test_beside_servers_workers_take_turns():
    def make(position):
        batches = tf.data.Dataset.range(10).batch(4)
        return inputs.own_part(batches, task_of(position, 2, ps=["h:9"]))

    assert [e.tolist() for e in elements(lambda: make(0))] == [[0, 1, 2, 3], [8, 9]]
    assert [e.tolist() for e in elements(lambda: make(1))] == [[4, 5, 6, 7]]


def test_a_function_that_names_its_context_reads_its_part_alone():
    source = input_config.Function(kind="function", function="a:b", batch_size=5)

    def fn(batch_size, input_context):
        """Names it."""

    left, whose, context = inputs.left_to(fn, source, task_of(1, 2))
    # Of 5 rows the first worker has 3 and the second one 2.
    assert (left.batch_size, whose, context.input_pipeline_id) == (2, cluster.ALONE, 1)
    assert context.num_input_pipelines == 2
    left, whose, _ = inputs.left_to(lambda batch_size: None, source, task_of(1, 2))
    assert (left.batch_size, whose.position) == (5, 1)


@pytest.mark.parametrize("seed", ["null", "3"])
def test_workers_shuffle_alike(tmp_path, seed):
    x = np.arange(20.0)
    np.savez(tmp_path / "d.npz", x=x)
    (tmp_path / "c.yaml").write_text(
        f"{{model_fn: 'a:b', seed: {seed}, train: {{steps: 1, input: {{kind: npz, file: d.npz,"
        " features: [x], batch_size: 6, repeat: false}}}"
    )
    settings = config.load(str(tmp_path / "c.yaml"))

    def make(position):
        task = task_of(position, 2)
        if settings.seed is not None:
            tf1.set_random_seed(settings.seed)
        return section_inputs.alike(
            section_inputs.input_fn(settings, "train", task=task), settings, task
        )()

    each = [elements(lambda p=p: make(p)) for p in range(2)]
    rows = np.concatenate([np.ravel(e["x"]) for worker in each for e in worker])
    assert sorted(rows) == sorted(x)  # no row twice
    assert each[0][0]["x"].tolist() != [0.0, 1.0, 2.0]


def test_workers_that_begin_at_different_steps_are_refused(tmp_path, monkeypatch):
    # They go on in the midst of a pass, each by itself: rows would be read twice, or not at all.
    def describe(settings, task, strategy):
        return estimators.Described(None, None, None, {"strategy": strategy}, {}, None)

    monkeypatch.setattr(estimators, "describe", describe)
    monkeypatch.setattr(estimators, "build", lambda described, amend: described)
    (tmp_path / "c.yaml").write_text(
        "{model_fn: 'a:b', devices: {cpu: 1}, train: {steps: 9, input: {kind: npz, file: d.npz,"
        " features: [x]}}}"
    )
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    settings, task = config.load(str(tmp_path / "c.yaml")), task_of(1, 2)
    run = running.Run(settings, progress.Display(True), interrupts.StopRequest(), task)
    made = steps.Steps(run, running.Goal(run, 7))
    compared = made.estimator.options["strategy"].compared
    assert compared["model_dir, its last checkpoint"] == "step 7"
