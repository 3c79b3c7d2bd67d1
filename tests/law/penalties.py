"""Losses with penalties on weights by hand, and losses that hold gradients."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses

mean, total = losses.mean, losses.total


def in_a_scope_called_regularizer(v):
    with tf.name_scope("Regularizer"):
        return tf.nn.l2_loss(v.w)


def in_a_function(v):
    @tf.function
    def penalty(w):
        return tf.nn.l2_loss(w)

    return penalty(v.w)


def in_a_branch(v):
    is_large = tf.reduce_sum(v.w) > 0.0
    return tf.cond(is_large, lambda: tf.nn.l2_loss(v.w), lambda: tf.reduce_sum(tf.exp(v.w)))


SHAPES = {
    "squares": lambda v: tf.nn.l2_loss(v.w),
    "softmax": lambda v: tf.reduce_sum(tf.square(tf.nn.softmax(v.w))),
    "einsum": lambda v: tf.einsum("ij,ij->", v.w, v.w),
    "slices": lambda v: tf.reduce_sum(tf.square(v.w[1:] - v.w[:-1])),
    "where": lambda v: tf.reduce_sum(tf.where(v.w > 0.0, v.w**2, -(v.w**3))),
    "absolute": lambda v: tf.reduce_sum(tf.abs(v.w)) + tf.reduce_mean(tf.abs(v.b) ** 1.5),
    "norm": lambda v: tf.norm(v.w) + tf.reduce_sum(tf.norm(v.w, axis=0)),
    "orthogonality": lambda v: tf.nn.l2_loss(
        tf.matmul(v.w, v.w, transpose_a=True) - tf.eye(3, dtype=tf.float64)
    ),
    "log sum of exponentials": lambda v: tf.reduce_logsumexp(v.w),
    "a product of two weights": lambda v: tf.reduce_sum(tf.square(tf.linalg.matvec(v.w, v.b))),
    "a scope called Regularizer": in_a_scope_called_regularizer,
    "in a function": in_a_function,
    "in a branch": in_a_branch,
    "row by row": lambda v: tf.add_n([tf.nn.l2_loss(row) for row in tf.unstack(v.w)]),
}


def of_all_weights(layers):
    """A sum over what layers have made, found where TensorFlow lists it."""

    def loss(f, y, v):
        hidden = layers(f["x"])
        listed = [w for w in tf1.trainable_variables() if "bias" not in w.name]
        penalty = tf.add_n([tf.nn.l2_loss(w.read_value()) for w in listed])
        return tf.reduce_sum(tf.square(hidden - y["y"])) + 0.1 * penalty

    return loss


def keras_layers(x):
    options = {"kernel_initializer": exactness.start, "dtype": tf.float64}
    hidden = tf.keras.layers.Dense(2, "tanh", **options)(x)
    return tf.keras.layers.Dense(3, **options)(hidden)


def layers(x):
    hidden = tf1.layers.dense(x, 2, tf.tanh, kernel_initializer=exactness.start)
    return tf1.layers.dense(hidden, 3, kernel_initializer=exactness.start)


def with_penalty(reduce, penalty):
    return lambda f, y, v: reduce(f, y, v) + 0.1 * penalty(v)


PENALTIES = {
    f"{('mean', 'sum')[i % 2]} and penalty: {name}": with_penalty((mean, total)[i % 2], penalty)
    for i, (name, penalty) in enumerate(SHAPES.items())
} | {
    "a penalty within the sum": lambda f, y, v: tf.reduce_sum(
        losses.cross(f, y, v) + tf.nn.l2_loss(v.w)
    ),
    "a penalty times a feature": lambda f, y, v: (
        total(f, y, v) + tf.reduce_sum(f["real"] * tf.nn.l2_loss(v.w))
    ),
    "a penalty of a masked mean": with_penalty(losses.quotient, SHAPES["squares"]),
    "a penalty of all weights of layers": of_all_weights(layers),
    "a penalty of all weights of Keras layers": of_all_weights(keras_layers),
    "nothing but a penalty": lambda f, y, v: tf.nn.l2_loss(v.w) + 0.0 * mean(f, y, v),
    "nothing of the batch": lambda f, y, v: tf.nn.l2_loss(v.w) + tf.nn.l2_loss(v.b),
}


def head(hidden, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y["class"], 2.0 * hidden)


def adversarial(reduce, is_stopped, disturb):
    """The loss of hidden units, and of the same ones disturbed by its gradient."""

    def loss(f, y, v):
        hidden = tf.tanh(losses.logits(f, v))
        clean = reduce(head(hidden, y))
        (gradient,) = tf.gradients(clean, hidden)
        if is_stopped:
            gradient = tf.stop_gradient(gradient)
        return clean + reduce(head(hidden + disturb(gradient), y))

    return loss


def of_unit_length(gradient):
    return 0.3 * gradient / (tf.norm(gradient, axis=1, keepdims=True) + 1e-6)


def critic_penalty(f, y, v):
    """The gradient of a critic, a y with rows, with respect to its input."""
    given = f["x"] * (1.0 - f["real"][:, None]) + y["y"] * f["real"][:, None]
    (gradient,) = tf.gradients(tf.tanh(tf.matmul(given, v.w) + v.b), given)
    slopes = tf.sqrt(tf.reduce_sum(tf.square(gradient), 1) + 1e-3)
    return mean(f, y, v) + tf.reduce_mean(tf.square(slopes - 1.0))


def of_the_gradient(reduce):
    def loss(f, y, v):
        found = reduce(f, y, v)
        (gradient,) = tf.gradients(found, v.variables["w"])
        return found + 0.1 * tf.reduce_sum(tf.square(gradient))

    return loss


def of_the_gradient_of_a_read(f, y, v):
    """What was read of a variable is no variable."""
    found = mean(f, y, v)
    return found + 0.1 * tf.reduce_sum(tf.square(tf.gradients(found, v.w)[0]))


def of_the_gradient_of_a_loop(f, y, v):
    """TensorFlow changes a loop in place when it derives it, and when it derives that again."""
    start = (0, losses.logits(f, v))
    _, found = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h + v.b)), start)
    return with_squares_of_the_gradient(found, y, v)


def of_the_gradient_of_a_branch(f, y, v):
    hidden, chosen = losses.logits(f, v), tf.reduce_sum(v.b) < 100.0
    found = tf.cond(chosen, lambda: tf.tanh(hidden + v.b), lambda: hidden)
    return with_squares_of_the_gradient(found, y, v)


def with_squares_of_the_gradient(found, y, v):
    loss = tf.reduce_mean(tf.square(found - y["y"]))
    (gradient,) = tf.gradients(loss, v.variables["w"])
    return loss + 0.1 * tf.reduce_sum(tf.square(gradient))


def of_inner_steps(steps):
    """The loss after some steps of one's own, each of which is derived by the weights."""

    def loss(f, y, v):
        w, first = v.w * 1.0, v.variables["w"]
        for _ in range(steps):
            w -= 0.5 * tf.gradients(distance(f, y, w), first)[0]
        return distance(f, y, w)

    return loss


