"""Variables that towers share: written once for all of them, or refused."""

import time

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


WRITTEN_ONCE = {
    "rows, counted after the step": (nothing, count_rows),
    "rows, counted before the step": (count_rows, nothing),
    "steps, counted after the step": (nothing, count_steps),
    "steps, counted before the step": (count_steps, nothing),
}


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("name", WRITTEN_ONCE)
def test_what_is_no_towers_own_is_written_once(name, strategy):
    given = [batch(), batch(5), batch(2)]
    found = exactness.require_one_device(
        stepping(*WRITTEN_ONCE[name]), given, devices=3, strategy=strategy
    )
    # It begins with 1: three steps make it 4, and 7 + 5 + 2 rows 15.
    assert found.variables[-1]["kept:0"] == (15.0 if "rows" in name else 4.0)


@pytest.mark.parametrize(
    "write", [(nothing, keep_the_last), (keep_the_last, nothing)], ids=["after", "before"]
)
def test_a_tower_may_not_write_by_itself_what_all_share(write):
    towers = model_fn.replicate_model_fn(stepping(*write), None, 3)
    with pytest.raises(errors.TowerMismatchError, match=r"kept:0 .* aggregation="):
        exactness.run(towers, [batch()])


def in_a_branch(write):
    def inside(x, variable):
        often = tf1.placeholder_with_default(True, [])
        return [tf.cond(often, lambda: write(x, variable), lambda: tf.identity(0.0))]

    return inside


def in_a_function(write):
    return lambda x, variable: [tf.function(lambda: write(x, variable), autograph=False)()]


def in_a_loop(write):
    def inside(x, variable):
        return tf.while_loop(lambda i: i < 1.0, lambda i: i + 1.0 + 0.0 * write(x, variable), [0.0])

    return inside


def keep_the_mean(x, variable):
    with tf1.control_dependencies([variable.assign(tf.reduce_mean(x), read_value=False)]):
        return tf.identity(1.0)


def count(x, variable):
    with tf1.control_dependencies([variable.assign_add(1.0, read_value=False)]):
        return tf.identity(1.0)


INSIDE = pytest.mark.parametrize("inside", [in_a_branch, in_a_function, in_a_loop])


@INSIDE
@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_may_not_be_written_where_towers_cannot_meet(inside, when):
    write = inside(keep_the_mean)
    model = stepping(write) if when == "before" else stepping(nothing, write)
    with pytest.raises(errors.TowerMismatchError, match=r"tower \d uses kept:0 by itself"):
        exactness.run(model_fn.replicate_model_fn(model, None, 3), [batch()])


@INSIDE
def test_a_count_of_steps_may_be_written_there(inside):
    model = stepping(nothing, inside(count))
    found = exactness.require_one_device(model, [batch(), batch(5), batch(2)], devices=3)
    assert found.variables[-1]["kept:0"] == 4.0  # three steps after 1


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_gradients_that_a_model_accumulates_are_whole(strategy):
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

    given = [batch(), batch(2), batch(5)]
    exactness.require_one_device(model, given, fetch=lambda spec: {}, devices=3, strategy=strategy)


