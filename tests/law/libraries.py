"""Losses of TensorFlow's and Keras' own, and losses that count their rows."""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests.law import losses

Reduction = tf1.losses.Reduction


def by_reductions() -> dict[str, losses.Case]:
    """`tf.losses` of every reduction with weights of every kind."""
    functions = [
        lambda f, y, v, *given: tf1.losses.sparse_softmax_cross_entropy(
            y["class"], losses.logits(f, v), *given[:1], reduction=given[1]
        ),
        lambda f, y, v, *given: tf1.losses.absolute_difference(
            tf.reduce_sum(y["y"], 1),
            tf.reduce_sum(tf.tanh(losses.logits(f, v)), 1),
            *given[:1],
            reduction=given[1],
        ),
        lambda f, y, v, *given: tf1.losses.compute_weighted_loss(
            losses.squares(f, y, v), *given[:1], reduction=given[1]
        ),
    ]
    found = {}
    for key in ("NONE", "SUM", "SUM_OVER_BATCH_SIZE", "SUM_BY_NONZERO_WEIGHTS", "MEAN"):
        for number, kind in enumerate((None, "mask", "real")):

            def loss(f, y, v, fn=functions[number], kind=kind, key=key):
                weight = 1.0 if kind is None else f[kind]
                return tf.reduce_mean(fn(f, y, v, weight, getattr(Reduction, key)))

            found[f"tf.losses {key} {kind or 'unweighted'}"] = losses.Case(loss, np.float32)
    return found


def of_columns(f, y, v):
    """Weights of rows, [B, 1], for a loss of entries, [B, C]."""
    return tf1.losses.mean_squared_error(y["y"], tf.tanh(losses.logits(f, v)), f["real"][:, None])


def of_padded_tokens(f, y, v):
    found = tf.einsum("btw,wc->btc", f["tokens"], v.w) + v.b
    return tf1.losses.sparse_softmax_cross_entropy(y["words"], found, f["is_token"])


def collected(f, y, v):
    """Two losses of different reductions, and a penalty, that TensorFlow adds up."""
    tf1.losses.compute_weighted_loss(losses.squares(f, y, v), reduction=Reduction.SUM)
    tf1.losses.sparse_softmax_cross_entropy(y["class"], losses.logits(f, v), f["mask"])
    tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, 0.1 * tf.nn.l2_loss(v.w))
    return tf1.losses.get_total_loss()


def then_a_metric(reduction, metric):
    """As DeepCTR has it: a later call of `tf.losses`, of another reduction, is a metric."""

    def loss(f, y, v):
        found = tf1.losses.sparse_softmax_cross_entropy(
            y["class"], losses.logits(f, v), reduction=reduction
        )
        tf1.losses.mean_squared_error(y["y"], losses.logits(f, v), reduction=metric)
        return found

    return loss


def with_keras(reduction, kind):
    def loss(f, y, v):
        made = tf.keras.losses.MeanSquaredError(reduction)
        weight = None if kind is None else f[kind]
        return tf.reduce_mean(made(y["y"], tf.tanh(losses.logits(f, v)), weight))

    return loss


LIBRARIES = {
    **by_reductions(),
    "tf.losses of columns": losses.Case(of_columns, np.float32),
    "tf.losses of padded tokens": losses.Case(of_padded_tokens, np.float32),
    "tf.losses collected": losses.Case(collected, np.float32),
    "tf.losses sum, then a mean as metric": losses.Case(
        then_a_metric(Reduction.SUM, Reduction.MEAN), np.float32
    ),
    "tf.losses mean, then a sum as metric": losses.Case(
        then_a_metric(Reduction.SUM_BY_NONZERO_WEIGHTS, Reduction.SUM), np.float32
    ),
    **{
        f"Keras {reduction} {kind or 'unweighted'}": losses.Case(
            with_keras(reduction, kind), np.float32
        )
        for reduction in ("auto", "sum_over_batch_size", "sum", "none")
        for kind in (None, "real")
    },
}


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


# Static shapes are Python's numbers, which the graph sees as constants.
COUNTS = {
    "sum by tf.shape": losses.Case(lambda f, y, v: losses.total(f, y, v) / losses.count(f["x"])),
    "sum by tf.size": losses.Case(
        lambda f, y, v: losses.total(f, y, v) / tf.cast(tf.size(y["class"]), tf.float64)
    ),
    "sum by ones": losses.Case(
        lambda f, y, v: losses.total(f, y, v) / tf.reduce_sum(tf.ones_like(f["mask"]))
    ),
    "sum by x.shape": losses.Case(
        lambda f, y, v: losses.total(f, y, v) / f["x"].shape[0], statics=(True,)
    ),
    "sum by int of x.shape": losses.Case(
        lambda f, y, v: losses.total(f, y, v) / int(f["x"].shape.as_list()[0]), statics=(True,)
    ),
    "mean times x.shape": losses.Case(
        lambda f, y, v: losses.mean(f, y, v) * float(f["x"].shape[0]), statics=(True,)
    ),
    "reshaped by x.shape": losses.Case(
        lambda f, y, v: tf.reduce_mean(
            tf.reduce_sum(tf.reshape(losses.cross(f, y, v), [f["x"].shape[0], 1]), 1)
        ),
        statics=(True,),
    ),
    "tokens by tf.shape": losses.Case(
        lambda f, y, v: (
            tf.reduce_sum(losses.of_tokens(f, y, v))
            / tf.cast(tf.reduce_prod(tf.shape(f["tokens"])[:2]), tf.float64)
        )
    ),
    "compute_average_loss": losses.Case(
        lambda f, y, v: tf.nn.compute_average_loss(losses.cross(f, y, v))
    ),
    "compute_average_loss with weights": losses.Case(
        lambda f, y, v: tf.nn.compute_average_loss(losses.cross(f, y, v), f["real"])
    ),
    "compute_average_loss of a batch size": losses.Case(
        lambda f, y, v: tf.nn.compute_average_loss(
            losses.cross(f, y, v), global_batch_size=losses.BATCH_SIZE
        )
    ),
    "divided by the replicas": losses.Case(lambda f, y, v: losses.mean(f, y, v) / replicas()),
    "multiplied by the replicas": losses.Case(lambda f, y, v: losses.mean(f, y, v) * replicas()),
    "sum by rows of all replicas": losses.Case(
        lambda f, y, v: losses.total(f, y, v) / (losses.count(f["x"]) * replicas())
    ),
    "a scaled penalty": losses.Case(
        lambda f, y, v: losses.mean(f, y, v) + tf.nn.scale_regularization_loss(tf.nn.l2_loss(v.w))
    ),
}
