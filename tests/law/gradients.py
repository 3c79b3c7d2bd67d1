"""Models that take gradients by themselves: those of the whole batch, whatever is made of them."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running

double = tf.float64


def _paired(gradients, v, optimizer=None):
    return running.apply(zip(gradients, running.trained(v), strict=True), optimizer)


def _two_losses(f, y, v):
    """A mean over rows, and a sum over the rows that a mask keeps."""
    return losses.mean(f, y, v), tf.reduce_sum(losses.squares(f, y, v) * f["mask"])


# What is differentiated, and with respect to what.


def several_ys(f, y, v):
    found = _two_losses(f, y, v)
    return found[0], _paired(tf.gradients(list(found), running.trained(v)), v)


def several_ys_and_weights_of_theirs(f, y, v):
    found = _two_losses(f, y, v)
    given = [tf.constant(2.0, double), tf.exp(v.s[0])]
    gradients = tf.gradients(list(found), running.trained(v), grad_ys=given)
    return found[0], _paired(gradients, v)


def a_weight_that_depends_on_the_batch(f, y, v):
    first, second = _two_losses(f, y, v)
    gradients = tf.gradients(first, running.trained(v), grad_ys=tf.stop_gradient(second))
    return first, _paired(gradients, v)


def a_y_with_rows(f, y, v):
    found = losses.cross(f, y, v)
    return tf.reduce_mean(found), _paired(tf.gradients(found, running.trained(v)), v)


def a_y_with_rows_and_weights(f, y, v):
    found = losses.cross(f, y, v)
    gradients = tf.gradients(found, running.trained(v), grad_ys=f["real"])
    return tf.reduce_mean(found), _paired(gradients, v)


def ys_with_rows_and_without(f, y, v):
    ys = [losses.cross(f, y, v), losses.quotient(f, y, v), tf.nn.l2_loss(v.w)]
    return ys[1], _paired(tf.gradients(ys, running.trained(v)), v)


def through_a_hidden_layer_by_hand(f, y, v):
    """Twice the chain rule: by the hidden units, and from there to the weights."""
    hidden = losses.logits(f, v)
    loss = losses.mean({"x": hidden}, y, _Identity())
    (onto_hidden,) = tf.gradients(loss, hidden)
    return loss, _paired(tf.gradients(hidden, running.trained(v), grad_ys=onto_hidden), v)


class _Identity:
    """Weights that leave what they are given as it is."""

    w = property(lambda self: tf.eye(3, dtype=double))
    b = property(lambda self: tf.zeros([3], double))


def by_what_was_read(f, y, v):
    loss = losses.mean(f, y, v)
    return loss, _paired(tf.gradients(loss, [v.w, v.b]), v)


def by_a_normalised_weight(f, y, v):
    """The gradient by what is made of a weight, handed on by hand."""
    unit = tf.math.l2_normalize(v.w, 0)
    loss = tf.reduce_sum(tf.square(tf.matmul(f["x"], unit) - y["y"])) + tf.nn.l2_loss(unit)
    (onto_unit,) = tf.gradients(loss, unit)
    return loss, _paired(tf.gradients(unit, running.trained(v), grad_ys=onto_unit), v)


def some_without_gradient(f, y, v):
    loss = losses.quotient(f, y, v) + 0.0 * tf.reduce_sum(tf.stop_gradient(v.s))
    gradients = tf.gradients(loss, running.trained(v))
    assert gradients[-1] is None
    return loss, _paired(gradients, v)


def zeros_for_some(f, y, v):
    loss = losses.quotient(f, y, v) + 0.0 * tf.reduce_sum(tf.stop_gradient(v.s))
    zero = tf.UnconnectedGradients.ZERO
    gradients = tf.gradients(loss, running.trained(v), unconnected_gradients=zero)
    return loss, _paired(gradients, v)


def stopped_at_the_hidden_units(f, y, v):
    hidden = tf.tanh(losses.logits(f, v))
    error = hidden * tf.reduce_sum(v.w) - y["y"]
    loss = tf.reduce_mean(tf.square(error)) + tf.nn.l2_loss(v.w)
    gradients = tf.gradients(loss, running.trained(v), stop_gradients=[hidden])
    return loss, _paired([g for g in gradients if g is not None] + [None], v)


def options_of_compute_gradients(f, y, v):
    loss = losses.quotient(f, y, v)
    optimizer = running.momentum()
    pairs = optimizer.compute_gradients(
        loss,
        gate_gradients=optimizer.GATE_GRAPH,
        aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE,
        colocate_gradients_with_ops=True,
        grad_loss=tf.constant(0.5, double),
    )
    return loss, running.apply(pairs, optimizer)


# What is made of gradients.


def decay_by_hand(f, y, v):
    loss = losses.total(f, y, v)
    gradients = tf.gradients(loss, running.trained(v))
    found = [g + 0.1 * w for g, w in zip(gradients, (v.w, v.b), strict=True)]
    return loss, _paired(found, v)


def scaled_loss(f, y, v):
    loss = losses.quotient(f, y, v)
    gradients = tf.gradients(loss * 128.0, running.trained(v))
    return loss, _paired([g / 128.0 for g in gradients], v)


def averaged_by_hand(f, y, v):
    """The mean of two tasks' gradients, each taken on its own."""
    found = _two_losses(f, y, v)
    each = [tf.gradients(loss, running.trained(v)) for loss in found]
    return found[0], _paired([(a + b) / 2.0 for a, b in zip(*each, strict=True)], v)


