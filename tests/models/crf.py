"""A tagger with a linear-chain CRF (Lafferty et al. 2001), as published code writes it.

Sentences of different lengths, padded batch by batch; the likelihood is worked out by hand,
with a scan over the words, and the best tags with another one there and one back.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

WORDS, TAGS, WIDTH = 11, 3, 4


def sentences(rows: int) -> list:
    """Returns pairs of words and tags, of one to six words."""
    numbers = np.random.RandomState(4)
    lengths = numbers.randint(1, 7, rows)
    return [(numbers.randint(1, WORDS, n), numbers.randint(0, TAGS, n)) for n in lengths]


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches as wide as their longest sentence, of which the last is not full."""

    def examples():
        for words, tags in sentences(rows):
            yield {"words": words, "length": len(words)}, tags

    line = tf.TensorSpec([None], tf.int64)
    kinds = ({"words": line, "length": tf.TensorSpec([], tf.int32)}, line)
    given = tf.data.Dataset.from_generator(examples, output_signature=kinds)
    return given.padded_batch(batch_size).repeat(2)


def unary_scores(features):
    """[B, T, TAGS]: each word's scores, by its own vector and those of its neighbours."""
    table = tf1.get_variable("words", [WORDS, WIDTH], initializer=exactness.start)
    x = tf.nn.embedding_lookup(table, features["words"])
    x = tf1.layers.conv1d(
        x, WIDTH, 3, padding="same", activation=tf.nn.tanh, kernel_initializer=exactness.start
    )
    return tf1.layers.dense(x, TAGS, kernel_initializer=exactness.start)


def score_of(scores, tags, mask, transitions):
    """[B]: the score of the tags that are given."""
    unary = tf.reduce_sum(tf.one_hot(tags, TAGS) * scores, 2)
    steps = tf.stack([tags[:, :-1], tags[:, 1:]], 2)
    binary = tf.gather_nd(transitions, steps) * mask[:, 1:]
    return tf.reduce_sum(unary * mask, 1) + tf.reduce_sum(binary, 1)


def log_normalizer(scores, mask, transitions):
    """[B]: the logarithm of the sum, over all tags, of exponentials of scores."""

    def forward(alphas, word):
        found, is_word = word
        following = tf.reduce_logsumexp(alphas[:, :, None] + transitions[None], 1) + found
        return tf.where(is_word[:, None] > 0.0, following, alphas)

    by_time = tf.transpose(scores, [1, 0, 2])
    alphas = tf.scan(forward, (by_time[1:], tf.transpose(mask)[1:]), initializer=by_time[0])
    # A batch of sentences of one word has nothing to scan.
    alphas = tf.concat([by_time[:1], alphas], 0)
    return tf.reduce_logsumexp(alphas[-1], 1)


def best_tags(scores, mask, transitions):
    """[B, T]: the tags of the highest score; 0 behind a sentence's end."""
    rows = tf.shape(scores)[0]
    stay = tf.tile(tf.range(TAGS)[None], [rows, 1])

    def forward(carried, word):
        found, is_word = word
        best, _ = carried
        onward = best[:, :, None] + transitions[None]
        following = tf.reduce_max(onward, 1) + found
        sources = tf.argmax(onward, 1, output_type=tf.int32)
        keeps = is_word[:, None] > 0.0
        return tf.where(keeps, following, best), tf.where(keeps, sources, stay)

    def backward(tags, sources):
        return tf.gather(sources, tags, batch_dims=1)

    by_time = tf.transpose(scores, [1, 0, 2])
    best, sources = tf.scan(
        forward, (by_time[1:], tf.transpose(mask)[1:]), initializer=(by_time[0], stay)
    )
    best = tf.concat([by_time[:1], best], 0)
    last = tf.argmax(best[-1], 1, output_type=tf.int32)
    before = tf.scan(backward, sources, initializer=last, reverse=True)
    tags = tf.transpose(tf.concat([before, last[None]], 0))
    return tags * tf.cast(mask, tf.int32)


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    scores = unary_scores(features)
    transitions = tf1.get_variable("transitions", [TAGS, TAGS], initializer=exactness.start)
    # Read once: no gradient is made from the score's own read, so that no update would wait for it.
    transitions = transitions.read_value()
    longest = tf.shape(features["words"])[1]
    mask = tf.sequence_mask(features["length"], maxlen=longest, dtype=tf.float32)
    tags = None
    if mode != "train":
        tags = best_tags(scores, mask, transitions)
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions={"tags": tags})
    likelihood = score_of(scores, labels, mask, transitions)
    likelihood -= log_normalizer(scores, mask, transitions)
    loss = tf.reduce_mean(-likelihood)
    if mode == "eval":
        found = {
            "accuracy": tf1.metrics.accuracy(labels, tags, mask),
            "nll_per_word": tf1.metrics.mean(tf.reduce_sum(-likelihood) / tf.reduce_sum(mask)),
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
    optimizer = tf1.train.AdamOptimizer(0.02, epsilon=0.01)
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1.0)
    step = tf1.train.get_or_create_global_step()
    train_op = optimizer.apply_gradients(list(zip(gradients, trained, strict=True)), step)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
