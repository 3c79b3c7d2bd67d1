"""`replicate_model_fn` from outside: what a user of an Estimator relies on."""

import contextlib
import functools
import gc

import numpy as np
import pytest

from replicate import errors, estimator, model_fn
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1

TWO = ["/cpu:0", "/cpu:1"]


def linear_model_fn(features, labels, mode):
    """loss = w * x, with w = 10."""
    del labels
    w = tf1.get_variable("w", initializer=10.0)
    predictions = features["x"] * w
    loss = tf.reduce_sum(predictions)
    metrics = {"count": tf1.metrics.mean(predictions)}
    return estimator.EstimatorSpec(
        mode,
        predictions={"y": predictions},
        loss=loss,
        eval_metric_ops=metrics if mode == "eval" else None,
        train_op=tf.no_op(),
    )


def descend():
    return tf1.train.GradientDescentOptimizer(1.0)


def built(model, mode="train", features=None, labels=None, **options):
    """Builds a spec in a fresh graph; returns it with the graph."""
    graph = tf.Graph()
    with graph.as_default():
        tf1.train.create_global_step()
        features = {"x": tf.constant([1.0, 2.0])} if features is None else features()
        labels = labels() if callable(labels) else labels
        spec = model_fn.replicate_model_fn(model, **options)(features, labels, mode)
    return spec, graph


def run(graph, *fetches):
    """Runs each of the fetches after the other, and returns their results."""
    with graph.as_default(), tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        return [session.run(fetch() if callable(fetch) else fetch) for fetch in fetches]


def weight(graph):
    return graph.get_tensor_by_name("w/Read/ReadVariableOp:0")


def variable_names(graph):
    return [v.name for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)]


@pytest.mark.parametrize(("building", "first"), [("split", "tower_0/"), ("call", "")])
def test_operations_go_to_the_towers_and_variables_to_the_parameter_device(building, first):
    def model(features, labels, mode):
        with tf1.device("/cpu:5"):
            doubled = tf.multiply(features["x"], 2.0, name="doubled")
        return linear_model_fn({"x": doubled}, labels, mode)

    devices = ["/cpu:1", "/cpu:2"]
    options = {"optimizer_fn": descend, "devices": devices, "tower_building": building}
    _, graph = built(model, **options)
    found = {op.name: op.device for op in graph.get_operations()}
    assert "mul" in found  # the model keeps its names beside those of towers
    assert ("tower_0/mul" in found) == bool(first)
    assert found["w"] == "/device:CPU:0"
    assert (found[f"{first}mul"], found["tower_1/mul"]) == ("/device:CPU:1", "/device:CPU:2")
    assert found["tower_1/doubled"] == "/device:CPU:5"  # which the user names


def test_one_gpu_is_its_own_parameter_device():
    _, graph = built(linear_model_fn, optimizer_fn=descend, devices=["/gpu:0"])
    assert graph.get_operation_by_name("w").device == "/device:GPU:0"


@pytest.mark.parametrize(("building", "calls"), [("split", 1), ("call", 2)])
def test_model_fn_gets_only_the_arguments_it_names(building, calls):
    seen = []

    def model(features, mode, params):
        params["seen"] = True
        seen.append(sorted(params))
        return linear_model_fn(features, None, mode)

    replicated = model_fn.replicate_model_fn(
        model,
        lambda params: tf1.train.GradientDescentOptimizer(params["rate"]),
        TWO,
        tower_building=building,
    )
    params = {"rate": 1.0}
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        replicated({"x": tf.constant([1.0, 2.0])}, None, "train", params)
    assert seen == [["rate", "seen"]] * calls
    assert params == {"rate": 1.0}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "ring"}, "strategy is one of"),
        ({"update_ops": "last"}, "update_ops is one of"),
        ({"loss_reduction": "none"}, "loss_reduction"),
        ({"optimizer_fn": 3}, "optimizer_fn must be a function"),
        (
            {"optimizer_fn": "Adam"},
            "of no arguments or of params, .* got 'Adam'. Write e.g. optimizer_fn=lambda: tf",
        ),
    ],
)
def test_options_that_do_not_exist_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        model_fn.replicate_model_fn(linear_model_fn, **options)


