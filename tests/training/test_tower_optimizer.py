"""`TowerOptimizer` takes what code of the ancestor's later releases gives it."""

import functools

import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1

GIVEN = {
    "instance": lambda: tf1.train.GradientDescentOptimizer(1.0),
    "function": lambda: lambda: tf1.train.GradientDescentOptimizer(1.0),
    "partial": lambda: functools.partial(tf1.train.GradientDescentOptimizer, 1.0),
    "class": lambda: UnitDescent,
}


class UnitDescent(tf1.train.GradientDescentOptimizer):
    """A class that needs no argument."""

    def __init__(self):
        super().__init__(1.0)


def model_fn_of(given):
    def model_fn(features, labels, mode):
        del labels
        w = tf1.get_variable("w", initializer=10.0)
        loss = tf.reduce_sum(w * features["x"])
        optimizer = replicate.TowerOptimizer(GIVEN[given]())
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return replicate.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("devices", [2, 1, None])
def test_whatever_gives_an_optimizer_takes_the_same_step(given, devices, fresh_graph):
    # The loss is the sum of w * x over x = 1, 2, and its gradient 3: 10 - 3 on any number of
    # devices, and without any replication.
    step = tf1.train.create_global_step()
    model_fn = model_fn_of(given)
    if devices is not None:
        model_fn = replicate.replicate_model_fn(model_fn, devices=devices)
    spec = model_fn({"x": tf.constant([1.0, 2.0])}, None, "train")
    (w,) = tf1.trainable_variables()
    with tf1.Session(graph=fresh_graph) as session:
        session.run(tf1.global_variables_initializer())
        session.run(spec.train_op)
        assert session.run([w.read_value(), step]) == [7.0, 1]
