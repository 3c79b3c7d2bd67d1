"""Variables that towers share: written once for all of them, or refused."""

import numpy as np
import pytest

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

ON_READ = tf.VariableSynchronization.ON_READ


def batch(rows=7):
    numbers = np.random.RandomState(3)
    return (
        numbers.uniform(-1, 1, [rows, 3]).astype(np.float32),
        numbers.uniform(-1, 1, [rows, 1]).astype(np.float32),
    )


def kept(name="kept", start=1.0, **options):
    return tf1.get_variable(name, initializer=start, trainable=False, **options)


def stepping(before, after=lambda x, variable: ()):
    """A model that writes a variable before or after its optimizer's step."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept()
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        with tf1.control_dependencies(before(features, variable)):
            step = tf1.train.GradientDescentOptimizer(0.1).minimize(
                tf.identity(loss), tf1.train.get_global_step()
            )
        with tf1.control_dependencies([step]):
            late = after(features, variable)
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, *late))

    return model


def count_rows(x, variable):
    return [variable.assign_add(tf.cast(tf.shape(x)[0], tf.float32), read_value=False)]


def count_steps(x, variable):
    return [variable.assign_add(1.0, read_value=False)]


def keep_the_last(x, variable):
    return [variable.assign(x[-1, 0], read_value=False)]


def nothing(x, variable):
    return []


REFUSED = {
    "rows of one tower, counted after the step": (nothing, count_rows),
    "the last row of one tower": (nothing, keep_the_last),
    "each tower counts its rows": (count_rows, nothing),
    "each tower counts the step": (count_steps, nothing),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tower_may_not_write_by_itself_what_all_share(name):
    towers = model_fn.replicate_model_fn(stepping(*REFUSED[name]), None, 3)
    with pytest.raises(errors.TowerMismatchError, match=r"uses kept:0 by itself .* aggregation="):
        exactness.run(towers, [batch()])


def test_what_one_tower_writes_for_all_is_exact():
    exactness.require_one_device(stepping(nothing, count_steps), [batch()] * 3, devices=3)


def test_accumulated_gradients_may_not_be_one_towers():
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        held = kept("held", np.zeros([3, 1], np.float32))
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss, [w])
        with tf1.control_dependencies([held.assign_add(gradient, read_value=False)]):
            summed = held.read_value()
        step = optimizer.apply_gradients([(summed, w)], tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=step)

    towers = model_fn.replicate_model_fn(model, None, 3)
    with pytest.raises(errors.TowerMismatchError, match="uses held:0 by itself"):
        exactness.run(towers, [batch()])


def moving_average(**options):
    """A model whose UPDATE_OPS keep a moving average, written by hand."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept(**options)
        update = variable.assign(variable * 0.5 + 0.5 * tf.reduce_mean(features), read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(tf.matmul(features, w) - labels)))

    return model


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


def test_update_ops_first_may_write_from_the_first_towers_rows():
    towers = model_fn.replicate_model_fn(moving_average(), descend, 3, loss_reduction="mean")
    found = exactness.run(towers, [batch()]).variables[0]["kept:0"]
    # Tower 0 of 3 has the first 3 of 7 rows; the average began with 1.
    np.testing.assert_allclose(found, 0.5 + 0.5 * batch()[0][:3].mean(), 1e-5)


@pytest.mark.parametrize("update_ops", ["mean", "all"])
def test_update_ops_of_all_towers_may_not_race(update_ops):
    options = {"loss_reduction": "mean", "update_ops": update_ops}
    towers = model_fn.replicate_model_fn(moving_average(), descend, 3, **options)
    with pytest.raises(errors.TowerMismatchError, match="ON_READ"):
        exactness.run(towers, [batch()])
    mean = tf.VariableAggregation.MEAN
    model = moving_average(synchronization=ON_READ, aggregation=mean)
    towers = model_fn.replicate_model_fn(model, descend, 3, **options)
    found = exactness.run(towers, [batch()]).variables[0]["kept:0"]
    parts = np.split(batch()[0], [3, 5])
    weights = [3, 2, 2] if update_ops == "mean" else None
    expected = 0.5 + 0.5 * np.average([part.mean() for part in parts], weights=weights)
    np.testing.assert_allclose(found, expected, 1e-5)


def test_what_the_first_tower_updates_others_may_not_read():
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept()
        output = tf.matmul(features, w) * variable.read_value()
        update = variable.assign(variable * 0.5, read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))

    towers = model_fn.replicate_model_fn(model, descend, 3)
    with pytest.raises(errors.TowerMismatchError, match=r"tower \d uses kept:0 by itself"):
        exactness.run(towers, [batch()])


def test_a_metric_in_a_shared_variable_is_refused():
    def model(features, labels, mode):
        loss = tf.reduce_mean(features)
        update = count_rows(features, variable := kept())[0]
        return exactness.spec_of(mode, loss, eval_metric_ops={"rows": (variable.value(), update)})

    towers = model_fn.replicate_model_fn(model, None, 3)
    with pytest.raises(errors.TowerMismatchError, match=r"tower \d uses kept:0 by itself"):
        exactness.run(towers, [batch()], "eval")


def power_iteration(**options):
    """A model that reads a variable in its forward pass, and assigns it as it goes."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept(**options)
        output = tf.matmul(features, w) * variable.read_value()
        with tf1.control_dependencies([output]):
            update = variable.assign(variable.read_value() * 0.5 + 0.25, read_value=False)
        loss = tf.reduce_mean(tf.square(output - labels))
        with tf1.control_dependencies([update]):
            step = descend().minimize(tf.identity(loss), tf1.train.get_global_step())
        return exactness.spec_of(mode, loss, train_op=step)

    return model


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("name", ["ONLY_FIRST_REPLICA", "MEAN"])
def test_what_towers_assign_is_joined_when_all_have_read(strategy, name):
    model = power_iteration(aggregation=tf.VariableAggregation[name])
    for rows in (2, 7):
        exactness.require_one_device(model, [batch(rows)] * 5, devices=3, strategy=strategy)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("rows", [2, 7])
def test_a_joined_mean_is_that_of_the_rows(strategy, rows):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept(aggregation=tf.VariableAggregation.MEAN)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        step = descend().minimize(loss, tf1.train.get_global_step())
        update = variable.assign_add(tf.reduce_mean(features), read_value=False)
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, update))

    exactness.require_one_device(model, [batch(rows)] * 2, devices=3, strategy=strategy)
