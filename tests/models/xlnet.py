"""A small XLNet for classifying, as published code writes it: a model_fn for one device.

All is time-major, [T, B, ...]. Two layers of attention over relative places, whose scores are
shifted by reshapes, written with einsum over heads; a weight decay beside an Adam that clips.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import optimizers

LAYERS, HEADS, WIDTH, HIDDEN, WORDS, LENGTH, CLASSES = 2, 2, 4, 8, 13, 5, 3


def start(shape, dtype=tf.float32, partition_info=None, **unused):
    return 0.5 * exactness.start(shape, dtype)


def input_fn(rows: int = 18, batch_size: int = 7) -> tf.data.Dataset:
    """Sentences that are padded in front, in batches of which the last is not full."""
    numbers = np.random.RandomState(6)
    lengths = numbers.randint(2, LENGTH + 1, rows)
    features = {
        "input_ids": numbers.randint(1, WORDS, [rows, LENGTH]).astype(np.int32),
        "input_mask": (np.arange(LENGTH)[::-1] >= lengths[:, None]).astype(np.float32),
        "segment_ids": np.sort(numbers.randint(0, 2, [rows, LENGTH]).astype(np.int32)),
    }
    labels = numbers.randint(0, CLASSES, rows).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(batch_size)


def weight(name, *shape):
    return tf1.get_variable(name, shape, initializer=start)


def positions(length, batch):
    """[2 T, B, HIDDEN]: sines and cosines of how far two places are from each other."""
    places = tf.range(length, -length, -1.0)
    frequencies = 1 / (100.0 ** (tf.range(0, HIDDEN, 2.0) / HIDDEN))
    angles = tf.einsum("i,d->id", places, frequencies)
    encoded = tf.concat([tf.sin(angles), tf.cos(angles)], -1)[:, None, :]
    return tf.tile(encoded, [1, batch, 1])


def shifted(x, length):
    """Scores by distance, [T, 2 T, B, N], as scores by place, [T, T, B, N]."""
    size = tf.shape(x)
    x = tf.reshape(x, [size[1], size[0], size[2], size[3]])
    x = tf.slice(x, [1, 0, 0, 0], [-1, -1, -1, -1])
    x = tf.reshape(x, [size[0], size[1] - 1, size[2], size[3]])
    return tf.slice(x, [0, 0, 0, 0], [-1, length, -1, -1])


def attention(h, r, segments, mask, biases):
    """[T, B, HIDDEN] from [T, B, HIDDEN], by content, by place and by segment."""
    length = h.shape[0]
    shape = [HIDDEN, HEADS, WIDTH]
    query, key, value = (tf.einsum("ibh,hnd->ibnd", h, weight(name, *shape)) for name in "qkv")
    place = tf.einsum("ibh,hnd->ibnd", r, weight("r", *shape))
    by_word, by_place, by_segment = biases
    ac = tf.einsum("ibnd,jbnd->ijbn", query + by_word, key)
    bd = shifted(tf.einsum("ibnd,jbnd->ijbn", query + by_place, place), length)
    embedded = weight("seg_embed", 2, HEADS, WIDTH)
    ef = tf.einsum("ibnd,snd->ibns", query + by_segment, embedded)
    ef = tf.einsum("ijbs,ibns->ijbn", segments, ef)
    scores = (ac + bd + ef) / WIDTH**0.5 - 1e30 * mask
    context = tf.einsum("ijbn,jbnd->ibnd", tf.nn.softmax(scores, 1), value)
    return tf.einsum("ibnd,hnd->ibh", context, weight("o", *shape))


def normed(x, name):
    return tf1.keras.layers.LayerNormalization(name=name)(x)


def layer(h, r, segments, mask, biases):
    h = normed(h + attention(h, r, segments, mask, biases), "attention_norm")
    inner = tf1.layers.dense(h, 2 * HIDDEN, tf.nn.gelu, kernel_initializer=start)
    return normed(h + tf1.layers.dense(inner, HIDDEN, kernel_initializer=start), "ff_norm")


def network(features):
    """[B, HIDDEN]: the last word's vector, of words that are time-major from here on."""
    ids, padding, segment = (
        tf.transpose(features[key], [1, 0]) for key in ("input_ids", "input_mask", "segment_ids")
    )
    batch = tf.shape(ids)[1]
    h = tf.nn.embedding_lookup(weight("word_embedding", WORDS, HIDDEN), ids)
    mask = padding[None, :, :] - tf.eye(LENGTH)[:, :, None]  # a word always sees itself
    mask = tf.cast(mask > 0, tf.float32)[:, :, :, None]
    apart = tf.cast(tf.logical_not(tf.equal(segment[:, None], segment[None, :])), tf.int32)
    segments = tf.one_hot(apart, 2)
    biases = [weight(name, HEADS, WIDTH) for name in ("r_w_bias", "r_r_bias", "r_s_bias")]
    r = positions(LENGTH, batch)
    for n in range(LAYERS):
        with tf1.variable_scope(f"layer_{n}"):
            h = layer(h, r, segments, mask, biases)
    return tf1.layers.dense(h[-1], HIDDEN, tf.tanh, kernel_initializer=start)


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    with tf1.variable_scope("model"):
        logits = tf1.layers.dense(network(features), CLASSES, kernel_initializer=start)
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"probabilities": tf.nn.softmax(logits)})
    losses = -tf.reduce_sum(tf.one_hot(labels, CLASSES) * tf.nn.log_softmax(logits), -1)
    loss = tf.reduce_mean(losses)
    if mode == "eval":
        found = {
            "accuracy": tf1.metrics.accuracy(labels, tf.argmax(logits, -1)),
            "loss": tf1.metrics.mean(losses),
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.polynomial_decay(0.02, step, 10)
    optimizer = optimizers.DecayingAdam(rate, epsilon=1e-6, exclude=("norm", "bias"))
    pairs = optimizer.compute_gradients(loss)
    gradients, trained = zip(*pairs, strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.25)
    # The rate reads the step, which is counted afterwards.
    with tf1.control_dependencies(
        [optimizer.apply_gradients(list(zip(clipped, trained, strict=True)), global_step=step)]
    ):
        return estimator.EstimatorSpec(mode, loss=loss, train_op=step.assign(step + 1).op)
