"""Exports of replicated estimators: who can load them, and what they hold."""

import json
import os
import pathlib
import tempfile

import numpy as np
import pytest
from tensorflow.python.tools import saved_model_cli

import replicate
from replicate import errors, estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]

ROWS = np.random.default_rng(7).normal(size=(100, 3)).astype(np.float32)


def network(features, labels, mode):
    """Layers, batch statistics, a summary, a table of words, and a device of the user's."""
    hidden = tf1.layers.dense(features["x"], 4, activation=tf.nn.tanh)
    hidden = tf1.layers.batch_normalization(hidden, training=mode == "train")
    tf1.summary.histogram("hidden", hidden)
    with tf1.device("/cpu:7"):
        y = tf1.layers.dense(hidden, 2)
    scaled = tf.map_fn(lambda row: 2.0 * row, y)
    predictions = {"y": y, "scaled": scaled}
    if mode == "infer":
        outputs = {
            "serving_default": estimator.export.PredictOutput(predictions),
            "b_scaled": estimator.export.PredictOutput({"scaled": scaled}),
            "a_plain": estimator.export.PredictOutput({"y": y}),
        }
        return estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = tf1.losses.mean_squared_error(labels, y)
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=tf1.no_op(),
        predictions=predictions,
        eval_metric_ops={"mean": tf1.metrics.mean(y)},
    )


def batches():
    return tf.data.Dataset.from_tensors(({"x": ROWS[:8]}, np.ones([8, 2], np.float32))).repeat(3)


def adam():
    return tf1.train.AdamOptimizer(0.1)


def made(model_dir, num_towers, strategy=None, model=network, building=None):
    replicated = model_fn.replicate_model_fn(
        model, adam, num_towers, strategy=strategy, tower_building=building
    )
    config = estimator.RunConfig(model_dir=str(model_dir), tf_random_seed=1)
    return estimator.Estimator(replicated, config=config, params={})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir, and what the model predicts for ROWS on one device."""
    model_dir = tmp_path_factory.mktemp("model")
    one = made(model_dir, 1)
    one.train(batches)
    predictions = list(
        one.predict(lambda: tf.data.Dataset.from_tensor_slices({"x": ROWS}).batch(100))
    )
    return model_dir, np.stack([row["y"] for row in predictions])


def raw():
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    return estimator.export.ServingInputReceiver({"x": x}, {"features": x})


def supervised():
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    labels = tf1.placeholder(tf.float32, [None, 2], name="labels")
    return estimator.experimental.build_raw_supervised_input_receiver_fn({"x": x}, labels)()


def all_nodes(path):
    for meta_graph in export.read(path).meta_graphs:
        yield from meta_graph.graph_def.node
        for function in meta_graph.graph_def.library.function:
            yield from function.node_def


def holds(path):
    """Everything in the graph file, as one text."""
    return str(export.read(path))


# One tower is exported alike, however many there are.
BUILT = [(1, "split", "merged"), (4, "split", "one"), (4, "split", "merged"), (3, "call", "merged")]


@pytest.fixture(scope="module", params=BUILT, ids=str)
def exported(request, trained, tmp_path_factory):
    """A path for each number of towers, and each kind of export."""
    num_towers, building, towers = request.param
    made_by = made(trained[0], num_towers, building=building)
    base = tmp_path_factory.mktemp("export")
    return os.fsdecode(replicate.export_saved_model(made_by, base, raw, towers=towers))


def by_version_2(path, rows):
    return tf.saved_model.load(path).signatures["serving_default"](tf.constant(rows))["y"]


def by_version_1(path, rows):
    with tf.Graph().as_default(), tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        fed = {signature.inputs["features"].name: rows}
        return session.run(signature.outputs["y"].name, fed)


def by_command_line(path, rows):
    """Calls what `saved_model_cli run` calls once it has read its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        saved_model_cli.run_saved_model_with_feed_dict(
            path, "serve", "serving_default", {"features": rows}, folder, True
        )
        return np.load(os.path.join(folder, "y.npy"))


@pytest.mark.thorough("(4, 'split', 'merged')-*", "(3, 'call', 'merged')-by_version_2")
@pytest.mark.parametrize("load", [by_version_1, by_version_2, by_command_line])
def test_every_loader_gives_what_the_estimator_predicts(load, exported, trained):
    for size in (1, 2, 7):
        np.testing.assert_allclose(load(exported, ROWS[:size]), trained[1][:size], atol=1e-6)


@pytest.mark.thorough("(4, 'split', 'merged')", "(3, *")
def test_nothing_of_the_training_is_exported(exported):
    assert not {node.op for node in all_nodes(exported)} & {"ResourceApplyAdam"}
    collections = export.read(exported).meta_graphs[0].collection_def
    assert not set(collections) & {"train_op", "saved_model_train_op"}


@pytest.mark.thorough("(4, 'split', 'merged')", "(3, *")
def test_no_device_is_named(exported):
    assert {node.device for node in all_nodes(exported)} == {""}
    assert "device:CPU" not in holds(exported)
    assert "/cpu:" not in holds(exported)


