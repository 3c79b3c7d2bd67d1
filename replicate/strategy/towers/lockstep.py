"""K towers, one awake at a time, meeting at each merge call.

Each tower runs in a thread of its own; see `tower_thread`. One tower is awake at a time
and the order is always the same, so that a run is repeatable and code that all towers share
is never in the middle of something. Eager towers run at the same time between merge calls
where whoever starts them says so.

The function of a merge call runs in the first tower's thread: the scopes it sees are
those in which one device would have called it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import errors
from replicate.compat import tensorflow as tfc
from replicate.graph import isolation
from replicate.strategy.towers import sharing, tower_thread
from replicate.strategy.variables import conversion, values


def run(
    bodies: Sequence[Callable],
    creations: sharing.Creations,
    concurrent: bool,
    every_collection: bool,
) -> list:
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
    inheritance = tower_thread.Inheritance()
    towers = [tower_thread.TowerThread(i, body, inheritance) for i, body in enumerate(bodies)]
    views = None
    if not inheritance.eager:
        prefixes = [inheritance.prefix(tower.tower_id) for tower in towers]
        views = isolation.Views(inheritance.graph, prefixes, every_collection, creations.unasked)
    creations.watch(views)
    try:
        concurrent = concurrent and inheritance.eager and not _is_seeded()
        _walk(towers, creations, views, concurrent)
    finally:
        for tower in towers:
            if tower.is_alive() and not tower.done:
                tower.wake(tower_thread.stop)
            if tower.ident is not None:
                tower.join()
        if views is not None:
            views.close()
    inheritance.take_back(towers[0].scope_counts)
    return [tower.result for tower in towers]


def _is_seeded() -> bool:
    """Whether a seeded run must repeat: then towers draw their seeds one after the other."""
    return tfc.eager_context.global_seed() is not None


def _walk(towers: list, creations: sharing.Creations, views, concurrent: bool) -> None:
    """Alternates between letting all towers run and running what they wait for."""
    answers: list = [None] * len(towers)
    merges = 0
    while True:
        _let_run(towers, answers, creations, views, concurrent)
        _raise_failure(towers)
        if all(tower.done for tower in towers):
            return
        with _own_exceptions_first(towers):
            _require_same_merge(towers, merges)
        result = _merge(towers, views)
        merges += 1
        answers = [values.select_tower(tower.tower_id, result) for tower in towers]


def _let_run(towers: list, answers: list, creations, views, concurrent: bool) -> None:
    """Lets each tower run to its next merge call or end."""
    creations.pause_first(False)
    for tower, answer in zip(towers, answers, strict=True):
        if views is not None:
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


def _merge(towers: list, views) -> Any:
    """Runs the merge function in the first tower's thread; returns what it returned."""
    if views is not None:
        views.show(0)
    requests = [tower.request for tower in towers]
    outcome = {}

    def order():
        try:
            args = values.regroup([request.args for request in requests])
            kwargs = values.regroup([request.kwargs for request in requests])
            outcome["result"] = requests[0].run(requests[0].fn, args, kwargs)
        except BaseException as failure:  # noqa: BLE001 - it is raised again by the caller
            outcome["failure"] = failure

    towers[0].wake(order)
    towers[0].wait()
    if "failure" in outcome:
        raise outcome["failure"]
    return outcome["result"]


def _raise_failure(towers: list) -> None:
    for tower in towers:
        if tower.failure is not None:
            failure, tower.failure = tower.failure, None
            try:
                with noted(tower.tower_id, len(towers)):
                    raise failure
            finally:
                del failure  # its traceback holds this frame: do not close the circle


@contextlib.contextmanager
def _own_exceptions_first(towers: list) -> Iterator[None]:
    """Raises a tower's own exception in place of a mismatch to which its `finally` has led."""
    try:
        yield
    except errors.TowerMismatchError:
        for tower in towers:
            if tower.handled is not None:
                with noted(tower.tower_id, len(towers)):
                    raise tower.handled from None
        raise


def _require_same_merge(towers: list, merges: int) -> None:
    """Refuses towers of which some have ended, or that pass different functions."""
    for tower in towers:
        if tower.done != towers[0].done:
            counts = [merges + (0 if t.done else 1) for t in (towers[0], tower)]
            raise errors.TowerMismatchError(
                f"Every tower must make the same merge calls: tower {tower.tower_id} made "
                f"{counts[1]} merge call(s), tower 0 made {counts[0]}. Every tower must call the "
                "same optimizers in the same order; look for a branch on the tower in model_fn."
            )
    expected = code_of(towers[0].request.fn)
    for tower in towers:
        if code_of(tower.request.fn) != expected:
            raise errors.TowerMismatchError(
                f"Every tower must pass the same function to a merge call: in call {merges + 1} "
                f"tower {tower.tower_id} passed {_shown(tower.request.fn)}, tower 0 passed "
                f"{_shown(towers[0].request.fn)}. Look for a branch on the tower."
            )


def code_of(fn: Callable) -> Any:
    """Returns what makes two functions the same, whichever tower made them."""
    fn = conversion.innermost(fn)
    fn = getattr(fn, "__func__", fn)
    if hasattr(fn, "__code__"):
        return fn.__code__
    return fn if isinstance(fn, type) or not callable(fn) else getattr(fn, "__qualname__", type(fn))


def _shown(fn: Callable) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


@contextlib.contextmanager
def noted(tower_id: int, num_towers: int) -> Iterator[None]:
    """Adds the tower's number to the notes of an exception that passes."""
    try:
        yield
    except BaseException as failure:
        add_note(failure, f"raised in tower {tower_id} of {num_towers}")
        raise


def add_note(failure: BaseException, note: str) -> None:
    """Adds a note to an exception; before Python 3.11 in the same attribute by hand."""
    if sys.version_info >= (3, 11):
        failure.add_note(note)
    else:
        failure.__notes__ = [*getattr(failure, "__notes__", []), note]
