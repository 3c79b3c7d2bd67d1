"""A small MMoE (Ma et al. 2018) of two tasks, as EasyRec ranks items by clicks and buys.

Features are texts: ids that are hashed, lists of tags in one text, a number cut into buckets.
Experts are mixed by a gate for each task; a buy counts only where there was a click. Weights of
rows and of tasks, penalties in a collection, metrics for each task.
"""

import numpy as np

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

BUCKETS, WIDTH, EXPERTS = 7, 3, 2
TASKS = {"ctr": 1.0, "cvr": 0.5}


def examples(rows: int) -> tuple[dict, dict]:
    """Returns what is shown to whom, with clicks and buys; a text has up to three tags."""
    numbers = np.random.RandomState(16)
    tags = ["|".join(numbers.choice(list("abcde"), numbers.randint(0, 4))) for _ in range(rows)]
    features = {
        "user": numbers.choice([f"user{i}" for i in range(9)], rows),
        "item": numbers.choice([f"item{i}" for i in range(9)], rows),
        "tags": np.array(tags),
        "price": numbers.uniform(0, 100, rows).astype(np.float32),
        "weight": numbers.choice([0.5, 1.0, 3.0], rows).astype(np.float32),
    }
    clicked = numbers.randint(0, 2, rows).astype(np.float32)
    return features, {"ctr": clicked, "cvr": clicked * numbers.randint(0, 2, rows)}


def input_fn(rows: int = 19, batch_size: int = 7) -> tf.data.Dataset:
    """Batches of which the last is not full."""
    features, labels = examples(rows)
    labels = {task: given.astype(np.float32) for task, given in labels.items()}
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch_size).repeat(2)


def table(name):
    return tf1.get_variable(
        f"{name}_embedding",
        [BUCKETS, WIDTH],
        initializer=exactness.start,
        regularizer=lambda weights: 1e-3 * tf.nn.l2_loss(weights),
    )


def embedded(features):
    """[B, 4 * WIDTH]: user, item and price, and the mean of the tags."""
    found = []
    for name in ("user", "item"):
        ids = tf.strings.to_hash_bucket_fast(features[name], BUCKETS)
        found.append(tf.nn.embedding_lookup(table(name), ids))
    tags = tf1.string_split(features["tags"], "|")
    ids = tf.SparseTensor(
        tags.indices, tf.strings.to_hash_bucket_fast(tags.values, BUCKETS), tags.dense_shape
    )
    found.append(tf.nn.safe_embedding_lookup_sparse(table("tags"), ids, combiner="mean"))
    bucket = tf.raw_ops.Bucketize(input=features["price"], boundaries=[10.0, 30.0, 70.0])
    found.append(tf.nn.embedding_lookup(table("price"), bucket))
    return tf.concat(found, 1)


def dnn(x, units, name, is_training):
    """Layers with batch normalisation."""
    for i, width in enumerate(units):
        x = tf1.layers.dense(x, width, kernel_initializer=exactness.start, name=f"{name}/dnn_{i}")
        x = tf1.layers.batch_normalization(
            x, momentum=0.9, training=is_training, name=f"{name}/dnn_{i}/bn"
        )
        x = tf.nn.relu(x)
    return x


def logits_of(x, is_training):
    """For each task [B]: experts, mixed by a gate of its own."""
    experts = [dnn(x, (4,), f"expert_{i}", is_training) for i in range(EXPERTS)]
    experts = tf.stack(experts, 1)
    found = {}
    for task in TASKS:
        gate = tf1.layers.dense(
            x, EXPERTS, tf.nn.softmax, kernel_initializer=exactness.start, name=f"{task}/gate"
        )
        mixed = dnn(tf.reduce_sum(experts * gate[:, :, None], 1), (3,), task, is_training)
        logits = tf1.layers.dense(mixed, 1, kernel_initializer=exactness.start, name=f"{task}/out")
        found[task] = tf.squeeze(logits, 1)
    return found


def losses_of(logits, labels, weight):
    """For each task, its weighted loss; buys are judged where there were clicks."""
    weights = {"ctr": weight, "cvr": weight * labels["ctr"]}
    return {
        task: share
        * tf1.losses.sigmoid_cross_entropy(labels[task], logits[task], weights=weights[task])
        for task, share in TASKS.items()
    }


def train_op_of(loss):
    """Lets tables step by Adagrad and all else by Adam, behind the batches' statistics."""
    step = tf1.train.get_or_create_global_step()
    tables = [w for w in tf1.trainable_variables() if "embedding" in w.name]
    others = [w for w in tf1.trainable_variables() if "embedding" not in w.name]
    with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        return tf.group(
            tf1.train.AdagradOptimizer(0.05).minimize(loss, var_list=tables),
            tf1.train.AdamOptimizer(0.01, epsilon=0.01).minimize(loss, step, var_list=others),
        )


def model_fn(features, labels, mode):
    """A model_fn for an Estimator on one device."""
    logits = logits_of(embedded(features), mode == "train")
    chances = {task: tf.sigmoid(found) for task, found in logits.items()}
    predictions = {f"probs_{task}": found for task, found in chances.items()}
    predictions["probs_ctcvr"] = chances["ctr"] * chances["cvr"]
    if mode == "infer":
        return estimator.EstimatorSpec(mode, predictions=predictions)
    losses = losses_of(logits, labels, features["weight"])
    loss = tf.add_n([*losses.values(), *tf1.losses.get_regularization_losses()])
    for task, found in losses.items():
        tf1.summary.scalar(f"loss/{task}", found)
    if mode == "train":
        scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(sharded=True, max_to_keep=2))
        train_op = train_op_of(loss)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold)
    found = {f"auc_{task}": tf1.metrics.auc(labels[task], chances[task]) for task in TASKS}
    found["auc_cvr_masked"] = tf1.metrics.auc(labels["cvr"], chances["cvr"], labels["ctr"])
    found |= {f"loss/{task}": tf1.metrics.mean(value) for task, value in losses.items()}
    return estimator.EstimatorSpec(mode, predictions, loss, eval_metric_ops=found)
