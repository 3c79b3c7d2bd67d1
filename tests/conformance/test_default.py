"""The default strategy, which is in charge where nobody chose: what applies to it."""

import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches

SUM = tf.VariableAggregation.SUM
MEAN = tf.VariableAggregation.MEAN


@pytest.fixture(params=benches.MODES)
def bench(request):
    with benches.Bench(request.param).entered() as bench:
        yield bench


@pytest.fixture
def default():
    return core.get_distribution_strategy()


def merged(fn, *args, **kwargs):
    return core.get_tower_context().merge_call(fn, *args, **kwargs)


def test_merge_call_runs_straight(bench, default):
    def merge(strategy, x, y):
        assert strategy is default
        assert core.get_tower_context() is None
        assert core.get_cross_tower_context() is default
        assert not core.has_distribution_strategy()
        return x + y

    assert bench.run(lambda: merged(merge, tf.constant(1.0), y=2.0)) == 3.0
    assert core.get_cross_tower_context() is None


def test_merge_call_lets_exceptions_through(bench):
    def merge(strategy):
        raise ValueError("x")

    with pytest.raises(ValueError):
        bench.run(lambda: merged(merge))
    assert core.get_cross_tower_context() is None


def test_reductions_over_one_tower_give_the_value(bench):
    def merge(strategy, x):
        pair = strategy.batch_reduce(SUM, [(x, None), (0, None)])
        return strategy.reduce(SUM, x), strategy.reduce(MEAN, x), strategy.broadcast(x), pair

    found = bench.run(lambda: merged(merge, tf.constant(3.0)))
    assert found == (3.0, 3.0, 3.0, [3.0, 0])


def test_update_gives_the_variable_itself(bench):
    v = tf.Variable(1.0)

    def merge(strategy):
        def fn(copy, x):
            assert copy is v
            assert core.get_update_device() is not None
            return copy.assign_add(x)

        return strategy.group(strategy.update(v, fn, 2.0))

    bench.run(lambda: merged(merge))
    assert bench.value(v) == 3.0


def test_increment_var_adds_once(bench):
    v = tf.Variable(1)
    bench.run(lambda: core.increment_var(v, 2))
    assert bench.value(v) == 3


def test_library_code_reads_and_places_variables_without_asking(bench, default):
    v = tf.Variable(1.0)
    with default.colocate_vars_with(v):
        beside = tf.Variable(2.0)
    assert bench.run(lambda: default.read_var(v)) == 1.0
    assert bench.value(beside) == 2.0
    assert beside.device == v.device
    assert default.unwrap(v) == [v] if bench.mode == "graph" else default.unwrap(v)[0] is v


def test_call_for_each_tower_calls_once(bench):
    def merge(strategy):
        def tower(x):
            ctx = core.get_tower_context()
            assert (ctx.tower_id, ctx.num_towers) == (0, 1)
            return x + 1.0

        return strategy.call_for_each_tower(tower, tf.constant(1.0))

    assert bench.run(lambda: merged(merge)) == 2.0


def test_cross_tower_method_recommends_merge_call(default):
    with pytest.raises(RuntimeError, match=r"called in the default strategy's tower.*merge_call"):
        default.reduce(SUM, 0)


def test_variables_are_tensorflows_own(bench, default):
    with default.scope():
        assert core.get_cross_tower_context() is default
        v = tf.Variable(1.0)
    assert not isinstance(v, core.MirroredVariable)
    assert core.get_tower_context() is not None


def test_tensorflow_sees_no_strategy(default):
    assert not tf.distribute.has_strategy()
    with default.scope():
        assert not tf.distribute.has_strategy()


def test_loss_reduction_is_what_the_last_loss_says():
    assert core.get_loss_reduction() == MEAN
    with tf.Graph().as_default():
        assert core.get_loss_reduction() == MEAN
        tf1.losses.mean_squared_error([1.0], [2.0])
        assert core.get_loss_reduction() == MEAN
        tf1.losses.mean_squared_error([1.0], [2.0], reduction=tf1.losses.Reduction.SUM)
        assert core.get_loss_reduction() == SUM
        tf1.losses.mean_squared_error([1.0], [2.0])
        assert core.get_loss_reduction() == MEAN
