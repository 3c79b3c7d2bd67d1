"""Options that act on gradients, beside optimizers that apply gradients by themselves."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.training import models

# loss = mean(w * x): the gradient is the mean of x, which is 1, 2, 6 and 2 here.
BATCHES = [
    ({"x": np.float32([[mean - 1], [mean], [mean + 1]])}, None) for mean in (1.0, 2.0, 6.0, 2.0)
]
DEVICES = [(1, None), (2, "parameter_server"), (2, "mirrored")]


class Lone(tf1.train.Optimizer):
    """Assigns by itself, and leaves the global step to whoever calls it, as BERT's does."""

    def __init__(self):
        super().__init__(use_locking=False, name="Lone")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, times=1.0):
        return tf.group(*[v.assign(v - times * g) for g, v in grads_and_vars], name=name)


class Counting(Lone):
    """Advances the global step by itself."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        done = super().apply_gradients(grads_and_vars)
        with tf.control_dependencies([done]):
            return global_step.assign_add(1, read_value=False)


class Decaying(tf1.train.GradientDescentOptimizer):
    """Adds weight decay, and leaves the rest to its base."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = [(g + 0.5 * v.read_value(), v) for g, v in grads_and_vars]
        return super().apply_gradients(pairs, global_step, name)


def counted(step):
    with tf.control_dependencies([step]):
        return tf1.train.get_global_step().assign_add(1)


def from_gradients(loss):
    trained = tf1.trainable_variables()
    pairs = zip(tf.gradients(loss, trained), trained, strict=True)
    return counted(Lone().apply_gradients(pairs, global_step=tf1.train.get_global_step()))


def with_an_argument(loss):
    pairs = Lone().compute_gradients(loss)
    return counted(Lone().apply_gradients(grads_and_vars=pairs, times=1.0))


def loss_of(features, labels):
    del labels
    return tf.reduce_mean(features["x"] * tf1.get_variable("w", initializer=0.0))


def weights(train, options, devices=2, strategy=None):
    model = models.split(models.trains_with(train, loss_of), devices, strategy=strategy, **options)
    found = exactness.run(model, BATCHES).variables
    assert [step["global_step:0"] for step in found] == [1, 2, 3, 4]
    return [float(step["w:0"]) for step in found]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The means of two gradients each: 1.5 and 4.
        ({"accumulate_steps": 2}, [0, -1.5, -1.5, -5.5]),
        # A gradient is its own norm: none is above 1.5.
        ({"clip_global_norm": 1.5}, [-1, -2.5, -4, -5.5]),
        ({"accumulate_steps": 2, "clip_global_norm": 3.0}, [0, -1.5, -1.5, -4.5]),
    ],
    ids=str,
)
@pytest.mark.parametrize("building", ["split", "call"])
@pytest.mark.parametrize(("devices", "strategy"), DEVICES)
@pytest.mark.thorough("*split*")
def test_options_act_on_what_an_optimizer_applies_by_itself(
    devices, strategy, building, options, expected
):
    options = {"tower_building": building, **options}
    assert weights(from_gradients, options, devices, strategy) == expected


@pytest.mark.parametrize(
    "train",
    [
        lambda loss: counted(Lone().minimize(loss)),
        lambda loss: Counting().minimize(loss, tf1.train.get_global_step()),
        with_an_argument,
    ],
    ids=["minimize", "global step", "argument"],
)
def test_an_optimizers_update_is_made_with_every_second_batch(train):
    assert weights(train, {"accumulate_steps": 2}) == [0, -1.5, -1.5, -5.5]


def test_what_an_optimizer_adds_to_gradients_is_added_once_an_update():
    # -1.5; then -1.5 - (4 - 0.5 * 1.5) = -4.75.
    train = Decaying(1.0).minimize
    found = weights(lambda loss: train(loss, tf1.train.get_global_step()), {"accumulate_steps": 2})
    assert found == [0, -1.5, -1.5, -4.75]


# Assignments by hand.


def of_a_gradient(loss):
    (w,) = tf1.trainable_variables()
    return counted(w.assign_sub(tf.gradients(loss, w)[0]))


def of_a_tape(loss):
    del loss
    (w,) = tf1.trainable_variables()
    with tf.GradientTape() as tape:
        loss = w * 2.0
    return counted(w.assign_sub(tape.gradient(loss, w)))


def in_a_branch(loss):
    (w,) = tf1.trainable_variables()
    (gradient,) = tf.gradients(loss, w)
    return counted(tf.cond(loss > -1e9, lambda: w.assign_sub(gradient), lambda: w.read_value()))


def beside_an_optimizer(loss):
    second = tf1.get_variable("second", initializer=1.0)
    (gradient,) = tf.gradients(loss * second, second)
    first = tf1.trainable_variables()[:1]
    step = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=first)
    return counted(tf.group(step, second.assign_sub(gradient)))


@pytest.mark.parametrize("options", [{"accumulate_steps": 2}, {"clip_global_norm": 1.0}], ids=str)
@pytest.mark.parametrize(
    ("train", "name"),
    [(of_a_gradient, "w"), (of_a_tape, "w"), (in_a_branch, "w"), (beside_an_optimizer, "second")],
)
def test_options_that_cannot_act_on_assignments_by_hand_are_refused(train, name, options):
    (option,) = options
    with pytest.raises(ValueError, match=f"{option}.*{name}.*{__file__}.*optimizer_fn"):
        weights(train, options)
    assert len(weights(train, {})) == 4


def test_the_error_names_the_function_that_assigns():
    class Plain:
        def apply_gradients(self, pairs):
            return tf.group(*[v.assign_sub(g) for g, v in pairs])

    def train(loss):
        trained = tf1.trainable_variables()
        return counted(
            Plain().apply_gradients(zip(tf.gradients(loss, trained), trained, strict=True))
        )

    with pytest.raises(ValueError, match="in apply_gradients"):
        weights(train, {"accumulate_steps": 2})


def test_what_is_no_update_by_a_gradient_is_left_alone():
    def train(loss):
        (w,) = tf1.trainable_variables()
        codes = tf1.get_variable("codes", initializer=0.0)  # moved by rows, as by VQ-VAE
        step = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[w])
        with tf.control_dependencies([step]):
            clipped = w.assign(tf.clip_by_value(w.read_value(), -1.0, 1.0))
        return counted(tf.group(clipped, codes.assign(0.5 * codes + loss)))

    assert weights(train, {"accumulate_steps": 2}) == [0, -1, -1, -1]


def test_two_optimizers_in_branches_are_both_seen():
    def train(loss):
        step = tf1.train.get_global_step()
        descend = tf1.train.GradientDescentOptimizer(1.0)
        return counted(
            tf.cond(step % 2 > 5, lambda: descend.minimize(loss), lambda: descend.minimize(loss))
        )

    assert weights(train, {"clip_global_norm": 1.5}) == [-1, -2.5, -4, -5.5]
