"""`replicate_model_fn` from outside: what a user of an Estimator relies on."""

import contextlib
import functools
import gc
import re

import numpy as np
import pytest
from tensorflow.python.training import moving_averages

from replicate import errors, estimator, model_fn
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.training import tower_optimizer

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


@pytest.mark.parametrize(
    ("reduction", "loss", "after"),
    # Gradients of w * x are x: 1 and 2. Sum: 10 - (1 + 2); mean: 10 - (1 + 2) / 2.
    # Losses are 10 and 20.
    [("sum", 30.0, 7.0), ("mean", 15.0, 8.5), (None, 30.0, 7.0)],
)
def test_loss_reduction_decides_the_step(reduction, loss, after):
    spec, graph = built(
        linear_model_fn, optimizer_fn=descend, devices=TWO, loss_reduction=reduction
    )
    found_loss, _, found = run(graph, spec.loss, spec.train_op, lambda: weight(graph))
    assert (found_loss, found) == (loss, after)


def test_one_row_is_predicted_on_eight_towers():
    spec, graph = built(
        linear_model_fn, "infer", lambda: {"x": tf.constant([3.0])}, optimizer_fn=descend, devices=8
    )
    np.testing.assert_array_equal(run(graph, spec.predictions)[0]["y"], [30.0])


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("static", [True, False])
def test_predictions_keep_the_order_of_the_batch(rows, static):
    def features():
        x = np.arange(rows, dtype=np.float32)
        return {"x": tf.constant(x) if static else tf1.placeholder_with_default(x, [None])}

    spec, graph = built(linear_model_fn, "infer", features, devices=8)
    np.testing.assert_array_equal(run(graph, spec.predictions)[0]["y"], np.arange(rows) * 10.0)


def counting_model_fn(features, labels, mode):
    """A loss and metrics over the rows of features["x"]."""
    w = tf1.get_variable("w", initializer=1.0)
    error = tf.square(features["x"] * w - labels)
    return estimator.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(error),
        predictions=features["x"],
        eval_metric_ops={
            "mean": tf1.metrics.mean(error),
            "rows": tf1.metrics.true_positives(tf.ones_like(labels), tf.ones_like(labels)),
        },
    )


@pytest.mark.parametrize("rows", [1, 5])
def test_evaluation_counts_every_row_once(rows):
    x, y = np.arange(rows, dtype=np.float32), np.full(rows, 2.0, np.float32)

    def evaluate(**options):
        model = counting_model_fn
        if options:
            model = model_fn.replicate_model_fn(model, descend, **options)
        graph = tf.Graph()
        with graph.as_default():
            features = {"x": tf1.placeholder_with_default(x, [None])}
            spec = model(features, tf1.placeholder_with_default(y, [None]), "eval")
            values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
            updates = [update for _, update in spec.eval_metric_ops.values()]
        loss, _, predictions, values = run(graph, spec.loss, updates, spec.predictions, values)
        return loss, predictions, values

    loss, predictions, values = evaluate(devices=2)
    expected_loss, expected_predictions, expected_values = evaluate()
    assert values["rows"] == rows
    assert loss == pytest.approx(expected_loss)
    assert values == pytest.approx(expected_values)
    np.testing.assert_array_equal(predictions, expected_predictions)


def three_kinds_model_fn(features, labels, mode):
    """Unnamed layers, a Keras layer, and a bare variable."""
    hidden = tf1.layers.dense(features["x"][:, None], 3)
    hidden = tf1.layers.dense(hidden, 3)
    hidden = tf.keras.layers.Dense(2)(hidden)
    bare = tf.Variable(tf.zeros([2]), name="bare")
    output = tf.reduce_sum(hidden + bare, axis=1)
    loss = tf.reduce_mean(tf.square(output - labels))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op(), predictions=output)


def variable_names(graph):
    return [v.name for v in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)]


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
def test_weights_have_one_copy_and_the_names_of_one_device():
    def labels():
        return tf.constant([0.0, 1.0])

    def one_device():
        graph = tf.Graph()
        with graph.as_default():
            tf1.train.create_global_step()
            loss = three_kinds_model_fn({"x": tf.constant([1.0, 2.0])}, labels(), "train").loss
            tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        return variable_names(graph)

    _, graph = built(
        three_kinds_model_fn,
        labels=labels,
        optimizer_fn=lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
        devices=3,
    )
    assert variable_names(graph) == one_device()
    assert len(graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)) == 7


