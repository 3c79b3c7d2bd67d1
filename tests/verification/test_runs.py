"""What is read from a graph before it is run."""

import pytest

from replicate import estimator, types
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import inputs, runs


def built(predict):
    """Builds a model that makes predictions of a float64 weight and a feature."""

    def build(features, labels, mode):
        w = tf1.get_variable("w", [], tf.float64)
        return estimator.EstimatorSpec(mode, {"y": predict(features["x"], w)})

    form = inputs.Form({"x": tf.TensorSpec([None], tf.float64)}, None)
    return runs.Built(build, form, 1, types.PREDICT, tf1.ConfigProto())


def draw_in_a_branch(x, w):
    drawn = tf.function(lambda x: tf.cond(x[0] > 0, lambda: tf.random.normal([]), lambda: 0.0))
    return x + tf.cast(drawn(x), tf.float64)


def branch(x, w):
    return tf.function(lambda x: tf.cond(x[0] > 0, lambda: x + 1, lambda: tf.map_fn(tf.square, x)))(
        x
    )


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        (lambda x, w: x + tf.random.uniform([], dtype=tf.float64), True),
        (draw_in_a_branch, True),
        (branch, False),
    ],
)
def test_random_numbers_are_found_in_functions_that_call_functions(predict, expected):
    assert bool(built(predict).drawing) is expected


def round_to(dtype):
    return lambda x: tf.cast(tf.cast(x, dtype), tf.float64)


def add_the_step(x, w):
    return x * w + round_to(tf.float32)(tf1.train.get_global_step())


@pytest.mark.parametrize(
    ("predict", "expected"),
    [
        (lambda x, w: x * w, 0.0),  # as the weight is stored
        (add_the_step, 0.0),  # which is made from no weight
        (lambda x, w: round_to(tf.float16)(x * w), 2.0**-10),
        (lambda x, w: tf.function(round_to(tf.bfloat16))(x * w), 2.0**-7),
    ],
)
def test_precision_is_the_coarsest_of_what_is_made_from_weights(predict, expected):
    assert built(predict).precision == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (tf.float64, 2.0**-52),
        (tf.float32, 2.0**-23),
        (tf.float16, 2.0**-10),
        (tf.bfloat16, 2.0**-7),
        (tf.complex64, 2.0**-23),
        (tf.int32, 0.0),
    ],
)
def test_epsilon_is_the_distance_to_the_number_after_1(dtype, expected):
    assert runs.epsilon(dtype) == expected


def test_every_tensor_of_a_nest_has_its_path(fresh_graph):
    one, two, three = (tf.constant(number) for number in range(3))
    nest = {"a": [one, (two, None)], "b": {"c": three}}
    found = {key: value.op for key, value in runs._leaves(runs.PREDICTIONS, "p", nest)}
    expected = {"p/a/0": one.op, "p/a/1/0": two.op, "p/b/c": three.op}
    assert found == {runs.Key(runs.PREDICTIONS, name): op for name, op in expected.items()}
