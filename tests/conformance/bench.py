"""Runs one behaviour in a graph, eagerly, or in a tf.function, with the same lines of test."""

import contextlib

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.variables import values

MODES = ("graph", "eager", "function")


def _in_modes(*modes):
    return pytest.mark.parametrize("bench", modes, indirect=True)


in_a_graph = _in_modes("graph")  # collections, names, get_variable, tf.compat.v1's functions
eagerly = _in_modes("eager")
out_of_graphs = _in_modes("eager", "function")
out_of_eager_code = _in_modes("graph", "function")


def needs_two(strategy):
    """Ends a test of what towers have together where there is one."""
    if strategy.is_single_tower:
        pytest.skip("With one tower there is no other tower to differ from.")


class Bench:
    """Gives the numbers that a step results in.

    Args:
        mode: One of `MODES`.
    """

    def __init__(self, mode):
        self.mode = mode
        self._session = None
        self._initialized = set()

    @contextlib.contextmanager
    def entered(self):
        """Enters a graph with a session where the mode wants one."""
        if self.mode != "graph":
            yield self
            return
        config = tf1.ConfigProto(allow_soft_placement=False, device_count={"CPU": 8})
        with tf.Graph().as_default(), tf1.Session(config=config) as self._session:
            yield self

    @property
    def session(self):
        return self._session

    def run(self, step):
        """Returns what `step()` results in, as arrays in lists, tuples and dicts."""
        if self.mode == "eager":
            return values.map_nest(_array, _plain(step()))
        if self.mode == "function":
            return values.map_nest(_array, tf.function(lambda: _plain(step()))())
        fetched = values.map_nest(_fetchable, _plain(step()))
        self.initialize()
        fetched = [fetched, tf1.no_op()]  # a graph without operations cannot run
        return self._session.run(fetched)[0]

    def across(self, strategy, fn, *args):
        """Runs `fn` in the strategy's scope."""

        def step():
            with strategy.scope():
                return fn(*args)

        return self.run(step)

    def in_towers(self, strategy, fn, *args, **kwargs):
        """Runs `fn` in each tower and returns the list of the K results."""

        def step():
            with strategy.scope():
                merged = strategy.call_for_each_tower(fn, *args, **kwargs)
                return each_tower(strategy, merged)

        return self.run(step)

    def initialize(self):
        """Initializes the variables that no run has initialized yet."""
        if self.mode != "graph":
            return
        found = tf1.global_variables() + tf1.local_variables()
        fresh = [v for v in found if id(v) not in self._initialized]
        self._initialized.update(id(v) for v in fresh)
        if fresh:
            self._session.run([v.initializer for v in fresh])

    def copies(self, variable):
        """Returns the values of a variable's copies, one by one."""
        members = getattr(variable, "members", (variable,))
        return self.run(lambda: [member.read_value() for member in members])

    def value(self, variable):
        """Returns what a variable reads back as, outside of every scope."""
        return self.run(lambda: tf.convert_to_tensor(variable))


def each_tower(strategy, merged):
    """Returns K results; a value that all towers share stands K times."""
    return [values.select_tower(i, merged) for i in range(strategy.num_towers)]


def _plain(nest):
    """Replaces distributed values by lists, and operations by None where they have run."""

    def leaf(value):
        if isinstance(value, values.DistributedValues):
            return [leaf(part) for part in value.values]
        if isinstance(value, tf.Operation):
            return None if tf.inside_function() else value
        if isinstance(value, tf.Variable):
            return tf.convert_to_tensor(value)
        return value

    return values.map_nest(leaf, nest)


def _fetchable(value):
    if value is None:
        return tf1.no_op()
    return tf.constant(value) if isinstance(value, (int, float)) else value


def _array(value):
    if isinstance(value, tf.IndexedSlices):
        return tf.convert_to_tensor(value).numpy()
    return value.numpy() if hasattr(value, "numpy") else value
