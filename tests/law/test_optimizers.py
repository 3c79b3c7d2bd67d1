"""Optimizers inside a model leave nothing beside an optimizer_fn."""

import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, optimizers, running


def model(features, labels, mode, inner=None):
    loss = optimizers.loss(features, labels, losses.Weights())
    train_op = tf1.no_op() if inner is None else inner(loss)
    return exactness.spec_of(mode, loss, train_op=train_op)


def keras_updates(loss):
    optimizer = tf.keras.optimizers.legacy.Adam(0.1)
    return tf1.group(optimizer.get_updates(loss, tf1.trainable_variables()))


def clipping(optimizer):
    def step_of(loss):
        trained = tf1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1.0)
        step = optimizer().apply_gradients(zip(gradients, trained, strict=True))
        count = tf1.train.get_global_step()
        return tf.group(step, [count.assign(count + 1)])

    return step_of


INNER = {
    "the same": lambda loss: running.adam().minimize(loss, tf1.train.get_global_step()),
    "another": lambda loss: running.momentum().minimize(loss, tf1.train.get_global_step()),
    "Keras": keras_updates,
    "assigns by itself": clipping(optimizers.OPTIMIZERS["assigns by itself"]),
    "named": lambda loss: tf1.train.AdamOptimizer(0.1, name="Own").minimize(loss),
}


@pytest.mark.parametrize(("name", "setting"), running.in_turn(INNER))
@pytest.mark.parametrize("is_alone", [True, False])
def test_an_optimizer_inside_leaves_nothing_beside_an_optimizer_fn(name, setting, is_alone):
    def with_inner(features, labels, mode):
        return model(features, labels, mode, INNER[name])

    # The names of all variables are compared as well: slots are those of the optimizer_fn.
    running.require_exact(
        with_inner,
        setting._replace(devices=1) if is_alone else setting,
        optimizer_fn=running.adam,
        reference=model,
    )


def test_an_optimizer_inside_leaves_no_local_variable_either():
    def names(inner):
        def local(features, labels, mode):
            return model(features, labels, mode, inner)

        replicated = model_fn.replicate_model_fn(local, running.adam, 2)
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            replicated(*tf.nest.map_structure(tf.constant, running.batches(5)[0]), "train")
            return [
                sorted(v.name for v in tf1.get_collection(key))
                for key in tf1.get_default_graph().get_all_collection_keys()
                if "variables" in key
            ]

    assert names(INNER["another"]) == names(None)
