"""The literal tables say what `tf.compat.v1.train` says."""

import inspect

import pytest

from replicate.app.config import catalog, optimizer_config
from replicate.app.training import optimizers
from replicate.compat.tensorflow import tf, tf1

GIVEN_BY_US = {"global_step", "use_locking", "name", "x"}
LEFT_OUT = {
    "Adam": {"use_own_namescope_for_non_slot_vars"},  # newer TensorFlows only
    "Ftrl": {"accum_name", "linear_name", "beta"},
}


def defaults_of(target, *left_out):
    """Returns argument -> default of a class or function."""
    return {
        name: catalog.REQUIRED if one.default is one.empty else one.default
        for name, one in inspect.signature(target).parameters.items()
        if name not in GIVEN_BY_US.union(*left_out)
    }


@pytest.mark.parametrize("name", catalog.OPTIMIZERS)
def test_optimizer_arguments_are_those_of_tensorflow(name):
    target = getattr(tf1.train, f"{name}Optimizer")
    assert dict(catalog.OPTIMIZERS[name]) == defaults_of(target, LEFT_OUT.get(name, ()))


@pytest.mark.parametrize("name", catalog.SCHEDULES)
def test_schedule_arguments_are_those_of_tensorflow(name):
    target = getattr(tf1.train, name)
    assert dict(catalog.SCHEDULES[name]) == defaults_of(target)


@pytest.mark.parametrize("name", catalog.OPTIMIZERS)
def test_every_optimizer_can_be_made(name):
    arguments = {
        key: 0.5 if one is catalog.REQUIRED else one
        for key, one in catalog.OPTIMIZERS[name].items()
    }
    with tf.Graph().as_default():
        made = optimizers.optimizer_fn(optimizer_config.optimizer(name, **arguments))()
        assert type(made) is getattr(tf1.train, f"{name}Optimizer")


def rate_at(step, name, **arguments):
    """Returns a schedule's learning rate at a step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        global_step = tf1.train.get_or_create_global_step()
        rate = optimizer_config.schedule(name, **arguments)
        described = optimizer_config.optimizer("GradientDescent", learning_rate=rate)
        weight = tf1.get_variable("w", initializer=0.0, use_resource=True)
        train_op = optimizers.optimizer_fn(described)().minimize(-weight)
        session.run(tf1.global_variables_initializer())
        session.run(global_step.assign(step))
        session.run(train_op)
        return session.run(weight)  # the gradient of -w is -1, so w moves by the rate


@pytest.mark.parametrize(
    ("step", "name", "arguments", "rate"),
    [
        # two halvings of 0.8
        (
            20,
            "exponential_decay",
            {"learning_rate": 0.8, "decay_steps": 10, "decay_rate": 0.5, "staircase": False},
            0.2,
        ),
        # the boundary itself still has the value before it
        (5, "piecewise_constant", {"boundaries": (5,), "values": (0.3, 0.1)}, 0.3),
        (6, "piecewise_constant", {"boundaries": (5,), "values": (0.3, 0.1)}, 0.1),
        # half way from 1 to 0.1
        (
            5,
            "polynomial_decay",
            {
                "learning_rate": 1.0,
                "decay_steps": 10,
                "end_learning_rate": 0.1,
                "power": 1.0,
                "cycle": False,
            },
            0.55,
        ),
        # cos(pi / 2) = 0: half of the rate
        (5, "cosine_decay", {"learning_rate": 1.0, "decay_steps": 10, "alpha": 0.0}, 0.5),
    ],
)
def test_the_rate_follows_the_global_step(step, name, arguments, rate):
    assert rate_at(step, name, **arguments) == pytest.approx(rate, rel=1e-6)


def test_no_optimizer_and_a_function():
    assert optimizers.optimizer_fn(None) is None
    assert optimizers.optimizer_fn("os.path:join").__name__ == "join"
