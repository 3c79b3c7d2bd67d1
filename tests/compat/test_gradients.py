"""Gradients are told of, and optimizers are asked for, while entered, and not afterwards."""

from replicate.compat import gradients
from replicate.compat.tensorflow import tf, tf1


class Own(tf1.train.Optimizer):
    def __init__(self):
        super().__init__(False, "own")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return "its own"


def test_gradients_of_graphs_and_tapes_are_told_of_while_entered():
    told = []
    with tf.Graph().as_default():
        x = tf.constant(3.0)
        with gradients.computed(told.append):
            (graphs,) = tf.gradients(x * x, x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            tapes = tape.gradient(y, x)
        tf.gradients(x * x, x)
    assert any(leaf is graphs for leaf in tf.nest.flatten(told[0]))
    assert any(leaf is tapes for leaf in tf.nest.flatten(told[-1]))
    count = len(told)
    with gradients.computed(told.append):
        pass
    assert len(told) == count


def test_an_optimizers_apply_gradients_is_taken_while_entered():
    before = set(vars(tf1.train.Optimizer))
    optimizer = Own()
    with gradients.applied(lambda found: (lambda pairs: "ours") if found is optimizer else None):
        assert optimizer.apply_gradients([]) == "ours"
        assert Own().apply_gradients([]) == "its own"
    assert optimizer.apply_gradients([]) == "its own"
    assert set(vars(tf1.train.Optimizer)) == before
