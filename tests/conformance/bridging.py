"""TensorFlow's own distribution-aware code inside a tower, and `strategy.extended`."""

import numpy as np
import pytest
from tensorflow.python.training import moving_averages

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches

ReduceOp = tf.distribute.ReduceOp
SUM = tf.VariableAggregation.SUM
MEAN = tf.VariableAggregation.MEAN


def tower_id():
    return core.get_tower_context().tower_id


class Bridging:
    """What every strategy does with code that asks `tf.distribute`."""

    def test_tower_is_a_replica_context(self, bench, strategy):
        K = strategy.num_towers

        def tower():
            replica = tf.distribute.get_replica_context()
            assert tf.distribute.has_strategy()
            assert not tf.distribute.in_cross_replica_context()
            assert replica.num_replicas_in_sync == K
            assert replica.strategy is tf.distribute.get_strategy()
            assert tf.distribute.get_strategy().num_replicas_in_sync == K
            return tf.convert_to_tensor(replica.replica_id_in_sync_group)

        assert bench.in_towers(strategy, tower) == list(range(K))

    def test_scope_is_a_cross_replica_context(self, bench, strategy):
        def across():
            assert tf.distribute.has_strategy()
            assert tf.distribute.in_cross_replica_context()
            assert tf.distribute.get_replica_context() is None
            assert tf.distribute.get_strategy() is strategy

        bench.across(strategy, across)
        assert not tf.distribute.has_strategy()
        assert not tf.distribute.in_cross_replica_context()

    def test_replica_context_makes_merge_calls(self, bench, strategy):
        K = strategy.num_towers

        def merge(distribution, x, scale):
            assert isinstance(distribution, tf.distribute.Strategy)
            assert distribution is strategy
            assert tf.distribute.in_cross_replica_context()
            assert core.get_cross_tower_context() is strategy
            assert len(distribution.experimental_local_results(x)) == K
            return distribution.reduce(ReduceOp.SUM, x, axis=None) * scale

        def tower():
            x = tf.constant(tower_id() + 1.0)
            return tf.distribute.get_replica_context().merge_call(
                merge, args=(x,), kwargs={"scale": 2.0}
            )

        assert bench.in_towers(strategy, tower) == [K * (K + 1.0)] * K

    def test_replica_context_all_reduces_nests(self, bench, strategy):
        K = strategy.num_towers

        def tower():
            replica = tf.distribute.get_replica_context()
            x = tf.constant([tower_id() + 1.0, 1.0])
            summed = replica.all_reduce(ReduceOp.SUM, {"a": x, "b": [2.0 * x]})
            return summed["a"], summed["b"][0], replica.all_reduce(ReduceOp.MEAN, x)

        total = K * (K + 1) / 2
        for a, b, mean in bench.in_towers(strategy, tower):
            np.testing.assert_allclose(a, [total, K])
            np.testing.assert_allclose(b, [2 * total, 2 * K])
            np.testing.assert_allclose(mean, [total / K, 1.0])

    def test_worked_case_sums_a_constant_of_each_tower(self, bench, strategy):
        for op in (ReduceOp.SUM, "SUM"):
            with strategy.scope():
                v = tf.Variable(0.0)

            def merge(merging, value, v=v, op=op):
                total = merging.extended.reduce_to(op, value, v)
                return merging.extended.update(v, lambda copy, x: copy.assign(x), args=(total,))

            def tower(merge=merge):
                return core.get_tower_context().merge_call(merge, tf.constant(1.0))

            bench.across(strategy, lambda t=tower: _grouped(strategy, t))
            assert bench.copies(v) == [float(strategy.num_towers)] * self.num_copies

    def test_worked_case_inside_a_function(self, strategy):
        with strategy.scope():
            v = tf.Variable(0.0)

        def merge(merging, value):
            return v.assign(merging.extended.reduce_to("SUM", value, v))

        @tf.function
        def tower():
            core.get_tower_context().merge_call(merge, tf.constant(1.0))

        if not tf.executing_eagerly():
            pytest.skip("A function of TensorFlow is called eagerly here.")
        strategy.run(tower)
        strategy.run(tower)
        assert [copy.numpy() for copy in strategy.unwrap(v)] == (
            [float(strategy.num_towers)] * self.num_copies
        )

    def test_extended_update_lists_or_groups(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(2.0)

        def across():
            extended = strategy.extended
            listed = extended.update(v, lambda copy, x: copy * x, args=(3.0,), group=False)
            assert len(listed) == self.num_copies
            grouped = extended.update(v, lambda copy, x: copy.assign_add(x), kwargs={"x": 1.0})
            return listed if tf.executing_eagerly() else [*listed, strategy.group(grouped)]

        found = bench.across(strategy, across)
        assert bench.copies(v) == [3.0] * self.num_copies
        if bench.mode == "eager":
            assert found == [6.0] * self.num_copies

    @pytest.mark.parametrize("zero_debias", [False, True])
    def test_moving_average_can_be_used(self, bench, strategy, zero_debias):
        K = strategy.num_towers
        with strategy.scope(), tf1.variable_scope("average", use_resource=True):
            v = tf1.Variable(8.0, trainable=False)

        def tower(x):
            moved = moving_averages.assign_moving_average(v, x, 0.75, zero_debias=zero_debias)
            return tf.convert_to_tensor(moved) * 2.0

        if zero_debias and bench.mode != "graph":
            pytest.skip("TensorFlow's bias correction makes variables by get_variable.")
        found = bench.in_towers(strategy, tower, one_to_k(strategy))
        # 0.75 * 8 + 0.25 * mean; unbiased, the first value is the mean alone.
        mean = (K + 1) / 2
        after = mean if zero_debias else 6.0 + 0.25 * mean
        assert bench.copies(v) == [pytest.approx(after)] * self.num_copies
        assert found == [pytest.approx(2.0 * after)] * K

    def test_extended_update_gives_what_the_function_gives(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(2.0)

        def fn(copy):
            added = copy.assign_add(1.0)
            with tf1.control_dependencies([added]):
                return {"value": copy.read_value() * 10.0, "none": None}

        def across():
            found = strategy.extended.update(v, fn)
            assert found["none"] is None
            return strategy.unwrap(found["value"])[0]  # runs the updates of all copies

        assert bench.across(strategy, across) == 30.0
        assert bench.copies(v) == [3.0] * self.num_copies

    def test_extended_batch_reduces(self, bench, strategy):
        K = strategy.num_towers

        def across():
            x = core.PerDevice([tf.constant(i + 1.0) for i in range(K)])
            return strategy.extended.batch_reduce_to(ReduceOp.MEAN, [(x, "/cpu:0"), (x, "/cpu:1")])

        assert bench.across(strategy, across) == [(K + 1) / 2] * 2

    def test_extended_calls_for_each_replica(self, bench, strategy):
        K = strategy.num_towers

        def across():
            found = strategy.extended.call_for_each_replica(
                lambda x, scale: x * scale + float(tower_id()), args=(3.0,), kwargs={"scale": 2.0}
            )
            return [tf.convert_to_tensor(value) for value in strategy.unwrap(found)]

        assert bench.across(strategy, across) == [6.0 + i for i in range(K)]

    def test_extended_names_devices_and_variables(self, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        extended = strategy.extended
        assert extended.worker_devices == tuple(strategy.worker_devices)
        assert extended.parameter_devices == tuple(strategy.parameter_devices)
        assert isinstance(extended.worker_devices, tuple)
        assert extended.experimental_require_static_shapes is False
        assert extended.variable_created_in_scope(v)
        for copy in strategy.unwrap(v):
            assert extended.value_container(copy) is v
        assert extended.value_container(v) is v
        other = tf.Variable(1.0)
        assert not extended.variable_created_in_scope(other)

    def test_wrong_reduction_is_refused_by_name(self, strategy):
        with strategy.scope():
            with pytest.raises(ValueError, match="A reduction is SUM or MEAN; got 'MAX'"):
                strategy.extended.reduce_to("MAX", 1.0, "/cpu:0")

    def test_gradient_descent_in_towers_takes_the_mean(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            w = tf.Variable(10.0)

        def tower(x):
            optimizer = tf1.train.GradientDescentOptimizer(1.0)
            return optimizer.minimize((lambda: w * x) if _is_eager() else w * x, var_list=[w])

        bench.across(strategy, lambda: _grouped(strategy, tower, one_to_k(strategy)))
        # 10 - (1 + ... + K) / K: 8.5 with two towers.
        assert bench.copies(w) == [10.0 - (K + 1) / 2] * self.num_copies

    @benches.out_of_eager_code
    def test_gradient_descent_in_towers_takes_the_sum_of_summed_losses(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():
            w = tf.Variable(10.0)

        def tower(x):
            loss = tf1.losses.compute_weighted_loss(w * x, reduction=tf1.losses.Reduction.SUM)
            assert core.get_loss_reduction() == SUM
            return tf1.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[w])

        bench.across(strategy, lambda: _grouped(strategy, tower, one_to_k(strategy)))
        # 10 - (1 + ... + K): 7 with two towers.
        assert bench.copies(w) == [10.0 - K * (K + 1) / 2] * self.num_copies

    @pytest.mark.parametrize("kind", ["SGD", "Adam"])
    @benches.out_of_graphs
    def test_keras_optimizer_in_towers_equals_one_device(self, bench, strategy, keras, kind):
        K = strategy.num_towers

        def descend(optimizer, w, x):
            with tf.GradientTape() as tape:
                loss = w * w * x
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        optimizers = keras.optimizers.legacy
        alone, single = getattr(optimizers, kind)(0.1), tf.Variable(10.0)
        for _ in range(2):
            descend(alone, single, K * (K + 1) / 2)  # the sum over towers
        with strategy.scope():
            w = tf.Variable(10.0)
            optimizer = getattr(optimizers, kind)(0.1)
            step = lambda: strategy.call_for_each_tower(  # noqa: E731 - runs in a mode
                lambda x: descend(optimizer, w, x), one_to_k(strategy)
            )
            step = tf.function(step) if bench.mode == "function" else step
            for _ in range(2):
                step()
        np.testing.assert_allclose(bench.copies(w), [single.numpy()] * self.num_copies, rtol=1e-6)

    def test_synchronized_batch_normalization_equals_one_device(self, bench, strategy, keras):
        K = strategy.num_towers
        x = np.arange(4.0 * K, dtype="float32").reshape(2 * K, 2) ** 2

        def make():
            return keras.layers.BatchNormalization(synchronized=True, momentum=0.5)

        alone = make()
        expected = bench.run(lambda: alone(tf.constant(x), training=True))
        with strategy.scope():
            layer = make()
            layer.build([None, 2])
        shards = core.PerDevice([tf.constant(part) for part in np.split(x, K)])
        found = bench.in_towers(strategy, lambda part: layer(part, training=True), shards)
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-4)
        if bench.mode != "graph":  # in a graph they are update operations, not run here
            for mine, theirs in zip(
                layer.non_trainable_weights, alone.non_trainable_weights, strict=True
            ):
                np.testing.assert_allclose(bench.value(mine), bench.value(theirs), rtol=1e-5)

    @benches.in_a_graph
    def test_moving_average_in_towers_follows_the_variable(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(0.0)
            average = tf.train.ExponentialMovingAverage(0.5)

            def tower():
                return average.apply([v])

            update = strategy.group(strategy.call_for_each_tower(tower))
        bench.initialize()
        bench.run(lambda: v.assign(8.0))
        bench.run(lambda: update)
        # 0.5 * 0 + 0.5 * 8.
        assert bench.copies(average.average(v)) == [4.0] * self.num_copies

    @benches.in_a_graph
    def test_moving_average_of_a_towers_tensor_is_the_means(self, bench, strategy):
        K = strategy.num_towers
        with strategy.scope():

            def tower(x):
                average = tf.train.ExponentialMovingAverage(0.5)
                x = tf.identity(x, name="loss")
                update = average.apply([x])
                return update, average.average_name(x), average.average(x)

            update, _, average = strategy.call_for_each_tower(tower, one_to_k(strategy))
            update = strategy.group(update)
        bench.run(lambda: update)
        # Starts from 0: 0.5 * (K + 1) / 2, and TensorFlow corrects the bias by 1 / (1 - 0.5).
        (found,) = set(bench.copies(average))
        assert found in ((K + 1) / 4, (K + 1) / 2)

    def test_keras_metric_counts_every_towers_rows(self, bench, strategy, keras):
        K = strategy.num_towers
        with strategy.scope():
            metric = keras.metrics.Mean()

        def tower(x):
            # In a graph the update is an operation of the tower's.
            updated = metric.update_state([x, x])
            return None if _is_eager() else updated

        if bench.mode == "graph":  # Keras keeps its variables out of the collections
            bench.session.run([v.initializer for v in metric.variables])
        bench.across(strategy, lambda: _grouped(strategy, tower, one_to_k(strategy)))
        result = bench.across(strategy, metric.result)
        np.testing.assert_allclose(result, (K + 1) / 2)

    @benches.in_a_graph
    def test_metric_of_version_1_counts_every_towers_rows(self, bench, strategy):
        K = strategy.num_towers

        def tower(x):
            return tf1.metrics.mean([x, x])

        with strategy.scope():
            value, update = strategy.call_for_each_tower(tower, one_to_k(strategy))
            value, update = strategy.unwrap(value)[0], strategy.group(update)
        bench.run(lambda: update)
        np.testing.assert_allclose(bench.run(lambda: value), (K + 1) / 2)


def one_to_k(strategy):
    return core.PerDevice([tf.constant(i + 1.0) for i in range(strategy.num_towers)])


def _is_eager():
    return tf.executing_eagerly()


def _grouped(strategy, fn, *args):
    """Runs `fn` in the towers; one operation in a graph."""
    merged = strategy.call_for_each_tower(fn, *args)
    return None if tf.executing_eagerly() or merged is None else strategy.group(merged)
