"""Keras losses ask our reducer while it is in charge, and nobody afterwards."""

import random
import sys
import types

import numpy as np
import pytest

from replicate.compat import keras
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def loss(reduction="auto"):
    return tf.keras.losses.MeanSquaredError(reduction)


def test_the_reducer_decides_while_it_is_in_charge():
    before = tf.keras.losses.Loss._get_reduction
    with keras.loss_reductions(lambda reduction: f"{reduction}, decided"):
        assert loss()._get_reduction() == "auto, decided"
    assert tf.keras.losses.Loss._get_reduction is before
    assert loss()._get_reduction() == "sum_over_batch_size"


def test_what_the_reducer_leaves_open_keras_decides():
    with keras.loss_reductions(lambda reduction: None):
        assert loss()._get_reduction() == "sum_over_batch_size"
        assert loss("sum")._get_reduction() == "sum"


def test_losses_that_do_not_ask_are_left_alone(monkeypatch):
    class Loss:  # as Keras 3 has it
        pass

    module = types.SimpleNamespace(losses=types.SimpleNamespace(Loss=Loss))
    monkeypatch.setattr(keras, "tf", types.SimpleNamespace(keras=module))
    with keras.loss_reductions(lambda reduction: "ours"):
        assert not hasattr(Loss, keras._METHOD)
    assert not hasattr(Loss, keras._METHOD)


def test_a_converter_of_models_sees_no_strategy_where_there_is_to_be_none(monkeypatch):
    converter = types.ModuleType(keras._CONVERTER)
    converter.tf = tf
    monkeypatch.setitem(sys.modules, keras._CONVERTER, converter)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        with keras.output_names(lambda: True):
            with keras.output_names(lambda: False):
                assert not converter.tf.distribute.has_strategy()
                assert converter.tf.distribute.get_strategy is tf.distribute.get_strategy
                assert converter.tf.keras is tf.keras
            assert not converter.tf.distribute.has_strategy()
        assert converter.tf is tf
        with keras.output_names(lambda: False):
            assert converter.tf.distribute.has_strategy()
        with pytest.raises(ZeroDivisionError), keras.output_names(lambda: True):
            raise ZeroDivisionError
    assert converter.tf is tf


def test_generators_see_no_replica_while_they_are_told_so():
    module = tfc.stateful_random_ops.target()
    before = module.get_replica_id
    assert module.get_replica_id() == 0  # of the default strategy
    with keras.drawing_as_one_device(lambda: True):
        assert module.get_replica_id() is None
    with keras.drawing_as_one_device(lambda: False):
        assert module.get_replica_id() == 0
    assert module.get_replica_id is before


def drawn():
    return random.random(), np.random.uniform(), layer_seed()


def layer_seed():
    """Returns the seed that a layer without one draws."""
    with tf.Graph().as_default() as graph:
        tf.keras.layers.Dropout(0.5)(tf1.placeholder(tf.float32, [None, 2]), training=True)
        (op,) = [op for op in graph.get_operations() if op.type == "RandomUniform"]
        return op.get_attr("seed2")


@pytest.mark.parametrize("is_seeded", [False, True])
def test_python_numpy_and_keras_draw_from_a_seed_and_go_on_from_where_they_were(
    monkeypatch, is_seeded
):
    own = random.Random(3) if is_seeded else None  # as `tf.keras.utils.set_random_seed` sets it
    monkeypatch.setattr(keras._keras_seeds(), "generator", own, raising=False)
    states = random.getstate(), np.random.get_state()
    with keras.drawing_from(5):
        first = drawn()
    with keras.drawing_from(5):
        assert drawn() == first
    with keras.drawing_from(6):
        assert drawn()[:2] != first[:2]
    assert keras._keras_seeds().generator is own
    assert random.getstate() == states[0]
    assert all(np.array_equal(*pair) for pair in zip(np.random.get_state(), states[1], strict=True))
