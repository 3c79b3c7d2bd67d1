"""Models that normalise by a batch's statistics, in every way that there is."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus.model import F64, SINGLE, adam, hidden, model, squares, weight

FLOAT32 = {"tolerance": SINGLE}


def images_of(f, dtype=F64):
    """[B, 6, 6, 3]: pictures behind a convolution."""
    kernel = tf.cast(weight("kernel", 3, 3, 2, 3), dtype)
    return tf.nn.conv2d(tf.cast(f["images"], dtype), kernel, 1, "SAME")


def moving(name, value, momentum=0.9):
    """Adds an update of an average to UPDATE_OPS."""
    average = tf1.get_variable(name, value.shape, F64, tf1.zeros_initializer(), trainable=False)
    update = average.assign(momentum * average + (1.0 - momentum) * value)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update.op)
    return average


@model(optimizer=adam)
def norm_by_moments(f, y):
    """By `tf.nn.moments` and `batch_normalization`, averages kept by hand."""
    x = hidden(f["x"])
    mean, variance = tf.nn.moments(x, [0])
    moving("mean", mean)
    moving("variance", variance)
    x = tf.nn.batch_normalization(x, mean, variance, weight("beta", 4), weight("gamma", 4), 1e-3)
    return squares(hidden(x, 3, "out"), y), {"mean": mean, "variance": variance, "x": x}


@model
def norm_ahead_of_the_step(f, y):
    """Updates ahead of the step, by control dependencies, as slim's `create_train_op` does."""
    x = hidden(f["x"])
    mean = tf.reduce_mean(x, 0)
    variance = tf.reduce_mean(tf.square(x - mean), 0)
    moving("mean", mean)
    moving("variance", variance)
    loss = squares(hidden((x - mean) * tf.math.rsqrt(variance + 1e-3), 3, "out"), y)
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        barrier = tf.identity(loss)
        step = adam().minimize(barrier, tf1.train.get_global_step())
    return loss, {"mean": mean}, step


def fused(x, is_training=True, data_format="NHWC", **options):
    scale, offset = (tf.cast(weight(name, 3), tf.float32) for name in ("scale", "offset"))
    return tf1.nn.fused_batch_norm(
        x, scale, offset, is_training=is_training, data_format=data_format, **options
    )


@model(**FLOAT32)
def norm_fused_with_averages(f, y):
    """The kernel's own moving averages, by `exponential_avg_factor`."""
    x = images_of(f, tf.float32)
    start = tf.zeros([3]), tf.ones([3])
    x, mean, variance = fused(x, mean=start[0], variance=start[1], exponential_avg_factor=0.3)
    found = tf.cast(tf.reduce_mean(tf.nn.relu(x), [1, 2]), F64)
    return squares(found, y), {"mean": mean, "variance": variance}


@model(**FLOAT32)
def norm_fused_frozen(f, y):
    """Not in training: the kernel normalises by what it is given."""
    x = images_of(f, tf.float32)
    x, _, _ = fused(x, False, mean=tf.fill([3], 0.1), variance=tf.fill([3], 0.7))
    return squares(tf.cast(tf.reduce_mean(tf.nn.relu(x), [1, 2]), F64), y), {"x": x}


@model(**FLOAT32)
def norm_fused_second_order(f, y):
    """A gradient penalty through the fused kernel."""
    x = images_of(f, tf.float32)
    found = tf.reduce_mean(tf.square(tf.nn.relu(fused(x)[0])), [1, 2])
    loss = squares(tf.cast(found, F64), y)
    (gradient,) = tf.gradients(loss, f["images"])
    return loss + tf.reduce_sum(tf.square(gradient)), {"gradient": gradient}


def layers_norm(x, **options):
    return tf1.layers.batch_normalization(x, training=True, momentum=0.9, **options)


@model(optimizer=adam)
def norm_layers_2d(f, y):
    return squares(hidden(layers_norm(hidden(f["x"])), 3, "out"), y), {}


@model(**FLOAT32)
def norm_layers_fused(f, y):
    x = tf1.layers.conv2d(
        tf.cast(f["images"], tf.float32), 3, 3, kernel_initializer=exactness.start
    )
    x = layers_norm(x)
    x = layers_norm(tf.nn.relu(x), name="second")
    return squares(tf.cast(tf.reduce_mean(x, [1, 2]), F64), y), {"x": x}


