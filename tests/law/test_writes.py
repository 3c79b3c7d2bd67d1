"""What a model_fn writes itself is written once, as on one device, or refused."""

import contextlib

import pytest

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
double = tf.float64


def kept(shape=(), name="kept", **options):
    return tf1.get_variable(name, list(shape), double, exactness.start, trainable=False, **options)


def then(loss, *writes, optimizer=running.momentum):
    """A loss and a train_op of a step and some writes."""
    step = optimizer().minimize(loss, tf1.train.get_global_step())
    return loss, tf.group(step, *writes)


# Written from weights, counts and other variables.


def a_counter(f, y, v):
    return then(losses.mean(f, y, v), kept().assign_add(1.0, read_value=False))


def a_counter_that_the_step_waits_for(f, y, v):
    loss = losses.mean(f, y, v)
    with tf1.control_dependencies([kept().assign_add(1.0, read_value=False)]):
        return then(tf.identity(loss))


def a_counter_that_waits_for_the_step(f, y, v):
    loss, step = then(losses.quotient(f, y, v))
    with tf1.control_dependencies([step]):
        return loss, tf.group(kept().assign_add(1.0, read_value=False))


def a_counter_that_the_loss_waits_for(f, y, v):
    with tf1.control_dependencies([kept().assign_add(1.0, read_value=False)]):
        given = {key: tf.identity(value) for key, value in f.items()}
    return then(losses.total(given, y, v))


def the_last_weights(f, y, v):
    loss = losses.quotient(f, y, v)
    return then(loss, kept([3, 3]).assign(v.w, read_value=False))


def a_spectral_norm(f, y, v):
    """A step of power iteration in each forward pass (Miyato et al. 2018)."""
    vector = kept([3, 1])
    u = vector.read_value()
    left = tf.math.l2_normalize(tf.matmul(v.w, u))
    right = tf.math.l2_normalize(tf.matmul(v.w, left, transpose_a=True))
    norm = tf.reduce_sum(left * tf.matmul(v.w, tf.stop_gradient(right)))
    with tf1.control_dependencies([vector.assign(right, read_value=False)]):
        scaled = v.w / tf.stop_gradient(norm)
    return then(tf.reduce_mean(tf.square(tf.matmul(f["x"], scaled) - y["y"])))


# Written from the loss and from gradients.


def an_average_of_the_loss(f, y, v):
    loss, average = losses.quotient(f, y, v), kept()
    return then(loss, average.assign(0.9 * average + 0.1 * loss, read_value=False))


def an_average_of_a_sum(f, y, v):
    loss, average = losses.total(f, y, v), kept()
    return then(loss, average.assign_add(0.1 * (loss - average)))


def the_best_loss(f, y, v):
    loss, best = losses.mean(f, y, v), kept()
    return then(loss, best.assign(tf.minimum(best + 1.0, loss), read_value=False))


def an_average_of_another_scalar(f, y, v):
    loss, average = losses.mean(f, y, v), kept()
    f_score = 1.0 - losses.dice(f, y, v)
    return then(loss, average.assign(0.5 * average + 0.5 * f_score))


def an_average_of_means(f, y, v):
    """A vector: the mean of each unit over the batch."""
    loss, centre = losses.mean(f, y, v), kept([3])
    moved = 0.9 * centre + 0.1 * tf.reduce_mean(losses.logits(f, v), 0)
    return then(loss, centre.assign(moved))


def exponential_averages(f, y, v):
    loss = losses.quotient(f, y, v)
    average = tf1.train.ExponentialMovingAverage(0.5, num_updates=tf1.train.get_global_step())
    with tf1.control_dependencies([average.apply([loss])]):
        return then(tf.identity(loss))


def exponential_averages_of_weights(f, y, v):
    loss, step = then(losses.quotient(f, y, v))
    with tf1.control_dependencies([step]):
        return loss, tf1.train.ExponentialMovingAverage(0.5).apply(running.trained(v))


def gradients_of_two_batches(f, y, v):
    """Gradients are held in a variable, and applied with every second batch."""
    loss = losses.mean(f, y, v)
    weight, held = v.variables["w"], kept([3, 3])
    (gradient,) = tf.gradients(loss, [weight])
    count = tf1.train.get_global_step()
    summed = held.read_value() + gradient
    is_full = tf.equal(count % 2, 1)
    with tf1.control_dependencies([summed]):
        write = held.assign(tf.where(is_full, tf.zeros_like(summed), summed), read_value=False)
        pairs = [(tf.where(is_full, summed, tf.zeros_like(summed)), weight)]
        step = running.descend().apply_gradients(pairs, count)
    return loss, tf.group(step, write)


