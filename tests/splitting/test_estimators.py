"""Estimators whose graph is split: optimizers, modes and options leave what one device leaves."""

import functools

import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import synchronous
from tests import exactness
from tests.law import optimizers
from tests.models import bert
from tests.splitting import estimators
from tests.splitting.estimators import model, require_one_device, stepping

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def sgd():
    return tf1.train.GradientDescentOptimizer(0.1)


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)


def adam():
    return tf1.train.AdamOptimizer(0.01, epsilon=1e-3)


# Optimizers.

GIVEN = {
    "momentum": momentum,
    "adam": adam,
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, centered=True),
    "clipping": optimizers.Clipping,
    "counting": lambda: optimizers.Counting(0.1),
    "decaying": lambda: optimizers.Decaying(0.1, 0.9),
    "tower": lambda: replicate.TowerOptimizer(momentum),
}


PLACED = {"momentum": "round_robin", "adam": "balanced"}


def reference_of(name):
    return stepping(momentum if name == "tower" else GIVEN[name])


@pytest.mark.thorough("momentum")
@pytest.mark.parametrize("name", GIVEN)
def test_an_optimizer_given_beside_the_model_is_one_devices(tmp_path, name):
    modes = ("train", "eval", "infer") if name in PLACED else ("train",)
    placement = PLACED.get(name)
    reference = reference_of(name)
    require_one_device(tmp_path, model, GIVEN[name], reference, modes=modes, strategy=placement)


@pytest.mark.thorough("adam")
@pytest.mark.parametrize("name", ["adam", "counting", "tower"])
def test_an_optimizer_inside_the_model_is_one_devices(tmp_path, name):
    inside = stepping(GIVEN[name])
    require_one_device(tmp_path, inside, None, reference_of(name), modes=("train",), devices=2)


@pytest.mark.thorough
def test_an_optimizer_is_given_params(tmp_path):
    def optimizer_fn(params):
        return tf1.train.GradientDescentOptimizer(params["rate"])

    def with_params(features, labels, mode, params):
        assert params["rate"] == 0.2
        return model(features, labels, mode)

    def reference(features, labels, mode, params):
        return stepping(lambda: optimizer_fn(params))(features, labels, mode)

    require_one_device(tmp_path, with_params, optimizer_fn, reference, params={"rate": 0.2})


@pytest.mark.thorough
def test_a_models_own_optimizer_leaves_nothing_beside_one_that_is_given(tmp_path):
    reference = stepping(momentum)
    require_one_device(tmp_path, stepping(adam), momentum, reference)


@pytest.mark.thorough
def test_an_optimizer_that_assigns_by_itself(tmp_path):
    def assigning(features, labels, mode):
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        step = tf1.train.get_global_step()
        trained = tf1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(spec.loss, trained), 0.1)
        made = optimizers.DecayingAdam(0.01, exclude=("bias",))
        applied = made.apply_gradients(zip(gradients, trained, strict=True), global_step=step)
        return spec._replace(train_op=tf.group(applied, step.assign(step + 1)))

    require_one_device(tmp_path, assigning, strategy="round_robin")


@pytest.mark.thorough
def test_bert_with_batches_of_a_known_size(tmp_path, monkeypatch):
    monkeypatch.setattr(bert, "LAYERS", 1)
    given = functools.partial(bert.input_fn, batch_size=7)
    expected = estimators.one(bert.model_fn, tmp_path / "one", {})
    found = estimators.split(bert.model_fn, tmp_path / "split", params={})
    for made in (expected, found):
        made.train(given, steps=2)
    estimators.require_same(
        estimators.variables_of(expected), estimators.variables_of(found), (1e-3, 1e-5)
    )
    estimators.require_same(
        expected.evaluate(given, steps=2), found.evaluate(given, steps=2), (1e-3, 1e-5)
    )


@pytest.mark.thorough
def test_a_slow_copy_of_weights(tmp_path):
    looking = stepping(lambda: optimizers.LookingAhead(sgd()))
    require_one_device(tmp_path, looking, modes=("train",))


@pytest.mark.thorough("apply_gradients-adam")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("how", ["get_updates", "apply_gradients"])
def test_tf_keras_optimizers_inside_the_model(tmp_path, kind, how):
    legacy = tf.keras.optimizers.legacy

    def inside(features, labels, mode):
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        step = tf1.train.get_global_step()
        made = legacy.SGD(0.1, 0.9) if kind == "sgd" else legacy.Adam(0.01, epsilon=1e-3)
        made.iterations = step
        trained = tf1.trainable_variables()
        if how == "get_updates":
            return spec._replace(train_op=tf.group(made.get_updates(spec.loss, trained)))
        pairs = zip(tf.gradients(spec.loss, trained), trained, strict=True)
        return spec._replace(train_op=made.apply_gradients(pairs))

    require_one_device(tmp_path, inside, modes=("train",), devices=2)


def in_float32(features, labels, mode):
    """A model whose weights and losses are of 32 bits."""
    features = {**features, "x": tf.cast(features["x"], tf.float32)}
    logits = tf1.layers.dense(features["x"], 1, kernel_initializer=exactness.start)
    loss = None
    if labels is not None:
        loss = tf.reduce_mean(tf.square(logits - tf.cast(labels, tf.float32)))
    return exactness.spec_of(mode, loss, {"logits": logits})


@pytest.mark.thorough
def test_a_loss_scale_that_moves(tmp_path):
    def scaled():
        mixed = tf1.mixed_precision
        scale = mixed.DynamicLossScale(initial_loss_scale=8, increment_period=2)
        return mixed.MixedPrecisionLossScaleOptimizer(momentum(), scale)

    single = stepping(scaled, in_float32)
    tolerance = (1e-4, 1e-6)
    for n, (of, optimizer_fn) in enumerate([(in_float32, scaled), (single, None)]):
        require_one_device(tmp_path / str(n), of, optimizer_fn, single, tolerance=tolerance)


