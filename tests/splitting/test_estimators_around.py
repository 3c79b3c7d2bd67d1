"""What is around a model in an Estimator whose graph is split: metrics, parts, exports, hooks."""

import collections
import shutil

import numpy as np
import pytest

import replicate
from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import placed_towers, predictor
from tests.models import tpu
from tests.splitting import estimators
from tests.splitting.estimators import model, require_one_device, stepping

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


# Modes and metrics.


def measured(features, labels, mode):
    """A model with metrics of both kinds, some of which count rows."""
    spec = model(features, labels, mode)
    if mode != "eval":
        return spec
    logits, truth = spec.predictions["logits"], labels
    probability = tf.sigmoid(logits)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(truth, tf.float64), logits)
    of_keras = tf.keras.metrics.MeanSquaredError(name="squares")
    of_keras.update_state(truth, logits)
    auc = tf.keras.metrics.AUC(10, name="area")
    auc.update_state(truth, probability)
    seen = tf1.get_variable(
        "seen",
        [],
        tf.int64,
        tf1.zeros_initializer(),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
    )
    ids = features["ids"]
    best = tf.one_hot(ids[:, 0], estimators.WORDS)
    metrics = {
        "mean": tf1.metrics.mean(logits),
        "accuracy": tf1.metrics.accuracy(truth, probability > 0.5),
        "auc": tf1.metrics.auc(truth, probability, num_thresholds=20),
        "precision_at_2": tf1.metrics.precision_at_k(ids[:, 1:], best, 2),
        "loss_of_rows": tf1.metrics.mean(tf.reduce_mean(losses)),
        "rows": (seen.read_value(), seen.assign_add(tf.shape(ids, tf.int64)[0])),
        "squares": of_keras,
        "area": auc,
    }
    return spec._replace(eval_metric_ops=metrics)


@pytest.mark.thorough
def test_metrics_are_one_devices(tmp_path):
    # tf.metrics keep float32 sums, so that their order shows.
    found = require_one_device(
        tmp_path, measured, momentum, modes=("train", "eval"), tolerance=(1e-5, 1e-6)
    )
    assert found["metrics"]["rows"] == sum(estimators.SIZES)


def test_predictions_of_any_rank_for_one_row_on_four_devices(tmp_path):
    def ranked(features, labels, mode):
        spec = model(features, labels, mode)
        logits = spec.predictions["logits"]
        if mode != "infer":
            return spec
        largest = tf.reduce_max(logits)
        return spec._replace(predictions={"logits": logits, "largest": largest})

    single = estimators.one(stepping(momentum, ranked), tmp_path)
    single.train(estimators.input_fn, steps=1)
    rows = lambda: estimators.input_fn(sizes=(1,))  # noqa: E731
    expected = list(single.predict(rows, yield_single_examples=False))
    found = estimators.split(ranked, tmp_path, momentum, 4).predict(
        rows, yield_single_examples=False
    )
    estimators.require_same(expected, list(found))
    assert expected[0]["largest"].shape == ()


def test_training_and_evaluating_in_turn(tmp_path):
    train = estimator.TrainSpec(lambda: estimators.input_fn(sizes=(7, 2) * 2), max_steps=4)
    evaluate = estimator.EvalSpec(estimators.input_fn, throttle_secs=0, start_delay_secs=0)
    single = estimators.one(stepping(momentum), tmp_path / "one")
    several = estimators.split(model, tmp_path / "split", momentum)
    expected = replicate.estimator.train_and_evaluate(single, train, evaluate)
    found = replicate.estimator.train_and_evaluate(several, train, evaluate)
    estimators.require_same(expected[0], found[0], (1e-6, 1e-8))