@pytest.mark.thorough("(4, 'split', 'merged')", "(3, *")
def test_variables_have_their_names_on_one_device_once(exported):
    names = [name for name, _ in tf.train.list_variables(f"{exported}/variables/variables")]
    assert sorted(names) == [
        "batch_normalization/beta",
        "batch_normalization/gamma",
        "batch_normalization/moving_mean",
        "batch_normalization/moving_variance",
        "dense/bias",
        "dense/kernel",
        "dense_1/bias",
        "dense_1/kernel",
        "global_step",
    ]
    handles = [node.name for node in all_nodes(exported) if node.op == "VarHandleOp"]
    assert sorted(handles) == sorted(names)


@pytest.mark.parametrize("building", ["split", "call"])
def test_a_mirrored_variable_is_exported_once(building, trained, tmp_path):
    one = made(trained[0], 3, "mirrored", building=building)
    path = os.fsdecode(replicate.export_saved_model(one, tmp_path, raw, towers="merged"))
    names = [name for name, _ in tf.train.list_variables(f"{path}/variables/variables")]
    handles = [node.name for node in all_nodes(path) if node.op == "VarHandleOp"]
    assert sorted(handles) == sorted(names)
    with replicate.load_exported(path) as predictor:
        found = predictor({"features": ROWS[:7]})
    np.testing.assert_allclose(found["y"], trained[1][:7], atol=1e-6)


@pytest.mark.thorough("mirrored", "balanced")
@pytest.mark.parametrize("strategy", ["mirrored", "round_robin", "balanced", "one_device"])
def test_estimators_own_export_is_merged_under_every_strategy(strategy, trained, tmp_path):
    one = made(trained[0], 3, strategy)
    path = os.fsdecode(one.export_saved_model(str(tmp_path), raw))
    assert {node.device for node in all_nodes(path)} == {""}
    handles = [node.name for node in all_nodes(path) if node.op == "VarHandleOp"]
    assert len(handles) == 9
    assert not [name for name in handles if name.startswith("tower_")]
    found = tf.saved_model.load(path).signatures["serving_default"](tf.constant(ROWS[:7]))
    np.testing.assert_allclose(found["y"], trained[1][:7], atol=1e-6)


@pytest.mark.thorough("merged-train", "one-eval")
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("towers", export.TOWERS)
def test_graphs_of_other_modes_are_exported(mode, towers, trained, tmp_path):
    path = os.fsdecode(
        replicate.export_saved_model(
            made(trained[0], 2), tmp_path, supervised, towers=towers, experimental_mode=mode
        )
    )
    assert {node.device for node in all_nodes(path)} == {""}
    tags = {"eval": ["eval"], "train": ["train"]}[mode]
    labels = np.zeros([7, 2], np.float32)
    with replicate.load_exported(path, tags=tags) as predictor:
        found = predictor({"x": ROWS[:7], "label": labels}, signature=mode)
    if mode == "eval":  # the loss is a mean of squares, labels are 0
        assert found["loss"] == pytest.approx(np.mean(np.square(trained[1][:7])), abs=1e-5)


@pytest.mark.parametrize(("building", "counts"), [("split", 1), ("call", 3)])
def test_an_evaluation_is_exported_with_each_weight_once(building, counts, trained, tmp_path):
    one = made(trained[0], 3, "mirrored", building=building)
    path = os.fsdecode(
        replicate.export_saved_model(
            one, tmp_path, supervised, towers="merged", experimental_mode="eval"
        )
    )
    handles = [node.name for node in all_nodes(path) if node.op == "VarHandleOp"]
    # A metric counts once, or in each tower that there is; all else is one.
    totals = [name for name in handles if name.endswith(("mean/total", "mean/count"))]
    assert len(totals) == 2 * counts
    assert len(set(handles) - set(totals)) == 9
    assert {"dense/kernel", "dense_1/bias", "batch_normalization/moving_mean"} < set(handles)
    inputs = {"x": ROWS[:7], "label": np.zeros([7, 2], np.float32)}
    with replicate.load_exported(path, tags="eval") as predictor:
        found = predictor(inputs, signature="eval")
        assert found["metrics/mean/update_op"] == pytest.approx(np.mean(trained[1][:7]), abs=1e-5)
    assert found["loss"] == pytest.approx(np.mean(np.square(trained[1][:7])), abs=1e-5)


def test_text_is_written_where_text_is_asked_for(trained, tmp_path):
    path = os.fsdecode(
        replicate.export_saved_model(made(trained[0], 2), tmp_path, raw, as_text=True)
    )
    assert sorted(os.listdir(path)) == ["saved_model.pbtxt", "variables"]
    assert "device:" not in pathlib.Path(path, "saved_model.pbtxt").read_text()
    with replicate.load_exported(path) as predictor:
        found = predictor({"features": ROWS[:2]})
    np.testing.assert_allclose(found["y"], trained[1][:2], atol=1e-6)


