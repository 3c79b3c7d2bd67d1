"""A small BERT, as published code writes it: a model_fn for one device.

Two layers of attention, a masked language loss divided by how many words were masked, a loss
of the next sentence, clipped gradients, an Adam that assigns its weights by itself.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import optimizers

LAYERS, HEADS, HIDDEN, WORDS, LENGTH, MASKED = 2, 2, 16, 11, 6, 3


def start(shape, dtype=tf.float32, partition_info=None, **unused):
    return 0.5 * exactness.start(shape, dtype)


def examples(rows: int) -> tuple[dict, dict]:
    """Returns features and labels of some sentences, of different lengths.

    Sentences have between one and MASKED masked words; what is left of MASKED is padding of
    weight 0.
    """
    numbers = np.random.RandomState(5)
    lengths = numbers.randint(3, LENGTH + 1, rows)
    masked = numbers.randint(1, MASKED + 1, rows)
    features = {
        "ids": numbers.randint(1, WORDS, [rows, LENGTH]).astype(np.int32),
        "is_word": (np.arange(LENGTH) < lengths[:, None]).astype(np.int32),
        "places": np.stack([numbers.permutation(3)[:MASKED] for _ in range(rows)]).astype(np.int32),
    }
    labels = {
        "words": numbers.randint(1, WORDS, [rows, MASKED]).astype(np.int32),
        "weights": (np.arange(MASKED) < masked[:, None]).astype(np.float32),
        "is_next": numbers.randint(0, 2, [rows, 1]).astype(np.int32),
    }
    return features, labels


def input_fn(rows: int = 21, batch_size: int = 7) -> tf.data.Dataset:
    """Batches whose number of rows is known, as TPUs once asked for."""
    given = tf.data.Dataset.from_tensor_slices(examples(rows))
    return given.repeat().batch(batch_size, drop_remainder=True)


def shape_list(tensor: tf.Tensor) -> list:
    """Returns the dimensions: numbers where they are known, else tensors."""
    dynamic = tf.shape(tensor)
    known = tensor.shape.as_list()
    return [dynamic[i] if size is None else size for i, size in enumerate(known)]


def dense(x, width, name, activation=None):
    return tf1.layers.dense(x, width, activation, name=name, kernel_initializer=start)


def layer_norm(x, name):
    """Normalises the last axis."""
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", [HIDDEN], initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", [HIDDEN], initializer=tf1.zeros_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def attention(x, is_word, batch, length):
    """Attention of [B * T, HIDDEN], whose rows are put back into batches for it."""

    def heads(name):
        made = tf.reshape(dense(x, HIDDEN, name), [batch, length, HEADS, HIDDEN // HEADS])
        return tf.transpose(made, [0, 2, 1, 3])

    scores = tf.matmul(heads("query"), heads("key"), transpose_b=True)
    scores = tf.multiply(scores, 1.0 / float(np.sqrt(HIDDEN // HEADS)))
    scores += (1.0 - tf.cast(is_word[:, None, None, :], tf.float32)) * -10000.0
    context = tf.matmul(tf.nn.softmax(scores), heads("value"))
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch * length, HIDDEN])


def encoder(features):
    """The words' vectors, [B, T, HIDDEN], the first word's, [B, HIDDEN], and the table."""
    ids = features["ids"]
    batch, length = shape_list(ids)
    with tf1.variable_scope("bert"):
        with tf1.variable_scope("embeddings"):
            table = tf1.get_variable("word_embeddings", [WORDS, HIDDEN], initializer=start)
            places = tf1.get_variable("position_embeddings", [LENGTH, HIDDEN], initializer=start)
            words = tf.gather(table, tf.reshape(ids, [-1]))
            words = tf.reshape(words, [batch, length, HIDDEN])
            x = layer_norm(words + tf.reshape(places, [1, LENGTH, HIDDEN]), "LayerNorm")
        x = tf.reshape(x, [-1, HIDDEN])
        for i in range(LAYERS):
            with tf1.variable_scope(f"layer_{i}"):
                seen = attention(x, features["is_word"], batch, length)
                x = layer_norm(x + dense(seen, HIDDEN, "output"), "LayerNorm_0")
                inner = dense(x, 2 * HIDDEN, "intermediate", tf.nn.gelu)
                x = layer_norm(x + dense(inner, HIDDEN, "down"), "LayerNorm_1")
        x = tf.reshape(x, [batch, length, HIDDEN])
        first = tf.squeeze(x[:, 0:1, :], axis=1)
        return x, dense(first, HIDDEN, "pooler", tf.tanh), table


def gathered(x, places):
    """Returns the vectors at some places of each row, [B * P, HIDDEN]."""
    batch, length, width = shape_list(x)
    offsets = tf.reshape(tf.range(0, batch, dtype=tf.int32) * length, [-1, 1])
    flat = tf.reshape(x, [batch * length, width])
    return tf.gather(flat, tf.reshape(places + offsets, [-1]))


def masked_language_loss(x, table, features, labels):
    """Returns the loss, and each masked word's logarithms of probabilities."""
    with tf1.variable_scope("cls/predictions"):
        x = layer_norm(dense(gathered(x, features["places"]), HIDDEN, "transform"), "LayerNorm")
        bias = tf1.get_variable("output_bias", [WORDS], initializer=tf1.zeros_initializer())
        log_probs = tf.nn.log_softmax(tf.matmul(x, table, transpose_b=True) + bias)
        words = tf.reshape(labels["words"], [-1])
        weights = tf.reshape(labels["weights"], [-1])
        losses = -tf.reduce_sum(log_probs * tf.one_hot(words, WORDS), axis=[-1])
        loss = tf.reduce_sum(weights * losses) / (tf.reduce_sum(weights) + 1e-5)
        return loss, losses, log_probs