def of_tpu(directory, name):
    """Returns what comes out of the model for TPUs, and what its host has written."""
    params = {"batch_size": 7, "host_dir": str(directory / f"host-{name}")}

    def single(features, labels, mode, params):
        return tpu.model_fn(features, labels, mode, params).as_estimator_spec()

    if name == "one":
        made = estimators.one(single, directory / name, params)
    else:
        made = estimators.split(tpu.model_fn, directory / name, params=params)
    found = estimators.outcomes(made, lambda: tpu.input_fn(params), ("train", "eval"))
    paths = tf.io.gfile.glob(f"{params['host_dir']}/*")
    events = [event for path in paths for event in tf1.train.summary_iterator(path)]
    # NOTE: which of the two a step writes first is up to the session, on one device as well.
    values = [
        (value.tag, event.step, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
    ]
    return {**found, "host": [value for _, _, value in sorted(values)]}


@pytest.mark.thorough
def test_a_spec_for_tpus_with_what_the_host_writes(tmp_path):
    expected, found = (of_tpu(tmp_path, name) for name in ("one", "split"))
    assert len(expected["host"]) >= 12  # two of each step
    estimators.require_same(expected, found, (2e-4, 2e-5))


# Canned estimators.

COLUMN = tf.feature_column
WORDS = COLUMN.categorical_column_with_identity("ids", estimators.WORDS)
NUMBERS = [COLUMN.numeric_column("x", [estimators.WIDTH])]
CANNED = {
    "linear": lambda made, **kw: made.LinearClassifier([*NUMBERS, WORDS], **kw),
    "deep": lambda made, **kw: made.DNNClassifier([6], NUMBERS, batch_norm=True, **kw),
    "wide_and_deep": lambda made, **kw: made.DNNLinearCombinedClassifier(
        linear_feature_columns=[WORDS],
        dnn_feature_columns=[*NUMBERS, COLUMN.embedding_column(WORDS, 3)],
        dnn_hidden_units=[6, 4],
        input_layer_partitioner=tf1.min_max_variable_partitioner(2, min_slice_size=16),
        **kw,
    ),
}


def for_canned():
    def narrow(features, labels):
        return {**features, "x": tf.cast(features["x"], tf.float32)}, tf.cast(labels, tf.int32)

    return estimators.input_fn().map(narrow)


def places_of(model_fn, name):
    """Returns the devices of variables whose names hold this."""
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        features, labels = tf1.data.make_one_shot_iterator(for_canned()).get_next()
        model_fn(features, labels, "train", estimators.run_config())
        return [v.device for v in tf1.trainable_variables() if name in v.op.name]


def ftrl():
    return tf1.train.FtrlOptimizer(0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CANNED)
def test_canned_estimators_keep_their_parts_and_checkpoints(tmp_path, name):
    optimizers = {"linear": {"optimizer": ftrl}, "deep": {"optimizer": momentum}}.get(
        name, {"linear_optimizer": ftrl, "dnn_optimizer": momentum}
    )
    make = lambda directory: CANNED[name](  # noqa: E731
        estimator.v1, model_dir=str(directory), config=estimators.run_config(), **optimizers
    )
    canned = make(tmp_path / "one")
    canned.train(for_canned, steps=1)
    other = make(tmp_path / "one")
    several = estimators.split(other.model_fn, tmp_path / "split", strategy="round_robin")
    shutil.copytree(canned.model_dir, several.model_dir)
    results = [estimators.outcomes(each, for_canned) for each in (canned, several)]
    if name == "wide_and_deep":
        assert len(set(places_of(several.model_fn, "embedding_weights/part_"))) == 2
    estimators.require_same(*results, (1e-3, 1e-5))
    again = make(tmp_path / "split").evaluate(for_canned)
    estimators.require_same(results[1]["metrics"], again, (1e-3, 1e-5))


# Parts of variables.


def parted(partitioner, found=None):
    """Returns a model whose table and layer have parts, which notes where they are."""

    def model_fn(features, labels, mode):
        with tf1.variable_scope("parted", partitioner=partitioner):
            spec = model(features, labels, mode)
        if found is not None:
            found.update({v.op.name: v.device for v in tf1.global_variables()})
        return spec

    return model_fn


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["parameter_server", "round_robin", "balanced", "mirrored"])
def test_parts_of_variables_lie_where_the_strategy_puts_them(tmp_path, strategy):
    places: dict = {}
    partitioner = tf1.fixed_size_partitioner(2)
    found = require_one_device(
        tmp_path,
        parted(partitioner, places),
        momentum,
        stepping(momentum, parted(partitioner)),
        strategy=strategy,
    )
    assert "parted/table/Momentum" in found["variables"]
    parts = [places[f"parted/table/part_{n}"] for n in range(2)]
    several = strategy in ("round_robin", "balanced")
    assert len(set(parts)) == (2 if several else 1), places


