"""Who may assign a variable, and what it holds then."""

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches
from tests.conformance.variables import FIRST, MEAN, NONE, SUM, local, tower_id


class Assignments:
    """What every strategy does with assignments."""

    def test_assign_across_towers_writes_every_copy(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])
        bench.across(strategy, lambda: v.assign([3.0, 4.0]))
        bench.across(strategy, lambda: v.assign_add([1.0, 1.0]))
        bench.across(strategy, lambda: v.assign_sub([0.5, 0.5]))
        bench.run(lambda: v.assign_add([1.0, 1.0]))  # outside of the scope as well
        for found in bench.copies(v):
            np.testing.assert_array_equal(found, [4.5, 5.5])

    def test_assign_across_towers_takes_a_mirrored_value(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(0.0)

        def across():
            return v.assign(strategy.broadcast(2.0, v))

        bench.across(strategy, across)
        assert bench.copies(v) == [2.0] * self.num_copies

    def test_assign_gives_back_the_new_value(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        assert bench.across(strategy, lambda: v.assign_add(2.0)) == 3.0

    def test_assign_without_reading_gives_no_value(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        bench.across(strategy, lambda: v.assign_add(2.0, read_value=False))
        assert bench.copies(v) == [3.0] * self.num_copies

    def test_assign_in_update_writes_that_copy_only(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(0.0)

        def across():
            index = iter(range(100))
            return strategy.group(strategy.update(v, lambda copy: v.assign(10.0 + next(index))))

        bench.across(strategy, across)
        assert bench.copies(v) == [10.0 + i for i in range(self.num_copies)]

    def test_assign_in_a_tower_needs_an_aggregation(self, bench, strategy):
        if self.num_copies == 1:
            pytest.skip(
                "A variable with a single copy is what TensorFlow makes, and may be assigned."
            )
        with strategy.scope():
            v = tf.Variable(0.0)
        with pytest.raises(ValueError, match=r"needs an aggregation: Variable.*aggregation=tf"):
            bench.in_towers(strategy, lambda: v.assign(1.0))

    @pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
    @pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
    def test_assign_in_towers_merges_what_they_bring(self, bench, strategy, aggregation, method):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(10.0, aggregation=aggregation)

        def tower():
            return getattr(v, method)(tf.constant(tower_id() + 1.0))

        bench.in_towers(strategy, tower)
        # Towers bring 1, 2, ..., K.
        merged = {SUM: K * (K + 1) / 2, MEAN: (K + 1) / 2, FIRST: 1.0}[aggregation]
        expected = {"assign": merged, "assign_add": 10.0 + merged, "assign_sub": 10.0 - merged}
        assert bench.copies(v) == [expected[method]] * self.num_copies

    def test_value_that_all_towers_share_counts_once_per_tower(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(0.0, aggregation=SUM)
        shared = 2.0
        bench.in_towers(strategy, lambda: v.assign_add(shared))
        assert bench.copies(v) == [2.0 * strategy.num_towers] * self.num_copies

    def test_variable_cannot_average_integers(self, strategy):
        benches.needs_two(strategy)
        with strategy.scope():
            with pytest.raises(ValueError, match="A mean needs a floating dtype"):
                tf.Variable(1, aggregation=MEAN)

    def test_scatter_across_towers_writes_every_copy(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([[1.0], [2.0], [3.0]])

        def across():
            v.scatter_add(tf.IndexedSlices([[10.0]], tf.constant([1])))

        if bench.mode == "graph":
            fetched = v.scatter_add(tf.IndexedSlices([[10.0]], tf.constant([1])))
            bench.run(lambda: fetched)
        else:
            bench.across(strategy, across)
        for found in bench.copies(v):
            assert found.tolist() == [[1.0], [12.0], [3.0]]

    def test_tower_local_variable_is_each_towers_own_and_read_as_the_aggregate(
        self, bench, strategy
    ):
        K = strategy.num_towers
        with strategy.scope():
            summed, meant, first = local(0.0), local(0.0, MEAN), local(0.0, FIRST)

        def tower():
            for v in (summed, meant, first):
                v.assign_add(tower_id() + 1.0)
            return [tf.convert_to_tensor(v) for v in (summed, meant, first)]

        def graph_tower():
            return [v.assign_add(tower_id() + 1.0) for v in (summed, meant, first)]

        found = bench.in_towers(strategy, graph_tower if bench.mode == "graph" else tower)
        assert found == [[i + 1.0] * 3 for i in range(K)]
        assert bench.value(summed) == K * (K + 1) / 2
        assert bench.value(meant) == (K + 1) / 2
        assert bench.value(first) == 1.0
        assert bench.across(strategy, lambda: strategy.read_var(summed)) == K * (K + 1) / 2

    @pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
    def test_tower_local_variable_reads_back_what_was_assigned_across(
        self, bench, strategy, aggregation
    ):
        with strategy.scope():
            v = local(1.0, aggregation)
        bench.across(strategy, lambda: v.assign(6.0))
        assert bench.value(v) == 6.0
        bench.across(strategy, lambda: v.assign_add(3.0))
        assert bench.value(v) == 9.0

    @pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
    def test_towers_may_assign_numbers(self, bench, strategy, aggregation):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(5.0, aggregation=aggregation)

        def tower():
            return v.assign_add(tower_id() + 1)

        bench.across(strategy, lambda: strategy.group(strategy.call_for_each_tower(tower)))
        # Towers bring 1, ..., K.
        brought = {SUM: K * (K + 1) / 2, MEAN: (K + 1) / 2, FIRST: 1.0}[aggregation]
        assert bench.copies(v) == [5.0 + brought] * self.num_copies

    def test_tower_local_get_gives_the_copy_or_the_aggregate(self, bench, strategy):
        K = strategy.num_towers
        benches.needs_two(strategy)
        with strategy.scope():
            v = local(0.0)

        def tower():
            written = v.assign(core.get_tower_context().tower_id + 1.0, read_value=False)
            assert v.get() is v.get(core.get_tower_context().device)
            return written

        bench.across(strategy, lambda: strategy.group(strategy.call_for_each_tower(tower)))
        # The copies hold 1, ..., K.
        assert bench.across(strategy, lambda: v.get()) == K * (K + 1) / 2
        first = bench.across(strategy, lambda: v.get(strategy.worker_devices[0]))
        assert first == 1.0

    def test_tower_local_sum_of_integers_keeps_the_remainder(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = local(0)
        bench.across(strategy, lambda: v.assign(7))
        assert bench.value(v) == 7
        # 7 over K towers: the remainder to the first.
        assert bench.copies(v) == [7 - (7 // K) * (K - 1)] + [7 // K] * (K - 1)

    def test_tower_local_variable_without_aggregation_is_not_read_across(self, bench, strategy):
        benches.needs_two(strategy)
        with strategy.scope():
            v = local(1.0, NONE)
        with pytest.raises(ValueError, match="read across towers needs an aggregation"):
            bench.across(strategy, lambda: strategy.read_var(v))

    def test_tower_local_variable_has_a_copy_per_tower(self, strategy):
        with strategy.scope():
            v = local(1.0)
        assert len(strategy.unwrap(v)) == strategy.num_towers
        assert not v.trainable

    def test_slices_are_assigned_on_every_copy(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0, 3.0], aggregation=FIRST)
        bench.across(strategy, lambda: v[1:2].assign([9.0]))
        for copy in bench.copies(v):
            assert copy.tolist() == [1.0, 9.0, 3.0]

        def tower():
            return v[0].assign(5.0 + tower_id())

        bench.across(strategy, lambda: strategy.group(strategy.call_for_each_tower(tower)))
        for copy in bench.copies(v):
            assert copy.tolist() == [5.0, 9.0, 3.0]

    @benches.eagerly
    def test_eager_scatter_functions_write_every_copy_or_none(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0], aggregation=FIRST)
            tf1.scatter_update(v, [0], [9.0])
            for copy in strategy.unwrap(v):
                assert copy.numpy().tolist() == [9.0, 2.0]
            if self.num_copies > 1:
                with pytest.raises(RuntimeError, match=r"writes one copy of .*scatter methods"):
                    strategy.call_for_each_tower(lambda: tf1.scatter_add(v, [0], [1.0]))
                for copy in strategy.unwrap(v):
                    assert copy.numpy().tolist() == [9.0, 2.0]

    @benches.in_a_graph
    def test_operation_on_the_handle_of_several_copies_is_refused(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])
        if self.num_copies > 1:
            with pytest.raises(RuntimeError, match=r"writes one copy of .*scatter methods"):
                tf1.scatter_update(v, [0], [9.0])
        else:
            bench.run(lambda: tf1.scatter_update(v, [0], [9.0]))
            assert bench.value(v).tolist() == [9.0, 2.0]

    @benches.in_a_graph
    def test_version_1_assignments_write_every_copy(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        bench.run(lambda: tf1.assign(v, 5.0))
        bench.run(lambda: tf1.assign_add(v, 1.0))
        assert bench.copies(v) == [6.0] * self.num_copies

    @benches.eagerly
    def test_variable_serves_as_a_number(self, bench, strategy):
        with strategy.scope():
            x, n = tf.Variable(2.5), local(3)
        bench.across(strategy, lambda: n.assign(4))
        assert (float(x), int(n), bool(n)) == (2.5, 4, True)
        assert np.asarray(x) == np.float32(2.5)

    def test_sparse_additions_of_towers_are_added_up(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable([0.0, 0.0], aggregation=SUM)

        def tower():
            v.scatter_add(tf.IndexedSlices(tf.constant([tower_id() + 1.0]), tf.constant([1])))

        def grouped():
            return v.scatter_add(
                tf.IndexedSlices(tf.constant([tower_id() + 1.0]), tf.constant([1]))
            )

        bench.in_towers(strategy, grouped if bench.mode == "graph" else tower)
        for found in bench.copies(v):
            assert found.tolist() == [0.0, K * (K + 1) / 2]

    def test_updates_of_towers_that_cannot_be_added_up_are_refused(self, bench, strategy):
        benches.needs_two(strategy)
        with strategy.scope():
            v = tf.Variable([0.0, 0.0], aggregation=SUM)

        def tower():
            v.scatter_update(tf.IndexedSlices(tf.constant([1.0]), tf.constant([1])))

        with pytest.raises(
            ValueError, match=r"scatter_update cannot be joined.*tower 0.*merge_call"
        ):
            bench.in_towers(strategy, tower)

    def test_scatter_nd_across_towers_writes_every_copy(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([0.0, 0.0])

        def across():
            done = v.scatter_nd_add([[1]], [3.0])
            return done if bench.mode == "graph" else None

        bench.across(strategy, across)
        for found in bench.copies(v):
            assert found.tolist() == [0.0, 3.0]
