"""One function, once per tower: arguments, results, exceptions, merge calls."""

import collections
import functools
import time

import pytest

from replicate import errors
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from tests.conformance import bench as benches

Pair = collections.namedtuple("Pair", ["a", "b"])


class Unusual(Exception):
    """An exception that cannot be made again from its text."""

    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")
        self.code = code


def tower_id():
    return core.get_tower_context().tower_id


class Towers:
    """What every strategy does with functions."""

    def test_per_device_arguments_are_unwrapped(self, bench, strategy):
        K = strategy.num_towers
        x = core.PerDevice([10 * i for i in range(K)])
        nest = {"x": [x, 5], "p": Pair(x, "text")}

        def tower(x, nest, *, flag):
            assert nest["x"] == [x, 5]
            assert nest["p"] == Pair(x, "text")
            assert flag == "on"
            return x

        found = bench.in_towers(strategy, tower, x, nest, flag="on")
        assert found == [10 * i for i in range(K)]

    def test_mirrored_arguments_are_unwrapped(self, bench, strategy):
        def step():
            with strategy.scope():
                x = strategy.broadcast(tf.constant(3.0))
                merged = strategy.call_for_each_tower(lambda x: x + tower_id(), x)
                return benches.each_tower(strategy, merged)

        assert bench.run(step) == [3.0 + i for i in range(strategy.num_towers)]

    def test_same_object_in_all_towers_is_that_object(self, bench, strategy):
        one = object()

        def across():
            found = strategy.call_for_each_tower(lambda: {"k": [one, None, "text"]})
            assert found["k"][0] is one
            assert found["k"][1:] == [None, "text"]

        bench.across(strategy, across)

    def test_different_results_are_per_device_through_nests(self, bench, strategy):
        benches.needs_two(strategy)

        def tower():
            x = tf.constant(float(tower_id()))
            return {"a": (x, [x + 1.0]), "p": Pair(x, x)}

        def across():
            found = strategy.call_for_each_tower(tower)
            assert isinstance(found["a"], tuple)
            assert isinstance(found["p"], Pair)
            for leaf in (found["a"][0], found["a"][1][0], found["p"].a, found["p"].b):
                assert isinstance(leaf, core.PerDevice)
                assert leaf.devices == strategy.worker_devices
            return found["a"][1][0]

        assert bench.across(strategy, across) == [1.0 + i for i in range(strategy.num_towers)]

    def test_one_towers_results_are_given_as_they_are(self, bench, strategy):
        if not strategy.is_single_tower:
            pytest.skip("With several towers the results are one per tower.")
        one = object()
        bench.across(strategy, lambda: self._same(strategy.call_for_each_tower(lambda: one), one))

    @staticmethod
    def _same(found, expected):
        assert found is expected

    def test_variable_of_all_towers_comes_back_as_the_variable(self, bench, strategy):
        with strategy.scope():
            v = tf.Variable(1.0)

        def tower():
            return [v, v.get() if isinstance(v, core.MirroredVariable) else v]

        def across():
            assert all(found is v for found in strategy.call_for_each_tower(tower))

        bench.across(strategy, across)

    def test_results_of_different_structure_are_refused(self, bench, strategy):
        benches.needs_two(strategy)

        def tower():
            return {"a": 1} if tower_id() == 0 else {"b": 1}

        with pytest.raises(errors.TowerMismatchError, match="tower 1 gave"):
            bench.in_towers(strategy, tower)

    def test_exceptions_keep_type_and_name_the_tower(self, bench, strategy):
        last = strategy.num_towers - 1

        def tower():
            if tower_id() == last:
                raise Unusual(7, where="here")

        with pytest.raises(Unusual) as caught:
            bench.in_towers(strategy, tower)
        assert caught.value.code == 7
        assert any(f"tower {last}" in note for note in caught.value.__notes__)
        assert not core.has_distribution_strategy()

    def test_failure_in_one_tower_unwinds_the_others(self, bench, strategy):
        benches.needs_two(strategy)
        unwound = []

        def tower():
            if tower_id() == 1:
                raise Unusual(7, where="here")
            try:
                core.get_tower_context().merge_call(lambda merging: None)
            finally:
                unwound.append(tower_id())

        with pytest.raises(Unusual):
            bench.in_towers(strategy, tower, run_concurrently=False)
        assert unwound == [0]

    def test_exception_of_a_merge_function_reaches_the_caller(self, bench, strategy):
        def merge(merging):
            raise Unusual(8, where="merge")

        with pytest.raises(Unusual):
            bench.in_towers(strategy, lambda: core.get_tower_context().merge_call(merge))
        assert not core.has_distribution_strategy()

    def test_towers_compute_on_their_devices(self, bench, strategy):
        seen = {}

        def tower():
            seen[tower_id()] = (tf.constant(1.0) + 1.0).device

        bench.in_towers(strategy, tower)
        for i, device in enumerate(strategy.worker_devices):
            assert seen[i].endswith(device)

    def test_device_that_a_tower_names_is_kept(self, bench, strategy):
        seen = []

        def tower():
            with tf.device("/cpu:5"):
                seen.append((tf.constant(1.0) + 1.0).device)

        bench.in_towers(strategy, tower)
        assert all(device.upper().endswith("CPU:5") for device in seen)

    @benches.in_a_graph
    def test_first_tower_has_no_name_prefix(self, bench, strategy):
        names = {}

        def tower():
            names[tower_id()] = tf.constant(1.0, name="x").op.name

        with tf1.name_scope("outer"):
            bench.in_towers(strategy, tower)
        for i in range(strategy.num_towers):
            assert names[i] == ("outer/x" if i == 0 else f"outer/tower_{i}/x")

    @benches.in_a_graph
    def test_towers_see_the_callers_variable_scope(self, bench, strategy):
        with strategy.scope(), tf1.variable_scope("model"):
            found = strategy.call_for_each_tower(lambda: tf1.get_variable("w", [2]).name)
        assert found == "model/w:0"

    def test_towers_one_after_another_keep_their_order(self, bench, strategy):
        order = []
        bench.in_towers(strategy, lambda: order.append(tower_id()), run_concurrently=False)
        assert order == list(range(strategy.num_towers))

    def test_towers_run_one_after_another_unless_they_are_asked_to_overlap(self, bench, strategy):
        shared = {"n": 0}

        def tower():
            before = shared["n"]
            time.sleep(0.01)
            shared["n"] = before + 1

        for _ in range(2):
            bench.in_towers(strategy, tower)
        assert shared["n"] == 2 * strategy.num_towers

    def test_run_enters_the_scope_by_itself(self, bench, strategy):
        def step():
            merged = strategy.run(lambda x, y: x + y + tower_id(), (1.0,), {"y": 2.0})
            return benches.each_tower(strategy, merged)

        assert bench.run(step) == [3.0 + i for i in range(strategy.num_towers)]

    def test_run_takes_a_function_of_tensorflow(self, bench, strategy):
        K = strategy.num_towers

        @tf.function
        def doubled(x):
            return 2.0 * x

        def step():
            x = core.PerDevice([tf.constant(float(i)) for i in range(K)])
            return strategy.experimental_local_results(strategy.run(doubled, (x,)))

        assert list(bench.run(step)) == [2.0 * i for i in range(K)]

    def test_merge_function_gets_the_towers_values_and_each_tower_its_part(self, bench, strategy):
        K = strategy.num_towers

        def merge(merging, x, scale):
            parts = merging.unwrap(x)
            total = tf.add_n([tf.convert_to_tensor(part) for part in parts])
            return core.PerDevice([total * scale + i for i in range(K)]), scale

        def tower():
            x = tf.constant(tower_id() + 1.0)
            mine, scale = core.get_tower_context().merge_call(merge, x, scale=10.0)
            assert scale == 10.0
            return mine

        total = K * (K + 1) / 2
        assert bench.in_towers(strategy, tower) == [10.0 * total + i for i in range(K)]

    def test_towers_may_make_several_merge_calls(self, bench, strategy):
        calls = []

        def merge(merging, name):
            calls.append(name)
            return name + "!"

        def tower():
            ctx = core.get_tower_context()
            return [ctx.merge_call(merge, name) for name in "abc"]

        def across():
            assert strategy.call_for_each_tower(tower) == ["a!", "b!", "c!"]

        bench.across(strategy, across)
        assert calls == ["a", "b", "c"]

    def test_merge_function_may_call_for_each_tower_again(self, bench, strategy):
        def merge(merging):
            return merging.call_for_each_tower(lambda: tf.constant(10.0) * tower_id())

        found = bench.in_towers(strategy, lambda: core.get_tower_context().merge_call(merge))
        assert found == [10.0 * i for i in range(strategy.num_towers)]

    @pytest.mark.parametrize("is_derived", [True, False])
    def test_tape_refuses_to_derive_what_a_merge_call_returned(self, bench, strategy, is_derived):
        def merge(merging, x):
            return merging.reduce(tf.VariableAggregation.MEAN, x, merging.worker_devices)

        def tower():
            x = tf.constant(tower_id() + 2.0)
            with tf.GradientTape() as tape:
                tape.watch(x)
                mean = core.get_tower_context().merge_call(merge, x * x)
                loss = mean + x * x if is_derived else x * x
            return tape.gradient(loss, x), mean

        K = strategy.num_towers
        if is_derived and K > 1:
            with pytest.raises(RuntimeError, match=r"A tape cannot take the gradient.*all_reduce"):
                bench.in_towers(strategy, tower)
            return
        # d/dx x^2 = 2 x, and with one tower the mean is x^2 as well.
        expected = [(2.0 * (i + 2.0)) * (2.0 if is_derived else 1.0) for i in range(K)]
        mean = sum((i + 2.0) ** 2 for i in range(K)) / K
        assert bench.in_towers(strategy, tower) == [
            (gradient, pytest.approx(mean)) for gradient in expected
        ]

    def test_towers_with_different_numbers_of_merge_calls_are_refused(self, bench, strategy):
        benches.needs_two(strategy)

        def tower():
            for _ in range(1 if tower_id() == 1 else 2):
                core.get_tower_context().merge_call(lambda merging: None)

        with pytest.raises(
            errors.TowerMismatchError,
            match=r"tower 1 made 1 merge call\(s\), tower 0 made 2",
        ):
            bench.in_towers(strategy, tower)

    def test_towers_with_different_merge_functions_are_refused(self, bench, strategy):
        benches.needs_two(strategy)

        def first(merging):
            pass

        def second(merging):
            pass

        def tower():
            ctx = core.get_tower_context()
            ctx.merge_call(first)
            ctx.merge_call(first if tower_id() == 0 else second)

        with pytest.raises(
            errors.TowerMismatchError, match=r"in call 2 tower 1 passed .*second.*tower 0.*first"
        ):
            bench.in_towers(strategy, tower)

    @pytest.mark.parametrize("kind", ["lambda", "closure", "partial", "method", "callable"])
    def test_functions_made_in_each_tower_are_the_same_when_their_code_is(
        self, bench, strategy, kind
    ):
        def tower():
            i = tower_id()

            def closure(merging):
                return i

            made = {
                "lambda": lambda merging: i,
                "closure": closure,
                "partial": functools.partial(lambda i, merging: i, i),
                "method": Holder(i).merge,
                "callable": Holder(i),
            }
            return core.get_tower_context().merge_call(made[kind])

        def across():
            # The first tower's function runs: all towers get its answer.
            assert strategy.call_for_each_tower(tower) == 0

        bench.across(strategy, across)


class Holder:
    """A callable with state, made anew in each tower."""

    def __init__(self, held):
        self.held = held

    def merge(self, merging):
        return self.held

    __call__ = merge
