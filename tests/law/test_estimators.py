"""What an Estimator does around the model_fn: hooks, savers, warm starts."""

import functools
import gc
import itertools
import pathlib

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting import estimators
from tests.splitting.estimators import input_fn, model

STRATEGIES = ("parameter_server", "mirrored")
(BATCH,) = estimators.batches(sizes=(5,))


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def made(of, directory, strategy="parameter_server", **options):
    """An Estimator of the model on two devices."""
    return estimators.split(of, directory, momentum, 2, strategy=strategy, **options)


def single(of, directory):
    """An Estimator of the model on one device."""
    return estimators.one(estimators.stepping(momentum, of), directory)


def constants():
    """Returns a batch in the current graph, which has a step."""
    tf1.train.create_global_step()
    return tf.nest.map_structure(tf.constant, BATCH)


def members_of(variable):
    return getattr(variable, "members", [variable])


class Resetting(tf1.train.SessionRunHook):
    """Runs an operation by itself ahead of each step."""

    def __init__(self, op):
        self._op = op

    def before_run(self, run_context):
        run_context.session.run(self._op)


def resetting(features, labels, mode):
    """A model that counts its rows, in each batch anew."""
    spec = model(features, labels, mode)
    options = {"trainable": False, "collections": [tf1.GraphKeys.LOCAL_VARIABLES]}
    seen = tf1.get_variable("seen", initializer=0.0, **options)
    rows = tf.cast(tf.shape(features["x"])[0], tf.float32)
    return spec._replace(
        eval_metric_ops={**spec.eval_metric_ops, "seen": (seen, seen.assign_add(rows))},
        evaluation_hooks=[Resetting(seen.assign(0.0))],
    )


@pytest.mark.thorough("parameter_server")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_hook_that_resets_a_variable_reads_no_batch(tmp_path, strategy):
    expected = single(resetting, tmp_path).train(input_fn, steps=1).evaluate(input_fn, 3)
    found = made(resetting, tmp_path, strategy).evaluate(input_fn, 3)
    assert found["seen"] == 1.0  # the last batch has one row
    exactness.compare(found, expected)


class Counting(tf1.train.SessionRunHook):
    def __init__(self):
        self.begun = self.runs = self.ended = 0

    def begin(self):
        self.begun += 1

    def after_run(self, run_context, run_values):
        self.runs += 1

    def end(self, session):
        self.ended += 1

    @property
    def counts(self):
        return self.begun, self.runs, self.ended


