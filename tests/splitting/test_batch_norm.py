"""Fused batch normalisation wherever it is: in branches and loops, behind others, and its gradient.

Each model is built on one device and split over three, on 7 rows; all values and gradients must be
one device's, whose statistics are of all rows.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from replicate.splitting.lowering import batch_norm
from tests import exactness
from tests.splitting import alike

CHANNELS = 4
IMAGES = np.random.RandomState(5).uniform(-1, 3, [7, 2, 3, CHANNELS]).astype(np.float32)


def parameters():
    start = np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32)
    return [
        tf1.get_variable(name, initializer=start + n, use_resource=True).read_value()
        for n, name in enumerate(("scale", "offset"))
    ]


def fused(x, scale, offset, layout="NHWC"):
    """Returns what the operation gives: y, and what its gradient needs."""
    return tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset, mean=[], variance=[], data_format=layout
    )


def in_a_branch(x, takes):
    scale, offset = parameters()
    y = tf1.cond(takes, lambda: fused(x, scale, offset)[0], lambda: x * 2.0)
    return y, [x, scale, offset]


def in_a_branch_of_a_branch(x, takes):
    scale, offset = parameters()

    def inner():
        return tf1.cond(tf.reduce_max(x) > 0.0, lambda: fused(x, scale, offset)[0], lambda: x)

    return tf1.cond(takes, inner, lambda: x * 2.0), [x, scale, offset]


def in_a_loop(x, takes):
    scale, offset = parameters()
    times = tf.where(takes, 2, 1)
    _, y = tf.while_loop(
        lambda n, y: n < times, lambda n, y: (n + 1, fused(y, scale, offset)[0] ** 2), [0, x]
    )
    return y, [x]


def behind_a_loop(x, takes):
    """The loop's last operation, rewritten just before, does not wait for what this one does."""
    scale, offset = parameters()
    y = tf.scan(lambda total, row: 0.5 * total + row, x)
    old = tf.reshape(scale, [CHANNELS])  # an operation of its own, which is waited for
    made = tf.raw_ops.FusedBatchNormV3(x=y, scale=scale, offset=offset, mean=old, variance=old)
    return made.y, [scale, offset]


def behind_another_operation(x, takes):
    scale, offset = parameters()
    seen = tf1.get_variable("seen", initializer=0.0, use_resource=True)
    with tf.control_dependencies([seen.assign_add(tf.cast(takes, tf.float32))]):
        y = fused(x, scale, offset)[0]
    with tf.control_dependencies([y]):
        return y + seen.read_value(), [x, scale, offset]


def of_whichever_was_taken(x, takes):
    """The gradient reads statistics that come from one of two branches, or from nowhere."""
    scale, offset = parameters()
    one, two = fused(x, scale, offset), fused(x, scale, offset * 2.0)
    y, weights = one[0] + two[0], tf.cos(x)

    def gradients(*reserved):
        names = ("reserve_space_1", "reserve_space_2", "reserve_space_3")
        made = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=weights, x=x, scale=scale, **dict(zip(names, reserved, strict=True))
        )
        return made.x_backprop

    taken = tf1.cond(takes, lambda: list(one[3:]), lambda: list(two[3:]))
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    given = gradients(mean, variance, tf.zeros([0]))
    return y + gradients(*taken) + given, [offset]


def with_gradient(x, at, mean=lambda reserved: reserved, variance=lambda reserved: reserved):
    """A gradient at some entries, of statistics that are made from those of the operation."""
    scale, offset = parameters()
    made = fused(x, scale, offset)
    gradient = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=tf.cos(x),
        x=at,
        scale=scale,
        reserve_space_1=mean(made[3]),
        reserve_space_2=variance(made[4]),
        reserve_space_3=made[5],
    )
    return made[0] + gradient.x_backprop, [offset]


def of_a_changed_mean(x, takes):
    return with_gradient(x, x, mean=lambda reserved: reserved * tf.where(takes, 1.5, 0.5))


def of_a_changed_variance(x, takes):
    return with_gradient(x, x, variance=lambda reserved: reserved * tf.where(takes, 1.5, 0.5))


def of_other_entries(x, takes):
    """The statistics stay those of x, however they come."""

    def of_a_branch(reserved):
        return tf1.cond(takes, lambda: tf.identity(reserved), lambda: tf.identity(reserved))

    return with_gradient(x, x * x, mean=tf.identity, variance=of_a_branch)