def a_loss_scale(f, y, v):
    """A scale that halves where the gradients are large, and doubles where they are not."""
    loss, scale = losses.total(f, y, v), kept()
    given = scale.read_value() + 1.0
    trained = running.trained(v)
    gradients = [gradient / given for gradient in tf.gradients(loss * given, trained)]
    is_large = tf.linalg.global_norm(gradients) > 3.0
    step = running.apply(zip(gradients, trained, strict=True), running.momentum())
    write = scale.assign(tf.where(is_large, given / 2.0, given * 2.0) - 1.0)
    return loss, tf.group(step, write)


def a_rate_that_the_loss_decides(f, y, v):
    """The step reads what is written from the loss before it."""
    loss, average = losses.quotient(f, y, v), kept()
    with tf1.control_dependencies([average.assign(0.5 * average + 0.5 * loss)]):
        rate = 0.1 / (1.0 + tf.abs(average.read_value()))
    return then(loss, optimizer=lambda: tf1.train.GradientDescentOptimizer(rate))


EXACT = [
    a_counter,
    a_counter_that_the_step_waits_for,
    a_counter_that_waits_for_the_step,
    a_counter_that_the_loss_waits_for,
    the_last_weights,
    a_spectral_norm,
    an_average_of_the_loss,
    an_average_of_a_sum,
    the_best_loss,
    an_average_of_another_scalar,
    an_average_of_means,
    exponential_averages,
    exponential_averages_of_weights,
    gradients_of_two_batches,
    a_loss_scale,
    a_rate_that_the_loss_decides,
]


@pytest.mark.parametrize("step", EXACT, ids=lambda step: step.__name__)
@pytest.mark.parametrize(
    ("strategy", "is_static"), [("parameter_server", False), ("mirrored", True)]
)
def test_what_is_no_towers_own_is_written_once(step, strategy, is_static):
    running.require_exact(running.training(step), strategy=strategy, is_static=is_static)


# Written from a tower's own rows.


def the_first_row(f, variable):
    return variable([3]).assign(f["x"][0], read_value=False)


def the_last_row(f, variable):
    return variable([3]).assign(f["x"][-1] * 2.0)


def rows_of_a_memory(f, variable):
    bank = variable([7, 3])
    return bank.assign(tf.concat([f["x"], bank.read_value()], 0)[:7])


def rows_at_their_places(f, variable):
    places = tf.cast(tf.argmax(f["x"], 1), tf.int32)
    return variable([3, 3]).scatter_update(tf.IndexedSlices(f["x"], places))


OWN = [the_first_row, the_last_row, rows_of_a_memory, rows_at_their_places]


@pytest.mark.parametrize("write", OWN, ids=lambda write: write.__name__)
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_what_is_a_towers_own_is_refused_by_name(write, strategy):
    def step(f, y, v):
        return then(losses.mean(f, y, v), write(f, lambda shape: kept(shape, "bank")))

    towers = model_fn.replicate_model_fn(running.training(step), None, 3, strategy=strategy)
    with pytest.raises((errors.TowerMismatchError, ValueError), match="bank"):
        exactness.run(towers, running.batches(7))


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_what_is_a_towers_own_is_joined_by_an_aggregation(strategy):
    def of_rows(f, y, v):
        mean = kept([3], "mean", aggregation=tf.VariableAggregation.MEAN)
        total = kept([3], "total", aggregation=tf.VariableAggregation.SUM)
        return then(
            losses.mean(f, y, v),
            mean.assign(tf.reduce_mean(f["x"], 0), read_value=False),
            total.assign_add(tf.reduce_sum(f["x"], 0), read_value=False),
        )

    running.require_exact(running.training(of_rows), strategy=strategy)


# What may be refused, but is never wrong.


@contextlib.contextmanager
def unless_refused(name):
    try:
        yield
    except (errors.TowerMismatchError, ValueError) as refusal:
        assert name in str(refusal)  # noqa: PT017 - to be right is as good as to be refused


def moving_the_weights_themselves(f, y, v):
    """Takes the gradient at moved weights, and moves them back (Foret et al. 2021)."""
    loss, weight = losses.quotient(f, y, v), v.variables["w"]
    (gradient,) = tf.gradients(loss, [weight])
    move = 0.05 * gradient / tf.norm(gradient)
    with tf1.control_dependencies([weight.assign_add(move, read_value=False)]):

        class Moved:
            w = weight.read_value()
            b = v.b

        there = losses.quotient(f, y, Moved)
        (second,) = tf.gradients(there, [weight])
    with tf1.control_dependencies([second]):
        back = weight.assign_sub(move, read_value=False)
    with tf1.control_dependencies([back]):
        return loss, running.apply([(tf.identity(second), weight)], running.descend())


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_weights_that_are_moved_and_moved_back(strategy):
    with unless_refused("w:0"):
        model = running.training(moving_the_weights_themselves)
        running.require_exact(model, strategy=strategy)


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_number_of_rows_that_is_added_up(strategy):
    def step(f, y, v):
        seen = kept(name="seen")
        return then(losses.mean(f, y, v), seen.assign_add(losses.count(f["x"])))

    with unless_refused("seen"):
        running.require_exact(running.training(step), strategy=strategy)