def test_specs_that_differ_between_towers_are_refused():
    calls = []

    def model(features, labels, mode):
        calls.append(f"y{len(calls) + 1}")
        key = calls[-1]
        spec = linear_model_fn(features, labels, mode)
        return spec._replace(predictions={key: spec.predictions["y"]})

    with pytest.raises(errors.TowerMismatchError, match=r"tower 1 returned the keys \['y2'\]"):
        built(model, "infer", devices=TWO, tower_building="call")


@pytest.mark.parametrize("building", ["split", "call"])
def test_a_layer_kept_outside_of_the_model_fn_has_one_copy(building):
    layers = []

    def model(features, labels, mode):
        # The last of these is asked for in every call, the kept ones in the first alone.
        if not layers:
            layers.append(tf.keras.layers.Dense(3, kernel_initializer="ones"))
        own = tf.keras.layers.Dense(1, kernel_initializer="ones")
        hidden = layers[0](features["x"][:, None])
        loss = tf.reduce_mean(tf.square(own(hidden) - labels[:, None]))
        return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())

    def weights(**options):
        layers.clear()
        labels = functools.partial(tf.constant, [1.0, 2.0, 3.0])
        features = lambda: {"x": tf.constant([1.0, -2.0, 0.5])}  # noqa: E731 - built late
        options = {"optimizer_fn": descend, **options}
        spec, graph = built(model, features=features, labels=labels, **options)
        trained = graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
        names = [variable.name for variable in trained]
        return names, run(graph, spec.train_op, lambda: [v.read_value() for v in trained])[1]

    expected_names, expected = weights(devices=1)
    for strategy in ("parameter_server", "mirrored"):
        names, found = weights(devices=3, strategy=strategy, tower_building=building)
        assert names == expected_names
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("name", ["mod", "range", "shape", "truediv", "cast"])
def test_splitting_takes_no_name_from_the_models_variables(name):
    def model(features, labels, mode):
        with tf1.name_scope(name):
            scale = tf.Variable(1.0, name="scale")
        return linear_model_fn({"x": features["x"] * scale}, labels, mode)

    def names(devices):
        def features():
            return {"x": tf1.placeholder_with_default([1.0, 2.0, 3.0], [None])}

        _, graph = built(model, features=features, optimizer_fn=descend, devices=devices)
        return variable_names(graph)

    assert names(3) == names(1)


def test_names_of_operations_find_variables_in_every_tower():
    def model(features, labels, mode):
        tf1.get_variable("other", initializer=1.0)
        spec = linear_model_fn(features, labels, mode)
        chosen = [v for v in tf1.trainable_variables() if v.op.name.startswith("w")]
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        train_op = optimizer.minimize(spec.loss, tf1.train.get_global_step(), chosen)
        return spec._replace(train_op=train_op)

    spec, graph = built(model, devices=TWO, strategy="mirrored", loss_reduction="mean")
    _, after = run(graph, spec.train_op, lambda: weight(graph))
    assert after == 8.5


@pytest.mark.parametrize("limit", [1e38, float("inf")])
def test_a_limit_that_no_gradient_reaches_changes_nothing(limit):
    spec, graph = built(linear_model_fn, optimizer_fn=descend, devices=TWO, clip_global_norm=limit)
    assert run(graph, spec.train_op, lambda: weight(graph))[1] == 7.0


@pytest.mark.parametrize("update_ops", [None, "first", "mean", "all"])
def test_what_a_train_op_does_besides_it_does_once(update_ops):
    def model(features, labels, mode):
        spec = linear_model_fn(features, labels, mode)
        counted = tf1.assign_add(tf1.train.get_global_step(), 1)
        return spec._replace(train_op=tf.group(descend().minimize(spec.loss), counted))

    spec, graph = built(model, devices=TWO, update_ops=update_ops)
    step = graph.get_collection(tf1.GraphKeys.GLOBAL_STEP)[0]
    assert run(graph, spec.train_op, spec.train_op, step)[2] == 2