def next_sentence_loss(pooled, labels):
    with tf1.variable_scope("cls/seq_relationship"):
        weights = tf1.get_variable("output_weights", [2, HIDDEN], initializer=start)
        bias = tf1.get_variable("output_bias", [2], initializer=tf1.zeros_initializer())
        log_probs = tf.nn.log_softmax(tf.matmul(pooled, weights, transpose_b=True) + bias)
        right = tf.one_hot(tf.reshape(labels["is_next"], [-1]), 2)
        return tf.reduce_mean(-tf.reduce_sum(right * log_probs, -1)), log_probs


def schedule(step, rate=0.02, warmup=2, steps=10):
    """A rate that rises, then falls to 0."""
    falling = tf1.train.polynomial_decay(rate, step, steps, end_learning_rate=0.0)
    rising = rate * tf.cast(step, tf.float32) / float(warmup)
    return tf.where(step < warmup, rising, falling)


def create_optimizer(loss):
    """Returns the train_op, which clips, assigns and counts by itself."""
    step = tf1.train.get_or_create_global_step()
    optimizer = optimizers.DecayingAdam(
        schedule(step), epsilon=1e-6, exclude=("LayerNorm", "layer_norm", "bias")
    )
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), clip_norm=1.0)
    pairs = zip(gradients, trained, strict=True)
    # The rate reads the step, which is counted afterwards.
    with tf1.control_dependencies([optimizer.apply_gradients(pairs, global_step=step)]):
        return tf.group(step.assign(step + 1))


def metrics_of(losses, log_probs, next_log_probs, labels):
    words = tf.reshape(labels["words"], [-1])
    weights = tf.reshape(labels["weights"], [-1])
    guessed = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
    is_next = tf.reshape(labels["is_next"], [-1])
    guessed_next = tf.argmax(next_log_probs, axis=-1, output_type=tf.int32)
    return {
        "masked_lm_accuracy": tf1.metrics.accuracy(words, guessed, weights),
        "masked_lm_loss": tf1.metrics.mean(losses, weights),
        "next_sentence_accuracy": tf1.metrics.accuracy(is_next, guessed_next),
    }


def model_fn(features, labels, mode, params):
    """A model_fn for an Estimator on one device."""
    del params
    x, pooled, table = encoder(features)
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"pooled": pooled})
    lm_loss, losses, log_probs = masked_language_loss(x, table, features, labels)
    next_loss, next_log_probs = next_sentence_loss(pooled, labels)
    loss = lm_loss + next_loss
    if mode == "train":
        return estimator.EstimatorSpec(mode, loss=loss, train_op=create_optimizer(loss))
    found = metrics_of(losses, log_probs, next_log_probs, labels)
    return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