@pytest.mark.thorough
def test_checkpoints_with_parts_go_on_without_and_back(tmp_path):
    whole, cut = parted(None), parted(tf1.fixed_size_partitioner(3))
    single = estimators.one(stepping(momentum, whole), tmp_path / "one")
    expected = [estimators.outcomes(single) for _ in range(3)]
    makers = [
        lambda: estimators.split(cut, tmp_path / "split", momentum, strategy="round_robin"),
        lambda: estimators.one(stepping(momentum, whole), tmp_path / "split"),
        lambda: estimators.split(cut, tmp_path / "split", momentum, 1),
    ]
    for make, each in zip(makers, expected, strict=True):
        estimators.require_same(each, estimators.outcomes(make()))


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["round_robin", "mirrored"])
def test_a_warm_start_from_one_device(tmp_path, strategy):
    single = estimators.one(stepping(momentum), tmp_path / "one")
    single.train(estimators.input_fn, steps=2)
    reference = estimators.one(stepping(momentum), tmp_path / "other")
    several = estimators.split(model, tmp_path / "split", momentum, strategy=strategy)
    results = []
    for made in (reference, several):
        settings = estimator.WarmStartSettings(str(tmp_path / "one"), ["table", "dense/.*"])
        warm = estimator.Estimator(made._model_fn, made.model_dir, made.config, None, settings)
        results.append(estimators.outcomes(warm))
    estimators.require_same(*results)


def predictions_of(made):
    return list(made.predict(estimators.input_fn, yield_single_examples=False))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["call", "split"])
def test_checkpoints_of_all_ways_interchange(tmp_path, way):
    single = estimators.one(stepping(momentum), tmp_path)
    several = estimators.split(model, tmp_path, momentum)
    other = estimators.split(model, tmp_path, momentum, tower_building=way)
    names = []
    for trained in (single, other, several):
        trained.train(estimators.input_fn, steps=1)
        names.append(set(trained.get_variable_names()))
        expected = predictions_of(single)
        for made in (several, other):
            estimators.require_same(expected, predictions_of(made))
    assert names[0] == names[1] == names[2]


def collected(build):
    """Returns what a graph's collections hold, by names."""
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        features, labels = next(iter(estimators.batches()))
        build(tf.nest.map_structure(tf.constant, features), tf.constant(labels), "train")
        names = {op.name: op.type for op in graph.get_operations()}
        return names, {
            key: [getattr(item, "name", str(item)) for item in graph.get_collection(key)]
            for key in graph.get_all_collection_keys()
        }


@pytest.mark.parametrize("num_devices", [1, 3])
def test_names_and_collections_are_one_devices(num_devices):
    def summarized(features, labels, mode):
        spec = model(features, labels, mode)
        tf1.layers.batch_normalization(features["x"], training=True)
        tf1.summary.scalar("loss", spec.loss)
        tf1.losses.add_loss(spec.loss)
        return spec

    single = stepping(momentum, summarized)
    names, expected = collected(single)
    made = model_fn.replicate_model_fn(single, None, num_devices, tower_building="split")
    more, found = collected(made)
    assert found == expected
    assert names.items() <= more.items()
    own = {name for name in more if not name.startswith(("tower_", "replicate_"))}
    # What is grouped lies on several devices, and has an operation for each.
    assert {name for name in own - set(names) if "group_deps" not in name} == set()
    assert num_devices > 1 or own == set(more)


# Exports.


def serving():
    features = {
        "x": tf1.placeholder(tf.float64, [None, estimators.WIDTH], "x"),
        "ids": tf1.placeholder(tf.int64, [None, 2], "ids"),
    }
    return estimator.export.ServingInputReceiver(features, features)


