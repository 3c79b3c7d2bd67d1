"""How sessions of a cluster begin and end.

Workers that take each step together wait before their session until all others are there, and
compare what each has built. The session begins with an operation in which all meet: they get the
first worker's variables, restored or made. Each step runs all that workers join, whoever of them
asks for more.

With parameter servers the chief makes or restores the variables, and writes down what it has built.
Each worker compares that with what it has built itself, and waits until the variables are there: in
a short session of its own, which looks often, so that the one it trains in finds all ready.
"""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicate import errors, types
from replicate.compat import sessions
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import collectives, operations, reductions
from replicate.strategy.cluster import ends, manifest, synchronous
from replicate.strategy.cluster.membership import Membership
from replicate.strategy.variables import variables

_log = logging.getLogger("replicate")
_SCOPE = "replicate_begin/"
_AGAIN = 0.5  # seconds until another session is made
_CLOSED = 3.0  # seconds after which a session is closed, or never will be
_OPEN: set[tf1.Session] = set()  # not closed yet: one that is thrown away would be deleted
_NOT_YET = (
    tf.errors.AbortedError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)


class _Scaffold(tf1.train.Scaffold):
    """A scaffold whose sessions wait for others, and begin with what these have made.

    Args:
        inner: The scaffold of the model, or None.
        joined: What workers run together, and all tasks must have alike.
        hook: Its `making` is entered where the n-th session is made, with what this task has
            built. It waits for others, gives what sessions run once their variables are ready,
            which counts for the first one, and once the graph is complete follows what others
            have made.
    """

    def __init__(
        self, inner: tf1.train.Scaffold | None, joined: ends.Input, hook: "_Workers | _Servers"
    ):
        self._joined = joined
        self._making = hook.making
        self._built: manifest.Manifest = {}
        self._sessions = 0
        # NOTE: only the first worker makes values; the others are ready to be given them.
        ready = None if joined.workers.is_first else tf.constant([], tf.string)
        super().__init__(copy_from_scaffold=inner, ready_for_local_init_op=ready)

    def built(self) -> manifest.Manifest:
        """Returns what this task was given, and has built."""
        return manifest.of(self._joined.compared, self._joined.workers)

    def finalize(self) -> "_Scaffold":
        """See base class; once for each session that is made."""
        self._sessions += 1
        self._built = self._built or self.built()  # before there is what tasks do not have alike
        with self._making(self._sessions, self._built) as operations:
            if self._sessions == 1:
                local: tf.Operation | None = self._local_init_op
                if local is None:
                    keys = "local_init_op", tf1.GraphKeys.LOCAL_INIT_OP
                    local = self.get_or_default(*keys, self.default_local_init_op)
                self._local_init_op: tf.Operation = tf1.group(local, *operations)
            super().finalize()
        return self


# Workers that take each step together.


def together(
    spec: types.EstimatorSpec,
    member: Membership,
    joined: ends.Input,
    agree: Callable[[manifest.Manifest], None],
) -> types.EstimatorSpec:
    """Returns a spec whose sessions begin alike, and of which each step runs all that is joined.

    Args:
        spec: The EstimatorSpec.
        member: This worker.
        joined: What workers run together; a worker that is alone runs what it has.
        agree: Compares a manifest with those of the others.
    """
    workers = joined.workers
    if not isinstance(workers, collectives.CollectiveWorkers):
        return spec

    is_training = spec.mode == types.TRAIN
    hooks = "training_hooks" if is_training else "evaluation_hooks"
    meeting = workers.meeting() if is_training else None
    hook = _Workers(member, joined, agree, meeting)
    return _run_all(spec, workers.made)._replace(
        scaffold=_Scaffold(spec.scaffold, joined, hook),
        **{hooks: (*(getattr(spec, hooks) or ()), hook)},
    )


def _run_all(spec: types.EstimatorSpec, made: Sequence[tf.Operation]) -> types.EstimatorSpec:
    """Returns a spec of which each step runs all that workers join.

    NOTE: the chief alone fetches summaries. What these are made of must not wait for a worker
    that fetches none.
    """
    if spec.mode == types.TRAIN:
        return spec._replace(train_op=tf1.group(spec.train_op, *made, name="train_together"))
    with tf1.control_dependencies(made):
        loss = tf.identity(spec.loss)
    metrics = {
        name: (value, tf1.group(update, *made))
        for name, (value, update) in (spec.eval_metric_ops or {}).items()
    }
    return spec._replace(loss=loss, eval_metric_ops=metrics)