@pytest.mark.thorough("split")
@pytest.mark.parametrize("tower_building", ["split", "call"])
def test_hooks_of_every_kind_run_once_per_step(tmp_path, tower_building):
    made_by_model = {key: [] for key in ("training", "chief", "evaluation", "prediction")}

    def hooked(features, labels, mode):
        hooks = {key: Counting() for key in made_by_model}
        fields = {"evaluation_hooks": [hooks["evaluation"]]}
        if mode == "train":
            fields = {"training_hooks": [hooks["training"]]}
            fields["training_chief_hooks"] = [hooks["chief"]]
        elif mode == "infer":
            fields = {"prediction_hooks": [hooks["prediction"]]}
        for field in fields.values():
            key = next(key for key, hook in hooks.items() if hook is field[0])
            made_by_model[key].append(hooks[key])
        return model(features, labels, mode)._replace(**fields)

    run = made(hooked, tmp_path, tower_building=tower_building)
    outside = [Counting() for _ in range(3)]
    run.train(input_fn, hooks=[outside[0]], steps=3)
    run.evaluate(input_fn, steps=2, hooks=[outside[1]])
    list(run.predict(input_fn, hooks=[outside[2]]))
    found = {key: [hook.counts for hook in hooks] for key, hooks in made_by_model.items()}
    # Of towers, the first one's run.
    others = [(0, 0, 0)] if tower_building == "call" else []
    assert found["training"] == found["chief"] == [(1, 3, 1), *others]
    assert found["evaluation"] == [(1, 2, 1), *others]
    assert [begun for begun, _, _ in found["prediction"]] == [1, *[0 for _ in others]]
    assert [hook.begun for hook in outside] == [1, 1, 1]


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_saving_listeners_hear_of_each_checkpoint(tmp_path, strategy):
    heard = []

    class Listener(tf1.train.CheckpointSaverListener):
        def after_save(self, session, global_step):
            heard.append(int(global_step))

    made(model, tmp_path, strategy).train(input_fn, steps=3, saving_listeners=[Listener()])
    assert heard == [0, 3]


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_model_starts_from_fills_all_copies(tmp_path, strategy):
    before = single(model, tmp_path / "before").train(input_fn)

    def frozen(features, labels, mode):
        """Starts from the checkpoint, and has a loss whose gradient is zero."""
        spec = model(features, labels, mode)
        names = [variable.op.name for variable in tf1.trainable_variables()]
        tf1.train.init_from_checkpoint(str(tmp_path / "before"), {name: name for name in names})
        return spec if mode == "infer" else spec._replace(loss=spec.loss * 0.0)

    run = made(frozen, tmp_path / "after", strategy)
    run.train(input_fn, steps=1)
    for name in ("dense/kernel", "table"):
        np.testing.assert_array_equal(run.get_variable_value(name), before.get_variable_value(name))
    # Every device reads the restored weights: predictions are those of the checkpoint.
    found, expected = (list(each.predict(input_fn)) for each in (run, before))
    exactness.compare(found, expected, *estimators.EXACT)


def own(aggregation=tf.VariableAggregation.SUM, start=0.0):
    """A variable that each tower has of its own."""
    synchronization = tf.VariableSynchronization.ON_READ
    options = {"aggregation": aggregation, "synchronization": synchronization}
    return tf1.get_variable("seen", initializer=start, trainable=False, **options)


def counting(features, labels, mode):
    tf1.get_variable("w", initializer=[1.0, 2.0])
    own(start=4.0)
    return model(features, labels, mode)