def test_a_chosen_checkpoint_is_exported(trained, tmp_path):
    first = os.path.join(trained[0], "model.ckpt-0")
    path = replicate.export_saved_model(made(trained[0], 2), tmp_path, raw, checkpoint_path=first)
    reader = tf.train.load_checkpoint(f"{os.fsdecode(path)}/variables/variables")
    assert reader.get_tensor("global_step") == 0


def test_the_chief_alone_exports_beside_parameter_servers(trained, tmp_path, monkeypatch):
    jobs = {job: [f"127.0.0.1:{port}"] for port, job in enumerate(["chief", "worker", "ps"], 1)}
    for job in ("chief", "worker"):
        task = {"cluster": jobs, "task": {"type": job, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        found = made(trained[0], 2)
        if job == "chief":
            assert os.path.isdir(replicate.export_saved_model(found, tmp_path, raw))
        else:
            with pytest.raises(errors.RunError, match="worker:0 was asked for one"):
                replicate.export_saved_model(found, tmp_path, raw)
    assert len(os.listdir(tmp_path)) == 1


class Owned(tf1.train.Scaffold):
    """A user's scaffold."""


@pytest.mark.thorough("True")
@pytest.mark.parametrize("has_saver", [True, False])
def test_a_scaffold_of_the_users_class_is_kept_and_exported(has_saver, trained, tmp_path):
    made_here = []

    def model(features, labels, mode):
        spec = network(features, labels, mode)
        made_here.append(Owned(saver=tf1.train.Saver() if has_saver else None))
        return spec._replace(scaffold=made_here[-1]) if mode == "infer" else spec

    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        rows = {"x": tf1.placeholder(tf.float32, [None, 3])}
        spec = model_fn.replicate_model_fn(model, adam, 2)(rows, None, "infer")
        assert spec.scaffold is made_here[0]
    one = made(trained[0], 2, model=model)
    path = os.fsdecode(one.export_saved_model(str(tmp_path), raw))
    assert {node.device for node in all_nodes(path)} == {""}
    np.testing.assert_allclose(by_version_2(path, ROWS[:7]), trained[1][:7], atol=1e-6)


def test_towers_are_one_or_merged(trained, tmp_path):
    with pytest.raises(ValueError, match=r"towers is one of 'one', 'merged'; got 'all'"):
        replicate.export_saved_model(made(trained[0], 2), tmp_path, raw, towers="all")


@pytest.mark.parametrize("towers", export.TOWERS)
def test_a_failed_export_leaves_nothing_behind(towers, trained, tmp_path):
    def failing():
        raise KeyError("no such feature")

    with pytest.raises(KeyError, match="no such feature"):
        replicate.export_saved_model(made(trained[0], 2), tmp_path, failing, towers=towers)
    with pytest.raises(tf.errors.NotFoundError, match=r"missing\.txt"):
        replicate.export_saved_model(
            made(trained[0], 2), tmp_path, raw, towers=towers, assets_extra={"a": "missing.txt"}
        )
    assert os.listdir(tmp_path) == []


def test_exports_are_numbered_upwards(trained, tmp_path):
    tmp_path.joinpath("99999999999").mkdir()
    found = replicate.export_saved_model(made(trained[0], 1), tmp_path, raw)
    assert os.path.basename(os.fsdecode(found)) == "100000000000"


EXPORTING = """
import importlib.util, os, random, signal, sys, time

from replicate import devices
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export

devices.make_logical_cpus(8)
spec = importlib.util.spec_from_file_location("exports", os.environ["EXPORTS"])
exports = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exports)
with tf.Graph().as_default():  # loads what a first model loads, and starts nothing
    exports.network({"x": tf1.placeholder(tf.float32, [None, 3])}, None, "infer")


def start():
    child = os.fork()
    if child == 0:
        one = exports.made(os.environ["MODEL_DIR"], 2)
        export.export_saved_model(one, os.environ["BASE"], exports.raw, towers="merged")
        os._exit(0)
    return child


begun = time.monotonic()
_, status = os.waitpid(start(), 0)
duration = time.monotonic() - begun
moments = random.Random(20)
killed = 0
for _ in range(20):
    child = start()
    time.sleep(moments.uniform(0.1, 1.0) * duration)
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(status, killed)
"""


@pytest.mark.thorough
def test_a_killed_export_leaves_nothing_that_loads_wrongly(trained, tmp_path, run_python):
    base = tmp_path / "base"
    base.mkdir()
    printed = run_python(
        EXPORTING, EXPORTS=__file__, MODEL_DIR=str(trained[0]), BASE=str(base)
    ).split()
    assert printed[0] == "0"
    assert int(printed[1]) > 5
    numbered = [name for name in os.listdir(base) if not name.startswith("temp-")]
    assert numbered
    assert all(name.isdecimal() for name in numbered)
    for name in numbered:
        with replicate.load_exported(base / name) as predictor:
            found = predictor({"features": ROWS[:7]})
        np.testing.assert_allclose(found["y"], trained[1][:7], atol=1e-6)
