"""`DistributionStrategy`: what every strategy does, and the hooks a policy fills in.

A strategy decides four things: where variables live, how a function runs once per
tower, how values are reduced over towers, how variables are updated. Each public verb
checks the context and then calls a private hook that does the work. A policy (one
device, parameter server, mirrored) overrides the hooks only.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from replicate import devices as device_names
from replicate import types
from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, placement
from replicate.strategy import context, conversion, datasets, verbs
from replicate.strategy.cluster import cluster as clusters
from replicate.strategy.cluster import ends, membership
from replicate.strategy.towers import functions, lockstep, sharing
from replicate.strategy.towers import tower as towers
from replicate.strategy.variables import creation, values, variables


class DistributionStrategy(verbs.Verbs):
    """Runs a function once per tower, and keeps the towers' variables one model.

    Args:
        worker_devices: K devices on which the towers compute.
        parameter_devices: The devices on which variables live, if not on those of the towers.
        member: This process among the tasks of a cluster.

    Attributes:
        keeps_copies: Whether each variable has a copy on each device, as in a graph that is split.
        slice_bytes: Of how many bytes a variable may be that a split graph does not cut into
            slices, one on each parameter device; None: of any number.
    """

    is_default = False
    keeps_copies = False
    slice_bytes: int | None = None

    def __init__(
        self,
        worker_devices: Sequence[str],
        parameter_devices: Sequence[str] = (),
        member: membership.Membership = membership.ALONE,
    ):
        self._member = member
        self._parameter_devices = tuple(parameter_devices or worker_devices)
        self._functions = functions.Functions()
        super().__init__(worker_devices)

    # Who takes part.

    @property
    def cluster(self) -> clusters.Cluster:
        """The cluster that this process is in, which may be its only task."""
        return self._member.cluster

    @property
    def is_in_cluster(self) -> bool:
        """Whether other processes train the same model."""
        return self.cluster.is_joined

    @property
    def is_chief(self) -> bool:
        """Whether this process makes the variables, and writes checkpoints and summaries."""
        return self.cluster.is_chief

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices on which variables live and are updated."""
        return self._parameter_devices

    @property
    def home(self) -> str:
        """The device of what is computed once, across towers."""
        return self._parameter_devices[0]

    @property
    def worker_device_index(self) -> values.PerDevice:
        """Which tower computes on which device: in each tower, its number."""
        return values.PerDevice(range(self.num_towers), self._worker_devices)

    # Entering.

    @contextlib.contextmanager
    def scope(self) -> Iterator["DistributionStrategy"]:
        """Enters cross-tower context, in which this strategy makes the variables.

        Raises:
            RuntimeError: If another strategy's scope, or a tower, is current.
        """
        mode = context.current()
        if mode is not None and mode.strategy is not self:
            raise RuntimeError(
                "Only one strategy may be in charge at a time: entered the scope of "
                f"{self!r} inside that of {mode.strategy!r}. Leave the first scope before."
            )
        if mode is not None and mode.tower is not None:
            raise RuntimeError(
                f"scope() is entered across towers, but this is tower {mode.tower.position}. "
                "A tower is in the scope already; use merge_call to leave it."
            )
        with contextlib.ExitStack() as stack:
            if mode is None:
                stack.enter_context(context.across(context.Mode(self)))
                stack.enter_context(self._making())
                stack.enter_context(graphs.entered_with(self._inherited))
            yield self

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """Enters, in the current graph, what a scope is to whoever makes variables."""
        with (
            tf.variable_creator_scope(self._creator),
            creation.without_partitioners(self),
            self._default_device(),
        ):
            yield

    @contextlib.contextmanager
    def _inherited(self, graph: tf.Graph) -> Iterator[None]:
        """Enters the scope in a graph that is entered inside of it.

        A tower's own graph is its own affair: what it makes there no other tower shares.
        """
        mode = context.current()
        is_mine = mode is not None and mode.strategy is self and mode.tower is None
        strategies = [entry.strategy for entry in graph._distribution_strategy_stack]
        if not is_mine or graph.finalized or self in strategies:
            yield
            return
        # NOTE: Estimators build graphs of their own, and make a metric of the loss in them, for
        # which `tf.compat.v1.metrics` asks for a replica.
        inside = tfc.distribute_lib._CrossReplicaThreadMode(self)
        inside.replica_context = towers.ReplicaContext(context.TowerContext(self, 0))
        with context.in_tensorflow(inside), self._making():
            devices = graph._device_function_stack
            try:
                yield
            finally:
                # NOTE: who leaves a function for its graph has others there, until it is back.
                graph._device_function_stack = devices

    @contextlib.contextmanager
    def merging(
        self, share: context.Share | None = None, is_tensorflows: bool = False
    ) -> Iterator[None]:
        """Enters cross-tower context from a tower, for the function of a merge call."""
        mode = context.Mode(self, share=share, is_tensorflows=is_tensorflows)
        with context.across(mode), tf.compat.v1.device(None):
            with self._default_device():
                yield

    def _default_device(self) -> contextlib.AbstractContextManager[object]:
        """Enters the device for what runs across towers: the first tower's, by default."""
        return tf.device(self._worker_devices[0])

    def may_move(self, name: str) -> bool:
        """Whether an operation of the current graph is where it is by this strategy alone."""
        del name
        return False

    # Towers.

    def call_for_each_tower(
        self,
        fn: types.Function,
        *args: types.Nest,
        run_concurrently: bool = False,
        **kwargs: types.Nest,
    ) -> types.Nest:
        """Runs `fn` once per tower, each in its tower context and on its device.

        Args:
            fn: The function.
            *args: Its positional arguments; PerDevice and Mirrored ones are unwrapped.
            run_concurrently: Whether eager towers may run at the same time between merge
                calls, once `fn` has run in all of them without making a variable. Whatever
                of Python they share is then used by several threads. Towers that build a
                graph run one after the other.
            **kwargs: Its keyword arguments, likewise.

        Returns:
            The K results as one nest. A leaf that is the same object in all towers is
            that object, copies of one variable are that variable, others a `PerDevice`.

        Raises:
            RuntimeError: If called in a tower, or outside of this strategy's scope.
            TowerMismatchError: If the towers do not make the same merge calls.
            Exception: What a tower raised, with the tower's number in its notes.
        """
        here = conversion.as_here(fn)
        with conversion.own_types():
            self._require_cross_tower("call_for_each_tower")
            device_names.require((*self._worker_devices, *self._parameter_devices))
            together = run_concurrently and self._functions.has_settled(fn)
            creations = sharing.Creations(self.num_towers)
            results = self.run_towers(here, args, kwargs, concurrent=together, creations=creations)
            self._functions.note(fn, bool(creations.all()))
            return values.regroup(results, devices=self._worker_devices)

    def run_towers(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: Mapping[str, types.Nest] | None = None,
        *,
        concurrent: bool = False,
        every_collection: bool = False,
        creations: sharing.Creations | None = None,
    ) -> list[types.Nest]:
        """Runs a function once per tower and returns the K results, not merged.

        A single tower runs in the caller's thread, several in threads of their own.

        Args:
            fn: The function.
            args: Positional arguments; distributed ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            concurrent: Whether eager towers may run at the same time between merge calls.
            every_collection: Whether each tower sees graph collections of its own.
            creations: The log of the towers' variables, in place of a new one.
        """
        share = context.share()
        log = creations or sharing.Creations(self.num_towers)

        def call(tower: context.TowerContext) -> types.Nest:
            i = tower.position
            with towers.entered(tower, share), self._tower_device(i):
                return fn(
                    *values.select_tower(i, tuple(args), self._worker_devices),
                    **values.select_tower(i, dict(kwargs or {}), self._worker_devices),
                )

        def body(thread: lockstep.TowerThread) -> types.Nest:
            return call(towers.in_lockstep(self, thread, log, share))

        if self.is_single_tower:
            with self._noted():
                results = [call(context.TowerContext(self, 0, share))]
        else:
            bodies = [body] * self.num_towers
            results = lockstep.run(bodies, log, concurrent, every_collection)
        graph = tf1.get_default_graph()
        if not (tf.executing_eagerly() or graph.building_function):
            placement.keep_beside_variables(graph)
        return results

    def _noted(self) -> contextlib.AbstractContextManager[None]:
        """Returns what adds to the notes of an exception that passes out of a single tower."""
        return lockstep.noted(0, 1)

    def _tower_device(self, tower_id: int) -> contextlib.AbstractContextManager[object]:
        """Enters the device of a tower's operations."""
        return tf.device(self._worker_devices[tower_id])

    def run(
        self,
        fn: types.Function,
        args: Sequence[types.Nest] = (),
        kwargs: Mapping[str, types.Nest] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> types.Nest:
        """Runs `fn` once per tower, entering the scope where needed.

        Args:
            fn: The function, which may be a `tf.function`: it is then traced once with all
                towers inside, and as its own options say.
            args: Positional arguments; distributed ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            options: As `tf.distribute` has them; they change nothing.
        """
        del options
        with self.scope():
            if hasattr(fn, "python_function") and hasattr(fn, "get_concrete_function"):
                call = self.call_for_each_tower
                return self._functions.run_traced(fn, call, tuple(args), dict(kwargs or {}))
            return self.call_for_each_tower(fn, *args, **(kwargs or {}))

    def distribute_dataset(
        self, dataset_fn: Callable[[], tf.data.Dataset]
    ) -> datasets.PerDeviceDataset:
        """Reads one dataset for all towers.

        Args:
            dataset_fn: Returns a `tf.data.Dataset` of batches; of K successive batches each
                tower gets one.

        Returns:
            A dataset whose iterators yield PerDevice elements on the towers' devices. At an
            uneven end a tower without a batch gets zero rows.

        Raises:
            ValueError: If `dataset_fn` returned something else.
        """
        if context.current() is not None:  # it makes no variable: no scope is needed
            self._require_mine("distribute_dataset")
        return datasets.PerDeviceDataset(dataset_fn(), self._worker_devices)

    # Variables.

    def _creator(self, next_creator: types.Function, **kwargs: Any) -> tf.Variable:
        """Makes a variable for whoever asks, in a tower or across towers."""
        if kwargs.get("variable_def") is not None:
            raise NotImplementedError(
                "A variable cannot be made from a proto under a distribution strategy: got the "
                f"proto of {kwargs['variable_def'].variable_name!r}. Import it outside the scope."
            )
        creation.require_known(kwargs)
        kwargs["use_resource"] = True
        mode = context.required()
        if mode.strategy is not self:
            return next_creator(**kwargs)
        return sharing.variable_for(
            mode.tower, kwargs, lambda: self._make_variable(next_creator, kwargs)
        )

    def _make_variable(self, next_creator: types.Function, kwargs: types.Arguments) -> tf.Variable:
        kwargs["distribute_strategy"] = self
        beside = kwargs.pop("colocate_with", None)
        if creation.is_tower_local(kwargs):
            places: Sequence[str] = self._worker_devices
        else:
            places = self._places(kwargs) if beside is None else self.destinations_of(beside)
        return creation.make(self, next_creator, kwargs, places)

    def _places(self, kwargs: types.Arguments) -> Sequence[str]:
        """Returns the devices of a new variable's copies; `""` for wherever it falls."""
        return self._worker_devices if self.keeps_copies else ("",)

    def _reduce_destinations(self, value: types.Nest) -> Sequence[str]:
        return self._worker_devices if self.keeps_copies else super()._reduce_destinations(value)

    @contextlib.contextmanager
    def colocate_vars_with(self, v: tf.Variable | Sequence[str]) -> Iterator[None]:
        """Variables made inside live where `v` lives.

        Args:
            v: A variable of this strategy, or what `non_slot_devices()` returned.
        """
        self._require_mine("colocate_vars_with")

        def beside(next_creator: types.Function, **kwargs: Any) -> tf.Variable:
            kwargs["colocate_with"] = v
            return next_creator(**kwargs)

        slots: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(v, variables.DistributedVariable):
            slots = v.making_slots()
        with slots, tf.variable_creator_scope(beside):
            yield

    def read_var(self, v: tf.Variable) -> tf.Tensor:
        """Returns a variable's value, aggregated over towers where it is tower-local."""
        self._require_mine("read_var")
        if isinstance(v, variables.DistributedVariable):
            return v.read_across()
        return tf.convert_to_tensor(v)

    # Sessions.

    def in_mode(self, mode: str, config: types.RunConfig | None) -> "DistributionStrategy":
        """Returns the strategy that does in a mode what this one does in training.

        Args:
            mode: The Estimator's mode.
            config: The RunConfig, or None.

        Raises:
            ConfigError: If sessions of the RunConfig cannot take part in the cluster.
        """
        del mode, config
        return self

    def workers_in(
        self, mode: str, config: types.RunConfig | None, is_export: bool
    ) -> collectives.Workers:
        """Returns the workers that build and run together what the current graph is made for.

        Args:
            mode: The Estimator's mode.
            config: The RunConfig, or None.
            is_export: Whether the graph is exported.

        Raises:
            ConfigError: If sessions of the RunConfig cannot take part in the cluster.
            RunError: If this worker exports, and is not the chief.
        """
        del mode, config, is_export
        return self.workers

    def begin_session(
        self, spec: types.EstimatorSpec, config: types.RunConfig | None, joined: ends.Input
    ) -> types.EstimatorSpec:
        """Returns an EstimatorSpec whose sessions begin and end as those of a cluster.

        Args:
            spec: The EstimatorSpec.
            config: The RunConfig, or None.
            joined: What workers run together.
        """
        del config, joined
        return spec

    def start(self) -> str:
        """Starts the server of this task of a cluster, once.

        Returns:
            The target of sessions that take part in the cluster; `""` where it is alone.
        """
        return self._member.start()

    def configure(self, session_config: tf1.ConfigProto | None) -> None:
        """Sets what suits this strategy in a `ConfigProto`, in place."""
        if session_config is not None:
            session_config.allow_soft_placement = True
            self._member.configure(session_config)

    # Refusals.

    def make_input_fn_iterator(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuses to be `train_distribute` or `eval_distribute`, for which Estimators ask for it.

        Raises:
            TypeError: Says to whom a strategy of ours is given.
        """
        raise TypeError(
            "RunConfig(train_distribute=..., eval_distribute=...) takes strategies of tf.distribute"
            f"; got {self!r}. Leave them out, and pass replicate_model_fn(model_fn, strategy=...) "
            "to the Estimator."
        )

    def experimental_distribute_dataset(self, dataset: object, options: object = None) -> NoReturn:
        """Refuses to split a dataset, as `fit`, `evaluate` and `predict` of Keras ask it to.

        Raises:
            NotImplementedError: Names what there is in its place.
        """
        del options
        raise NotImplementedError(
            f"{self!r} does not split a {type(dataset).__name__}, as fit(), evaluate() and "
            "predict() of a Keras model ask it to. Make and train that model in the scope of "
            "tf.distribute.MirroredStrategy, TensorFlow's own; or call replicate.estimator."
            "install() and pass tf.keras.estimator.model_to_estimator(model).model_fn to "
            "replicate_model_fn. A loop of your own takes strategy.distribute_dataset(dataset_fn)."
        )

    distribute_datasets_from_function = experimental_distribute_dataset

    @property
    def _scale_loss_for_estimator(self) -> bool:
        """Whether optimizers scale a tower's loss: not where a batch is split."""
        return context.share() is None

    @_scale_loss_for_estimator.setter
    def _scale_loss_for_estimator(self, value: bool) -> None:
        del value  # the base class initializes it; the rule above does not change

    def __repr__(self) -> str:
        return f"{type(self).__name__}(worker_devices={list(self._worker_devices)})"

    def __copy__(self) -> "DistributionStrategy":
        return self

    def __deepcopy__(self, memo: object) -> "DistributionStrategy":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A strategy cannot be pickled: {self!r} belongs to the devices and the variables of "
            "this process. Make it anew where it is needed, from the names of its devices."
        )