@pytest.mark.parametrize(
    ("building", "towers"),
    [("split", {"tower_0/mul", "tower_1/mul"}), ("call", {"tower_1/mul"})],
)
def test_the_model_keeps_its_names_beside_those_of_towers(building, towers):
    options = {"optimizer_fn": descend, "devices": TWO, "tower_building": building}
    _, graph = built(linear_model_fn, **options)
    names = {op.name for op in graph.get_operations() if op.type == "Mul"}
    assert "mul" in names
    assert {name for name in names if re.fullmatch(r"tower_\d+/mul", name)} == towers


@pytest.mark.parametrize(("building", "first"), [("split", "tower_0/mul"), ("call", "mul")])
def test_operations_go_to_the_towers_and_variables_to_the_parameter_device(building, first):
    devices = ["/cpu:1", "/cpu:2"]
    options = {"optimizer_fn": descend, "devices": devices, "tower_building": building}
    _, graph = built(linear_model_fn, **options)
    assert graph.get_operation_by_name("w").device == "/device:CPU:0"
    assert graph.get_operation_by_name(first).device == "/device:CPU:1"
    assert graph.get_operation_by_name("tower_1/mul").device == "/device:CPU:2"


@pytest.mark.parametrize("building", ["split", "call"])
def test_a_device_that_the_user_names_is_kept(building):
    def model(features, labels, mode):
        with tf1.device("/cpu:5"):
            doubled = tf.multiply(features["x"], 2.0, name="doubled")
        return linear_model_fn({"x": doubled}, labels, mode)

    devices = ["/cpu:1", "/cpu:2"]
    options = {"optimizer_fn": descend, "devices": devices, "tower_building": building}
    _, graph = built(model, **options)
    assert graph.get_operation_by_name("tower_1/doubled").device == "/device:CPU:5"


def test_one_gpu_is_its_own_parameter_device():
    _, graph = built(linear_model_fn, optimizer_fn=descend, devices=["/gpu:0"])
    assert graph.get_operation_by_name("w").device == "/device:GPU:0"


def test_one_device_adds_no_operation_for_splitting_or_reducing():
    _, graph = built(linear_model_fn, optimizer_fn=descend, devices=["/cpu:0"])
    kinds = {op.type for op in graph.get_operations()}
    assert not kinds & {"Split", "SplitV", "ConcatV2", "AddN", "StridedSlice"}


def test_a_tower_with_a_variable_of_its_own_is_refused():
    calls = []

    def model(features, labels, mode):
        calls.append(0)
        tf1.get_variable(f"v{len(calls)}x", initializer=1.0)
        return linear_model_fn(features, labels, mode)

    with pytest.raises(
        errors.TowerMismatchError, match=r"tower 1 created v2x .*tower 0 created v1x"
    ):
        built(model, optimizer_fn=descend, devices=TWO, tower_building="call")


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_tower_that_leaves_out_a_variable_is_refused(mode):
    calls = []

    def model(features, labels, mode):
        calls.append(0)
        if len(calls) == 1:
            tf1.get_variable("only_once", initializer=1.0)
        return linear_model_fn(features, labels, mode)

    with pytest.raises(errors.TowerMismatchError, match="tower 1 did not create only_once"):
        built(model, mode, optimizer_fn=descend, devices=TWO, tower_building="call")


@pytest.mark.parametrize(("building", "calls"), [("split", 1), ("call", 2)])
def test_model_fn_gets_only_the_arguments_it_names(building, calls):
    seen = []

    def model(features, mode, params):
        params["seen"] = True
        seen.append(sorted(params))
        return linear_model_fn(features, None, mode)

    replicated = model_fn.replicate_model_fn(
        model, lambda params: descend(), TWO, tower_building=building
    )
    params = {"rate": 1.0}
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        replicated({"x": tf.constant([1.0, 2.0])}, None, "train", params)
    assert seen == [["rate", "seen"]] * calls
    assert params == {"rate": 1.0}


def test_partial_and_callable_objects_are_model_fns():
    class Model:
        def __call__(self, features, labels, mode, scale=1.0):
            return linear_model_fn({"x": features["x"] * scale}, labels, mode)

    for model in (Model(), functools.partial(Model(), scale=1.0)):
        spec, graph = built(model, optimizer_fn=descend, devices=TWO)
        assert run(graph, spec.loss) == [30.0]


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


@pytest.mark.parametrize("towers", [1, 3, 8])
def test_a_metric_may_be_its_variable_and_a_mean(towers):
    def model(features, labels, mode):
        del labels
        level = tf1.get_variable(
            "level",
            initializer=0.0,
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
        update = level.assign(tf.reduce_mean(features["x"]))
        loss = tf.reduce_mean(features["x"])
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"level": (level, update)})

    def features():
        return {"x": tf1.placeholder_with_default([4.0, 4.0], [None])}

    spec, graph = built(model, "eval", features, devices=towers)
    value, update = spec.eval_metric_ops["level"]
    _, _, found = run(graph, update, update, value)
    assert found == 4.0