@pytest.mark.thorough("*-mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("maker", ["a list", "inside", "outside"])
def test_a_saver_restores_all_copies(tmp_path, strategy, maker):
    savers = []

    def saver_of(variables):
        named = {f"other/{v.op.name}": v for v in variables}
        savers.append(tf1.train.Saver(variables if maker == "a list" else named))

    def saving(features, labels, mode):
        spec = counting(features, labels, mode)
        if maker == "inside":
            saver_of(tf1.global_variables())
        return spec

    replicated = model_fn.replicate_model_fn(saving, momentum, 2, strategy=strategy)
    with tf.Graph().as_default() as graph:
        replicated(*constants(), "eval")
        named = {v.op.name: v for v in tf1.global_variables()}
        if maker != "inside":
            saver_of(list(named.values()))
        (saver,) = savers
        copies = {name: members_of(named[name]) for name in ("w", "seen")}
        assert [len(found) for found in copies.values()] == [2 if strategy == "mirrored" else 1] * 2
        doubled = [v.assign(v.read_value() * 2) for found in copies.values() for v in found]
        read = {name: [v.read_value() for v in found] for name, found in copies.items()}
        initializer = exactness.initializer_of_all()
        with tf1.Session(graph=graph, config=exactness.session_config()) as session:
            session.run(initializer)
            path = saver.save(session, str(tmp_path / "model"))
            session.run(doubled)
            assert [float(value) for value in session.run(read)["seen"]] == [8.0] * len(
                read["seen"]
            )
            saver.restore(session, path)
            found = session.run(read)
    for w, seen in zip(found["w"], found["seen"], strict=True):
        np.testing.assert_array_equal(w, [1.0, 2.0])
        assert seen == 4.0
    prefix = "" if maker == "a list" else "other/"
    assert set(dict(tf.train.list_variables(path))) == {f"{prefix}{name}" for name in named}


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sharded_saver_of_a_scaffold_adds_what_it_adds_on_one_device(caplog, strategy):
    def number_of_operations(devices, is_saved):
        def scaffolded(features, labels, mode):
            spec = model(features, labels, mode)
            saver = tf1.train.Saver(sharded=True) if is_saved else None
            return spec._replace(scaffold=tf1.train.Scaffold(saver=saver))

        replicated = model_fn.replicate_model_fn(scaffolded, momentum, devices, strategy=strategy)
        with tf.Graph().as_default() as graph:
            replicated(*constants(), "train")
            return len(graph.get_operations())

    one, several = (
        number_of_operations(devices, True) - number_of_operations(devices, False)
        for devices in (1, 3)
    )
    assert one <= several <= one * (3 if strategy == "mirrored" else 1)
    gc.collect()  # what is never used is told once it is gone
    assert not [record for record in caplog.records if "never used" in record.getMessage()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_variable_under_two_names_is_refused_as_on_one_device(strategy):
    replicated = model_fn.replicate_model_fn(counting, momentum, 2, strategy=strategy)
    with tf.Graph().as_default():
        replicated(*constants(), "train")
        (w,) = (v for v in tf1.global_variables() if v.op.name == "w")
        with pytest.raises(ValueError, match="two names"):
            tf1.train.Saver({"a": w, "b": w})


def averaging(features, labels, mode, warm):
    """A model that predicts from averages of its weights, and may start from a checkpoint's."""
    w = tf1.get_variable("w", [estimators.WIDTH, 1], tf.float64, estimators.start)
    average = tf1.train.ExponentialMovingAverage(0.5)
    if mode == "infer":
        scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(average.variables_to_restore([w])))
        # Each row shows the weights of the device that it was on.
        shown = tf.ones_like(features["x"]) * tf.reshape(w, [1, -1])
        return estimator.EstimatorSpec(mode, {"w": shown}, scaffold=scaffold)
    loss = tf.reduce_mean(tf.square(features["x"] @ w - tf.cast(labels, tf.float64)))
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    with tf1.control_dependencies([optimizer.minimize(loss, tf1.train.get_global_step())]):
        averaged = average.apply([w])
    scaffold = None
    if warm:
        saver = tf1.train.Saver({"w/ExponentialMovingAverage": w})
        scaffold = tf1.train.Scaffold(init_fn=lambda unused, session: saver.restore(session, warm))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=averaged, scaffold=scaffold)


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_averages_of_weights_are_restored_in_their_place_on_every_device(tmp_path, strategy):
    cold = functools.partial(averaging, warm=None)
    one = estimators.one(cold, tmp_path).train(input_fn)
    expected = one.get_variable_value("w/ExponentialMovingAverage")
    assert abs(expected - one.get_variable_value("w")).max() > 0.001
    two = estimators.split(cold, tmp_path, devices=2, strategy=strategy)
    for row in itertools.islice(two.predict(input_fn), 7):
        np.testing.assert_array_equal(row["w"], expected[:, 0])
    # A run that starts from them goes on as one device does.
    warm = functools.partial(averaging, warm=one.latest_checkpoint())
    estimators.require_one_device(
        tmp_path / "on", warm, modes=["train"], devices=2, strategy=strategy
    )


def counted(features, labels, mode):
    """A model that counts its rows."""
    seen = own()
    metrics = {"seen": tf1.metrics.mean(seen.read_value())}
    spec = model(features, labels, mode)
    if mode == "train":
        rows = tf.cast(tf.shape(features["x"])[0], tf.float32)
        return spec._replace(train_op=tf.group(spec.train_op, seen.assign_add(rows)))
    return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **metrics})