@model(**FLOAT32)
def norm_layers_renormalised(f, y):
    """Batch renormalisation (Ioffe 2017): clipped corrections towards the averages."""
    clipping = {"rmax": 1.5, "rmin": 0.6, "dmax": 0.5}
    x = tf.cast(hidden(f["x"]), tf.float32)
    x = layers_norm(x, renorm=True, renorm_clipping=clipping, renorm_momentum=0.8)
    return squares(hidden(tf.cast(x, F64), 3, "out"), y), {"x": x}


@model(sizes=(8, 4))
def norm_layers_virtual_batches(f, y):
    """Ghost batches: statistics of each four rows."""
    x = layers_norm(hidden(f["x"]), virtual_batch_size=4, fused=False)
    return squares(hidden(x, 3, "out"), y), {"x": x}


def keras_norm(x, **options):
    layer = tf.keras.layers.BatchNormalization(momentum=0.9, dtype=x.dtype, **options)
    x = layer(x, training=True)
    for update in layer.updates:
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return x


@model(**FLOAT32)
def norm_keras_4d(f, y):
    x = keras_norm(images_of(f, tf.float32))
    return squares(tf.cast(tf.reduce_mean(tf.nn.relu(x), [1, 2]), F64), y), {"x": x}


@model
def norm_keras_synchronized(f, y):
    x = keras_norm(images_of(f), synchronized=True)
    return squares(tf.reduce_mean(tf.nn.relu(x), [1, 2]), y), {"x": x}


@model
def norm_of_tokens(f, y):
    """Over rows and tokens, and with a mask of tokens."""
    x = hidden(f["tokens"], 3)
    x = keras_norm(x)
    kept = f["is_token"][..., None]
    number = tf.reduce_sum(kept)
    mean = tf.reduce_sum(x * kept, [0, 1]) / number
    variance = tf.reduce_sum(tf.square(x - mean) * kept, [0, 1]) / number
    x = (x - mean) * tf.math.rsqrt(variance + 1e-3) * kept
    return squares(tf.reduce_sum(x, 1) / tf.reduce_sum(kept, 1), y), {"mean": mean}


@model
def norm_weighted(f, y):
    x = hidden(f["x"])
    mean, variance = tf.nn.weighted_moments(x, [0], f["real"][:, None])
    x = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)
    return squares(hidden(x, 3, "out"), y), {"mean": mean}


@model
def norm_second_order(f, y):
    """A gradient penalty through batch normalisation, by layers."""
    x = layers_norm(hidden(f["x"]))
    loss = squares(hidden(x, 3, "out"), y)
    (gradient,) = tf.gradients(loss, f["x"])
    return loss + tf.reduce_sum(tf.square(gradient)), {"gradient": gradient}


@model
def norm_of_layers_and_groups(f, y):
    """What normalises each row by itself."""
    x = tf.keras.layers.LayerNormalization(dtype=F64)(hidden(f["x"]))
    images = images_of(f)
    mean, variance = tf.nn.moments(images, [1, 2], keepdims=True)
    images = (images - mean) * tf.math.rsqrt(variance + 1e-3)
    found = hidden(x, 3, "out") + tf.reduce_max(images, [1, 2])
    return squares(found, y), {"x": x}


@model
def norm_whitening(f, y):
    """Decorrelated batch normalisation: a Cholesky factor of a batch's covariance."""
    x = hidden(f["x"], 3)
    x -= tf.reduce_mean(x, 0)
    covariance = tf.matmul(x, x, transpose_a=True) / tf.cast(tf.shape(x)[0], F64)
    factor = tf.linalg.cholesky(covariance + 0.1 * tf.eye(3, dtype=F64))
    x = tf.transpose(tf.linalg.triangular_solve(factor, tf.transpose(x)))
    return squares(x, y), {"factor": factor}


@model
def minibatch_standard_deviation(f, y):
    """A feature of all rows in each row (Karras et al. 2018), and minibatch discrimination."""
    x = hidden(f["x"])
    deviation = tf.sqrt(tf.math.reduce_variance(x, 0) + 1e-8)
    more = tf.fill([tf.shape(x)[0], 1], tf.reduce_mean(deviation))
    near = tf.reduce_sum(tf.exp(-tf.reduce_sum(tf.abs(x[:, None] - x[None]), 2)), 1)
    x = tf.concat([x, more, near[:, None]], 1)
    return squares(hidden(x, 3, "out"), y), {"near": near}
