"""Canned estimators, a residual network and SyncReplicasOptimizer, as their users have them."""

import functools
import shutil
import time

import numpy as np
import pytest

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests.training import runs

STRATEGIES = ["parameter_server", "round_robin", "mirrored"]
ROWS = 33

_random = np.random.RandomState(0)
X = _random.randn(ROWS, 2).astype(np.float32)
C = _random.randint(0, 5, ROWS)
LABELS = _random.randint(0, 3, ROWS)
IMAGES = _random.randn(8, 6, 6, 2).astype(np.float32)
OF_IMAGES = _random.randint(0, 3, 8)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"x": X, "c": C}, LABELS)).batch(11).repeat()


def canned(name, model_dir):
    numeric = tf.feature_column.numeric_column("x", shape=(2,))
    category = tf.feature_column.categorical_column_with_identity("c", 5)
    embedded = tf.feature_column.embedding_column(
        category, 2, initializer=tf1.constant_initializer(0.1)
    )
    config = estimator.RunConfig(model_dir=str(model_dir), tf_random_seed=3)
    options = {"n_classes": 3, "config": config}
    version, _, name = name.rpartition(".")
    room = estimator.v1 if version else estimator
    if name == "LinearClassifier":
        return room.LinearClassifier([numeric, category], **options)
    if name == "DNNClassifier":
        return room.DNNClassifier([4], [numeric, embedded], **options)
    return room.DNNLinearCombinedClassifier(
        linear_feature_columns=[numeric, category],
        dnn_feature_columns=[numeric, embedded],
        dnn_hidden_units=[4],
        **options,
    )


def weights(trained):
    return {name: trained.get_variable_value(name) for name in trained.get_variable_names()}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """For each canned estimator a model_dir after one step, and the weights after 3 and after 4."""

    @functools.cache
    def train(name):
        started = tmp_path_factory.mktemp(name) / "started"
        canned(name, started).train(input_fn, steps=1)
        directory = shutil.copytree(started, started.parent / "trained")
        found = []
        for steps in (3, 4):
            trained = canned(name, directory)
            trained.train(input_fn, max_steps=steps)
            found.append(weights(trained))
        return started, found

    return train


def assert_alike(found, expected):
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


# Those of version 1 have partitioners, which one device leaves with one part, and losses that
# are sums over rows.
@pytest.mark.thorough("v1.DNNClassifier-sum-mirrored-2")
@pytest.mark.parametrize(
    ("name", "reduction", "strategy", "num_towers"),
    [
        ("LinearClassifier", None, "parameter_server", 2),
        ("DNNLinearCombinedClassifier", None, "mirrored", 3),
        ("v1.DNNClassifier", None, None, 1),
        ("v1.DNNClassifier", "sum", "mirrored", 2),
        ("v1.DNNLinearCombinedClassifier", None, "round_robin", 3),
        ("v1.DNNLinearCombinedClassifier", "sum", "parameter_server", 2),
    ],
)
def test_canned_estimator_goes_on_where_one_device_stopped_and_back(
    one_device, tmp_path, name, reduction, strategy, num_towers
):
    started, (expected, expected_back) = one_device(name)
    model_dir = shutil.copytree(started, tmp_path / "model")
    base = canned(name, model_dir)
    model_fn = runs.replicated(base.model_fn, num_towers, strategy, loss_reduction=reduction)
    many = estimator.Estimator(model_fn, config=base.config)
    many.train(input_fn, max_steps=3)
    assert_alike(weights(many), expected)
    back = canned(name, model_dir)
    back.train(input_fn, max_steps=4)
    assert_alike(weights(back), expected_back)


def resnet_model_fn(features, labels, mode):
    """A convolution, two residual blocks with batch normalization, momentum on a schedule."""
    is_training = mode == "train"

    def normalized(tensor):
        return tf1.layers.batch_normalization(tensor, momentum=0.5, training=is_training)

    net = tf1.layers.conv2d(features["x"], 4, 3, padding="same", kernel_initializer=start(1))
    for block in range(2):
        inner = tf.nn.relu(normalized(net))
        inner = tf1.layers.conv2d(
            inner, 4, 3, padding="same", use_bias=False, kernel_initializer=start(block + 2)
        )
        net = net + inner
    pooled = tf.reduce_mean(tf.nn.relu(normalized(net)), [1, 2])
    logits = tf1.layers.dense(pooled, 3, kernel_initializer=start(9))
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss += 1e-2 * tf.add_n([tf.nn.l2_loss(v) for v in tf1.trainable_variables()])
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.piecewise_constant(step, [2], [0.1, 0.05])
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        train_op = tf1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def start(seed):
    return tf1.random_normal_initializer(stddev=0.3, seed=seed)


