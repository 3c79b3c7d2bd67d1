"""What must be gone when towers have ended, or failed."""

import gc
import threading
import weakref

import numpy as np
import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches


class Cleanliness:
    """What every strategy leaves behind: nothing."""

    def test_failing_towers_leave_no_thread_and_no_context(self, bench, strategy):
        before = threading.active_count()

        def tower():
            core.get_tower_context().merge_call(lambda merging: None)
            raise KeyError("x")

        for _ in range(10):
            with pytest.raises(KeyError):
                bench.in_towers(strategy, tower)
        assert threading.active_count() == before
        assert not core.has_distribution_strategy()
        assert not tf.distribute.has_strategy()
        assert tf1.get_default_graph().get_name_scope() == ""

    def test_failing_towers_leave_no_object(self, strategy):
        alive = []

        class Held:
            def __init__(self):
                alive.append(None)

            def __del__(self):
                alive.pop()

        def tower(held):
            core.get_tower_context().merge_call(lambda merging: None)
            raise KeyError("x")

        def once():
            with strategy.scope():
                strategy.call_for_each_tower(tower, Held())

        for _ in range(5):
            with pytest.raises(KeyError):
                once()
        gc.collect()
        assert not alive

    def test_variables_are_freed_with_their_graph(self, strategy):
        with tf.Graph().as_default() as graph:
            with strategy.scope():
                strategy.call_for_each_tower(lambda: tf1.get_variable("w", [2]))
            reference = weakref.ref(graph)
        del graph
        gc.collect()
        assert reference() is None

    @benches.eagerly
    def test_function_of_per_device_values_is_traced_once(self, bench, strategy):
        K = strategy.num_towers
        traced = []

        @tf.function
        def total(x):
            traced.append(x)
            with strategy.scope():
                return strategy.call_for_each_tower(lambda part: part * 2.0, x)

        for step in range(3):
            x = core.PerDevice([tf.constant(step + float(i)) for i in range(K)])
            found = strategy.unwrap(total(x))
            np.testing.assert_array_equal(found, [2.0 * (step + i) for i in range(K)])
        assert len(traced) == 1

    @pytest.mark.parametrize("kind", ["cond", "while", "function"])
    def test_merge_call_inside_another_graph_is_refused(self, bench, strategy, kind):
        benches.needs_two(strategy)

        def merge():
            core.get_tower_context().merge_call(lambda merging: None)
            return tf.constant(1.0)

        def tower():
            yes = tf.constant(True)
            if kind == "cond":
                return tf1.cond(yes, merge, lambda: tf.constant(0.0))
            if kind == "while":
                return tf.while_loop(lambda x: x < 1.0, lambda x: [x + merge()], [0.0])
            return tf.function(merge)()

        if bench.mode == "eager" and kind != "function":
            pytest.skip("Eager control flow is Python's.")
        with pytest.raises(RuntimeError, match=r"merge call"):
            bench.in_towers(strategy, tower)
        assert not core.has_distribution_strategy()

    @benches.eagerly
    def test_summaries_are_the_first_towers(self, bench, strategy, tmp_path):
        writer = tf.summary.create_file_writer(str(tmp_path))
        written = []

        def tower():
            written.append(bool(tf.summary.write("x", 1.0)))

        with writer.as_default(step=1), strategy.scope():
            strategy.call_for_each_tower(tower, run_concurrently=False)
        assert written == [True] + [False] * (strategy.num_towers - 1)