# The operations that are left of it: none; those of a loop; a gradient of statistics given to it.
MODELS = {
    in_a_branch: [],
    in_a_branch_of_a_branch: [],
    behind_a_loop: [],
    behind_another_operation: [],
    in_a_loop: ["FusedBatchNormGradV3", "FusedBatchNormV3"],
    of_whichever_was_taken: ["FusedBatchNormGradV3"],
    of_a_changed_mean: ["FusedBatchNormGradV3", "FusedBatchNormV3"],
    of_a_changed_variance: ["FusedBatchNormGradV3", "FusedBatchNormV3"],
    of_other_entries: [],
}


def with_slopes(y, x, sources):
    return [y, *tf.gradients(tf.reduce_sum(y * tf.sin(x)), sources)]


@pytest.mark.thorough("v2-*-True", "v1-in_a_*-False")
@pytest.mark.usefixtures("either_control_flow")
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_statistics_are_those_of_all_rows(model, takes):
    results = []

    def make(x):
        y, sources = model(x, tf1.placeholder_with_default(takes, []))
        return with_slopes(y, x, sources)

    alike.require_alike(make, [IMAGES], tolerance=(2e-5, 2e-5), look=results.append)
    left = operations.executed_by(results[0].fetch[0])
    kinds = [op.type for op in left if op.type.startswith("FusedBatchNorm")]
    assert sorted(kinds) == MODELS[model]


def test_channels_may_come_first(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, *IMAGES.shape[1:]])
    scale, offset = parameters()
    last = fused(x, scale, offset)[0]
    first = fused(tf.transpose(x, [0, 3, 1, 2]), scale, offset, "NCHW")[0]
    made = with_slopes(last, x, [x, scale])
    # Processors alone may have no kernel for it; what it is split into has one.
    moved = alike.split([x], with_slopes(tf.transpose(first, [0, 2, 3, 1]), x, [x, scale])).fetch
    with alike.session() as session:
        session.run(tf1.global_variables_initializer())
        expected, found = session.run([made, moved], {x: IMAGES})
    exactness.compare(found, expected, 2e-5, 2e-5)


def test_few_bits_are_normalised_with_more(fresh_graph):
    """Means of 4096 numbers near 100 have no three digits in float16."""
    values = np.random.RandomState(3).uniform(99, 101, [16, 16, 16, 1]).astype(np.float16)
    x = tf1.placeholder(tf.float16, [None, 16, 16, 1])
    y = fused(x, tf.constant([2.0]), tf.constant([3.0])).y
    result = alike.split([x], [y])
    assert result.how(y.op) == "split"
    with alike.session() as session:
        (found,) = session.run(result.fetch, {x: values})
    wide = values.astype(np.float64)
    expected = 2 * (wide - wide.mean()) / np.sqrt(wide.var() + 1e-4) + 3
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, 1e-3, 1e-3)


def test_statistics_come_from_what_a_branch_is_given_not_from_what_decides_it(fresh_graph):
    reserved = fused(tf.zeros([2, 2, 2, 1]), tf.ones([1]), tf.zeros([1]))[3]
    held = tf.raw_ops.OptionalFromValue(components=[reserved, tf.constant(True)])
    (decides,) = tf.raw_ops.OptionalGetValue(
        optional=held, output_types=[tf.bool], output_shapes=[[]]
    )
    for given, source in ((tf.zeros([1]), None), (reserved, reserved.op)):
        switch = tf.raw_ops.Switch(data=given, pred=decides)
        assert batch_norm._source(switch.output_true, 3) is source


def test_padded_rows_are_reshaped_as_what_the_statistics_make_is():
    # Two unknown lengths, and a shape that is made before what the lowering measures it by.
    frames = np.random.RandomState(6).uniform(-1, 3, [7, 5, 3, 1]).astype(np.float32)
    words = np.ones([7, 2], np.float32)

    def make(x, others):
        y = fused(x, tf.constant([1.5]), tf.constant([0.5]))[0]
        return [tf.reshape(y, [tf.shape(y)[0], -1, 3]) + tf.reduce_mean(others)]

    batch = (alike.padded(frames), alike.padded(words))
    alike.require_alike(make, [batch], tolerance=(1e-5, 1e-6))
