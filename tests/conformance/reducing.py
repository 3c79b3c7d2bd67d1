"""Values on their way between towers and devices."""

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf
from tests.conformance import bench as benches
from tests.conformance import variables

SUM = tf.VariableAggregation.SUM
MEAN = tf.VariableAggregation.MEAN


def one_to_k(strategy, shape=()):
    """A PerDevice of 1., 2., ..., K: its sum is K (K + 1) / 2, its mean (K + 1) / 2."""
    parts = []
    for i, device in enumerate(strategy.worker_devices):
        with tf.device(device):
            parts.append(tf.fill(shape, i + 1.0))
    return core.PerDevice(parts, strategy.worker_devices)


def sparse_rows(strategy):
    """Tower i holds row i (modulo 3) of a [3, 2] tensor, filled with i + 1."""
    slices = [
        tf.IndexedSlices(tf.fill([1, 2], i + 1.0), tf.constant([i % 3]), tf.constant([3, 2]))
        for i in range(strategy.num_towers)
    ]
    return core.PerDevice(slices, strategy.worker_devices)


class Reducing:
    """What every strategy does with reduce, batch_reduce, broadcast, unwrap and group."""

    @pytest.mark.parametrize("aggregation", [SUM, MEAN])
    def test_reduce_gives_the_sum_or_mean_on_every_destination(self, bench, strategy, aggregation):
        K = strategy.num_towers
        expected = K * (K + 1) / 2 if aggregation == SUM else (K + 1) / 2

        def across():
            with_default = strategy.reduce(aggregation, one_to_k(strategy))
            on_device = strategy.reduce(aggregation, one_to_k(strategy), "/cpu:3")
            on_list = strategy.reduce(aggregation, one_to_k(strategy), ["/cpu:2", "/cpu:3"])
            for copy, place in zip(strategy.unwrap(on_list), "23", strict=True):
                assert copy.device.upper().endswith(f"CPU:{place}")
            assert strategy.unwrap(on_device)[0].device.upper().endswith("CPU:3")
            return [strategy.unwrap(v) for v in (with_default, on_device, on_list)]

        for copies in bench.across(strategy, across):
            assert set(copies) == {expected}

    def test_reduce_leaves_a_value_where_it_is(self, bench, strategy):
        K = strategy.num_towers

        def across():
            copies = strategy.unwrap(strategy.reduce(SUM, one_to_k(strategy)))
            for copy, place in zip(copies, strategy.worker_devices, strict=True):
                assert _same_place(copy.device, place)
            return copies

        assert bench.across(strategy, across) == [K * (K + 1) / 2] * K

    def test_what_is_reduced_is_a_tensor_and_can_be_assigned(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(0.0)

        def across():
            reduced = strategy.reduce(SUM, one_to_k(strategy))
            written = v.assign(reduced)
            doubled = 2.0 * tf.convert_to_tensor(reduced)
            inside = strategy.call_for_each_tower(lambda: tf.identity(tf.add(reduced, 1.0)))
            return [tf.convert_to_tensor(written), doubled, strategy.unwrap(inside)]

        total = K * (K + 1) / 2
        assert bench.across(strategy, across) == [total, 2.0 * total, [total + 1.0] * K]
        assert bench.copies(v) == [total] * self.num_copies

    def test_reduce_onto_a_variable_gives_a_copy_per_device_of_it(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(0.0)

        def across():
            copies = strategy.unwrap(strategy.reduce(SUM, one_to_k(strategy), v))
            assert len(copies) == self.num_copies
            for copy, member in zip(copies, strategy.unwrap(v), strict=True):
                assert _same_place(copy.device, member.device)
            return copies

        assert bench.across(strategy, across) == [K * (K + 1) / 2] * self.num_copies

    @pytest.mark.parametrize("aggregation", [SUM, MEAN])
    def test_indexed_slices_stay_indexed_slices(self, bench, strategy, aggregation):
        K = strategy.num_towers
        scale = 1.0 if aggregation == SUM else 1.0 / K

        def across():
            reduced = strategy.reduce(aggregation, sparse_rows(strategy), "/cpu:0")
            assert isinstance(reduced, tf.IndexedSlices)
            return tf.convert_to_tensor(reduced)

        expected = [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
        for i in range(K):
            expected[i % 3] = [c + scale * (i + 1) for c in expected[i % 3]]
        assert bench.across(strategy, across) == pytest.approx(np.array(expected))

    def test_indexed_slices_may_hold_lists(self, bench, strategy):
        K = strategy.num_towers
        slices = [
            tf.IndexedSlices(values=[[1.0, 2.0]], indices=[i], dense_shape=[K, 2]) for i in range(K)
        ]

        def across():
            reduced = strategy.reduce(SUM, core.PerDevice(slices), "/cpu:0")
            return tf.convert_to_tensor(reduced)

        np.testing.assert_array_equal(bench.across(strategy, across), [[1.0, 2.0]] * K)

    def test_batch_reduce_gives_what_reduce_gives_one_by_one(self, bench, strategy):
        K = strategy.num_towers

        def across():
            x = one_to_k(strategy)
            doubled = core.PerDevice([2.0 * part for part in x.values], x.devices)
            pairs = [
                (x, "/cpu:0"),
                (doubled, None),
                (sparse_rows(strategy), "/cpu:1"),
                (0, "/cpu:0"),
            ]
            first, second, third, zero = strategy.batch_reduce(SUM, pairs)
            assert zero == 0
            dense = tf.convert_to_tensor(third)
            return [first, strategy.unwrap(second)[0], tf.reduce_sum(dense)]

        total = K * (K + 1) / 2
        assert bench.across(strategy, across) == [total, 2 * total, 2 * total]

    @benches.out_of_graphs
    def test_dataset_needs_no_scope(self, bench, strategy):
        K = strategy.num_towers
        found = strategy.distribute_dataset(lambda: tf.data.Dataset.range(K).batch(1))
        (element,) = list(found)
        assert [part.numpy() for part in strategy.unwrap(element)] == [[i] for i in range(K)]

    def test_values_need_somewhere_to_go(self, strategy):
        with strategy.scope():
            for call in (
                lambda: strategy.reduce(SUM, one_to_k(strategy), []),
                lambda: strategy.broadcast(1.0, []),
            ):
                with pytest.raises(ValueError, match="needs a device to go to"):
                    call()

    def test_batch_reduce_of_nothing_is_nothing(self, strategy):
        with strategy.scope():
            assert strategy.batch_reduce(SUM, []) == []

    def test_sum_of_a_plain_value_other_than_zero_is_refused(self, strategy):
        benches.needs_two(strategy)
        with strategy.scope():
            with pytest.raises(
                ValueError, match=r"one value per tower: got the single value 3.*MEAN"
            ):
                strategy.reduce(SUM, 3)

    def test_sum_of_zero_is_zero_and_mean_gives_a_plain_value_back(self, strategy):
        with strategy.scope():
            assert strategy.reduce(SUM, 0) == 0
            assert strategy.reduce(MEAN, 3) == 3
            assert strategy.reduce(MEAN, 3.5) == 3.5

    def test_mean_of_a_mirrored_value_is_its_value(self, bench, strategy):
        def across():
            mirrored = strategy.broadcast(tf.constant(4.0))
            return strategy.unwrap(strategy.reduce(MEAN, mirrored, "/cpu:1"))

        assert bench.across(strategy, across) == [4.0]

    def test_reduction_that_is_neither_sum_nor_mean_is_refused(self, strategy):
        with strategy.scope():
            with pytest.raises(ValueError, match="A reduction is SUM or MEAN"):
                strategy.reduce(tf.VariableAggregation.ONLY_FIRST_REPLICA, one_to_k(strategy))

    def test_tower_local_variable_is_reduced_over_its_copies(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = variables.local(0.0)
        bench.across(strategy, lambda: v.assign(6.0))
        benches.needs_two(strategy)
        assert bench.across(strategy, lambda: strategy.reduce(MEAN, v, "/cpu:0")) == 6.0 / K

    def test_merge_result_on_fewer_devices_serves_every_tower(self, bench, strategy):
        def merge(merging):
            return merging.broadcast(tf.constant(5.0), ["/cpu:3", "/cpu:4"])

        found = bench.in_towers(strategy, lambda: core.get_tower_context().merge_call(merge))
        assert found == [5.0] * strategy.num_towers

    @pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8])
    def test_mean_of_integers_is_a_float(self, bench, strategy, dtype):
        K = strategy.num_towers

        def across():
            x = core.PerDevice([tf.constant([1, i], dtype) for i in range(K)])
            mean = strategy.reduce(MEAN, x, "/cpu:0")
            assert mean.dtype.is_floating
            return mean, strategy.reduce(MEAN, 3)

        mean, plain = bench.across(strategy, across)
        # Of 0, ..., K - 1 the mean is (K - 1) / 2.
        np.testing.assert_allclose(mean, [1.0, (K - 1) / 2])
        assert plain == 3

    @pytest.mark.parametrize("aggregation", [SUM, MEAN])
    def test_nests_are_reduced_leaf_by_leaf(self, bench, strategy, aggregation):
        K = strategy.num_towers
        expected = K * (K + 1) / 2 if aggregation == SUM else (K + 1) / 2

        def across():
            x = one_to_k(strategy)
            of_nests = core.PerDevice([{"c": part} for part in x.values])
            nests = [{"a": x, "b": (x, [0])}, of_nests]
            (first, second), alone = (
                strategy.batch_reduce(aggregation, [(nest, "/cpu:3") for nest in nests]),
                strategy.reduce(aggregation, (x,)),
            )
            assert isinstance(first["b"], tuple)
            assert first["a"].device.upper().endswith("CPU:3")
            return [first["a"], *first["b"][:1], second["c"], strategy.unwrap(alone[0])[0]]

        assert bench.across(strategy, across) == [expected] * 4

    def test_integers_are_summed(self, bench, strategy):
        K = strategy.num_towers

        def across():
            x = core.PerDevice([tf.constant(i, tf.int64) for i in range(K)])
            return strategy.reduce(SUM, x, "/cpu:0")

        assert bench.across(strategy, across) == K * (K - 1) // 2

    def test_broadcast_goes_to_every_worker_device(self, bench, strategy):
        def across():
            copies = strategy.unwrap(strategy.broadcast(tf.constant(5.0)))
            for copy, place in zip(copies, strategy.worker_devices, strict=True):
                assert copy.device.endswith(place)
            return copies

        assert bench.across(strategy, across) == [5.0] * strategy.num_towers

    def test_broadcast_goes_to_the_destinations(self, bench, strategy):
        def across():
            copies = strategy.unwrap(strategy.broadcast(5.0, ["/cpu:3", "/cpu:4"]))
            assert [copy.device[-1] for copy in copies] == ["3", "4"]
            return copies

        assert bench.across(strategy, across) == [5.0, 5.0]

    @pytest.mark.parametrize("axis", [0, 1])
    def test_gather_puts_values_of_any_lengths_end_to_end(self, bench, strategy, axis):
        K = strategy.num_towers

        def across():
            parts = [tf.fill([i + 1, 1] if axis == 0 else [1, i + 1], float(i)) for i in range(K)]
            copies = strategy.unwrap(strategy.gather(core.PerDevice(parts), axis, "/cpu:3"))
            assert [copy.device[-1] for copy in copies] == ["3"]
            return copies[0]

        expected = [float(i) for i in range(K) for _ in range(i + 1)]
        assert bench.across(strategy, across).ravel().tolist() == expected

    def test_gather_goes_to_every_worker_device(self, bench, strategy):
        def across():
            copies = strategy.unwrap(strategy.gather(one_to_k(strategy, [1]), 0))
            for copy, place in zip(copies, strategy.worker_devices, strict=True):
                assert copy.device.endswith(place)
            return copies

        expected = [i + 1.0 for i in range(strategy.num_towers)]
        for copy in bench.across(strategy, across):
            assert copy.tolist() == expected

    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    def test_reduce_over_an_axis_gives_one_tensor(self, bench, strategy, op):
        K = strategy.num_towers

        def across():
            return strategy.reduce(op, one_to_k(strategy, [2]), axis=0)

        total = K * (K + 1.0)  # 1 + 1 + 2 + 2 + ...
        assert bench.across(strategy, across) == (total if op == "SUM" else total / (2 * K))

    def test_unwrap_lists_the_values_per_device(self, bench, strategy):
        K = strategy.num_towers

        def across():
            x = one_to_k(strategy)
            assert strategy.unwrap(3) == [3]
            assert strategy.unwrap(x) == list(x.values)
            assert strategy.experimental_local_results(x) == tuple(x.values)
            return strategy.unwrap(x)

        assert bench.across(strategy, across) == [i + 1.0 for i in range(K)]

    def test_group_runs_every_towers_operation(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            counted = variables.local(0.0)

        def across():
            return strategy.group(strategy.call_for_each_tower(lambda: counted.assign_add(1.0)))

        bench.across(strategy, across)
        assert bench.value(counted) == K

    def test_update_runs_on_each_copy_with_its_part_of_the_arguments(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(1.0)

        def fn(copy, delta, *, scale):
            return copy.assign_add(delta * scale)

        def across():
            delta = strategy.reduce(SUM, one_to_k(strategy), v)
            return strategy.group(strategy.update(v, fn, delta, scale=10.0))

        bench.across(strategy, across)
        # 1 + 10 (1 + ... + K) on every copy.
        assert bench.copies(v) == [1.0 + 5.0 * K * (K + 1)] * self.num_copies

    def test_update_refuses_what_differs_between_towers(self, bench, strategy):
        benches.needs_two(strategy)
        with strategy.scope():
            v = tf.Variable(1.0)
        place = strategy.non_slot_devices([v])

        def unreduced():
            return {"x": [one_to_k(strategy)]}

        calls = [
            lambda: strategy.update(v, lambda copy, nest: copy.assign(nest["x"][0]), unreduced()),
            lambda: strategy.extended.update(v, lambda copy, x: x, kwargs={"x": unreduced()}),
            lambda: strategy.update_non_slot(place, lambda nest: None, unreduced()),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"takes what is the same.*Reduce it first"):
                bench.across(strategy, call)
        assert bench.copies(v) == [1.0] * self.num_copies

    def test_update_takes_what_is_the_same_in_all_towers(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            v = tf.Variable(1.0)
            own = variables.local(0.0)

        def across():
            same = core.PerDevice([2.0] * K)
            return [
                strategy.group(strategy.update(v, lambda copy, x: copy.assign_add(x), same)),
                # Copies that are each tower's own may differ: 1 + ... + K in all.
                strategy.group(
                    strategy.update(own, lambda copy, x: copy.assign(x), one_to_k(strategy))
                ),
            ]

        bench.across(strategy, across)
        assert bench.copies(v) == [3.0] * self.num_copies
        assert bench.value(own) == K * (K + 1) / 2

    def test_values_are_found_by_their_devices_however_spelt(self, bench, strategy):
        def spelt(devices):
            return {name.lower().replace("/device:", "/"): name for name in reversed(devices)}

        with strategy.scope():
            v = tf.Variable(1.0)

        def across():
            x = core.PerDevice(spelt(strategy.worker_devices))
            found = strategy.call_for_each_tower(lambda x: x, x)
            assert strategy.unwrap(found) == list(strategy.worker_devices)
            places = [tf.DeviceSpec.from_string(copy.device) for copy in strategy.unwrap(v)]
            places = [f"/device:CPU:{place.device_index}" for place in places]
            copies = strategy.update(v, lambda copy, x: x, core.Mirrored(spelt(places)))
            assert strategy.unwrap(copies) == places

        bench.across(strategy, across)

    def test_update_merges_its_results(self, bench, strategy):
        one = object()
        with strategy.scope():
            v = tf.Variable(1.0)

        def across():
            assert strategy.update(v, lambda copy: one) is one
            copies = strategy.unwrap(strategy.update(v, lambda copy: copy.read_value() * 2.0))
            assert len(copies) == self.num_copies
            return copies

        assert bench.across(strategy, across) == [2.0] * self.num_copies

    def test_update_non_slot_runs_on_each_non_slot_device(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)

        def across():
            places = strategy.non_slot_devices([v])
            made = strategy.update_non_slot(places, lambda x, y: x + y, 1.0, y=tf.constant(2.0))
            return strategy.unwrap(made)

        assert bench.across(strategy, across) == [3.0] * self.num_copies

    def test_increment_var_adds_once_from_across_and_from_towers(self, bench, strategy):
        with strategy.scope():
            step = tf.Variable(5, trainable=False, dtype=tf.int64)
        bench.across(strategy, lambda: core.increment_var(step))
        assert bench.copies(step) == [6] * self.num_copies

        def towers():
            return strategy.group(strategy.call_for_each_tower(lambda: core.increment_var(step, 2)))

        bench.across(strategy, towers)
        assert bench.copies(step) == [8] * self.num_copies


def _same_place(a, b):
    return tf.DeviceSpec.from_string(a).device_index == tf.DeviceSpec.from_string(b).device_index