def first_values(workers: collectives.Workers) -> list[tf.Operation]:
    """Returns what all workers' sessions run first, once the first worker has its values.

    Raises:
        ValueError: If a variable is each tower's own, and its sum is saved: the first worker
            saves alone.
    """
    workers = workers.apart("start")
    members: list[tf.Variable] = []
    for variable in tf1.global_variables():
        is_own = isinstance(variable, variables.TowerLocalVariable)
        if is_own and variable.aggregation == variables.SUM:
            raise ValueError(
                "The first worker of a cluster saves alone, and has no other worker's part of a "
                f"sum: {variable.name} is each tower's own (ON_READ) and is added up. Make it "
                "ON_WRITE, with aggregation=tf.VariableAggregation.SUM, or put it into the "
                "collection of local variables."
            )
        members += operations.copies_of(variable)
    found = workers.from_first([_value(variable, workers.is_first) for variable in members])
    assigned = [
        variable.assign(value, read_value=False)
        for variable, value in zip(members, found, strict=True)
        if not workers.is_first
    ]
    return [*assigned, *(value.op for value in found)]


def _value(variable: tf.Variable, is_first: bool) -> tf.Tensor:
    if is_first or not variable.shape.is_fully_defined():
        return tf.identity(variable.read_value())
    if variable.dtype.base_dtype == tf.string:
        return tf.identity(variable.initial_value)
    with tf.device(variable.device):
        return tf.zeros(variable.shape, variable.dtype.base_dtype)


class _Workers(tf1.train.SessionRunHook):
    """Begins sessions alike, names lost workers where a run fails, and announces the end.

    Args:
        member: This worker.
        joined: What workers run together.
        agree: Compares a manifest with those of the others.
        meeting: In what all meet at last; None: in nothing.
    """

    def __init__(
        self,
        member: Membership,
        joined: ends.Input,
        agree: Callable[[manifest.Manifest], None],
        meeting: tf.Operation | None,
    ):
        self._member = member
        self._joined = joined
        self._agree = agree
        self._meeting = meeting
        self._is_in_step = False
        self._has_failed = False

    @contextlib.contextmanager
    def making(self, number: int, built: manifest.Manifest) -> Iterator[Sequence[tf.Operation]]:
        """See `_Scaffold`."""
        if number > 1:  # NOTE: who has lost another one cannot meet the others again.
            raise self._member.lost(errors.RunError("the session was lost"))
        yield first_values(self._joined.workers)
        self._agree(built)
        sessions.watch_runs(tf1.get_default_graph(), self._member.watched)

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        """See base class."""
        # NOTE: what a step raises no hook hears of; and of some of it a session makes a new one.
        run = session.run

        def step(*args: Any, **kwargs: Any) -> Any:
            try:
                result = run(*args, **kwargs)
            except Exception:
                self._has_failed |= self._is_in_step  # hooks run more, as the one that saves
                raise
            self._is_in_step = False  # whatever other hooks make of the step
            return result

        session.run = step

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:
        """See base class."""
        self._is_in_step = True

    def end(self, session: tf1.Session) -> None:
        """See base class; where all workers' input has ended in a step, all know of it."""
        signal = self._joined.end
        if signal is not None and not (self._is_in_step or self._has_failed):
            with contextlib.suppress(tf.errors.OutOfRangeError):
                session.run(signal.ended, {signal.brought: ends.LEAVING})
        if self._meeting is not None:
            # NOTE: this hook comes behind the one that saves. When a worker goes on, the chief's
            # last checkpoint is there: what evaluates, or asks whether max_steps are reached. The
            # step before has failed, as one does in which input ends.
            session.run(self._meeting)


def warn_of_no_checkpoint(own: str, config: types.RunConfig | None) -> None:
    """Warns if a worker that is no chief would evaluate or predict with new variables.

    Args:
        own: The worker, as people call it.
        config: The RunConfig, or None.
    """
    directory = getattr(config, "model_dir", None)
    if directory and not tf.train.latest_checkpoint(directory):
        messages.warn(
            f"{own} has no checkpoint in its model_dir, {directory}: its variables are new. The "
            "chief alone writes checkpoints; let all workers reach its model_dir.",
            "machines.md#what-workers-share",
        )


# With parameter servers.


def beside_servers(
    spec: types.EstimatorSpec,
    member: Membership,
    home: str,
    config: types.RunConfig,
    joined: ends.Input,
) -> types.EstimatorSpec:
    """Returns a spec whose sessions wait for parameter servers and the chief.

    Args:
        spec: The EstimatorSpec of mode TRAIN.
        member: This process.
        home: Its device.
        config: The RunConfig, which has a master.
        joined: What chief and workers must have alike.
    """
    member.start()
    if not getattr(config.session_config, "device_filters", ()):
        messages.warn(
            f"The session of {member.cluster.own.device} waits for all other workers: its "
            "session_config has no device_filters. Leave session_config out of RunConfig, or call "
            "ParameterServerStrategy.configure(session_config).",
            "machines.md#what-workers-share",
        )
    given = (*spec.training_hooks, *spec.training_chief_hooks)
    waiting = [hook for hook in given if isinstance(hook, synchronous.Hook)]
    servers = _Servers(member, home, config, waiting)
    scaffold = _Scaffold(spec.scaffold, joined, servers)
    return spec._replace(scaffold=scaffold, training_hooks=(servers, *spec.training_hooks))