def moving_average(reduce=tf.reduce_mean, **options):
    """A model whose UPDATE_OPS keep a moving average, written by hand."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept(**options)
        update = variable.assign(variable * 0.5 + 0.5 * reduce(features), read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(tf.matmul(features, w) - labels)))

    return model


def descend():
    return tf1.train.GradientDescentOptimizer(0.1)


@pytest.mark.parametrize("update_ops", ["first", "mean", "all"])
def test_update_ops_write_what_is_whole_once(update_ops):
    exactness.require_one_device(
        moving_average(), [batch(), batch(2)], "train", descend, devices=3, update_ops=update_ops
    )


def test_update_ops_first_may_write_from_the_first_towers_rows():
    towers = model_fn.replicate_model_fn(moving_average(tf.reduce_max), descend, 3)
    found = exactness.run(towers, [batch()]).variables[0]["kept:0"]
    # Tower 0 of 3 has the first 3 of 7 rows; the average began with 1.
    np.testing.assert_allclose(found, 0.5 + 0.5 * batch()[0][:3].max(), 1e-5)


@pytest.mark.parametrize("update_ops", ["mean", "all"])
def test_update_ops_of_all_towers_may_not_race(update_ops):
    options = {"update_ops": update_ops}
    towers = model_fn.replicate_model_fn(moving_average(tf.reduce_max), descend, 3, **options)
    with pytest.raises(errors.TowerMismatchError, match="ON_READ"):
        exactness.run(towers, [batch()])
    mean = tf.VariableAggregation.MEAN
    for reduce, own in ((tf.reduce_max, np.max), (tf.reduce_mean, np.mean)):
        model = moving_average(reduce, synchronization=ON_READ, aggregation=mean)
        towers = model_fn.replicate_model_fn(model, descend, 3, **options)
        found = exactness.run(towers, [batch()]).variables[0]["kept:0"]
        parts = np.split(batch()[0], [3, 5])
        weights = [3, 2, 2] if update_ops == "mean" else None
        expected = 0.5 + 0.5 * np.average([own(part) for part in parts], weights=weights)
        np.testing.assert_allclose(found, expected, 1e-5)


def test_what_a_model_reads_may_be_updated_once_it_is_read():
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept()
        output = tf.matmul(features, w) * variable.read_value()
        loss = tf.reduce_mean(tf.square(output - labels))
        step = descend().minimize(loss, tf1.train.get_global_step())
        with tf1.control_dependencies([loss, step]):
            update = variable.assign(variable * 0.5, read_value=False)
        return exactness.spec_of(mode, loss, train_op=tf1.group(step, update))

    exactness.require_one_device(model, [batch(), batch(2)], devices=3)


@pytest.mark.parametrize("update_ops", ["first", "all"])
def test_what_the_first_tower_updates_others_may_not_read(update_ops):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        variable = kept()
        output = tf.matmul(features, w) * variable.read_value()
        update = variable.assign(tf.reduce_max(features), read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)))

    towers = model_fn.replicate_model_fn(model, descend, 3, update_ops=update_ops)
    with pytest.raises(errors.TowerMismatchError, match=r"tower \d uses kept:0 by itself"):
        exactness.run(towers, [batch()])


@pytest.mark.parametrize("building", ["call", "auto"])
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_operations_on_a_handle_may_not_part_copies(strategy, building):
    def model(features, labels, mode):
        w = tf1.get_variable("w", [3, 1], initializer=exactness.start)
        update = tf.raw_ops.AssignAddVariableOp(resource=kept().handle, value=features[0, 0])
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        return exactness.spec_of(mode, loss)

    options = {"strategy": strategy, "tower_building": building}
    towers = model_fn.replicate_model_fn(model, descend, 3, **options)
    if strategy == "mirrored":
        with pytest.raises(errors.TowerMismatchError, match="writes 1 of 3 copies of kept:0"):
            exactness.run(towers, [batch()])
    else:
        found = exactness.run(towers, [batch()]).variables[0]["kept:0"]
        np.testing.assert_allclose(found, 1 + batch()[0][0, 0], 1e-5)


def evaluating(write):
    """A model whose metric is kept in a variable that all towers share."""

    def model(features, labels, mode):
        update = write(features, variable := kept())[0]
        loss = tf.reduce_mean(features)
        return exactness.spec_of(mode, loss, eval_metric_ops={"kept": (variable.value(), update)})

    return model


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("write", [count_rows, count_steps])
def test_a_metric_in_a_shared_variable_is_written_once(write, strategy):
    model = evaluating(write)
    given = [batch(), batch(2)]
    exactness.require_one_device(model, given, "eval", devices=3, strategy=strategy)


def test_a_metric_of_rows_in_a_shared_variable_is_refused():
    towers = model_fn.replicate_model_fn(evaluating(keep_the_last), None, 3)
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


def own_descent(gradients_and_variables, rate):
    return tf1.group(*[v.assign(v - rate * g) for g, v in gradients_and_variables])


def nap(x):
    """Takes its time with the later rows, and gives zero."""
    time.sleep(0.02 if x.max() > 1 else 0.0)
    return 0.0


def counting_by_itself(features, labels, mode, waits=()):
    """The loss is the mean of w, whatever the rows: the gradient is 1, and the rate is the step."""
    w = tf1.get_variable("w", [], tf.float64, initializer=tf1.zeros_initializer())
    step = tf1.train.get_or_create_global_step()
    with tf1.control_dependencies([wait(features) for wait in waits]):
        rate = tf.cast(step, tf.float64)  # a read that no write waits for
    loss = tf.reduce_mean(w * tf.ones_like(features))
    update = own_descent([(tf.gradients(loss, w)[0], w)], rate)
    return exactness.spec_of(mode, loss, train_op=tf1.group(update, step.assign(step + 1)))


def counting_after_naps(features, labels, mode):
    waits = [lambda x: tf.numpy_function(nap, [x], tf.float64)]
    return counting_by_itself(features, labels, mode, waits)


@pytest.mark.parametrize("model", [counting_by_itself, counting_after_naps])
@pytest.mark.parametrize("building", ["call", "clone"])
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_write_waits_for_what_towers_read_before_it(strategy, building, model):
    options = {"strategy": strategy, "tower_building": building}
    towers = model_fn.replicate_model_fn(model, None, 3, **options)
    found = exactness.run(towers, [(np.float64([1, 1, 1, 1, 2, 2]), None)] * 40)
    # The rates are 0 to 39, whichever tower reads the step, and however late: 39 * 40 / 2 = 780.
    assert found.variables[-1]["w:0"] == -780


def looking_up(features, labels, mode):
    table = tf1.get_variable("table", [4, 2], initializer=exactness.start)
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, features)))
    update = tf1.train.AdamOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
    return exactness.spec_of(mode, loss, train_op=update)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_step_that_finds_no_batch_writes_nothing(strategy):
    # Adam lets the averages of all rows of a table decay, whatever rows come.
    towers = model_fn.replicate_model_fn(looking_up, None, 3, strategy=strategy)
    with tf1.Graph().as_default() as graph:
        tf1.train.create_global_step()
        rows = tf.data.Dataset.from_tensor_slices([0, 1, 1, 2, 3, 0]).batch(3)
        spec = towers(tf1.data.make_one_shot_iterator(rows).get_next(), None, "train")
        found = {
            v.name: [m.read_value() for m in getattr(v, "members", (v,))]
            for v in tf1.global_variables()
        }
        with tf1.Session(graph=graph, config=exactness.session_config()) as session:
            session.run(exactness.initializer_of_all())
            for _ in range(2):
                session.run(spec.train_op)
            before = session.run(found)
            for _ in range(5):
                with pytest.raises(tf.errors.OutOfRangeError):
                    session.run(spec.train_op)
            after = session.run(found)
    assert before["global_step:0"] == [2]
    tf.nest.map_structure(np.testing.assert_array_equal, before, after)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_an_input_may_write_before_it_gives_a_batch(strategy):
    towers = model_fn.replicate_model_fn(looking_up, None, 3, strategy=strategy)
    with tf1.Graph().as_default():
        tf1.train.create_global_step()
        seen = tf1.get_variable("seen", [], initializer=tf1.zeros_initializer(), trainable=False)
        with tf1.control_dependencies([seen.assign_add(1.0, read_value=False)]):
            features = tf.identity(tf1.placeholder_with_default([0, 1, 2, 3], [None]))
        spec = towers(features, None, "train")
        with tf1.Session(config=exactness.session_config()) as session:
            session.run(exactness.initializer_of_all())
            for _ in range(3):
                session.run(spec.train_op)
            assert session.run([seen, tf1.train.get_global_step()]) == [3.0, 3]
