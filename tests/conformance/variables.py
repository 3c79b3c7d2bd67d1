"""One variable to the user: how it is made, shared, read, assigned, differentiated."""

import copy
import pickle

import numpy as np
import pytest

from replicate import errors
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches

NONE = tf.VariableAggregation.NONE
SUM = tf.VariableAggregation.SUM
MEAN = tf.VariableAggregation.MEAN
FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
ON_READ = tf.VariableSynchronization.ON_READ


def tower_id():
    return core.get_tower_context().tower_id


def local(value, aggregation=SUM, **kwargs):
    """Makes a tower-local variable."""
    return tf.Variable(
        value, synchronization=ON_READ, aggregation=aggregation, trainable=False, **kwargs
    )


class Variables:
    """What every strategy does with variables."""

    def test_variable_made_in_scope_serves_as_a_tensor(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])

        def step():
            return [
                tf.convert_to_tensor(v),
                v + 1.0,
                2.0 * v,
                -v,
                v[1],
                v.read_value(),
                v.value(),
                tf.reduce_sum(v),
                strategy_read(strategy, v),
            ]

        found = bench.run(step)
        expected = [[1, 2], [2, 3], [2, 4], [-1, -2], 2, [1, 2], [1, 2], 3, [1, 2]]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_variable_is_one_resource_variable(self, strategy):
        with strategy.scope():
            v = tf.Variable([1.0, 2.0], name="v")
        assert isinstance(v, tf.Variable)
        assert v.name == "v:0"
        assert v.shape == [2]
        assert v.dtype == tf.float32
        assert v.trainable
        assert len(strategy.unwrap(v)) == self.num_copies
        assert v.handle is strategy.unwrap(v)[0].handle

    @benches.in_a_graph
    def test_session_fetches_the_variable(self, bench, strategy):
        with strategy.scope():
            v, n = tf.Variable(3.0), local(4.0)
        bench.initialize()
        assert bench.session.run(v) == 3.0
        assert bench.session.run([n, {"v": v}]) == [4.0 * strategy.num_towers, {"v": 3.0}]

    @benches.in_a_graph
    def test_collections_hold_the_variable_once(self, bench, strategy):
        def tower():
            w = tf1.get_variable("w", initializer=1.0)
            n = tf1.get_variable("n", initializer=0.0, synchronization=ON_READ, aggregation=SUM)
            m = tf1.get_variable("m", initializer=0.0, collections=["own", "local_variables"])
            b = tf.Variable(1.0, name="b")
            return w, n, m, b

        with strategy.scope():
            w, n, m, b = strategy.call_for_each_tower(tower)
            made = tf.Variable(2.0)
        assert _same(tf1.trainable_variables(), [w, b, made])
        assert _same(tf1.global_variables(), [w, n, b, made])
        assert _same(tf1.get_collection("own"), [m])
        assert _same(tf1.local_variables(), [m])

    @benches.in_a_graph
    def test_get_variable_shares_by_name_over_towers(self, bench, strategy):
        def tower():
            with tf1.variable_scope("a"):
                first = tf1.get_variable("w", [2])
            with tf1.variable_scope("a", reuse=True):
                again = tf1.get_variable("w", [2])
            with tf1.variable_scope("a", reuse=tf1.AUTO_REUSE):
                third = tf1.get_variable("w", [2])
            return first, again, third

        with strategy.scope():
            first, again, third = strategy.call_for_each_tower(tower)
        assert first is again is third
        assert first.name == "a/w:0"

    @benches.in_a_graph
    def test_variable_of_the_scope_is_reused_in_towers(self, bench, strategy):
        with strategy.scope():
            with tf1.variable_scope("a"):
                made = tf1.get_variable("w", [2])

            def tower():
                with tf1.variable_scope("a", reuse=True):
                    return tf1.get_variable("w", [2])

            assert strategy.call_for_each_tower(tower) is made

    def test_unnamed_variables_share_by_order_of_creation(self, bench, strategy):
        def make():
            return [tf.Variable(float(i)) for i in range(3)]

        def tower():
            if tower_id() not in kept:
                kept[tower_id()] = make()
            return [tf.convert_to_tensor(v) for v in kept[tower_id()]]

        kept = {}
        found = bench.in_towers(strategy, tower)
        assert found == [[0.0, 1.0, 2.0]] * strategy.num_towers
        for variables in kept.values():
            assert _same(variables, kept[0])

    @pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
    @benches.in_a_graph
    def test_layers_without_names_share_by_order_of_creation(self, bench, strategy):
        def tower():
            x = tf.ones([1, 3])
            return tf1.layers.dense(tf1.layers.dense(x, 2), 1)

        with strategy.scope():
            strategy.call_for_each_tower(tower)
        names = [v.name for v in tf1.trainable_variables()]
        assert names == ["dense/kernel:0", "dense/bias:0", "dense_1/kernel:0", "dense_1/bias:0"]

    def test_keras_layers_share_by_order_of_creation(self, bench, strategy, keras):
        layers = {}

        def tower():
            if tower_id() not in layers:
                layers[tower_id()] = [
                    keras.layers.Dense(2, kernel_initializer="ones"),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            first, second = layers[tower_id()]
            return second(first(tf.ones([1, 3])))

        found = bench.in_towers(strategy, tower)
        assert [x.tolist() for x in found] == [[[6.0]]] * strategy.num_towers
        for i in range(strategy.num_towers):
            for j in range(2):
                assert _same(layers[i][j].weights, layers[0][j].weights)

    def test_layer_that_builds_itself_lazily_is_built_once(self, bench, strategy, keras):
        with strategy.scope():
            layer = keras.layers.Dense(1, kernel_initializer="ones")

        def tower():
            return layer(tf.ones([1, 3]))

        # Towers that run at the same time would both find the layer not built yet.
        found = bench.in_towers(strategy, tower, run_concurrently=False)
        assert [x.tolist() for x in found] == [[[3.0]]] * strategy.num_towers
        assert len(layer.weights) == 2

    def test_tower_that_makes_another_variable_is_refused(self, bench, strategy):
        benches.needs_two(strategy)
        kept = {}

        def tower():
            if tower_id() not in kept:
                kept[tower_id()] = tf.Variable([1.0] * (1 + tower_id()), name="v")

        with pytest.raises(
            errors.TowerMismatchError, match=r"tower 1 created v .*tower 0 created v"
        ):
            bench.in_towers(strategy, tower)

    @benches.in_a_graph
    def test_variable_from_a_proto_is_refused_in_scope(self, bench, strategy):
        proto = tf1.Variable(1.0, use_resource=True).to_proto()
        with strategy.scope():
            with pytest.raises(NotImplementedError, match="cannot be made from a proto"):
                tf1.Variable(variable_def=proto)

    @benches.in_a_graph
    def test_distributed_variable_from_a_proto_is_refused(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)
        proto = strategy.unwrap(v)[0].to_proto()
        with pytest.raises(NotImplementedError, match="cannot be made from a proto"):
            core.MirroredVariable.from_proto(proto)

    def test_distributed_variable_is_not_pickled(self, bench, strategy):
        with strategy.scope():
            v, n = tf.Variable(1.0, aggregation=SUM), local(0.0)
        found = [
            x for x in (v, n) if isinstance(x, core.MirroredVariable | core.TowerLocalVariable)
        ]
        if not found:
            pytest.skip("One device makes plain variables.")
        for x in found:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(x)
            with pytest.raises(NotImplementedError, match="cannot be copied"):
                copy.deepcopy(x)

    def test_variable_beside_another_lives_where_it_lives(self, bench, strategy):
        with strategy.scope():
            tf.Variable(0.0)
            v = tf.Variable([1.0] * 10)
            with strategy.colocate_vars_with(v):
                slot = tf.Variable(0.0)
            with strategy.colocate_vars_with(strategy.non_slot_devices([v])):
                power = tf.Variable(0.0)
            with strategy.extended.colocate_vars_with(v):
                other = tf.Variable(0.0)
        for made in (slot, power, other):
            assert _devices(strategy, made) == _devices(strategy, v)

    def test_gradient_with_respect_to_the_variable_is_the_towers_own(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(3.0)

        def tower():
            x = tf.constant(tower_id() + 1.0)
            if bench.mode == "graph":
                return tf1.gradients(x * v * v, [v])[0]
            with tf.GradientTape() as tape:
                loss = x * v * v
            return tape.gradient(loss, v)

        # d/dv (x v^2) = 2 x v.
        expected = [6.0 * (i + 1) for i in range(strategy.num_towers)]
        assert bench.in_towers(strategy, tower) == expected

    def test_gradient_across_towers_is_the_first_copys(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(3.0)

        def across():
            if bench.mode == "graph":
                return tf1.gradients(v * v, [v])[0]
            with tf.GradientTape() as tape:
                loss = v * v
            return tape.gradient(loss, v)

        assert bench.across(strategy, across) == 6.0

    @benches.in_a_graph
    def test_partitioner_is_turned_off_with_one_warning(self, bench, strategy, caplog):
        with strategy.scope():
            for name in "ab":
                partitioner = tf1.fixed_size_partitioner(2)
                v = tf1.get_variable(name, [4, 2], partitioner=partitioner)
                assert v.shape == [4, 2]
        warned = [r for r in caplog.records if "Partitioned variables are turned off" in r.message]
        assert len(warned) == 1

    @benches.out_of_graphs
    def test_variable_is_a_function_argument(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(3.0)
        traced = []

        @tf.function
        def double(x):
            traced.append(x)
            return 2.0 * x

        assert [double(v).numpy(), double(v).numpy()] == [6.0, 6.0]
        assert len(traced) == 1

    def test_embedding_lookup_gives_sparse_gradients(self, bench, strategy):
        with strategy.scope():
            table = tf.Variable([[1.0], [2.0], [3.0]])

        def tower():
            if bench.mode == "graph":
                loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1]))
                found = tf1.gradients(loss, [table])[0]
            else:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1]))
                found = tape.gradient(loss, table)
            assert isinstance(found, tf.IndexedSlices)
            return tf.convert_to_tensor(found)

        for found in bench.in_towers(strategy, tower):
            assert found.tolist() == [[0.0], [2.0], [0.0]]


def strategy_read(strategy, v):
    with strategy.scope():
        return strategy.read_var(v)


def _same(found, expected):
    return len(found) == len(expected) and all(a is b for a, b in zip(found, expected, strict=True))


def _devices(strategy, v):
    return [tf.DeviceSpec.from_string(m.device).device_index for m in strategy.unwrap(v)]