class _Servers(tf1.train.SessionRunHook):
    """What the chief writes down on the first server, and workers look at.

    These end with the chief, after a step. A chief that is stopped tells nobody: it may come back,
    and workers go on. Synchronous steps wait for other workers: each is bounded, and names who is
    lost. Nobody waits until a session is closed.

    Args:
        member: This process.
        home: Its device.
        config: The RunConfig.
        waiting: The hooks of synchronous steps, in which workers wait for the chief.
    """

    def __init__(
        self,
        member: Membership,
        home: str,
        config: types.RunConfig,
        waiting: Sequence[synchronous.Hook],
    ):
        self._member = member
        self._is_chief = member.cluster.is_chief
        self._is_stopping = member.cluster.is_stopping
        self._home = home
        self._config = config
        self._waiting = waiting
        self._missing: tf.Tensor | None = None
        self._place = member.cluster.servers[0].named("/device:CPU:0")
        with reductions.alone_on(self._place, _SCOPE):
            options = {"trainable": False, "collections": [], "use_resource": True}
            self._kept = tf1.Variable("", name="built", **options)
            self._over = tf1.Variable(False, name="over", **options)
            self._written = self._kept.read_value()
            self._end = self._over.assign(True, read_value=False)
            self._is_over = self._over.read_value()

    @contextlib.contextmanager
    def making(self, number: int, built: manifest.Manifest) -> Iterator[Sequence[tf.Operation]]:
        """See `_Scaffold`; in a worker waits until the chief has made the variables."""
        if number > 1:
            time.sleep(_AGAIN)  # TensorFlow tries again at once what has failed at once
        self._member.wait_for(self._member.cluster.servers)
        if number > 1:
            yield ()
        elif self._is_chief:
            with reductions.alone_on(self._place, _SCOPE):
                begun = self._over.assign(False, read_value=False)
                with tf1.control_dependencies([begun]):
                    written = self._kept.assign(json.dumps(built), read_value=False)
            yield (written,)
        else:
            with reductions.alone_on(self._home, _SCOPE):
                self._missing = tf1.report_uninitialized_variables(tf1.global_variables())
            yield ()
        if not self._is_chief:
            self._follow(built)

    def _follow(self, built: manifest.Manifest) -> None:
        hint = (
            "Look at the log of the chief, and start it again. All processes must run the same "
            "model, with the same config and packages."
        )
        with tf1.Session(self._config.master, config=self._config.session_config) as session:
            _close_soon(session)
            missing = lambda: "" if self._is_ready(session, built) else "the chief"  # noqa: E731
            self._member.wait_until(missing, hint)

    def _is_ready(self, session: tf1.Session, built: manifest.Manifest) -> bool:
        try:
            written = session.run(self._written).decode()
        except _NOT_YET:
            return False
        found = json.loads(written)
        chiefs = {name: found.get(name, "none") for name in built}  # it may have more
        manifest.require_alike({"the chief": chiefs, self._member.cluster.name: built})
        return not len(session.run(self._missing))

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        """See base class."""
        _close_soon(session)
        if self._waiting:
            sessions.bound_runs(session.graph, self._member.timeout)
            sessions.watch_runs(session.graph, self._member.watched)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        """See base class."""
        ends_alone = self._is_chief or self._is_stopping is None
        return tf1.train.SessionRunArgs(None if ends_alone else self._is_over)

    def after_run(
        self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues
    ) -> None:
        """See base class."""
        if run_values.results:
            _log.info("The chief has ended the training; this worker ends as well.")
            run_context.request_stop()

    def end(self, session: tf1.Session) -> None:
        """See base class."""
        if self._is_chief and self._is_stopping is not None and not self._is_stopping():
            with contextlib.suppress(tf.errors.OpError):  # then nobody is there to be told
                session.run(self._end)
                for hook in self._waiting:
                    session.run(hook.release)


def _close_soon(session: tf1.Session) -> None:
    """Changes how a session is closed: in a thread, which is waited for a few seconds.

    NOTE: TensorFlow waits for each server to forget the session, also for one that is gone, until
    it has come back; nobody could say meanwhile that it is gone. It also closes a session that is
    thrown away, even while the process ends: then no thread begins any more, and who starts one
    waits for it for ever. What is left open at the end is the servers' to forget.
    """
    own = session.close
    _OPEN.add(session)

    def forget() -> None:
        try:
            own()
        except tf.errors.OpError as reason:
            _log.info("A session ended before it was closed: %s", reason.message)
        finally:
            _OPEN.discard(session)

    def close() -> None:
        if is_closed.is_set() or sys.is_finalizing():
            return
        is_closed.set()
        closing = threading.Thread(target=forget, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSED)

    is_closed = threading.Event()
    session.close = close