@pytest.mark.parametrize("towers", [1, 3])
def test_a_metric_that_counts_in_a_variable_of_its_own_counts_once(towers):
    def model(features, labels, mode):
        del labels
        count = tf1.get_variable(
            "count",
            initializer=0.0,
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            synchronization=tf.VariableSynchronization.ON_READ,
        )
        update = count.assign_add(tf.cast(tf.size(tf.unique(features["x"]).y), tf.float32))
        loss = tf.reduce_mean(features["x"])
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"count": (count, update)})

    def features():
        return {"x": tf1.placeholder_with_default([1.0, 2.0, 3.0, 4.0, 5.0], [None])}

    spec, graph = built(model, "eval", features, devices=towers)
    value, update = spec.eval_metric_ops["count"]
    # Five values that are all different, in two batches.
    _, _, found = run(graph, update, update, value)
    assert found == 10.0


class LoneDescent(tf1.train.Optimizer):
    """Assigns by itself, as optimizers that are older than distribution do."""

    def __init__(self):
        super().__init__(use_locking=False, name="LoneDescent")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return tf.group(*[v.assign_sub(g) for g, v in grads_and_vars], name=name)


def lone_model_fn(optimizer_of):
    def model(features, labels, mode):
        spec = linear_model_fn(features, labels, mode)
        optimizer = optimizer_of(LoneDescent())
        return spec._replace(train_op=optimizer.minimize(spec.loss))

    return model


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, tower_optimizer.TowerOptimizer])
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_an_optimizer_that_assigns_by_itself_works_unchanged(wrap, strategy):
    spec, graph = built(lone_model_fn(wrap), devices=TWO, strategy=strategy)
    # The loss is a sum: its gradient is 1 + 2, from 10.
    assert run(graph, spec.train_op, lambda: weight(graph))[1] == 7.0


def test_weights_may_be_clipped_behind_the_step():
    def model(features, labels, mode):
        spec = linear_model_fn(features, labels, mode)
        train_op = descend().minimize(spec.loss)
        (w,) = tf1.trainable_variables()
        with tf1.control_dependencies([train_op]):
            return spec._replace(train_op=tf.group(w.assign(tf.clip_by_value(w, 0.0, 5.0))))

    spec, graph = built(model, devices=TWO)
    assert run(graph, spec.train_op, lambda: weight(graph))[1] == 5.0


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


def test_one_step_takes_the_gradients_of_two_losses():
    def model(features, labels, mode):
        w = tf1.get_variable("w", initializer=10.0)
        other = tf1.get_variable("other", initializer=10.0)
        loss = tf.reduce_mean(features["x"] * w)
        beside = tf.reduce_mean(features["x"] * other)
        optimizer = descend()
        pairs = optimizer.compute_gradients(loss, [w])
        pairs.append((tf.gradients(beside, [other])[0], other))
        return estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.apply_gradients(pairs))

    spec, graph = built(model, features=lambda: {"x": tf.constant([1.0, 2.0, 6.0])}, devices=TWO)
    trained = graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
    found = run(graph, spec.train_op, lambda: [v.read_value() for v in trained])[1]
    # One device's gradient is the mean, 3, for either.
    np.testing.assert_allclose(found, [7.0, 7.0], rtol=1e-6)


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


@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server", "one_device"])
def test_a_moving_average_can_be_used_where_it_is_moved(strategy):
    def model(features, labels, mode):
        del labels
        kept = tf1.get_variable("kept", initializer=8.0, trainable=False)
        mean = tf.reduce_mean(features["x"])
        moved = moving_averages.assign_moving_average(kept, mean, 0.75, zero_debias=False)
        used = tf1.get_variable("used", initializer=0.0, trainable=False)
        spec = linear_model_fn(features, None, mode)
        return spec._replace(train_op=used.assign(tf.convert_to_tensor(moved) * 2.0).op)

    def features():
        return {"x": tf.constant([1.0, 2.0, 6.0])}

    devices = TWO[:1] if strategy == "one_device" else TWO
    spec, graph = built(model, "train", features, devices=devices, strategy=strategy)
    _, found = run(graph, spec.train_op, lambda: {v.name: v for v in tf1.global_variables()})
    # 0.75 * 8 + 0.25 * 3 = 6.75, of which the double is kept.
    assert (found["kept:0"], found["used:0"]) == (6.75, 13.5)


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
