"""A small variational autoencoder (Kingma and Welling 2014), as TFP's example writes it.

Several codes are drawn for each row, axis 0 of what follows; the prior is a mixture whose parts
are learned. The loss is a bound of the likelihood, and so is what is measured beside it.
"""

import math

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

SIDE, CODE, PARTS, SAMPLES = 3, 2, 3, 4


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of pictures of zeros and ones, of which the last is not full; no labels."""
    numbers = np.random.RandomState(14)
    pictures = numbers.randint(0, 2, [rows, SIDE, SIDE, 1]).astype(np.float32)
    return (
        tf.data.Dataset.from_tensor_slices((pictures, pictures[:, 0, 0, 0]))
        .batch(batch_size)
        .repeat(2)
    )


def dense(x, width, name, activation=None):
    return tf1.layers.dense(x, width, activation, name=name, kernel_initializer=exactness.start)


def log_normal(x, loc, scale):
    """The logarithm of a density, over the last axis."""
    each = tf.square((x - loc) / scale) + 2.0 * tf.math.log(scale) + math.log(2.0 * math.pi)
    return -0.5 * tf.reduce_sum(each, -1)


def posterior(pictures):
    """Where each row's codes are: [B, CODE] and [B, CODE]."""
    with tf1.variable_scope("encoder"):
        x = tf1.layers.conv2d(
            2.0 * pictures - 1.0,
            4,
            2,
            activation=tf.nn.leaky_relu,
            kernel_initializer=exactness.start,
        )
        found = dense(tf1.layers.flatten(x), 2 * CODE, "code")
        return found[..., :CODE], tf.nn.softplus(found[..., CODE:] + math.log(math.expm1(1.0)))


def log_prior(codes):
    """[S, B]: of a mixture of normals."""
    with tf1.variable_scope("prior"):
        loc = tf1.get_variable("loc", [PARTS, CODE], initializer=exactness.start)
        raw = tf1.get_variable("raw_scale", [PARTS, CODE], initializer=exactness.start)
        logits = tf1.get_variable("mixture_logits", [PARTS], initializer=exactness.start)
    parts = log_normal(codes[:, :, None], loc, tf.nn.softplus(raw))
    return tf.reduce_logsumexp(tf.nn.log_softmax(logits) + parts, -1)


def decoded(codes):
    """[S, B, SIDE, SIDE, 1]: logits of the pictures."""
    with tf1.variable_scope("decoder", reuse=tf1.AUTO_REUSE):
        x = dense(tf.reshape(codes, [-1, CODE]), 5, "hidden", tf.nn.leaky_relu)
        x = dense(x, SIDE * SIDE, "picture")
        return tf.reshape(x, tf.concat([tf.shape(codes)[:2], [SIDE, SIDE, 1]], 0))


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    del labels
    loc, scale = posterior(features)
    noise = tf.random.normal(tf.concat([[SAMPLES], tf.shape(loc)], 0))
    codes = loc + scale * noise
    logits = decoded(codes)
    if mode == "infer":
        predictions = {"code": loc, "picture": tf.sigmoid(decoded(loc[None]))[0]}
        return estimator.EstimatorSpec(mode, predictions=predictions)
    tf1.summary.image("recon/mean", tf.sigmoid(logits)[0], max_outputs=2)
    wanted = tf.broadcast_to(features, tf.shape(logits))
    wrong = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits)
    distortion = tf.reduce_sum(wrong, [2, 3, 4])
    rate = log_normal(codes, loc, scale) - log_prior(codes)
    bounds = -(rate + distortion)
    elbo = tf.reduce_mean(bounds)
    weighted = tf.reduce_logsumexp(bounds, 0) - math.log(SAMPLES)
    if mode == "train":
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.AdamOptimizer(tf1.train.cosine_decay(0.01, step, 10), epsilon=0.01)
        return estimator.EstimatorSpec(mode, loss=-elbo, train_op=optimizer.minimize(-elbo, step))
    found = {
        "elbo": tf1.metrics.mean(elbo),
        "elbo/importance_weighted": tf1.metrics.mean(weighted),
        "rate": tf1.metrics.mean(rate),
        "distortion": tf1.metrics.mean(distortion),
    }
    return estimator.EstimatorSpec(mode, loss=-elbo, eval_metric_ops=found)
