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
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat import tensorflow as tfc
from replicate.graph import isolation
from replicate.strategy import conversion, sharing, tower_thread, values


def run(
    bodies: Sequence[Callable],
    creations: sharing.Creations,
    concurrent: bool,
    every_collection: bool,
    cloning: Any = None,
) -> list:
    """Runs K bodies in K threads, in lockstep, and returns their K results.

    Args:
        bodies: K functions of their tower's thread, which has `sleep(request)`.
        creations: The log of the variables that they make.
        concurrent: Whether eager towers may run at the same time.
        every_collection: Whether each tower sees collections of its own.
        cloning: Copies what the first tower builds, a `cloning.Cloning`: only that one runs,
            and only its result is returned; None, or where it cannot: all run.

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
    if cloning is not None:
        cloning.start([inheritance.prefix(tower.tower_id) for tower in towers])
    try:
        concurrent = concurrent and inheritance.eager and not _is_seeded()
        ran = _walk(towers, creations, views, concurrent, cloning, inheritance)
    finally:
        for tower in towers:
            if tower.is_alive() and not tower.done:
                tower.wake(tower_thread.stop)
            if tower.ident is not None:
                tower.join()
        if views is not None:
            views.close()
        if cloning is not None:
            cloning.finish()
    inheritance.take_back(towers[0].scope_counts)
    return [tower.result for tower in ran]


def _is_seeded() -> bool:
    """Whether a seeded run must repeat: then towers draw their seeds one after the other."""
    return tfc.eager_context.global_seed() is not None


def _walk(
    towers: list, creations: sharing.Creations, views, concurrent: bool, cloning, inheritance
) -> list:
    """Alternates between letting all towers run and running what they wait for.

    Returns:
        The towers that have run.
    """
    running = towers if cloning is None else towers[:1]
    answers: list = [None] * len(running)
    met: list[_Met] = []
    while True:
        _let_run(running, answers, creations, views, concurrent)
        _raise_failure(running)
        if cloning is not None and cloning.gives_up():
            running, cloning = towers, None
            if met:  # copies have the names that the towers would make
                inheritance.behind = sharing.AGAIN
                views.rename([inheritance.prefix(tower.tower_id) for tower in towers])
            _catch_up(towers[1:], met, creations, views)
        if all(tower.done for tower in running):
            return running
        with _own_exceptions_first(running):
            _require_same_merge(running, len(met))
        result = _merge(running, views, cloning)
        met.append(_Met(running[0].request, result))
        answers = [values.select_tower(tower.tower_id, result) for tower in running]


class _Met(NamedTuple):
    """A merge call of the past, as the tower has it that made it.

    Attributes:
        request: What the first tower asked for.
        result: What the towers were given.
    """

    request: tower_thread.MergeRequest
    result: Any
    tower_id: int = 0
    done: bool = False


def _catch_up(towers: list, met: Sequence[_Met], creations: sharing.Creations, views) -> None:
    """Lets towers run that were copied so far: they are given what their copies were given."""
    answers: list = [None] * len(towers)
    for number, past in enumerate([*met, None]):
        _let_run(towers, answers, creations, views, False)
        _raise_failure(towers)
        if past is not None:
            _require_same_merge([past, *towers], number)
            answers = [values.select_tower(tower.tower_id, past.result) for tower in towers]


def _let_run(towers: list, answers: list, creations, views, concurrent: bool) -> None:
    """Lets each tower run to its next merge call or end."""
    creations.pause_first(towers[0].tower_id > 0)
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


def _merge(towers: list, views, cloning) -> Any:
    """Runs the merge function in the first tower's thread; returns what it returned."""
    if views is not None:
        views.show(0)
    requests = [tower.request for tower in towers]
    outcome = {}

    def order():
        try:
            args, kwargs = _brought(requests, cloning)
            with contextlib.nullcontext() if cloning is None else cloning.across():
                outcome["result"] = requests[0].run(requests[0].fn, args, kwargs)
                if cloning is not None:
                    cloning.note(outcome["result"])
        except BaseException as failure:  # noqa: BLE001 - it is raised again by the caller
            outcome["failure"] = failure

    towers[0].wake(order)
    towers[0].wait()
    if "failure" in outcome:
        raise outcome["failure"]
    return outcome["result"]


def _brought(requests: list, cloning) -> tuple[Sequence, dict]:
    """Returns what all towers bring to a merge call, each argument as one value."""
    if cloning is not None:
        return cloning.lift(requests[0].args), cloning.lift(requests[0].kwargs)
    args = values.regroup([request.args for request in requests])
    return args, values.regroup([request.kwargs for request in requests])


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
