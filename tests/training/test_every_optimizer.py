"""Every optimizer, on every strategy, dense and sparse, takes the steps of one device.

One graph trains a small model of its own per optimizer, so each strategy is built once.
"""

import pytest

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.training import weight_decay
from tests import exactness
from tests.training import models

BATCHES = models.BATCHES * 2  # a loss scale moves after four steps


class HalfStep(tf1.train.Optimizer):
    """A user's optimizer: w -= rate * (g + momentum) / 2, with a slot and a counter."""

    def __init__(self, rate):
        super().__init__(use_locking=False, name="HalfStep")
        self._rate = rate

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "momentum", self._name)
        self._create_non_slot_variable(0.0, "steps", min(var_list, key=lambda v: v.name))

    def _resource_apply_dense(self, grad, var):
        momentum = self.get_slot(var, "momentum")
        after = momentum.assign(0.5 * momentum + grad)
        return var.assign_sub(self._rate * (grad + after) / 2)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._resource_apply_dense(
            tf.scatter_nd(indices[:, None], grad, tf.shape(var, out_type=indices.dtype)), var
        )

    def _apply_dense(self, grad, var):
        return self._resource_apply_dense(grad, var)

    def _finish(self, update_ops, name_scope):
        with tf1.control_dependencies(update_ops):
            steps = self._get_non_slot_variable("steps", tf1.get_default_graph())
            return tf1.group(steps.assign_add(1.0), name=name_scope)


def scaled(scale):
    """The loss-scale wrapper of TensorFlow around Adam."""
    wrapper = tf1.mixed_precision.MixedPrecisionLossScaleOptimizer
    return wrapper(tf1.train.AdamOptimizer(0.1), scale)


class Unnamed:
    """A tf_keras optimizer that is used as the others are."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def minimize(self, loss, var_list):
        return tf.group(self._optimizer.get_updates(loss, var_list))


def keras(name, **options):
    return lambda: Unnamed(getattr(tf.keras.optimizers.legacy, name)(0.05, **options))


OPTIMIZERS = {
    **models.OPTIMIZERS,
    "adamw": lambda: weight_decay.AdamW(0.03, weight_decay=0.1),
    "lamb": lambda: weight_decay.LAMB(0.03),
    "fixed_loss_scale": lambda: scaled(8.0),
    "dynamic_loss_scale": lambda: scaled(
        tf1.mixed_precision.DynamicLossScale(1024.0, increment_period=4)
    ),
    "users_own": lambda: HalfStep(0.1),
    "keras_adadelta": keras("Adadelta"),
    "keras_adagrad": keras("Adagrad"),
    "keras_adam": keras("Adam", amsgrad=True),
    "keras_adamax": keras("Adamax"),
    "keras_ftrl": keras("Ftrl"),
    "keras_nadam": keras("Nadam"),
    "keras_rmsprop": keras("RMSprop", centered=True, momentum=0.5),
    "keras_sgd": keras("SGD", momentum=0.9, nesterov=True),
}
CASES = [
    ("split", 2, "round_robin"),
    ("split", 3, "mirrored"),
    ("call", 2, "mirrored"),
]


def every_optimizer_model_fn(features, labels, mode):
    """For each optimizer tanh(x w + b + e[ids]), fitted to y."""
    losses, train_ops = [], []
    for name, make in OPTIMIZERS.items():
        with tf1.variable_scope(f"model_{name}"):
            rows = tf.constant([[0.1 * i - 0.2] for i in range(6)])
            sparse = tf1.get_variable("sparse", initializer=rows)
            dense = tf1.get_variable("dense", initializer=tf.constant([[0.3], [-0.2], [0.1]]))
            bias = tf1.get_variable("bias", initializer=tf.constant([0.1]))
            unused = tf1.get_variable("unused", initializer=tf.constant([1.0]))
        looked_up = tf.nn.embedding_lookup(sparse, features["ids"])
        found = tf.tanh(features["x"] @ dense + bias + looked_up)
        loss = tf.reduce_mean(tf.square(found - labels))
        optimizer = make()
        # A gradient of None has to be skipped, which tf_keras says in a warning each time.
        trained = [sparse, dense, bias] + ([] if name.startswith("keras") else [unused])
        train_ops.append(optimizer.minimize(loss, var_list=trained))
        losses.append(loss)
    train_ops.append(tf1.assign_add(tf1.train.get_global_step(), 1))
    return estimator.EstimatorSpec(mode, loss=tf.add_n(losses), train_op=tf.group(train_ops))


@pytest.mark.thorough
@pytest.mark.parametrize(("building", "devices", "strategy"), CASES)
def test_every_variable_takes_the_steps_of_one_device(building, devices, strategy):
    # Beta powers, counters of steps, loss scales and variables without gradient are compared too.
    found = exactness.require_one_device(
        every_optimizer_model_fn,
        BATCHES,
        devices=devices,
        strategy=strategy,
        tower_building=building,
        tolerance=(1e-5, 1e-5),
        in_any_order=["Nadam/momentum_cache"],  # Keras writes the same once for each device
    )
    first, last = found.variables[0], found.variables[-1]
    weights = [name for name in first if "model_" in name and "unused" not in name]
    assert not [name for name in weights if (first[name] == last[name]).all()]
