"""A small ELECTRA (Clark et al. 2020), as published code writes it: a model_fn for one device.

Words are masked by chance; a generator with one head of attention guesses them, and what is drawn
from its guesses is put into their places; a discriminator, which shares its embeddings, tells which
words are not the sentence's. Its optimizer assigns by itself, and its train_op counts the step in
no order to the rate, which reads it.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests.law import optimizers
from tests.models import bert

WORDS, LENGTH, MASKED, EMBEDDING = 14, 7, 2, 12
PADDING, FIRST, LAST, MASK = range(4)  # all other words are words of sentences
PART_MASKED = 0.3


def examples(rows: int) -> dict:
    """Returns sentences of different lengths, each with its first and its last word."""
    numbers = np.random.RandomState(8)
    lengths = numbers.randint(4, LENGTH + 1, rows)
    ids = numbers.randint(MASK + 1, WORDS, [rows, LENGTH])
    ids[:, 0] = FIRST
    ids[np.arange(rows), lengths - 1] = LAST
    is_word = np.arange(LENGTH) < lengths[:, None]
    return {"ids": np.where(is_word, ids, PADDING).astype(np.int32), "is_word": np.int32(is_word)}


def input_fn(rows: int = 21, batch_size: int = 7) -> tf.data.Dataset:
    """Batches whose number of rows is known; there are no labels."""
    given = tf.data.Dataset.from_tensor_slices((examples(rows), np.zeros([rows], np.int32)))
    return given.repeat().batch(batch_size, drop_remainder=True)


# Words and places.


def flat_places(places, length):
    """Returns the places of words in sentences that are put end to end, [B * M, 1]."""
    rows, _ = bert.shape_list(places)
    return tf.reshape(places + tf.expand_dims(length * tf.range(rows), -1), [-1, 1])


def replaced(ids, updates, places):
    """Returns sentences with other words at some places, and which places these are.

    Place 0 is left as it is; where a place is named twice, the mean of both words is taken.
    """
    rows, length = bert.shape_list(ids)
    flat = flat_places(places, length)
    sums = tf.scatter_nd(flat, tf.reshape(updates, [-1]), [rows * length])
    counts = tf.scatter_nd(flat, tf.ones_like(flat[:, 0]), [rows * length])
    sums, counts = (tf.reshape(each, [rows, length]) for each in (sums, counts))
    first, others = tf.zeros((rows, 1), tf.int32), tf.ones((rows, length - 1), tf.int32)
    counts *= tf.concat([first, others], 1)
    is_replaced = tf.minimum(counts, 1)
    updates = tf.math.floordiv(sums, tf.maximum(1, counts))
    return (1 - is_replaced) * ids + is_replaced * updates, is_replaced


def masked(features):
    """Draws which words are masked; returns sentences with masks, words, places, weights."""
    ids, is_word = features["ids"], features["is_word"]
    rows, length = bert.shape_list(ids)
    may_mask = tf.cast(is_word, tf.bool)
    for each in (PADDING, FIRST, LAST, MASK):
        may_mask &= tf.not_equal(ids, each)
    number = tf.round(tf.cast(tf.reduce_sum(is_word, -1), tf.float32) * PART_MASKED)
    number = tf.maximum(1, tf.minimum(MASKED, tf.cast(number, tf.int32)))
    weights = tf.cast(tf.sequence_mask(number, MASKED), tf.float32)
    chances = tf.cast(may_mask, tf.float32)
    chances /= tf.reduce_sum(chances, axis=-1, keepdims=True)
    places = tf.random.categorical(tf1.log(tf.stop_gradient(chances)), MASKED, dtype=tf.int32)
    places *= tf.cast(weights, tf.int32)
    words = tf.gather_nd(tf.reshape(ids, [-1]), flat_places(places, length))
    words = tf.reshape(words, [rows, -1]) * tf.cast(weights, tf.int32)
    is_hidden = tf.cast(tf.random.uniform([rows, MASKED]) < 0.85, tf.int32)
    hidden, _ = replaced(ids, tf.fill([rows, MASKED], MASK), places * is_hidden)
    return tf.stop_gradient(hidden), words, places, weights


def drawn(logits):
    """Draws words by their probabilities: the largest of logits with noise of Gumbel."""
    uniform = tf.random.uniform(bert.shape_list(logits), minval=0, maxval=1)
    noise = -tf1.log(-tf1.log(uniform + 1e-9) + 1e-9)
    words = tf.argmax(tf.nn.softmax(logits + noise), -1, output_type=tf.int32)
    return tf.stop_gradient(words)


# Networks.


def layer_norm(x, name):
    width = x.shape[-1]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", [width], initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", [width], initializer=tf1.zeros_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def attention(x, is_word, rows, width, heads):
    """Attention of [B * T, width]."""

    def split(name):
        made = tf.reshape(bert.dense(x, width, name), [rows, LENGTH, heads, width // heads])
        return tf.transpose(made, [0, 2, 1, 3])

    scores = tf.matmul(split("query"), split("key"), transpose_b=True)
    scores *= 1.0 / float(np.sqrt(width // heads))
    scores += (1.0 - tf.cast(is_word[:, None, None, :], tf.float32)) * -10000.0
    context = tf.matmul(tf.nn.softmax(scores), split("value"))
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [rows * LENGTH, width])


def transformer(ids, is_word, name, width, heads):
    """Returns a vector for each word, [B, T, width], and the shared table of embeddings."""
    rows, length = bert.shape_list(ids)
    with tf1.variable_scope("electra/embeddings", reuse=tf1.AUTO_REUSE):
        table = tf1.get_variable("word_embeddings", [WORDS, EMBEDDING], initializer=bert.start)
        places = tf1.get_variable(
            "position_embeddings", [LENGTH, EMBEDDING], initializer=bert.start
        )
        words = tf.reshape(tf.gather(table, tf.reshape(ids, [-1])), [rows, length, EMBEDDING])
        x = layer_norm(words + places[None], "LayerNorm")
    with tf1.variable_scope(name):
        if width != EMBEDDING:
            x = bert.dense(x, width, "embeddings_project")
        x = tf.reshape(x, [-1, width])
        seen = attention(x, is_word, rows, width, heads)
        x = layer_norm(x + bert.dense(seen, width, "output"), "LayerNorm_0")
        inner = bert.dense(x, 2 * width, "intermediate", tf.nn.gelu)
        x = layer_norm(x + bert.dense(inner, width, "down"), "LayerNorm_1")
        return tf.reshape(x, [rows, length, width]), table


def guesses(x, table, places):
    """Returns the generator's logits of masked words, [B, M, WORDS]."""
    rows, _ = bert.shape_list(places)
    with tf1.variable_scope("generator_predictions"):
        hidden = tf.reshape(bert.gathered(x, places), [rows, -1, x.shape[-1]])
        hidden = layer_norm(bert.dense(hidden, EMBEDDING, "dense", tf.nn.gelu), "LayerNorm")
        bias = tf1.get_variable("output_bias", [WORDS], initializer=tf1.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(hidden, table, transpose_b=True), bias)