def distance(f, y, w):
    return tf.reduce_mean(tf.square(tf.tanh(tf.matmul(f["x"], w)) - y["y"]))


GRADIENTS = {
    "adversarial sign, stopped": adversarial(tf.reduce_mean, True, lambda g: 0.1 * tf.sign(g)),
    "adversarial gradient, stopped": adversarial(tf.reduce_mean, True, lambda g: 3.0 * g),
    "adversarial gradient": adversarial(tf.reduce_mean, False, lambda g: 3.0 * g),
    "adversarial gradient of a sum": adversarial(tf.reduce_sum, False, lambda g: 0.3 * g),
    "adversarial unit length": adversarial(tf.reduce_mean, False, of_unit_length),
    "critic's gradient penalty": critic_penalty,
    "gradient penalty of a mean": of_the_gradient(mean),
    "gradient penalty of a sum": of_the_gradient(total),
    "gradient penalty of a quotient": of_the_gradient(losses.quotient),
    "gradient penalty of what was read": of_the_gradient_of_a_read,
    "an inner step": of_inner_steps(1),
    "two inner steps": of_inner_steps(2),
    "gradient penalty of a loop": of_the_gradient_of_a_loop,
    "gradient penalty of a branch": of_the_gradient_of_a_branch,
}


def replica():
    return tf.distribute.get_replica_context()


def centred(f, y, v):
    """Logits whose mean over the batch is taken off, as every replica knows it."""
    found = losses.logits(f, v)
    found -= replica().all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(found, 0))
    return tf.reduce_mean(tf.square(found - y["y"]))


def centred_by_sums(f, y, v):
    found = losses.logits(f, v)
    given = [tf.reduce_sum(found, 0), losses.count(found)]
    summed, rows = replica().all_reduce(tf.distribute.ReduceOp.SUM, given)
    return tf.reduce_sum(tf.square(found - summed / rows - y["y"]))


REDUCED = {"centred by all_reduce": centred, "centred by sums of all_reduce": centred_by_sums}