def clipped_one_by_one(f, y, v):
    loss = losses.total(f, y, v)
    first, second = tf.gradients(loss, running.trained(v))
    clipped = [tf.clip_by_norm(first, 1e-2), tf.clip_by_value(second, -1e-2, 1e-2)]
    return loss, _paired(clipped, v)


def normalised_by_the_loss(f, y, v):
    loss = losses.quotient(f, y, v)
    gradients = tf.gradients(loss, running.trained(v))
    return loss, _paired([g / (loss + tf.linalg.global_norm(gradients)) for g in gradients], v)


def divided_by_the_tokens(f, y, v):
    """A sum's gradient over how many tokens there are, as translation models have it."""
    loss = tf.reduce_sum(losses.of_tokens(f, y, v) * f["is_token"])
    gradients = tf.gradients(loss, running.trained(v))
    return loss, _paired([g / tf.reduce_sum(f["is_token"]) for g in gradients], v)


def a_rate_of_the_batch(f, y, v):
    """A rate that is as large as the batch's share of kept rows."""
    loss = losses.total(f, y, v)
    optimizer = tf1.train.GradientDescentOptimizer(0.1 * tf.reduce_mean(f["mask"]))
    return loss, optimizer.minimize(loss, tf1.train.get_global_step())


def surgery(f, y, v):
    """Each task's gradient without what points against the other's (Yu et al. 2020)."""
    found = _two_losses(f, y, v)
    one, other = [tf.gradients(loss, running.trained(v)) for loss in found]

    def projected(g, h):
        inner = tf.minimum(tf.reduce_sum(g * h), 0.0)
        return g - inner / (tf.reduce_sum(h * h) + 1e-12) * h

    pairs = zip(one, other, strict=True)
    return found[0], _paired([projected(g, h) + projected(h, g) for g, h in pairs], v)


def balanced_tasks(f, y, v):
    """Weights of tasks that are trained by the norms of their gradients (Chen et al. 2018)."""
    found = _two_losses(f, y, v)
    weighted = [tf.exp(v.s[i]) * loss for i, loss in enumerate(found)]
    shared = v.variables["w"]
    norms = [tf.norm(tf.gradients(loss, shared)[0]) for loss in weighted]
    apart = tf.abs(norms[0] - norms[1])
    pairs = [(tf.gradients(tf.add_n(weighted), shared)[0], shared)]
    pairs += [(tf.gradients(apart, v.variables["s"])[0], v.variables["s"])]
    return tf.add_n(weighted), running.apply(pairs)


def curvature(f, y, v):
    """A product with the Hessian: the gradient of a gradient's product with a vector."""
    loss = losses.quotient(f, y, v)
    first = tf.gradients(loss, running.trained(v))
    product = tf.add_n([tf.reduce_sum(g * tf.ones_like(g)) for g in first])
    second = tf.gradients(product, running.trained(v))
    return loss, _paired([g + 0.1 * h for g, h in zip(first, second, strict=True)], v)


def sharpness_aware(f, y, v):
    """The gradient where the loss is near its largest (Foret et al. 2021)."""
    loss = losses.mean(f, y, v)
    gradients = tf.gradients(loss, running.trained(v))
    norm = tf.linalg.global_norm(gradients)

    class Moved:
        w = v.w + tf.stop_gradient(0.05 * gradients[0] / norm)
        b = v.b + tf.stop_gradient(0.05 * gradients[1] / norm)

    there = losses.mean(f, y, Moved)
    return loss, _paired(tf.gradients(there, running.trained(v)), v)


def by_a_tape(f, y, v):
    with tf.GradientTape() as tape:
        loss = losses.quotient(f, y, v)
    return loss, _paired(tape.gradient(loss, running.trained(v)), v)


def adversaries(f, y, v):
    """A generator and a discriminator, each with a loss and an optimizer of its own."""
    with tf1.variable_scope("generator", initializer=exactness.start, dtype=double):
        made = tf.tanh(tf.matmul(f["x"], tf1.get_variable("g", [3, 3], double)))

    def judge(x):
        with tf1.variable_scope("judge", reuse=tf1.AUTO_REUSE, initializer=exactness.start):
            return tf.matmul(x, tf1.get_variable("d", [3, 1], double))

    real, fake = judge(y["y"]), judge(made)
    of_judge = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(fake))
    of_generator = tf.reduce_sum(tf.nn.softplus(-fake))
    first = running.adam().minimize(of_judge, var_list=tf1.trainable_variables("judge"))
    with tf1.control_dependencies([first]):
        second = running.momentum().minimize(
            of_generator, tf1.train.get_global_step(), tf1.trainable_variables("generator")
        )
    return of_judge + of_generator, second