def exported(features, labels, mode):
    """A model with a table, batch statistics, a loop, and several signatures."""
    hidden = tf1.layers.batch_normalization(features["x"], training=mode == "train")
    spec = model({**features, "x": hidden}, labels, mode)
    logits = spec.predictions["logits"]
    outputs = {
        "serving_default": estimator.export.PredictOutput({"logits": logits}),
        "looped": estimator.export.PredictOutput({"twice": tf.map_fn(lambda x: 2 * x, logits)}),
    }
    return spec._replace(export_outputs=outputs) if mode == "infer" else spec


@pytest.fixture(scope="module", params=["parameter_server", "mirrored"])
def trained(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported")
    made = estimators.split(exported, directory, momentum, strategy=request.param)
    made.train(estimators.input_fn)
    return made


def devices_in(path, mode="infer"):
    """Returns all devices that are named in an export, which has each variable once.

    What trains writes the copies of mirrored variables too, and has them.
    """
    (meta_graph,) = placed_towers.export.read(path).meta_graphs
    nodes = meta_graph.graph_def.node
    handles = [node.name for node in nodes if node.op == "VarHandleOp"]
    assert "table" in handles
    assert mode == "train" or not [name for name in handles if name.startswith("tower_")]
    return {node.device for node in nodes}


@pytest.mark.thorough("mirrored-*")
@pytest.mark.parametrize("way", ["estimator", "one", "merged"])
def test_exports_predict_as_the_estimator_on_any_machine(tmp_path, trained, way):
    if way == "estimator":
        path = trained.export_saved_model(str(tmp_path), serving)
    else:
        path = replicate.export_saved_model(trained, str(tmp_path), serving, towers=way)
    path = path.decode()
    assert devices_in(path) == {""}
    expected = [
        each["logits"] for each in trained.predict(estimators.input_fn, yield_single_examples=False)
    ]
    with predictor.load_exported(path) as loaded:
        assert set(loaded.signatures) == {"serving_default", "looped"}
        for (features, _), logits in zip(estimators.batches(), expected, strict=True):
            np.testing.assert_allclose(loaded(features)["logits"], logits, 1e-12)
            np.testing.assert_allclose(loaded(features, "looped")["twice"], 2 * logits, 1e-12)
        (meta_graph,) = placed_towers.export.read(path).meta_graphs
        for name, key in (("serving_default", "logits"), ("looped", "twice")):
            shape = meta_graph.signature_def[name].outputs[key].tensor_shape
            assert [each.size for each in shape.dim] == [-1, 1]


@pytest.mark.thorough("mirrored")
def test_towers_of_a_merged_export_are_placed_again(tmp_path, trained):
    path = replicate.export_saved_model(trained, str(tmp_path), serving, towers="merged").decode()
    placed = replicate.place_towers(path, ["/cpu:4", "/cpu:5", "/cpu:6"])
    (meta_graph,) = placed_towers.export.read(placed).meta_graphs
    found = collections.defaultdict(set)
    for node in meta_graph.graph_def.node:
        if node.op == "MatMul":
            found[node.name.split("/")[0]].add(node.device)
    assert found == {f"tower_{k}": {f"/device:CPU:{4 + k}"} for k in range(3)}
    (features, _), *_ = estimators.batches()
    with predictor.load_exported(placed) as loaded, predictor.load_exported(path) as plain:
        np.testing.assert_allclose(loaded(features)["logits"], plain(features)["logits"], 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("towers", ["one", "merged"])
def test_exports_of_other_modes(tmp_path, trained, mode, towers):
    def receiver():
        labels = tf1.placeholder(tf.bool, [None, 1], "labels")
        build = estimator.experimental.build_raw_supervised_input_receiver_fn
        return build(serving().features, labels)()

    path = replicate.export_saved_model(
        trained, str(tmp_path), receiver, towers=towers, experimental_mode=mode
    ).decode()
    assert devices_in(path, mode) == {""}
    expected = trained.evaluate(lambda: estimators.input_fn(sizes=(7,)))
    (features, labels), *_ = estimators.batches()
    with predictor.load_exported(path, tags=[mode]) as loaded:
        (signature,) = loaded.signatures
        found = loaded({**features, "label": labels}, signature)
    if mode == "eval":
        np.testing.assert_allclose(found["loss"], expected["loss"], 1e-6)
