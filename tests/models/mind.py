"""A small MIND (Li et al. 2019), as EasyRec writes models that match people with items.

What a person clicked, padded, is clipped or padded to what its capsules take; routing makes some
interests of it, and the item that was clicked next attends to them. Other rows' items are what it
is told from. The saver is sharded.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

ITEMS, WIDTH, LONGEST, INTERESTS, ROUNDS = 13, 4, 4, 2, 3


def examples(rows: int) -> tuple[dict, np.ndarray]:
    """Returns people who clicked one to six items, and the item that each clicked next."""
    numbers = np.random.RandomState(15)
    lengths = numbers.randint(1, 7, rows).astype(np.int32)
    clicked = numbers.randint(1, ITEMS, [rows, 6])
    clicked[np.arange(6) >= lengths[:, None]] = 0
    features = {
        "clicked": clicked,
        "length": lengths,
        "age": numbers.uniform(0, 1, rows).astype(np.float32),
        "item": numbers.randint(1, ITEMS, rows),
        "weight": numbers.choice([0.5, 1.0, 2.0], rows).astype(np.float32),
    }
    return features, numbers.randint(0, 2, rows).astype(np.float32)


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches as long as their longest list, of which the last is not full."""
    given = tf.data.Dataset.from_tensor_slices(examples(rows)).batch(batch_size)

    def trimmed(features, labels):
        longest = tf.reduce_max(features["length"])
        return {**features, "clicked": features["clicked"][:, :longest]}, labels

    return given.map(trimmed).repeat(2)


def clipped_or_padded(sequence):
    """[B, LONGEST, WIDTH], of lists that may be longer or shorter."""
    length = tf.shape(sequence)[1]
    made = tf.cond(
        length > LONGEST,
        lambda: sequence[:, :LONGEST],
        lambda: tf.pad(sequence, [[0, 0], [0, LONGEST - length], [0, 0]]),
    )
    made.set_shape([None, LONGEST, WIDTH])
    return made


def squashed(capsules):
    squares = tf.reduce_sum(tf.square(capsules), -1, keepdims=True)
    return capsules * squares / (1.0 + squares) / tf.sqrt(squares + 1e-8)


def interests_of(sequence, lengths):
    """[B, INTERESTS, WIDTH]: capsules, by routing from the items with logits drawn at first."""
    bilinear = tf1.get_variable("bilinear", [WIDTH, WIDTH], initializer=exactness.start)
    items = tf.tensordot(sequence, bilinear, axes=1)
    fixed = tf.stop_gradient(items)
    is_item = tf.sequence_mask(tf.minimum(lengths, LONGEST), LONGEST)[:, None, :]
    shape = tf.stack([tf.shape(items)[0], INTERESTS, LONGEST])
    logits = tf.stop_gradient(tf.random.truncated_normal(shape))
    for round_ in range(ROUNDS):
        shares = tf.nn.softmax(logits, axis=1) * tf.cast(is_item, tf.float32)
        last = round_ == ROUNDS - 1
        capsules = squashed(tf.matmul(shares, items if last else fixed))
        if not last:
            logits += tf.matmul(capsules, fixed, transpose_b=True)
    return capsules


def dnn(x, name, units=(6, WIDTH)):
    for i, width in enumerate(units):
        activation = tf.nn.relu if i < len(units) - 1 else None
        x = tf1.layers.dense(
            x, width, activation, kernel_initializer=exactness.start, name=f"{name}_{i}"
        )
    return x


def person_of(features, table, item):
    """[B, WIDTH]: the interests that an item asks for, weighed by how much it does."""
    sequence = clipped_or_padded(tf.nn.embedding_lookup(table, features["clicked"]))
    capsules = interests_of(sequence, features["length"])
    age = tf.tile(features["age"][:, None, None], [1, INTERESTS, 1])
    interests = dnn(tf.concat([capsules, age], 2), "user")
    asked = tf.squeeze(tf.matmul(interests, item[:, :, None]), 2)
    return tf.reduce_sum(interests * tf.nn.softmax(2.0 * asked)[:, :, None], 1)


def train_op_of(loss):
    """Clips gradients together; those of tables have a rate of their own."""
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.exponential_decay(0.05, step, 2, 0.5, staircase=True)
    optimizer = tf1.train.AdamOptimizer(rate, epsilon=0.01)
    pairs = optimizer.compute_gradients(loss)
    multiplied = [
        tf.IndexedSlices(2.0 * found.values, found.indices, found.dense_shape)
        if isinstance(found, tf.IndexedSlices)
        else found
        for found, _ in pairs
    ]
    clipped, norm = tf.clip_by_global_norm(multiplied, 5.0)
    tf1.summary.scalar("global_norm/gradient_norm", norm)
    return optimizer.apply_gradients(zip(clipped, [w for _, w in pairs], strict=True), step)


def metrics_of(similar, features):
    rows = tf.cast(tf.range(tf.shape(similar)[0]), tf.int64)
    return {
        f"recall@{k}": tf1.metrics.recall_at_top_k(
            rows[:, None],
            tf.cast(tf.math.top_k(similar, tf.minimum(k, tf.size(rows))).indices, tf.int64),
        )
        for k in (1, 3)
    } | {"length": tf1.metrics.mean(features["length"])}


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    table = tf1.get_variable("items", [ITEMS, WIDTH], initializer=exactness.start)
    item = dnn(tf.nn.embedding_lookup(table, features["item"]), "item")
    person = tf.math.l2_normalize(person_of(features, table, item), -1)
    item = tf.math.l2_normalize(item, -1)
    if mode == "infer":
        predictions = {"user_emb": person, "item_emb": item}
        return estimator.EstimatorSpec(mode, predictions=predictions)
    similar = tf.matmul(person, item, transpose_b=True) / 0.2
    own = tf.range(tf.shape(similar)[0])
    weight = features["weight"] * labels
    tf1.losses.sparse_softmax_cross_entropy(own, similar, weights=weight)
    tf1.losses.add_loss(1e-3 * tf.nn.l2_loss(table), tf1.GraphKeys.REGULARIZATION_LOSSES)
    loss = tf1.losses.get_total_loss()
    train_op = train_op_of(loss) if mode == "train" else None
    found = metrics_of(similar, features) if mode == "eval" else None
    scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(sharded=True))
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=found, scaffold=scaffold
    )