def test_the_rewrite_for_mixed_precision(tmp_path):
    def rewritten():
        return tf1.mixed_precision.enable_mixed_precision_graph_rewrite(sgd(), 8.0)

    try:
        require_one_device(tmp_path, in_float32, rewritten, tolerance=(1e-2, 1e-3))
    finally:
        tf1.mixed_precision.disable_mixed_precision_graph_rewrite()


def alone():
    return tf1.train.SyncReplicasOptimizer(momentum(), 1, total_num_replicas=1)


def test_synchronous_replicas_of_one_worker(tmp_path):
    def reference(features, labels, mode):
        spec = model(features, labels, mode)
        if mode != "train":
            return spec
        made = alone()
        step = made.minimize(spec.loss, tf1.train.get_global_step())
        hook = synchronous.Hook(made, True, 0)  # TensorFlow's own ends after two minutes
        return spec._replace(train_op=step, training_hooks=[hook])

    require_one_device(tmp_path, model, alone, reference, modes=("train",), devices=2)


def partly_trained(features, labels, mode):
    """A model with a variable that the loss does not see."""
    tf1.get_variable("unseen", [2], tf.float64, start_of_ones())
    return model(features, labels, mode)


def start_of_ones():
    return tf1.ones_initializer()


@pytest.mark.thorough
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_variable_without_gradient_stays(tmp_path, is_inside):
    single = stepping(momentum, partly_trained)
    if is_inside:
        require_one_device(tmp_path, single, modes=("train",))
    else:
        require_one_device(tmp_path, partly_trained, momentum, single, modes=("train",))


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_loss_without_any_gradient_is_refused(tmp_path, is_inside):
    def constant(features, labels, mode):
        spec = model(features, labels, mode)
        return spec._replace(loss=tf.reduce_mean(features["x"]))

    made = estimators.split(
        stepping(sgd, constant) if is_inside else constant, tmp_path, None if is_inside else sgd
    )
    with pytest.raises(ValueError, match="radient"):
        made.train(estimators.input_fn, steps=1)


@pytest.mark.thorough
def test_what_a_model_updates_runs_with_an_optimizer_that_is_given(tmp_path):
    def normalised(features, labels, mode):
        x = tf1.layers.batch_normalization(features["x"], training=mode == "train")
        return model({**features, "x": x}, labels, mode)

    require_one_device(tmp_path, normalised, momentum)


def test_to_the_model_there_is_one_tower(tmp_path):
    def told(features, labels, mode):
        tower = replicate.get_tower_context()
        assert (tower.tower_id, tower.num_towers) == (0, 1)
        replica = tf.distribute.get_replica_context()
        assert replica.num_replicas_in_sync == 1
        assert tf.distribute.has_strategy()
        spec = model(features, labels, mode)
        total = replica.all_reduce("SUM", spec.loss)
        return spec._replace(loss=tower.merge_call(lambda strategy, loss: 2 * loss, total))

    def single(features, labels, mode):
        spec = model(features, labels, mode)
        return spec._replace(loss=2 * spec.loss)

    require_one_device(tmp_path, told, momentum, stepping(momentum, single), modes=("train",))


# Around the step.


def accumulated(features, labels, mode):
    """The model, whose optimizer is fed the mean of two batches' gradients."""
    spec = model(features, labels, mode)
    if mode != "train":
        return spec
    trained, step = tf1.trainable_variables(), tf1.train.get_global_step()
    kept = [
        tf1.get_variable(
            f"kept/{n}",
            variable.shape,
            tf.float64,
            tf1.zeros_initializer(),
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
        )
        for n, variable in enumerate(trained)
    ]
    gradients = [tf.convert_to_tensor(g) for g in tf.gradients(spec.loss, trained)]
    added = [k.assign_add(g) for k, g in zip(kept, gradients, strict=True)]
    made = sgd()
    with tf1.control_dependencies(added):
        is_full = tf.equal(step.read_value() % 2, 1)

        def apply():
            means = [k.read_value() / 2 for k in kept]
            clipped, _ = tf.clip_by_global_norm(means, 0.05)
            with tf1.control_dependencies(
                [made.apply_gradients(zip(clipped, trained, strict=True))]
            ):
                return tf.group(*[k.assign(tf.zeros_like(k)) for k in kept])

        applied = tf1.cond(is_full, apply, tf1.no_op)
    with tf1.control_dependencies([applied]):
        return spec._replace(train_op=step.assign_add(1).op)


def four():
    return estimators.input_fn(sizes=(7, 2, 1, 5))


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", ["parameter_server", "round_robin", "mirrored"])
def test_gradients_of_several_batches_are_averaged_and_clipped(tmp_path, strategy):
    is_inside = strategy == "round_robin"
    require_one_device(
        tmp_path,
        stepping(sgd) if is_inside else model,
        None if is_inside else sgd,
        accumulated,
        given=four,
        strategy=strategy,
        accumulate_steps=2,
        clip_global_norm=0.05,
    )


@pytest.mark.thorough
def test_clipping_alone(tmp_path):
    class Clipped(tf1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, trained = zip(*grads_and_vars, strict=True)
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            clipped, _ = tf.clip_by_global_norm(gradients, 0.05)
            return super().apply_gradients(zip(clipped, trained, strict=True), global_step, name)

    reference = stepping(lambda: Clipped(0.1))
    require_one_device(tmp_path, model, sgd, reference, clip_global_norm=0.05)
