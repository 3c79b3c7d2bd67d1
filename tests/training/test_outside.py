"""What a model_fn keeps outside of itself, after a call that does not count."""

import functools

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.training import outside

KEPT = {"calls": 0}


def closing(held, number):
    def call():
        nonlocal number
        number += 1
        held.append(number)
        KEPT["calls"] += 1
        return held, number

    return call


class Model:
    def __init__(self):
        self.layer, self.seen = None, []

    def __call__(self):
        self.layer = self.layer or "a layer"
        self.seen.append(self.layer)

    def method(self):
        self()


def test_closures_and_globals_are_put_back():
    held: list = []
    call = closing(held, 0)
    with outside.untouched(functools.partial(call)):
        assert call() == ([1], 1)
    assert (held, KEPT) == ([], {"calls": 0})
    assert call() == ([1], 1)
    KEPT["calls"] = 0


def test_objects_are_put_back():
    for of in (lambda model: model, lambda model: model.method):
        model = Model()
        with outside.untouched(of(model)):
            of(model)()
            assert model.seen == ["a layer"]
        assert (model.layer, model.seen) == (None, [])


def test_what_a_tracked_object_holds_is_put_back_with_it():
    inner, outer = tf.Module(), tf.Module()
    outer.inner, outer.list = inner, [inner]
    optimizer = tf1.train.SyncReplicasOptimizer(tf1.train.AdamOptimizer(), 1)
    seen = (outer, optimizer)

    def call():
        inner.step, seen[1]._opt._beta1 = 1, None
        seen[1]._accumulator_list.append("an accumulator")

    with outside.untouched(call):
        call()
        assert (inner.step, optimizer._accumulator_list) == (1, ["an accumulator"])
    assert not hasattr(inner, "step")
    assert optimizer._accumulator_list == []
    assert optimizer._opt._beta1 == 0.9


def test_a_list_that_nobody_changed_is_not_touched():
    layer = tf.Module()
    layer.list = [1.0, 2.0]
    with outside.untouched(lambda: layer):
        pass
    assert not layer.list._non_append_mutation


OPTIMIZERS = {
    "tf_keras Adam": lambda: tf.keras.optimizers.legacy.Adam(0.1),
    "Adam": lambda: tf1.train.AdamOptimizer(0.1),
}
X = np.arange(16, dtype=np.float32).reshape(8, 2) / 10


def closing_over(optimizer):
    """A model_fn that uses an optimizer which it has not made."""

    def model(features, mode):
        w = tf1.get_variable("w", [2, 1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean((features @ w) ** 2)
        step = tf1.train.get_or_create_global_step()
        if isinstance(optimizer, tf1.train.Optimizer):
            train_op = optimizer.minimize(loss, step)
        else:
            train_op = tf.group(optimizer.get_updates(loss, [w]), step.assign_add(1))
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model


def trained(model):
    """The weights after three steps on static batches."""
    many = estimator.Estimator(model)
    many.train(lambda: tf1.data.Dataset.from_tensors(X).repeat(), steps=3)
    return many.get_variable_value("w")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_optimizer_made_outside_trains_on_static_batches(name):
    one = trained(closing_over(OPTIMIZERS[name]()))
    model = model_fn.replicate_model_fn(closing_over(OPTIMIZERS[name]()), devices=2)
    np.testing.assert_allclose(trained(model), one, rtol=1e-5)


def test_accumulators_of_an_optimizer_made_outside_are_of_one_graph(fresh_graph):
    """Trained, its queue would hold up the end of the session, on one device as well."""
    optimizer = tf1.train.SyncReplicasOptimizer(tf1.train.GradientDescentOptimizer(0.1), 1, 1)
    tf1.train.create_global_step()
    model = model_fn.replicate_model_fn(closing_over(optimizer), devices=2)
    assert model(tf.constant(X), None, "train").train_op.graph is fresh_graph