@pytest.mark.thorough("counted-mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("of", [model, counted], ids=["model", "counted"])
def test_a_model_in_training_is_evaluated_in_memory(tmp_path, strategy, of):
    def evaluated(trained):
        hook = estimator.experimental.InMemoryEvaluatorHook(trained, input_fn, every_n_iter=1)
        trained.train(input_fn, hooks=[hook])
        return metrics_written(trained.model_dir + "/eval")

    expected = evaluated(single(of, tmp_path / "one"))
    assert len(expected["loss"]) == 5  # at the start, after each of the three steps, at the end
    exactness.compare(evaluated(made(of, tmp_path / "two", strategy)), expected)


def metrics_written(directory):
    """Returns tag -> the numbers that were written, in their order."""
    found = {}
    for path in sorted(pathlib.Path(directory).glob("events.*")):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append(value.simple_value)
    return found


@pytest.mark.thorough("2")
@pytest.mark.filterwarnings("ignore:`tf.keras.backend.set_learning_phase` is deprecated")
@pytest.mark.filterwarnings("ignore:`Model.state_updates` will be removed")
@pytest.mark.parametrize("devices", [1, 2])
def test_outputs_of_a_converted_model_keep_their_names(tmp_path, devices):
    inputs = tf.keras.Input([3], name="x")
    outputs = [tf.keras.layers.Dense(1, name=name)(inputs) for name in ("out_1", "out_2")]
    converted = tf.keras.Model(inputs, outputs)
    converted.compile("sgd", "mse")
    config = estimator.RunConfig(session_config=exactness.session_config())
    assert estimator.Estimator  # model_to_estimator needs what it adds
    one = tf.keras.estimator.model_to_estimator(converted, model_dir=str(tmp_path), config=config)
    replicated = model_fn.replicate_model_fn(one.model_fn, devices=devices)
    several = estimator.Estimator(replicated, str(tmp_path), config)

    def batches():
        x, label = np.ones([5, 3], np.float32), np.ones([5, 1], np.float32)
        return tf.data.Dataset.from_tensors(({"x": x}, (label, label)))

    several.train(batches, steps=1)
    expected, found = list(one.predict(batches)), list(several.predict(batches))
    assert set(expected[0]) == {"out_1", "out_2"}
    exactness.compare(found, expected)


def get_session(layer, x):
    session = tf1.keras.backend.get_session()
    assert session.graph is tf1.get_default_graph()
    assert type(session) is tf1.Session


KERAS_SESSION = {
    "get_session": get_session,
    "set_weights": lambda layer, x: layer.set_weights([np.ones([x.shape[1], 1])]),
    "MeanTensor": lambda layer, x: tf.keras.metrics.MeanTensor().update_state(x[0]),
}


@pytest.mark.thorough("*-2")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("asks", KERAS_SESSION)
def test_a_model_may_ask_for_the_session_of_keras(tmp_path, asks, devices):
    def asking(features, labels, mode):
        x = tf.cast(features["x"], tf.float32)
        layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=exactness.start)
        output = layer(x)
        KERAS_SESSION[asks](layer, x)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - 1.0)))

    for strategy in STRATEGIES:
        options = {"devices": devices, "strategy": strategy}
        exactness.require_one_device(asking, [BATCH], "train", momentum, **options)


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
def test_another_strategy_and_ours_are_refused_together(tmp_path):
    replicated = model_fn.replicate_model_fn(model, momentum, 2)
    other = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = estimator.RunConfig(train_distribute=other, eval_distribute=other)
    trained = estimator.Estimator(replicated, str(tmp_path), config)
    with pytest.raises(ValueError, match="Leave out train_distribute and eval_distribute"):
        trained.train(input_fn, steps=1)
    made(model, tmp_path).train(input_fn, steps=1)
    with pytest.raises(ValueError, match="under OneDeviceStrategy"):
        trained.evaluate(input_fn)


def test_a_session_without_the_devices_is_refused_where_the_model_is_built(tmp_path):
    config = estimator.RunConfig(session_config=tf1.ConfigProto(device_count={"CPU": 1}))
    replicated = model_fn.replicate_model_fn(model, momentum, 2)
    with pytest.raises(ValueError, match="device_count"):
        estimator.Estimator(replicated, str(tmp_path), config).train(input_fn, steps=1)
