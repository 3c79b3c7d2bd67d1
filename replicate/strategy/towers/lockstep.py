"""K towers, one awake at a time, meeting at each merge call.

Each tower runs in a thread of its own, which enters what is around its caller and sleeps in
merge calls. Name scopes, variable scopes, devices, control dependencies and gradient tapes are
kept per thread: so each tower has its own, which begin with the caller's. One tower is awake at
a time and the order is always the same, so that a run is repeatable and code that all towers
share is never in the middle of something. Eager towers run at the same time between merge calls
where whoever starts them asks for it.

The function of a merge call runs in the first tower's thread: the scopes it sees are
those in which one device would have called it.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from replicate import errors, types
from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import isolation
from replicate.strategy import context, conversion
from replicate.strategy.towers import sharing
from replicate.strategy.variables import values


class MergeRequest(NamedTuple):
    """What a sleeping tower waits for.

    Attributes:
        fn: The function to run across towers.
        args: Its positional arguments, this tower's.
        kwargs: Its keyword arguments, this tower's.
        run: Runs `fn(*merged args, **merged kwargs)`.
    """

    fn: types.Function
    args: tuple[types.Nest, ...]
    kwargs: types.Arguments
    run: context.Merge


class _Stop(BaseException):
    """Unwinds a sleeping tower after another one failed."""


class Inheritance:
    """The caller's thread-local surroundings, to be entered by the towers' threads."""

    def __init__(self) -> None:
        self.graph = tf1.get_default_graph()
        self.eager = tf.executing_eagerly()
        with tf.init_scope():
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
    def entered(self, tower_id: int) -> Iterator[None]:
        """Enters the surroundings in a tower's thread; tower i > 0 gets a name prefix."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_in_graph(self._outer_graph, self._outer_eager))
            stack.enter_context(_in_graph(self.graph, self.eager))
            stack.enter_context(tfc.eager_context.device_policy(self._policy))
            graph = self.graph
            graph._variable_creator_stack = list(self._creators)
            graph._control_dependencies_stack = list(self._controls)
            graph._device_function_stack = self._devices.copy()
            graph._colocation_stack = self._colocations.copy()
            store = tfc.variable_scope.get_variable_scope_store()
            store.current_scope = self._scope
            store.variable_scopes_count = dict(self._scope_counts)
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

    # NOTE: what a graph adds to operations, as other gradients, is no thread's: a tower that
    # sleeps within such a scope would lend it to the next one.

    def pause(self) -> dict[str, dict[Any, Any]]:
        """Returns what the graph adds to operations of the tower that goes to sleep."""
        return {} if self.eager else graphs.added(self.graph)

    def go_on(self, added: dict[str, dict[Any, Any]] | None = None) -> None:
        """Lets the graph add what it did to operations of a tower, or else to the caller's."""
        graphs.set_added(self.graph, self._added if added is None else added)

    def take_back(self, counts: dict[str, int]) -> None:
        """Gives the caller the first tower's counters of variable scopes."""
        self._scopes.variable_scopes_count = counts


@contextlib.contextmanager
def _in_graph(graph: tf.Graph, eager: bool) -> Iterator[None]:
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

    def __init__(
        self,
        tower_id: int,
        body: Callable[["TowerThread"], types.Nest],
        inheritance: Inheritance,
    ):
        super().__init__(name=f"tower_{tower_id}", daemon=True)
        self.tower_id = tower_id
        self.request: MergeRequest | None = None
        self.result: types.Nest = None
        self.failure: BaseException | None = None
        self.handled: BaseException | None = None  # in whose `finally` or `except` it sleeps
        self.done = False
        self.scope_counts: dict[str, int] = {}
        self._body = body
        self._inheritance = inheritance
        self._awake = threading.Semaphore(0)
        self._asleep = threading.Semaphore(0)
        self._order: Callable[[], None] | None = None
        self._answer: types.Nest = None

    def run(self) -> None:
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

    def wake(self, order: Callable[[], None] | None = None, answer: types.Nest = None) -> None:
        """Lets the tower go on, or first carry out `order` in its thread."""
        self._order, self._answer = order, answer
        self._awake.release()

    def wait(self) -> None:
        """Waits until the tower sleeps or has ended."""
        self._asleep.acquire()

    def sleep(self, request: MergeRequest) -> types.Nest:
        """Called by the tower: waits for the others, and returns its part of the merge."""
        if self._order is stop:
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
        """Returns why the running code cannot meet the other towers, if it cannot."""
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


def stop() -> NoReturn:
    """Ends a sleeping tower, as an order to wake up with."""
    raise _Stop


Towers: TypeAlias = Sequence[TowerThread]


def run(
    bodies: Sequence[Callable[[TowerThread], types.Nest]],
    creations: sharing.Creations,
    concurrent: bool,
    every_collection: bool,
) -> list[types.Nest]:
    """Runs K bodies in K threads, in lockstep, and returns their K results.

    Args:
        bodies: K functions of their tower's thread, which has `sleep(request)`.
        creations: The log of the variables that they make.
        concurrent: Whether eager towers may run at the same time.
        every_collection: Whether each tower sees collections of its own.

    Raises:
        TowerMismatchError: If the towers do not make the same merge calls.
        Exception: What a tower raised, with the tower's number in its notes.
    """
    inheritance = Inheritance()
    towers = [TowerThread(i, body, inheritance) for i, body in enumerate(bodies)]
    views = isolation.Views()
    if not inheritance.eager:
        prefixes = [inheritance.prefix(tower.tower_id) for tower in towers]
        unasked = creations.unasked
        views = isolation.GraphViews(inheritance.graph, prefixes, every_collection, unasked)
    creations.watch(views)
    try:
        # NOTE: a seeded run must repeat: then towers draw their seeds one after the other.
        is_seeded = tfc.eager_context.global_seed() is not None
        concurrent = concurrent and inheritance.eager and not is_seeded
        _walk(towers, creations, views, concurrent)
    finally:
        for tower in towers:
            if tower.is_alive() and not tower.done:
                tower.wake(stop)
            if tower.ident is not None:
                tower.join()
        views.close()
    inheritance.take_back(towers[0].scope_counts)
    return [tower.result for tower in towers]


