"""Models that write variables by themselves: once, as on one device."""

from tensorflow.python.training import moving_averages

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running

double = tf.float64


def _kept(shape=(), name="kept", **options):
    return tf1.get_variable(name, list(shape), double, exactness.start, trainable=False, **options)


def _then(loss, *writes, optimizer=running.momentum):
    """A loss and a train_op of a step and some writes."""
    step = optimizer().minimize(loss, tf1.train.get_global_step())
    return loss, tf.group(step, *writes)


# Written from weights, counts and other variables.


def a_counter(f, y, v):
    return _then(losses.mean(f, y, v), _kept().assign_add(1.0, read_value=False))


def a_counter_that_the_step_waits_for(f, y, v):
    loss = losses.mean(f, y, v)
    with tf1.control_dependencies([_kept().assign_add(1.0, read_value=False)]):
        return _then(tf.identity(loss))


def a_counter_that_waits_for_the_step(f, y, v):
    loss, step = _then(losses.quotient(f, y, v))
    with tf1.control_dependencies([step]):
        return loss, tf.group(_kept().assign_add(1.0, read_value=False))


def a_counter_that_the_loss_waits_for(f, y, v):
    with tf1.control_dependencies([_kept().assign_add(1.0, read_value=False)]):
        given = {key: tf.identity(value) for key, value in f.items()}
    return _then(losses.total(given, y, v))


def the_last_weights(f, y, v):
    loss = losses.quotient(f, y, v)
    return _then(loss, _kept([3, 3]).assign(v.w, read_value=False))


def a_spectral_norm(f, y, v):
    """A step of power iteration in each forward pass (Miyato et al. 2018)."""
    vector = _kept([3, 1])
    u = vector.read_value()
    left = tf.math.l2_normalize(tf.matmul(v.w, u))
    right = tf.math.l2_normalize(tf.matmul(v.w, left, transpose_a=True))
    norm = tf.reduce_sum(left * tf.matmul(v.w, tf.stop_gradient(right)))
    with tf1.control_dependencies([vector.assign(right, read_value=False)]):
        scaled = v.w / tf.stop_gradient(norm)
    return _then(tf.reduce_mean(tf.square(tf.matmul(f["x"], scaled) - y["y"])))


# Written from the loss and from gradients.


def an_average_of_the_loss(f, y, v):
    loss, average = losses.quotient(f, y, v), _kept()
    return _then(loss, average.assign(0.9 * average + 0.1 * loss, read_value=False))


def an_average_of_a_sum(f, y, v):
    loss, average = losses.total(f, y, v), _kept()
    return _then(loss, average.assign_add(0.1 * (loss - average)))


def the_best_loss(f, y, v):
    loss, best = losses.mean(f, y, v), _kept()
    return _then(loss, best.assign(tf.minimum(best + 1.0, loss), read_value=False))


def an_average_of_another_scalar(f, y, v):
    loss, average = losses.mean(f, y, v), _kept()
    f_score = 1.0 - losses.dice(f, y, v)
    return _then(loss, average.assign(0.5 * average + 0.5 * f_score))


def an_average_of_means(f, y, v):
    """A vector: the mean of each unit over the batch."""
    loss, centre = losses.mean(f, y, v), _kept([3])
    moved = 0.9 * centre + 0.1 * tf.reduce_mean(losses.logits(f, v), 0)
    return _then(loss, centre.assign(moved))


def a_moving_average_that_is_used(f, y, v):
    mean = tf.reduce_mean(f["x"])
    moved = moving_averages.assign_moving_average(_kept(), mean, 0.75, zero_debias=False)
    return _then(losses.mean(f, y, v), _kept((), "used").assign(tf.convert_to_tensor(moved) * 2.0))


def exponential_averages(f, y, v):
    loss = losses.quotient(f, y, v)
    average = tf1.train.ExponentialMovingAverage(0.5, num_updates=tf1.train.get_global_step())
    with tf1.control_dependencies([average.apply([loss])]):
        return _then(tf.identity(loss))


def exponential_averages_of_weights(f, y, v):
    loss, step = _then(losses.quotient(f, y, v))
    with tf1.control_dependencies([step]):
        return loss, tf1.train.ExponentialMovingAverage(0.5).apply(running.trained(v))


