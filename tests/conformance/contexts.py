"""Where code stands: modes, accessors, scopes, and what is refused where."""

import threading

import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1


def here():
    """Returns the two contexts, having checked that exactly one of them is None."""
    tower, across = core.get_tower_context(), core.get_cross_tower_context()
    assert (tower is None) != (across is None)
    return tower, across


class Contexts:
    """What every strategy does with modes."""

    def test_outside_of_all_scopes_the_default_strategy_is_in_charge(self, bench):
        def step():
            tower, across = here()
            assert across is None
            assert (tower.tower_id, tower.num_towers, tower.is_single_tower) == (0, 1, True)
            assert tower.distribution_strategy is core.get_distribution_strategy()
            assert not core.has_distribution_strategy()

        bench.run(step)

    def test_scope_is_cross_tower_context(self, bench, strategy):
        def across():
            assert here() == (None, strategy)
            assert core.get_distribution_strategy() is strategy
            assert core.has_distribution_strategy()
            assert core.get_update_device() is None

        bench.across(strategy, across)
        assert here()[1] is None

    def test_scope_entered_outside_of_the_function_holds_inside(self, bench, strategy):
        with strategy.scope():
            bench.run(lambda: here()[1].num_towers)
            assert here() == (None, strategy)

    def test_scope_holds_in_graphs_entered_inside(self, strategy):
        with strategy.scope(), tf.Graph().as_default() as graph:
            assert here() == (None, strategy)
            assert tf.distribute.in_cross_replica_context()
            assert tf.distribute.get_strategy() is strategy
            with pytest.raises(RuntimeError, match="cross-replica context"):
                tf1.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.constant(1.0), None)])
            tf1.metrics.mean(tf.constant(1.0))  # an Estimator makes one of its loss
            w = tf1.get_variable("w", [4], partitioner=tf1.fixed_size_partitioner(2))
            with graph.as_default(), tf.init_scope():  # nothing is entered twice
                assert len(graph._distribution_strategy_stack) == 1
            u = strategy.call_for_each_tower(lambda: tf1.get_variable("u", []))
            with strategy.scope():
                v = tf.Variable(1.0, name="v")
            assert tf1.global_variables() == [w, u, v]
            for variable in (w, u, v):
                assert len(strategy.unwrap(variable)) == self.num_copies
        assert graph._distribution_strategy_stack == []
        with graph.as_default():
            assert not tf.distribute.has_strategy()
            assert not hasattr(tf1.get_variable("later", []), "members")

    def test_scope_leaves_finalized_graphs_alone(self, strategy):
        with tf.Graph().as_default() as graph:
            x = tf.constant(1.0)
        graph.finalize()
        with strategy.scope(), tf1.Session(graph=graph) as session:
            assert session.run(x) == 1.0

    def test_each_tower_has_its_own_context(self, bench, strategy):
        seen = []

        def tower():
            ctx, across = here()
            assert across is None
            assert ctx.distribution_strategy is strategy is core.get_distribution_strategy()
            assert ctx.num_towers == strategy.num_towers
            assert ctx.is_single_tower == strategy.is_single_tower
            core.require_tower_context(ctx)
            seen.append((ctx.tower_id, ctx.device))

        bench.in_towers(strategy, tower)
        assert set(seen) == set(enumerate(strategy.worker_devices))

    def test_merge_call_is_cross_tower_context(self, bench, strategy):
        def merge(merging):
            assert merging is strategy
            assert here() == (None, strategy)
            assert core.get_update_device() is None

        def tower():
            before = core.get_tower_context()
            before.merge_call(merge)
            assert here() == (before, None)

        bench.in_towers(strategy, tower)

    def test_update_knows_its_device(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        seen = []

        def fn(copy):
            assert here() == (None, strategy)
            seen.append((core.get_update_device(), copy.device, tf.identity(2.0).device))

        bench.across(strategy, lambda: strategy.update(v, fn))
        assert len(seen) == self.num_copies
        for update_device, *devices in seen:
            assert all(device.endswith(update_device) for device in devices)
        assert core.get_update_device() is None

    def test_update_non_slot_knows_its_device(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        seen = []

        def across():
            place = strategy.non_slot_devices([v])
            strategy.update_non_slot(place, lambda: seen.append(core.get_update_device()))

        bench.across(strategy, across)
        assert len(seen) == self.num_copies
        assert all(device is not None for device in seen)

    def test_update_context_says_its_device_until_it_ends(self, bench, strategy):
        def across():
            with core.UpdateContext("/cpu:1"):
                assert core.get_update_device().upper().endswith("CPU:1")
                assert here() == (None, strategy)
            assert core.get_update_device() is None

        bench.across(strategy, across)

    def test_update_context_ends_when_an_exception_passes(self, strategy):
        with strategy.scope():
            with pytest.raises(KeyError), core.UpdateContext("/cpu:1"):
                raise KeyError("x")
            assert core.get_update_device() is None

    def test_update_context_in_a_tower_is_refused(self, bench, strategy):
        def tower():
            with core.UpdateContext("/cpu:1"):
                pass

        with pytest.raises(RuntimeError, match=r"across towers, but this is tower 0.*merge_call"):
            bench.in_towers(strategy, tower)

    def test_same_scope_may_be_entered_again(self, bench, strategy):
        def across():
            with strategy.scope() as again:
                assert again is strategy
                assert here() == (None, strategy)
            assert here() == (None, strategy)

        bench.across(strategy, across)
        assert not core.has_distribution_strategy()

    def test_scope_may_be_entered_after_it_was_left(self, strategy):
        for _ in range(3):
            with strategy.scope():
                assert here() == (None, strategy)
            assert not core.has_distribution_strategy()

    def test_scope_ends_when_an_exception_passes(self, strategy):
        with pytest.raises(KeyError), strategy.scope():
            raise KeyError("x")
        assert not core.has_distribution_strategy()
        assert not tf.distribute.has_strategy()

    def test_another_strategys_scope_inside_is_refused(self, strategy):
        other = core.OneDeviceStrategy("/cpu:0")
        with strategy.scope():
            with pytest.raises(RuntimeError, match="Only one strategy may be in charge"):
                with other.scope():
                    pass
            assert here() == (None, strategy)

    def test_default_strategys_scope_inside_is_refused(self, strategy):
        default = core.get_distribution_strategy()
        with strategy.scope():
            with pytest.raises(RuntimeError, match="default strategy is in charge only where"):
                with default.scope():
                    pass
            assert here() == (None, strategy)

    def test_scope_in_a_tower_is_refused(self, bench, strategy):
        def tower():
            with strategy.scope():
                pass

        with pytest.raises(RuntimeError, match=r"scope\(\) is entered across towers.*merge_call"):
            bench.in_towers(strategy, tower)

    @pytest.mark.parametrize(
        "method", ["call", "reduce", "batch", "broadcast", "gather", "update", "non_slot"]
    )
    def test_cross_tower_method_without_a_scope_is_refused(self, bench, strategy, method):
        with pytest.raises(RuntimeError, match=r"no scope was entered.*strategy\.scope\(\)"):
            bench.run(lambda: cross_tower_calls(strategy)[method]())

    @pytest.mark.parametrize(
        "method", ["call", "reduce", "batch", "broadcast", "gather", "update", "non_slot"]
    )
    def test_cross_tower_method_in_a_tower_recommends_merge_call(self, bench, strategy, method):
        def tower():
            cross_tower_calls(strategy)[method]()

        with pytest.raises(RuntimeError, match=r"was called in tower 0\. .*merge_call"):
            bench.in_towers(strategy, tower)

    @pytest.mark.parametrize("method", ["call", "reduce", "update"])
    def test_two_strategies_mixed_are_refused(self, bench, strategy, method):
        other = core.OneDeviceStrategy("/cpu:0")
        with pytest.raises(RuntimeError, match="two strategies are mixed"):
            bench.across(strategy, lambda: cross_tower_calls(other)[method]())

    def test_tower_context_that_is_over_is_refused(self, bench, strategy):
        kept = []
        bench.in_towers(strategy, lambda: kept.append(core.get_tower_context()))
        with pytest.raises(RuntimeError, match=r"only while its tower runs.*default strategy's"):
            core.require_tower_context(kept[0])
        with strategy.scope():
            with pytest.raises(RuntimeError, match=r"only while its tower runs.*cross-tower"):
                kept[0].merge_call(lambda merging: None)
        with pytest.raises(RuntimeError, match=r"only while its tower runs.*but the current tower"):
            bench.in_towers(strategy, lambda: kept[0].merge_call(lambda merging: None))

    def test_another_thread_stands_outside_of_the_scope(self, strategy):
        seen = []
        with strategy.scope():
            thread = threading.Thread(target=lambda: seen.append(core.has_distribution_strategy()))
            thread.start()
            thread.join()
        assert seen == [False]

    def test_devices_and_counts_agree(self, strategy):
        assert strategy.num_towers == len(strategy.worker_devices) == self.num_towers
        assert strategy.is_single_tower == (self.num_towers == 1)
        index = strategy.worker_device_index
        assert [index.get(device) for device in strategy.worker_devices] == list(
            range(strategy.num_towers)
        )
        assert len(strategy.parameter_devices) >= 1

    def test_configure_lets_a_session_start(self, strategy):
        config = tf1.ConfigProto()
        strategy.configure(config)
        with tf.Graph().as_default(), tf1.Session(config=config) as session:
            assert session.run(tf.constant(1)) == 1


def cross_tower_calls(strategy):
    """One call of each cross-tower method."""
    summed = tf.VariableAggregation.SUM
    return {
        "call": lambda: strategy.call_for_each_tower(lambda: None),
        "reduce": lambda: strategy.reduce(summed, 0),
        "batch": lambda: strategy.batch_reduce(summed, [(0, None)]),
        "broadcast": lambda: strategy.broadcast(1.0),
        "gather": lambda: strategy.gather(1.0, 0),
        "update": lambda: strategy.update(None, lambda copy: None),
        "non_slot": lambda: strategy.update_non_slot("/cpu:0", lambda: None),
    }
