"""AutoGraph converts the user's functions, and none of ours."""

import functools

import pytest

from replicate import strategy as core
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.strategy import conversion


@pytest.fixture(params=["one", "two"])
def strategy(request):
    if request.param == "one":
        return core.OneDeviceStrategy("/cpu:0")
    return core.MirroredStrategy(["/cpu:0", "/cpu:1"])


def test_python_control_flow_on_tensors_works_in_towers(strategy):
    def tower(x):
        y = x
        if x > 1.5:
            y = x * 10.0
        for _ in tf.range(3):
            y += 1.0
        return y

    @tf.function
    def step(x):
        with strategy.scope():
            return strategy.call_for_each_tower(tower, x)

    x = core.PerDevice([tf.constant(i + 1.0) for i in range(strategy.num_towers)])
    found = [v.numpy() for v in strategy.unwrap(step(x))]
    assert found == [4.0, 23.0][: strategy.num_towers]  # 1 + 3; 2 * 10 + 3


def test_function_given_to_run_is_traced_once(strategy):
    traced = []

    @tf.function
    def tower(x):
        traced.append(None)
        return x + 1.0

    for i in range(3):
        x = core.PerDevice([tf.constant(float(i))] * strategy.num_towers)
        strategy.run(tower, (x,))
    assert len(traced) == strategy.num_towers


def test_exception_of_any_type_keeps_its_type_out_of_a_function():
    class Unusual(Exception):
        def __init__(self, a, b):
            super().__init__(a, b)

    @tf.function
    def step():
        with conversion.own_types():
            raise Unusual(1, 2)

    with pytest.raises(Unusual):
        step()


def test_the_innermost_function_is_found_in_what_tensorflow_gives_a_merge_call():
    def apply(strategy, pairs, scale):
        return strategy, pairs, scale

    given = functools.partial(apply, scale=2)
    wrapped = tfc.autograph.tf_convert(given, tfc.autograph_status.control_status_ctx(), False)
    assert wrapped is not given
    assert conversion.innermost(wrapped) is apply
