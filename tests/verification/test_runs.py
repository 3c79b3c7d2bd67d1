"""What is read from a graph before it is run."""

import pytest

from replicate.compat.tensorflow import tf
from replicate.verification import runs


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda x: x + tf.random.uniform([]), True),
        (lambda x: tf.cond(x > 0, lambda: tf.random.normal([]), lambda: x), True),
        (lambda x: tf.cond(x > 0, lambda: x + 1, lambda: tf.map_fn(tf.square, x[None])[0]), False),
    ],
)
def test_random_numbers_are_found_in_functions_that_call_functions(fresh_graph, body, expected):
    made = tf.function(body)(tf.constant(1.0))
    functions = fresh_graph.as_graph_def().library.function
    library = {function.signature.name: function.node_def for function in functions}
    assert runs._draws(made.op.node_def, library, set()) is expected


def test_every_tensor_of_a_nest_has_its_path(fresh_graph):
    one, two, three = (tf.constant(number) for number in range(3))
    nest = {"a": [one, (two, None)], "b": {"c": three}}
    found = {key: value.op for key, value in runs._leaves(runs.PREDICTIONS, "p", nest)}
    expected = {"p/a/0": one.op, "p/a/1/0": two.op, "p/b/c": three.op}
    assert found == {runs.Key(runs.PREDICTIONS, name): op for name, op in expected.items()}