def doubts(x):
    """Returns the discriminator's logits of each word, [B, T]."""
    with tf1.variable_scope("discriminator_predictions"):
        hidden = bert.dense(x, EMBEDDING, "dense", tf.nn.gelu)
        return tf.squeeze(bert.dense(hidden, 1, "logits"), -1)


def create_optimizer(loss):
    """Returns the train_op, which counts in no order to what reads the step."""
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.polynomial_decay(0.02, step, 10, end_learning_rate=0.0)
    rate *= tf.minimum(1.0, (1.0 + tf.cast(step, tf.float32)) / 2.0)
    excluded = ("LayerNorm", "layer_norm", "bias")
    optimizer = optimizers.DecayingAdam(rate, epsilon=1e-2, exclude=excluded)
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), clip_norm=1.0)
    train_op = optimizer.apply_gradients(zip(gradients, trained, strict=True), global_step=step)
    return tf.group(train_op, [step.assign(step + 1)])


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    del labels
    is_word = features["is_word"]
    if mode == "infer":
        x, _ = transformer(features["ids"], is_word, "electra", EMBEDDING, 2)
        return estimator.EstimatorSpec(mode, predictions={"is_fake": tf.nn.sigmoid(doubts(x))})
    hidden, words, places, weights = masked(features)
    x, table = transformer(hidden, is_word, "generator", EMBEDDING // 3, 1)
    logits = guesses(x, table, places)
    log_probs = tf.nn.log_softmax(logits)
    losses = -tf.reduce_sum(log_probs * tf.one_hot(words, WORDS), axis=-1)
    generator_loss = tf.reduce_sum(weights * losses) / (tf.reduce_sum(weights) + 1e-6)

    whole, _ = replaced(hidden, words, places)
    faked, is_replaced = replaced(whole, drawn(logits), places)
    is_fake = is_replaced * (1 - tf.cast(tf.equal(faked, whole), tf.int32))
    x, _ = transformer(faked, is_word, "electra", EMBEDDING, 2)
    doubt, counted = doubts(x), tf.cast(is_word, tf.float32)
    fake_losses = counted * tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(is_fake, tf.float32), logits=doubt
    )
    loss = generator_loss + 5.0 * tf.reduce_sum(fake_losses) / (1e-6 + tf.reduce_sum(counted))
    if mode == "train":
        return estimator.EstimatorSpec(mode, loss=loss, train_op=create_optimizer(loss))
    guessed = tf.argmax(log_probs, axis=-1, output_type=tf.int32)
    of_row = tf.reduce_sum(fake_losses, -1) / (1e-6 + tf.reduce_sum(counted, -1))
    found = {
        "masked_lm_accuracy": tf1.metrics.accuracy(words, guessed, weights),
        "masked_lm_loss": tf1.metrics.mean(losses, weights),
        "disc_loss": tf1.metrics.mean(of_row),
        "disc_auc": tf1.metrics.auc(is_fake * is_word, tf.nn.sigmoid(doubt) * counted),
        "disc_recall": tf1.metrics.accuracy(
            is_fake, tf.cast(doubt > 0.0, tf.int32), tf.cast(is_fake, tf.float32) * counted
        ),
    }
    return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
