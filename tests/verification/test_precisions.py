"""In which precision values are computed."""

import pytest

from replicate import estimator, types
from replicate.compat.tensorflow import tf, tf1
from replicate.verification import inputs, precisions, runs


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
    assert precisions.epsilon(dtype) == expected


def test_the_coarsest_of_operations_is_seen_in_functions_too(fresh_graph):
    x = tf.constant(1.0)
    assert precisions.coarsest([x.op, tf.cast(x, tf.float64).op]) == 2.0**-23

    @tf.function
    def rounded(x):
        return tf.cast(tf.cast(x, tf.bfloat16) + 1.0, tf.float32)

    assert precisions.coarsest([rounded(x).op]) == 2.0**-7


def test_only_what_is_made_from_weights_counts():
    def build(features, labels, mode):
        w = tf1.get_variable("w", [], tf.float64)
        rate = tf.cast(tf.cast(tf1.train.get_global_step(), tf.float32), tf.float64)
        y = features["x"] * w
        return estimator.EstimatorSpec(
            mode, {"exact": y + rate, "rounded": tf.cast(tf.cast(y, tf.float16), tf.float64)}
        )

    form = inputs.Form(({"x": 0}, 1), (tf.TensorSpec([None], tf.float64), None))
    built = runs.Built(build, form, 1, types.PREDICT, tf1.ConfigProto())
    found = {key.name: least for key, least in built.precisions().items()}
    assert found["predict/exact"] == 0.0  # as the weight is stored
    assert found["predict/rounded"] == 2.0**-10
