"""The steps of a training: what every worker does, be it the chief, another one or alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from replicate import errors, estimator
from replicate.app.config import input_config, sections
from replicate.app.data import inputs, reading, section_inputs
from replicate.app.runs import checkpoints
from replicate.app.training import (
    device_choice,
    estimators,
    hooks,
    running,
)
from replicate.compat.tensorflow import tf, tf1
from replicate.console import interrupts, messages
from replicate.graph import collectives
from replicate.splitting.lowering import stateless_draws
from replicate.splitting.structure import replacing
from replicate.strategy.cluster import membership

_MAX_NAMED = 3  # operations


class Steps:
    """One call of Estimator.train.

    Args:
        run: The run.
        goal: Where its training begins and ends.

    Attributes:
        estimator: The Estimator.
    """

    def __init__(self, run: running.Run, goal: running.Goal):
        settings, task = run.settings, run.task
        self._wanted = wanted = settings.section(sections.Train)
        self._run = run
        self._goal = goal
        self._shown = run.display.task(
            "train", goal.end, start=goal.start, every=wanted.log_every_steps
        )
        is_function = isinstance(wanted.input, input_config.Function)  # of batches of any size
        self._progress = hooks.TrainingHook(
            self._shown,
            goal.start,
            0 if is_function else wanted.input.batch_size,
            run.stop,
            run.model_dir if task.is_chief else None,
        )
        self._workers: collectives.Workers = collectives.ALONE
        self._own_hooks: Sequence[tf1.train.SessionRunHook] = ()
        self._strategy = device_choice.strategy_of(
            settings, task, goal.start, lambda: run.stop.requested
        )
        described = estimators.describe(settings, task, self._strategy)
        self.estimator = estimators.build(described, self._saved_once)
        # Now, so that what is wrong with it is told ahead of what follows training.
        self._input_fn = None if goal.is_reached else self._made_input_fn()

    @property
    def were_stopped(self) -> bool:
        """Whether they ended because somebody asked for it, here or in another worker."""
        return self._workers.was_left or self._run.stop.requested

    @property
    def ended_by(self) -> str:
        """What ended them where no goal did, in a word."""
        return running.INPUT if self._progress.is_waiting else running.HOOK

    def make(
        self,
        listener: tf1.train.CheckpointSaverListener | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> int:
        """Makes the steps; returns the step at which that ended.

        Args:
            listener: What is told of checkpoints; they are saved by the chief alone.
            begin: Called once input and hooks are found right; nothing is written before.
        """
        run, settings = self._run, self._run.settings
        offered = {
            "params": dict(settings.params),
            "model_dir": run.model_dir,
            "config": self.estimator.config,
        }
        self._own_hooks = hooks.of_config(self._wanted.hooks, offered)
        begin()
        with reading.naming(settings, "train"), self._others_may_be_gone():
            self.estimator.train(
                self._input_fn,
                hooks=[self._progress, *self._own_hooks],
                max_steps=self._goal.end,
                saving_listeners=None if listener is None else [listener],
            )
        self._shown.finish()
        made = self._progress.ended_at - self._goal.start
        if not run.task.servers and made > self._progress.runs:
            messages.warn(
                f"A run that continues passes over a batch for each step, and here {made} steps "
                f"read {self._progress.runs}: it leaves rows out. Increase the global step once a "
                "batch, or set epochs, and steps by what one epoch reads.",
                "stopping.md#what-continues",
            )
        if run.task.is_chief:
            return checkpoints.step_of(run.model_dir) or 0
        return self._progress.ended_at

    def pause(self) -> None:
        """Takes a time that was not spent on training out of what is shown of its speed."""
        self._shown.pause()

    def _made_input_fn(self) -> Callable[[], tf.data.Dataset]:
        settings, passes, task = self._run.settings, self._goal.epochs, self._run.task
        if passes is None:
            made = section_inputs.input_fn(settings, "train", task=task, start=self._goal.start)
        else:

            def made() -> tf.data.Dataset:
                found = passes.dataset()
                return inputs.own_part(found, task) if task.servers else found

        return section_inputs.alike(made, settings, task)

    def _saved_once(
        self, spec: estimator.EstimatorSpec, config: estimator.RunConfig
    ) -> estimator.EstimatorSpec:
        """Returns the spec of training with hooks that save."""
        settings, task = self._run.settings, self._run.task
        if self._strategy is not None and task.is_together:
            self._workers = self._strategy.workers
            number, limit = task.size - 1, settings.cluster.timeout
            self._run.display.say(
                f"{task.name} is ready, and waits for {number} other "
                f"worker{'' if number == 1 else 's'}, for {limit:g} seconds at most"
            )
        if settings.seed is not None and not task.servers:
            spec = self._keyed_by_step(spec)
        if not task.is_chief:
            return spec
        if any(isinstance(one, tf1.train.CheckpointSaverHook) for one in self._own_hooks):
            return spec
        savers = hooks.savers(spec, config, settings.evaluated_every)
        return spec._replace(training_chief_hooks=(*spec.training_chief_hooks, *savers))

    def _keyed_by_step(self, spec: estimator.EstimatorSpec) -> estimator.EstimatorSpec:
        """Lets a run with a seed that continues draw what it would have drawn without a stop."""
        graph, keys, scaffold = tf1.get_default_graph(), tf1.GraphKeys, spec.scaffold
        variables = [*tf1.global_variables(), *tf1.local_variables(), *tf1.model_variables()]
        first = [variable.initializer for variable in variables]
        first += graph.get_collection(keys.TABLE_INITIALIZERS)
        given = (scaffold.init_op, scaffold.local_init_op, scaffold.ready_op)
        first += [op for op in tf.nest.flatten(given) if op is not None]
        fetches = [spec.loss, spec.train_op, *graph.get_collection(keys.SUMMARIES)]
        keyed = stateless_draws.key_by_step(graph, tf1.train.get_global_step(), fetches, first)
        if keyed.left and self._goal.start:
            more = len(keyed.left) - _MAX_NAMED
            listed = ", ".join(sorted(keyed.left)[:_MAX_NAMED])
            listed += f", and {more} more" if more > 0 else ""
            self._run.display.say(f"random numbers begin again, as at step 0: {listed}")
        return spec._replace(loss=replacing.moved_to(keyed.moved, spec.loss))

    @contextlib.contextmanager
    def _others_may_be_gone(self) -> Iterator[None]:
        """Lets who was asked to stop do so where others have stopped already."""
        try:
            yield
        except (errors.ClusterError, *membership.POSSIBLE_LOSSES):
            task = self._run.task
            is_alone = task.size == 1 and not task.servers
            if is_alone or not self._run.stop.requested:
                raise
            raise interrupts.Interrupted(f"{task.name} stopped; others had gone") from None
