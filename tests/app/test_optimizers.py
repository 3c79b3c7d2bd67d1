"""The literal tables say what `tf.compat.v1.train` says."""

import inspect

import numpy as np
import pydantic
import pytest

from replicate.app.config import catalog, optimizer_config
from replicate.app.training import optimizers
from replicate.compat.tensorflow import tf, tf1
from replicate.training import weight_decay

OWN_SCHEDULES = {"constant", "inverse_sqrt_decay"}
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


def described_as(name, **arguments):
    """Returns an optimizer as a config has it."""
    kind = pydantic.TypeAdapter(optimizer_config.OptimizerOrFunction)
    return kind.validate_python({"name": name, **arguments})


def class_of(name):
    return getattr(weight_decay, name, None) or getattr(tf1.train, f"{name}Optimizer")


@pytest.mark.parametrize("name", catalog.OPTIMIZERS)
def test_optimizer_arguments_are_those_of_tensorflow(name):
    target = class_of(name)
    assert dict(catalog.OPTIMIZERS[name]) == defaults_of(target, LEFT_OUT.get(name, ()))


@pytest.mark.parametrize("name", sorted({*catalog.SCHEDULES} - OWN_SCHEDULES))
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
        made = optimizers.optimizer_fn(described_as(name, **arguments))()
        assert type(made) is class_of(name)


def rate_at(step, name, **arguments):
    """Returns a schedule's learning rate at a step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        global_step = tf1.train.get_or_create_global_step()
        rate = {"name": name, **arguments}
        described = described_as("GradientDescent", learning_rate=rate)
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
        # sqrt(1 + 30 / 10) = 2
        (30, "inverse_sqrt_decay", {"learning_rate": 0.8, "decay_steps": 10}, 0.4),
        (7, "constant", {"learning_rate": 0.8}, 0.8),
        # a quarter of the warm-up, its end, and five steps of ten behind it
        (1, "constant", {"learning_rate": 0.8, "warmup_steps": 4}, 0.2),
        (4, "cosine_decay", {"learning_rate": 0.8, "decay_steps": 10, "warmup_steps": 4}, 0.8),
        (9, "cosine_decay", {"learning_rate": 0.8, "decay_steps": 10, "warmup_steps": 4}, 0.4),
        (
            6,
            "piecewise_constant",
            {"boundaries": (5,), "values": (0.3, 0.1), "warmup_steps": 1},
            0.3,
        ),
    ],
)
def test_the_rate_follows_the_global_step(step, name, arguments, rate):
    assert rate_at(step, name, **arguments) == pytest.approx(rate, rel=1e-6)


def test_no_optimizer_and_a_function():
    assert optimizers.optimizer_fn(None) is None
    assert optimizers.optimizer_fn("os.path:join").__name__ == "join"


START = np.array([[0.5, -2.0], [0.0, 1.0], [3.0, 0.25]])
GRADIENTS = [np.array([[0.1, 2.0], [0.0, 0.0], [-1.0, 0.5]]) * scale for scale in (1, -0.5, 4)]


def by_the_paper(layerwise, decay=0.1, rate=0.01, beta1=0.9, beta2=0.99, epsilon=1e-6):
    """Returns the weights after some steps of AdamW, or of LAMB, as their papers have them."""
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for step, gradient in enumerate(GRADIENTS, start=1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        moved = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + epsilon) + decay * w
        w -= rate * moved * (np.linalg.norm(w) / np.linalg.norm(moved) if layerwise else 1)
    return w


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("name", ["AdamW", "LAMB"])
def test_weights_decay_as_the_papers_say(session, name, use_resource, sparse):
    described = described_as(
        name,
        learning_rate=0.01,
        beta2=0.99,
        epsilon=1e-6,
        weight_decay=0.1,
        exclude_from_decay=("bias",),
    )
    optimizer = optimizers.optimizer_fn(described)()
    w = tf1.get_variable("w", initializer=START, use_resource=use_resource)
    bias = tf1.get_variable("bias", initializer=START, use_resource=use_resource)
    fed = tf1.placeholder(tf.float64, START.shape)
    gradient = fed
    if sparse:  # the row without a gradient is left out, another one comes in two halves
        halves = tf.constant([[1.0], [0.5], [0.5]], tf.float64)
        gradient = tf.IndexedSlices(tf.gather(fed, [0, 2, 2]) * halves, [0, 2, 2])
    train_op = optimizer.apply_gradients([(gradient, w), (gradient, bias)])
    session.run(tf1.global_variables_initializer())
    for one in GRADIENTS:
        session.run(train_op, {fed: one})
    expected = by_the_paper(name == "LAMB"), by_the_paper(name == "LAMB", decay=0.0)
    # The powers of beta1 and beta2 are float32, as Adam has them.
    np.testing.assert_allclose(session.run([w, bias]), expected, rtol=1e-6)


def test_adamw_is_that_of_keras():
    # Keras adds epsilon before it corrects v, which does not show where epsilon is small.
    variable = tf.Variable(START)
    theirs = tf.keras.optimizers.AdamW(0.01, 0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-15)
    for gradient in GRADIENTS:
        theirs.apply_gradients([(tf.constant(gradient), variable)])
    w = by_the_paper(layerwise=False, epsilon=1e-15)
    np.testing.assert_allclose(variable.numpy(), w, rtol=1e-6)


def test_lamb_leaves_the_length_of_a_step_where_weights_are_zero(session):
    w = tf1.get_variable("w", initializer=tf.zeros([2]))
    train_op = weight_decay.LAMB(0.01).apply_gradients([(tf.constant([1.0, 0.0]), w)])
    session.run(tf1.global_variables_initializer())
    session.run(train_op)
    # As of Adam; 1 - beta2 has five digits in float32.
    np.testing.assert_allclose(session.run(w), [-0.01, 0.0], rtol=1e-4)


def test_weights_of_few_bits_stay_numbers(session):
    w = tf1.get_variable("w", initializer=tf.ones([2], tf.bfloat16))
    gradient = tf.constant([1.0, 0.0], tf.bfloat16)
    train_op = weight_decay.AdamW(0.5, weight_decay=0.25).apply_gradients([(gradient, w)])
    session.run(tf1.global_variables_initializer())
    session.run(train_op)
    # A first step is 1 where there is a gradient, and the decay is 0.25 of 1: 1 - 0.5 * 1.25.
    # bfloat16 has eight bits.
    np.testing.assert_allclose(np.float32(session.run(w)), [0.375, 0.875], rtol=1e-2)