@functools.cache
def resnet_run(num_towers=0, strategy=None):
    model = resnet_model_fn
    if num_towers:
        model = runs.replicated(model, num_towers, strategy)
    batches = [{"x": IMAGES * (i + 1), "ids": np.arange(8), "y": OF_IMAGES} for i in range(2)]
    return runs.train(model, 4, batches)


@pytest.mark.thorough("3-mirrored")
@pytest.mark.parametrize(("num_towers", "strategy"), [(2, "parameter_server"), (3, "mirrored")])
def test_residual_network_trains_to_the_weights_of_one_device(strategy, num_towers):
    runs.assert_same(resnet_run(num_towers, strategy), resnet_run(), relative=1e-4)


def sync_model_fn(wrap, features, labels, mode):
    optimizer = tf1.train.SyncReplicasOptimizer(
        tf1.train.MomentumOptimizer(0.1, 0.9), replicas_to_aggregate=1
    )
    hook = optimizer.make_session_run_hook(is_chief=True)
    w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
    loss = tf.reduce_mean(tf.square(features["x"] @ w - labels))
    train_op = wrap(optimizer).minimize(loss, tf1.train.get_or_create_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[hook])


def weight_after_synchronous_step(model):
    """The update runs in a queue's thread: it is waited for."""
    batch = runs.BATCHES[0]
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        spec = model({"x": tf.constant(batch["x"])}, tf.constant(batch["y"]), "train")
        w = runs._plain(tf1.trainable_variables()[0])
        with tf1.train.MonitoredTrainingSession(
            hooks=spec.training_hooks, stop_grace_period_secs=0
        ) as session:
            session.run(spec.train_op)
            for _ in range(500):
                if session.run(step) >= 1:
                    break
                time.sleep(0.01)
            return session.run(w)


def sync_optimizer_fn_model(strategy, building):
    """The model whose SyncReplicasOptimizer is given as `optimizer_fn`."""
    optimizer = tf1.train.SyncReplicasOptimizer(
        tf1.train.MomentumOptimizer(0.1, 0.9), replicas_to_aggregate=1
    )

    def model(features, labels, mode):
        w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
        loss = tf.reduce_mean(tf.square(features["x"] @ w - labels))
        hook = optimizer.make_session_run_hook(is_chief=True)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op(), training_hooks=[hook])

    return runs.replicated(
        model, 2, strategy, optimizer_fn=lambda: optimizer, tower_building=building
    )


def sync_inside(wrap):
    """Returns what makes the model with its optimizer inside."""
    model = functools.partial(sync_model_fn, wrap)
    return lambda strategy, building: runs.replicated(model, 2, strategy, tower_building=building)


SYNCHRONOUS = {
    "wrapped": sync_inside(replicate.TowerOptimizer),
    "unchanged": sync_inside(lambda optimizer: optimizer),
    "optimizer_fn": sync_optimizer_fn_model,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:To construct input pipelines")
@pytest.mark.parametrize(
    ("kind", "building", "strategy"),
    [
        *((kind, "split", strategy) for kind in SYNCHRONOUS for strategy in STRATEGIES),
        # One inside of a tower meets the others where it is wrapped.
        ("wrapped", "call", "mirrored"),
        ("optimizer_fn", "call", "parameter_server"),
    ],
)
def test_sync_replicas_optimizer_with_its_hook(kind, building, strategy):
    one = weight_after_synchronous_step(functools.partial(sync_model_fn, lambda o: o))
    found = weight_after_synchronous_step(SYNCHRONOUS[kind](strategy, building))
    np.testing.assert_allclose(found, one, rtol=1e-5)


# Without tokens to begin with, a step waits for the update that its own gradient makes, so that
# no gradient is taken of older weights.
HOOK = {"is_chief": True, "num_tokens": 0}


def synchronous():
    return tf1.train.SyncReplicasOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), 1, 1)