def gradients_of_two_batches(f, y, v):
    """Gradients are held in a variable, and applied with every second batch."""
    loss = losses.mean(f, y, v)
    weight, held = v.variables["w"], _kept([3, 3])
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
    loss, scale = losses.total(f, y, v), _kept()
    given = scale.read_value() + 1.0
    trained = running.trained(v)
    gradients = [gradient / given for gradient in tf.gradients(loss * given, trained)]
    is_large = tf.linalg.global_norm(gradients) > 3.0
    step = running.apply(zip(gradients, trained, strict=True), running.momentum())
    write = scale.assign(tf.where(is_large, given / 2.0, given * 2.0) - 1.0)
    return loss, tf.group(step, write)


def a_rate_that_the_loss_decides(f, y, v):
    """The step reads what is written from the loss before it."""
    loss, average = losses.quotient(f, y, v), _kept()
    with tf1.control_dependencies([average.assign(0.5 * average + 0.5 * loss)]):
        rate = 0.1 / (1.0 + tf.abs(average.read_value()))
    return _then(loss, optimizer=lambda: tf1.train.GradientDescentOptimizer(rate))


# Written from rows.


def the_first_row(f, y, v):
    return _then(losses.mean(f, y, v), _kept([3]).assign(f["x"][0], read_value=False))


def the_last_row(f, y, v):
    return _then(losses.mean(f, y, v), _kept([3]).assign(f["x"][-1] * 2.0))


def rows_of_a_memory(f, y, v):
    """The seven rows that came last, of this batch and those before (He et al. 2020)."""
    bank = _kept([7, 3])
    both = tf.concat([f["x"], bank.read_value()], 0)[:7]
    with tf1.control_dependencies([both]):
        return _then(losses.mean(f, y, v), bank.assign(both))


def rows_at_their_places(f, y, v):
    places = tf.cast(tf.argmax(f["x"], 1), tf.int32)
    added = _kept([3, 3]).scatter_add(tf.IndexedSlices(f["x"], places))
    return _then(losses.mean(f, y, v), added)


def rows_in_a_branch(f, y, v):
    """A table that the loss reads, and a branch moves."""
    loss, table = losses.mean(f, y, v), _kept([3, 3])
    loss += tf.reduce_mean(tf.square(tf.gather(table, y["class"]) - y["y"]))
    moved = tf.IndexedSlices(0.1 * f["x"], y["class"])
    with tf1.control_dependencies([loss]):
        is_low = tf.reduce_mean(f["x"]) < 10.0
    branch = tf.cond(is_low, lambda: tf.group(table.scatter_sub(moved)), tf.no_op)
    return _then(loss, branch)


def a_sparse_step_in_a_branch(f, y, v):
    """The rows of a table are trained where their gradient is finite."""
    table = tf1.get_variable("table", [3, 3], double, exactness.start)
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, y["class"]) - y["y"]))
    optimizer, count = running.adam(), tf1.train.get_global_step()
    pairs = optimizer.compute_gradients(loss)
    is_finite = tf.reduce_all(tf.math.is_finite(pairs[0][0].values))
    return loss, tf.cond(is_finite, lambda: optimizer.apply_gradients(pairs, count), tf.no_op)


def a_number_of_rows(f, y, v):
    return _then(losses.mean(f, y, v), _kept().assign_add(losses.count(f["x"])))


def what_towers_would_join(f, y, v):
    """An aggregation says nothing where there is one tower."""
    mean = _kept([3], "mean", aggregation=tf.VariableAggregation.MEAN)
    total = _kept([3], "total", aggregation=tf.VariableAggregation.SUM)
    own = _kept(
        [],
        "own",
        aggregation=tf.VariableAggregation.SUM,
        synchronization=tf.VariableSynchronization.ON_READ,
    )
    return _then(
        losses.mean(f, y, v),
        mean.assign(tf.reduce_mean(f["x"], 0), read_value=False),
        total.assign_add(tf.reduce_sum(f["x"], 0), read_value=False),
        own.assign_add(losses.count(f["x"])),
    )


def moving_the_weights_themselves(f, y, v):
    """Takes the gradient at moved weights, and moves them back (Foret et al. 2021)."""
    loss, weight = losses.quotient(f, y, v), v.variables["w"]
    (gradient,) = tf.gradients(loss, [weight])
    move = 0.05 * gradient / tf.norm(gradient)
    with tf1.control_dependencies([loss, weight.assign_add(move, read_value=False)]):

        class Moved:
            w = weight.read_value()
            b = v.b

        there = losses.quotient(f, y, Moved)
        (second,) = tf.gradients(there, [Moved.w])
    with tf1.control_dependencies([second]):
        back = weight.assign_sub(move, read_value=False)
    with tf1.control_dependencies([back]):
        return loss, running.apply([(tf.identity(second), weight)], running.descend())