def _walk(
    towers: Towers, creations: sharing.Creations, views: isolation.Views, concurrent: bool
) -> None:
    """Alternates between letting all towers run and running what they wait for."""
    answers: list[types.Nest] = [None] * len(towers)
    merges = 0
    while True:
        _let_run(towers, answers, creations, views, concurrent)
        _raise_failure(towers)
        if all(tower.done for tower in towers):
            return
        with _own_exceptions_first(towers):
            requests = _same_merge(towers, merges)
        result = _merge(towers[0], requests, views)
        merges += 1
        answers = [values.select_tower(tower.tower_id, result) for tower in towers]


def _let_run(
    towers: Towers,
    answers: list[types.Nest],
    creations: sharing.Creations,
    views: isolation.Views,
    concurrent: bool,
) -> None:
    """Lets each tower run to its next merge call or end."""
    creations.pause_first(False)
    for tower, answer in zip(towers, answers, strict=True):
        views.show(tower.tower_id)
        if tower.ident is None:
            tower.start()
        tower.wake(answer=answer)
        if not concurrent:
            tower.wait()
            if tower.failure is not None:
                return
            creations.pause_first(True)
    if concurrent:
        towers[0].wait()
        creations.pause_first(True)
        for tower in towers[1:]:
            tower.wait()


def _merge(
    first: TowerThread, requests: Sequence[MergeRequest], views: isolation.Views
) -> types.Nest:
    """Runs the merge function in the first tower's thread; returns what it returned."""
    views.show(0)
    results: list[types.Nest] = []
    failures: list[BaseException] = []

    def order() -> None:
        try:
            args = values.regroup([request.args for request in requests])
            kwargs = values.regroup([request.kwargs for request in requests])
            results.append(requests[0].run(requests[0].fn, args, kwargs))
        except BaseException as failure:  # noqa: BLE001 - it is raised again by the caller
            failures.append(failure)

    first.wake(order)
    first.wait()
    if failures:
        raise failures[0]
    return results[0]


def _raise_failure(towers: Towers) -> None:
    for tower in towers:
        if tower.failure is not None:
            failure, tower.failure = tower.failure, None
            try:
                with noted(tower.tower_id, len(towers)):
                    raise failure
            finally:
                del failure  # its traceback holds this frame: do not close the circle


@contextlib.contextmanager
def _own_exceptions_first(towers: Towers) -> Iterator[None]:
    """Raises a tower's own exception in place of a mismatch to which its `finally` has led."""
    try:
        yield
    except errors.TowerMismatchError:
        for tower in towers:
            if tower.handled is not None:
                with noted(tower.tower_id, len(towers)):
                    raise tower.handled from None
        raise


def _same_merge(towers: Towers, merges: int) -> list[MergeRequest]:
    """Returns what sleeping towers wait for.

    Raises:
        TowerMismatchError: If some have ended, or they pass different functions.
    """
    for tower in towers:
        if tower.done != towers[0].done:
            counts = [merges + (0 if t.done else 1) for t in (towers[0], tower)]
            raise errors.TowerMismatchError(
                f"Every tower must make the same merge calls: tower {tower.tower_id} made "
                f"{counts[1]} merge call(s), tower 0 made {counts[0]}. Every tower must call the "
                "same optimizers in the same order; look for a branch on the tower in model_fn."
            )
    requests = [tower.request for tower in towers if tower.request is not None]
    first = requests[0].fn
    for i, request in enumerate(requests):
        if code_of(request.fn) != code_of(first):
            raise errors.TowerMismatchError(
                f"Every tower must pass the same function to a merge call: in call {merges + 1} "
                f"tower {i} passed {_shown(request.fn)}, tower 0 passed {_shown(first)}. Look for "
                "a branch on the tower."
            )
    return requests


def code_of(fn: types.Function) -> object:
    """Returns what makes two functions the same, whichever tower made them."""
    fn = conversion.innermost(fn)
    fn = getattr(fn, "__func__", fn)
    if hasattr(fn, "__code__"):
        return fn.__code__
    return fn if isinstance(fn, type) or not callable(fn) else getattr(fn, "__qualname__", type(fn))


def _shown(fn: types.Function) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


@contextlib.contextmanager
def noted(tower_id: int, num_towers: int) -> Iterator[None]:
    """Adds the tower's number to the notes of an exception that passes."""
    with explained():
        try:
            yield
        except BaseException as failure:
            add_note(failure, f"raised in tower {tower_id} of {num_towers}")
            raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Adds what to do to the notes of an exception that passes, where it is known."""
    try:
        yield
    except BaseException as failure:
        if then := messages.without_estimators(failure):
            add_note(failure, then)
        raise


def add_note(failure: BaseException, note: str) -> None:
    """Adds a note to an exception; before Python 3.11 in the same attribute by hand."""
    if sys.version_info >= (3, 11):
        failure.add_note(note)
    else:
        vars(failure).setdefault("__notes__", []).append(note)
