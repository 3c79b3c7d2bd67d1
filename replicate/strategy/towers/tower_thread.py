"""A thread for each tower, which enters what is around its caller and sleeps in merge calls.

Name scopes, variable scopes, devices, control dependencies and gradient tapes are kept per
thread: so each tower has one of its own, which begins with the caller's.
"""

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


class MergeRequest(NamedTuple):
    """What a sleeping tower waits for.

    Attributes:
        fn: The function to run across towers.
        args: Its positional arguments, this tower's.
        kwargs: Its keyword arguments, this tower's.
        run: Runs `fn(*merged args, **merged kwargs)` as across towers.
    """

    fn: Callable
    args: tuple
    kwargs: dict
    run: Callable


class _Stop(BaseException):
    """Unwinds a sleeping tower after another one failed."""


class Inheritance:
    """The caller's thread-local surroundings, to be entered by the towers' threads."""

    def __init__(self):
        self.graph = tf1.get_default_graph()
        self.eager = tf.executing_eagerly()
        with tfc.ops.init_scope():
            self._outer_graph = tf1.get_default_graph()
            self._outer_eager = tf.executing_eagerly()
        self._policy = tfc.eager_context.context().device_policy
        graph = self.graph
        if not self.eager:
            tfc.graph_class.switch_to_thread_local(graph)
        self.name_scope = graph.get_name_scope()
        self._creators = list(graph._variable_creator_stack)
        self._controls = list(graph._control_dependencies_stack)
        self._devices = graph._device_function_stack.copy()
        self._colocations = graph._colocation_stack.copy()
        self._scopes = tfc.variable_scope.get_variable_scope_store()
        self._scope = self._scopes.current_scope
        self._scope_counts = dict(self._scopes.variable_scopes_count)
        self._summaries = dict(vars(tfc.summary_ops._summary_state))
        self._added = {} if self.eager else graphs.added(graph)

    @contextlib.contextmanager
    def entered(self, tower_id: int):
        """Enters the surroundings in a tower's thread; tower i > 0 gets a name prefix."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_in_graph(self._outer_graph, self._outer_eager))
            stack.enter_context(_in_graph(self.graph, self.eager))
            stack.enter_context(tfc.eager_context.device_policy(self._policy))
            self._restore_stacks()
            self.go_on({name: dict(kept) for name, kept in self._added.items()})
            summaries = vars(tfc.summary_ops._summary_state)
            summaries.update(self._summaries)
            summaries["is_recording_distribution_strategy"] = tower_id == 0
            if prefix := self.prefix(tower_id):
                stack.enter_context(tf1.name_scope(prefix))
            yield

    def prefix(self, tower_id: int) -> str:
        """Returns what the names of a tower's operations begin with."""
        prefix = f"{self.name_scope}/" if self.name_scope else ""
        return f"{prefix}tower_{tower_id}/" if tower_id > 0 else prefix

    def _restore_stacks(self) -> None:
        graph = self.graph
        graph._variable_creator_stack = list(self._creators)
        graph._control_dependencies_stack = list(self._controls)
        graph._device_function_stack = self._devices.copy()
        graph._colocation_stack = self._colocations.copy()
        store = tfc.variable_scope.get_variable_scope_store()
        store.current_scope = self._scope
        store.variable_scopes_count = dict(self._scope_counts)

    # NOTE: what a graph adds to operations, as other gradients, is no thread's: a tower that
    # sleeps within such a scope would lend it to the next one.

    def pause(self) -> dict:
        """Returns what the graph adds to operations of the tower that goes to sleep."""
        return {} if self.eager else graphs.added(self.graph)

    def go_on(self, added: dict | None = None) -> None:
        """Lets the graph add what it did to operations of a tower; None: to the caller's."""
        graphs.set_added(self.graph, self._added if added is None else added)

    def take_back(self, counts: dict) -> None:
        """Gives the caller the first tower's counters of variable scopes."""
        self._scopes.variable_scopes_count = counts


@contextlib.contextmanager
def _in_graph(graph: tf.Graph, eager: bool):
    with graph.as_default():
        if eager:
            with tfc.eager_context.eager_mode():
                yield
        else:
            yield


_IN_A_MODEL_FN = (
    "In a model_fn: call minimize and apply_gradients outside of them; to apply the gradients of "
    "several batches at once, give replicate_model_fn accumulate_steps."
)


class TowerThread(threading.Thread):
    """One tower's thread, which sleeps unless `wake` says otherwise."""

    def __init__(self, tower_id: int, body: Callable, inheritance: Inheritance):
        super().__init__(name=f"tower_{tower_id}", daemon=True)
        self.tower_id = tower_id
        self.request: MergeRequest | None = None
        self.result: Any = None
        self.failure: BaseException | None = None
        self.handled: BaseException | None = None  # in whose `finally` or `except` it sleeps
        self.done = False
        self.scope_counts: dict = {}
        self._body = body
        self._inheritance = inheritance
        self._awake = threading.Semaphore(0)
        self._asleep = threading.Semaphore(0)
        self._order: Callable | None = None
        self._answer: Any = None
        self._stopping = False

    def run(self):
        """See base class."""
        self._awake.acquire()
        try:
            if self._order is not stop:
                with self._inheritance.entered(self.tower_id):
                    self.result = self._body(self)
                    store = tfc.variable_scope.get_variable_scope_store()
                    self.scope_counts = store.variable_scopes_count
        except _Stop:
            pass
        except BaseException as failure:  # noqa: BLE001 - it is raised again by the caller
            self.failure = failure
        finally:
            self._inheritance.go_on()
            self.done = True
            self._asleep.release()

    def wake(self, order: Callable | None = None, answer: Any = None) -> None:
        """Lets the tower go on, or first carry out `order` in its thread."""
        self._order, self._answer = order, answer
        self._stopping = order is stop
        self._awake.release()

    def wait(self) -> None:
        """Waits until the tower sleeps or has ended."""
        self._asleep.acquire()

    def sleep(self, request: MergeRequest) -> Any:
        """Called by the tower: waits for the others, and returns its part of the merge."""
        if self._stopping:
            raise _Stop
        refusal = self.refusal()
        if refusal is not None:
            raise RuntimeError(refusal)
        self.request = request
        self.handled = sys.exc_info()[1]
        added = self._inheritance.pause()
        while True:
            self._asleep.release()
            self._awake.acquire()
            self._inheritance.go_on(added)
            if self._order is None:
                self.request = self.handled = None
                return self._answer
            self._order()

    def refusal(self) -> str | None:
        """Returns why the running code cannot meet the other towers; None: it can."""
        inner = self._inheritance
        if tf1.get_default_graph() is not inner.graph or tf.executing_eagerly() != inner.eager:
            return (
                "A merge call must be made in the graph that called call_for_each_tower: tower "
                f"{self.tower_id} made one inside a tf.function, tf.cond, tf.while_loop or "
                "another graph. Put call_for_each_tower (or strategy.run) inside the "
                f"tf.function, or move the merge call out. {_IN_A_MODEL_FN}"
            )
        if not inner.eager and inner.graph._get_control_flow_context() is not None:
            return (
                f"A merge call inside tf.cond or tf.while_loop cannot meet the other towers: tower "
                f"{self.tower_id} made one. Move it out of the control flow. {_IN_A_MODEL_FN}"
            )
        return None


def stop():
    """Ends a sleeping tower, as an order to wake up with."""
    raise _Stop