@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server", "one_device"])
def test_an_estimator_may_be_used_inside_of_the_strategys_scope(strategy, tmp_path):
    devices = TWO[:1] if strategy == "one_device" else TWO
    make = {
        "mirrored": core.MirroredStrategy,
        "parameter_server": core.LocalParameterServerStrategy,
        "one_device": lambda devices: core.OneDeviceStrategy(devices[0]),
    }
    chosen = make[strategy](devices)
    replicated = model_fn.replicate_model_fn(linear_model_fn, descend, strategy=chosen)
    config = estimator.RunConfig(
        session_config=tf1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
    )

    def input_fn():
        return tf.data.Dataset.from_tensors({"x": tf.constant([1.0, 2.0])})

    with chosen.scope():
        made = estimator.Estimator(replicated, str(tmp_path), config)
        made.train(input_fn)
        # The gradient of w * 1 + w * 2 is 3, so w is 10 - 3 = 7, and the loss 7 + 14 = 21.
        evaluated = made.evaluate(input_fn)
        predicted = [row["y"] for row in made.predict(input_fn)]
    assert sorted(made.get_variable_names()) == ["global_step", "w"]
    assert made.get_variable_value("w") == 7.0
    assert (evaluated["loss"], evaluated["global_step"]) == (21.0, 1)
    assert predicted == [7.0, 14.0]


@pytest.mark.thorough("True-True")
@pytest.mark.parametrize("was_enabled", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_not_looked_for_while_a_model_is_built(was_enabled, fails):
    seen = []

    def model(features, labels, mode):
        seen.append(gc.isenabled())
        if fails:
            raise ValueError("no model")
        return linear_model_fn(features, labels, mode)

    gc.collect()
    gc.enable() if was_enabled else gc.disable()
    try:
        with pytest.raises(ValueError) if fails else contextlib.nullcontext():
            built(model, "infer", devices=TWO)
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
    assert not any(seen)


@pytest.mark.parametrize("towers", [1, 3])
@pytest.mark.parametrize("building", ["split", "call"])
def test_what_the_models_own_step_updates_is_kept_beside_optimizer_fn(towers, building):
    def model(features, labels, mode):
        layer = tf.keras.layers.BatchNormalization()
        count = tf1.get_variable("count", initializer=0, trainable=False)
        y = tf1.layers.dense(layer(features["x"], training=True), 1, name="y")
        loss = tf.reduce_mean(tf.square(y))
        optimizer = tf.keras.optimizers.legacy.Adam(0.1)
        optimizer.iterations = tf1.train.get_global_step()
        steps = optimizer.get_updates(loss, tf1.trainable_variables())
        own = tf.group(*steps, *layer.updates, count.assign(1) if building == "split" else [])
        return estimator.EstimatorSpec(mode, loss=loss, train_op=own)

    with tf.Graph().as_default():
        tf1.train.create_global_step()
        features = {"x": tf.random.uniform([6, 2])}
        options = {"devices": towers, "tower_building": building}
        model_fn.replicate_model_fn(model, descend, **options)(features, None, "train")
        kept = {variable.op.name for variable in tf1.global_variables()}
    statistics = {f"batch_normalization/moving_{name}" for name in ("mean", "variance")}
    weights = {"y/kernel", "y/bias", "batch_normalization/gamma", "batch_normalization/beta"}
    expected = statistics | weights | {"count", "global_step"}
    if (towers, building) == (3, "call"):  # settings of a Keras optimizer stay behind
        kept -= {f"Adam/{name}" for name in ("beta_1", "beta_2", "decay", "learning_rate")}
    assert kept == expected


@pytest.mark.parametrize("building", ["split", "call"])
@pytest.mark.parametrize("towers", [1, 2])
def test_a_traceback_leads_straight_to_the_model_fn(building, towers, monkeypatch):
    def model(features, labels, mode):
        tf.reshape(features["x"], [3])

    def frames():
        with pytest.raises(ValueError, match="Cannot reshape") as raised:
            built(model, devices=towers, tower_building=building)
        files = [(entry.path.name, entry.name) for entry in raised.traceback]
        return files, getattr(raised.value, "__notes__", [])

    found, notes = frames()
    start = found.index(("model_fn.py", "__call__"))
    assert found[start + 1] == ("test_model_fn.py", "model")
    is_in_towers = building == "call" and towers > 1
    assert notes == (["raised in tower 0 of 2"] if is_in_towers else [])
    monkeypatch.setenv("REPLICATE_DEBUG", "1")
    assert len(frames()[0]) > len(found) + 4


def test_an_error_of_ours_keeps_its_traceback():
    with pytest.raises(errors.DeviceError) as raised:
        built(linear_model_fn, devices=99)
    assert raised.traceback[-1].path.name == "devices.py"