def waiting_spec(features, labels, mode, optimizer, minimize):
    hook = optimizer.make_session_run_hook(**HOOK)
    w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
    loss = tf.reduce_mean(tf.square(features @ w - labels))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=minimize(loss), training_hooks=[hook])


def waiting_model_fn(features, labels, mode):
    """A model with SyncReplicasOptimizer inside."""
    optimizer, step = synchronous(), tf1.train.get_or_create_global_step()
    return waiting_spec(
        features, labels, mode, optimizer, lambda loss: optimizer.minimize(loss, step)
    )


def waiting_inside(**towers):
    return replicate.replicate_model_fn(waiting_model_fn, **towers)


def waiting_elsewhere(**towers):
    """The model with the hook of an optimizer that is given as `optimizer_fn`."""
    optimizer = synchronous()

    def model(features, labels, mode):
        return waiting_spec(features, labels, mode, optimizer, lambda loss: tf.no_op())

    return replicate.replicate_model_fn(model, lambda: optimizer, **towers)


def weights_after_three_waits(model_fn, directory):
    """A queue that nobody fills ends the test, and at the end of training its thread."""
    session = tf1.ConfigProto(device_count={"CPU": 8}, operation_timeout_in_ms=3000)
    config = estimator.RunConfig(str(directory), session_config=session)
    trained = estimator.Estimator(model_fn, config=config)
    batch = (runs.BATCHES[0]["x"], runs.BATCHES[0]["y"])
    trained.train(lambda: tf.data.Dataset.from_tensors(batch).repeat(), max_steps=3)
    return weights(trained)


@pytest.fixture(scope="module")
def waits_on_one_device(tmp_path_factory):
    return weights_after_three_waits(waiting_model_fn, tmp_path_factory.mktemp("waits"))


@pytest.mark.thorough("waiting_inside-2-mirrored")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("make", "num_towers", "strategy"),
    [
        (waiting_inside, 1, None),
        (waiting_inside, 2, "mirrored"),
        (waiting_elsewhere, 2, "parameter_server"),
    ],
)
def test_sync_replicas_optimizer_trains_in_an_estimator(
    make, num_towers, strategy, waits_on_one_device, tmp_path
):
    found = weights_after_three_waits(make(devices=num_towers, strategy=strategy), tmp_path)
    assert sorted(found) == sorted(waits_on_one_device)
    assert found["global_step"] == 3
    for name, value in waits_on_one_device.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


class Announcing(tf1.train.GradientDescentOptimizer):
    """An optimizer whose step is a tensor."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        step = super().apply_gradients(grads_and_vars, global_step, name)
        with tf1.control_dependencies([step]):
            return tf.constant(1.0, name="applied")


def announcing_model_fn(features, labels, mode):
    w = tf1.get_variable("w", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
    loss = tf.reduce_mean(tf.square(features["x"] @ w - labels))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


@pytest.mark.parametrize(
    ("building", "num_towers", "strategy"),
    [
        ("split", 1, None),
        *(("split", 2, strategy) for strategy in STRATEGIES),
        *(("call", 2, strategy) for strategy in STRATEGIES),
    ],
)
def test_a_step_may_be_a_tensor(building, strategy, num_towers):
    # The first step, by hand: the gradient of the mean of squares is 2 x^T (x w - y) / B.
    x, y = runs.BATCHES[0]["x"], runs.BATCHES[0]["y"]
    w = np.float32([[0.3], [-0.2], [0.1]])
    expected = w - 0.1 * 2 * x.T @ (x @ w - y) / len(x)
    model = runs.replicated(
        announcing_model_fn,
        num_towers,
        strategy,
        optimizer_fn=lambda: Announcing(0.1),
        tower_building=building,
    )
    with tf.Graph().as_default():
        step = tf1.train.create_global_step()
        spec = model({"x": tf.constant(x)}, tf.constant(y), "train")
        weights = tf1.trainable_variables()[0]
        with tf1.train.MonitoredTrainingSession() as session:
            session.run(spec.train_op)
            assert session.run(step) == 1
            found = session.run(weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
