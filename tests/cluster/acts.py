"""What the chief and the worker of a cluster with parameter servers do, act by act."""

import functools
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import replicate
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster, membership
from tests.cluster import cases, task

estimators = replicate.estimator

ROWS = ((5, 3, 4, 1),)  # of the batches of the only worker
CASES = {
    "sgd": cases.Case(cases.mean, cases.descend, ROWS),
    "adam_penalized": cases.Case(cases.penalized, cases.adam, ROWS),
    "embedding_adam": cases.Case(cases.embedded, cases.adam, ROWS),
    "parted": cases.Case(cases.parted, cases.momentum, ROWS),
    "sliced": cases.Case(cases.embedded, lambda: tf1.train.AdagradOptimizer(0.1), ROWS),
    "clipped": cases.Case(cases.penalized, None, ROWS, train=cases.clipped),
    "static": cases.Case(cases.masked, cases.adam, ((4, 4, 4),), is_static=True),
    "accumulated": cases.Case(cases.mean, cases.adam, ROWS, {"accumulate_steps": 2}),
}
CALLED = ("sgd", "accumulated")  # cases whose model is called for each tower
SAVED = "adam_penalized"  # the case of which there are checkpoints


def serve(folder: pathlib.Path) -> None:
    """Keeps variables until the process is killed, as `train_and_evaluate` does."""
    estimator = made(folder, "async", asynchronous(), lambda: tf1.train.AdamOptimizer(0.05))
    estimators.train_and_evaluate(estimator, train_spec(), eval_spec())


def evaluate(folder: pathlib.Path) -> None:
    """Evaluates the checkpoints of the asynchronous act until its end."""
    estimator = made(folder, "async", asynchronous(), lambda: tf1.train.AdamOptimizer(0.05))
    estimators.train_and_evaluate(estimator, train_spec(), eval_spec())
    found = estimator.evaluate(rows, steps=3, name="again")
    (folder / "evaluator.json").write_text(json.dumps(found, default=float))


def train(folder: pathlib.Path, own: str) -> None:
    """Goes through all acts, as the chief or the worker.

    The worker's server is that of TensorFlow's own `train_and_evaluate`.
    """
    company = task.Company(folder, own)
    together = async_act, alone, synchronous, ending
    losing = losing_a_worker, losing_together, lost_at_first, lost
    for act in (*together, differing, recovering, *losing):
        name = act.__name__
        company.meet(f"{name}-begins")
        act(company)
        company.meet(f"{name}-ends")
        if company.is_chief and not (folder / "worker-is-gone").exists():
            reset()


def reset() -> None:
    """Lets all tasks forget all variables; it waits for each of them."""
    config = estimators.RunConfig()
    tf1.Session.reset(config.master, config=config.session_config)


def made(folder, name: str, model: Callable, optimizer: Callable | None, **options) -> Any:
    """Returns an Estimator."""
    steps = options.pop("save_steps", None)
    config = estimators.RunConfig(
        model_dir=str(folder / name),
        log_step_count_steps=None,
        save_summary_steps=2,
        save_checkpoints_steps=steps,
        save_checkpoints_secs=None,
        experimental_max_worker_delay_secs=0,
    )
    options = {"devices": task.TOWERS, **options}
    if isinstance(options.get("strategy"), replicate.DistributionStrategy):
        del options["devices"]
    replicated = replicate.replicate_model_fn(model, optimizer, **options)
    return estimators.Estimator(replicated, config=config)


class Seen(tf1.train.SessionRunHook):
    """Looks on: where variables are, how many steps there were, what comes out.

    Args:
        each: Is called after each step with its number.
    """

    def __init__(self, each: Callable = lambda number, session: None):
        self.each = each
        self.steps = 0
        self.places: dict = {}
        self.values: dict = {}
        self.operations: dict = {}

    def begin(self):
        shown = [*tf1.global_variables(), *tf1.local_variables()]
        members = [(v.op.name, v, getattr(v, "members", (v,))) for v in shown]
        self.places = {name: [copy.device for copy in copies] for name, _, copies in members}
        self._fetched = {
            v.op.name.replace("/", "|"): v.read_value() for v in tf1.global_variables()
        }
        for op in tf1.get_default_graph().get_operations():
            self.operations.setdefault(op.type, set()).add(op.device)

    def after_run(self, context, values):
        self.steps += 1
        self.each(self.steps, context.session)

    def end(self, session):
        self.values = session.run(self._fetched)


# One worker alone, with two parameter servers.


def alone(company: task.Company) -> None:
    """The chief trains each case by itself; it is one device."""
    if not company.is_chief:
        return
    sliced = replicate.ParameterServerStrategy(task.TOWERS, slice_bytes=1)
    strategies = {SAVED: "balanced", "sliced": sliced}
    for name, case in CASES.items():
        building = "call" if name in CALLED else "split"
        train_case(company, name, case, building, strategies.get(name))
        if name == "static":
            train_case(company, "one_tower", case, building, None, devices=1)
        if name == "sliced":
            sliced = replicate.ParameterServerStrategy(1, slice_bytes=1)
            train_case(company, "sliced_one_tower", case, building, sliced)
    restored(company)


def train_case(company, act, case, building, strategy, folder=None, **more) -> None:
    """Trains the first worker's batches of a case."""
    estimator = made(
        company.folder,
        folder or act,
        cases.model_of(case, estimators.EstimatorSpec),
        case.optimizer,
        tower_building=building,
        strategy=strategy,
        save_steps=1000 if (folder or act) == SAVED else None,
        **{**case.options, **more},
    )
    given, seen = cases.batches_of(case, 0), Seen()
    # In one step more than there are batches TensorFlow may let averages of slices decay.
    estimator.train(lambda: cases.dataset(case, given), hooks=[seen], steps=len(given))
    company.save(act, seen.values)
    types = {kind: sorted(devices) for kind, devices in seen.operations.items()}
    company.tell(act, places=seen.places, types=types)
    reset()


def restored(company) -> None:
    """The checkpoint of a case goes on for as many steps."""
    train_case(company, "restored", CASES[SAVED], "split", None, folder=SAVED)


# Two workers that wait for nobody.


def asynchronous() -> Callable:
    """A line through points, whose slope is to be found."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [1, 1], tf.float64, tf1.zeros_initializer())
        b = tf1.get_variable("b", [1], tf.float64, tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(features["x"] @ w + b - labels))
        metrics = {"slope": tf1.metrics.mean(w)} if mode == "eval" else None
        return estimators.EstimatorSpec(
            mode, loss=loss, train_op=tf.no_op(), eval_metric_ops=metrics
        )

    return model


def rows() -> tf.data.Dataset:
    """Points on the line y = 2 x + 1, seven at a time."""
    x = tf.cast(tf.linspace(-1.0, 1.0, 21), tf.float64)[:, tf.newaxis]
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 2.0 * x + 1.0)).repeat().batch(7)


def train_spec(hooks=()):
    return estimators.TrainSpec(rows, max_steps=task.STEPS, hooks=hooks)


def eval_spec():
    return estimators.EvalSpec(rows, steps=3, start_delay_secs=0, throttle_secs=1)


def async_act(company) -> None:
    """Both train; each step is one worker's, and counts."""
    estimator = made(
        company.folder,
        "async",
        asynchronous(),
        lambda: tf1.train.AdamOptimizer(0.05),
        save_steps=20,
    )
    seen = Seen(lambda number, session: time.sleep(0.02))
    version = estimators if company.is_chief else estimators.v1
    version.train_and_evaluate(estimator, train_spec([seen]), eval_spec())
    company.tell("async", places=seen.places, steps=seen.steps, step=seen.values["global_step"])


# Two workers that wait for each other.


def sync(inner: Callable) -> Any:
    return tf1.train.SyncReplicasOptimizer(inner(), 2, 2)


def inside(case: cases.Case) -> Callable:
    """A model that has its own optimizer, and brings the hook of it."""
    plain = cases.model_of(case, estimators.EstimatorSpec)

    def model(features, labels, mode, config):
        spec = plain(features, labels, mode)
        optimizer = sync(case.optimizer)
        train_op = optimizer.minimize(spec.loss, tf1.train.get_global_step())
        hook = optimizer.make_session_run_hook(config.is_chief, num_tokens=0)
        return spec._replace(train_op=train_op, training_hooks=[hook])

    return model


def synchronous(company) -> None:
    """Weights are those of one device that has both workers' batches together."""
    for name, is_inside in (("sync", False), ("sync_inside", True)):
        case = synchronous_case(name)
        number = 0 if company.is_chief else 1
        model = inside(case) if is_inside else cases.model_of(case, estimators.EstimatorSpec)
        optimizer = None if is_inside else functools.partial(sync, case.optimizer)
        estimator = made(company.folder, name, model, optimizer)
        # NOTE: a worker that is quick might take the token that is meant for the other one.
        seen = Seen(lambda step, session, name=name: company.meet(f"{name}-step-{step}"))
        given = cases.batches_of(case, number)
        estimator.train(
            lambda: cases.dataset(case, given).repeat(),  # noqa: B023
            max_steps=task.SYNCHRONOUS,
            hooks=[seen],
        )
        company.save(name, seen.values)
        company.tell(name, steps=seen.steps, places=seen.places)
        company.meet(f"{name}-ends")
        if company.is_chief:
            reset()
        company.meet(f"{name}-is-over")


def synchronous_case(name: str) -> cases.Case:
    """The mean over both workers' rows is the mean of their means, as both have four rows."""
    optimizer = cases.momentum if name == "sync" else cases.adam
    return cases.Case(cases.mean, optimizer, ((4,) * task.SYNCHRONOUS, (4,) * task.SYNCHRONOUS))


# A chief that ends before the worker does.

ENDS = {
    "over": (False, lambda: tf1.train.AdamOptimizer(0.05)),
    "over_sync": (False, lambda: sync(lambda: tf1.train.GradientDescentOptimizer(0.05))),
    "stopped": (True, lambda: tf1.train.AdamOptimizer(0.05)),
}


def ending(company) -> None:
    """The worker ends with the chief, unless that was only stopped."""
    for name, (is_stopped, optimizer) in ENDS.items():
        stop = lambda is_it=is_stopped and company.is_chief: is_it  # noqa: E731
        found = cluster.of()._replace(is_stopping=stop)
        strategy = replicate.ParameterServerStrategy(task.TOWERS, found)
        estimator = made(company.folder, name, asynchronous(), optimizer, strategy=strategy)
        steps = task.CHIEFS if company.is_chief else task.MANY if not is_stopped else task.STEPS
        seen = Seen(lambda number, session: time.sleep(0.02))
        estimator.train(rows, max_steps=steps, hooks=[seen])
        company.tell(name, step=seen.values["global_step"])
        company.meet(f"{name}-ends")
        if company.is_chief:
            reset()
        company.meet(f"{name}-is-over")


# What goes wrong.


def differing(company) -> None:
    """The worker makes a variable that the chief has not made: it is told so, and ends."""
    plain = asynchronous()

    def model(features, labels, mode):
        if not company.is_chief:
            tf1.get_variable("first", [3])
        return plain(features, labels, mode)

    estimator = made(company.folder, "differing", model, lambda: tf1.train.AdamOptimizer(0.05))
    if company.is_chief:
        estimator.train(rows, steps=1, hooks=[])
        company.note("differing-trained")
        company.await_file("differing-worker.json")
        return
    company.await_file("differing-trained")
    company.tell("differing", said=said_by(lambda: estimator.train(rows, steps=1)))


def said_by(action: Callable) -> str:
    """Returns what an action raises."""
    try:
        action()
    except Exception as e:  # noqa: BLE001 - it is looked at by the test
        return f"{type(e).__name__}: {e}"
    return ""


def patient(company, name: str, steps: int, **options) -> Any:
    strategy = replicate.ParameterServerStrategy(task.TOWERS, **options)
    return made(
        company.folder,
        name,
        asynchronous(),
        lambda: tf1.train.AdamOptimizer(0.05),
        strategy=strategy,
        save_steps=steps,
    )


def recovering(company) -> None:
    """A parameter server is killed and started again: both go on from the last checkpoint."""
    estimator = patient(company, "recovering", 5)

    def each(number, session):
        if company.is_chief and number == 12:
            company.note("kill-ps")
        time.sleep(0.02 if (company.folder / "ps-again").exists() else 0.1)

    seen = Seen(each)
    estimator.train(rows, max_steps=task.STEPS, hooks=[seen])
    company.tell("recovering", step=seen.values["global_step"], w=seen.values["w"].tolist())


def losing_a_worker(company) -> None:
    """The worker is killed: the chief goes on alone."""
    estimator = patient(company, "losing", 5)

    def each(number, session):
        if not company.is_chief and number == 3:
            task.kill_self()
        if company.is_chief and number == 5:
            company.await_file("worker-is-gone")

    seen = Seen(each)
    estimator.train(rows, max_steps=30, hooks=[seen])
    company.tell("losing", step=seen.values["global_step"])
    company.meet = lambda name: None  # nobody comes any more


def losing_together(company) -> None:
    """In synchronous steps the chief waits for the worker that was killed, and names it."""
    strategy = replicate.ParameterServerStrategy(task.TOWERS, timeout=task.WAITED)
    optimizer = functools.partial(sync, lambda: tf1.train.GradientDescentOptimizer(0.05))
    estimator = made(company.folder, "together", asynchronous(), optimizer, strategy=strategy)
    begun = time.monotonic()
    text = said_by(lambda: estimator.train(rows, max_steps=30))
    company.tell("losing_together", said=text, lasted=time.monotonic() - begun)


def lost_at_first(company) -> None:
    """A parameter server is killed while a session is made: the chief ends, and says which."""
    plain, begun = asynchronous(), []

    def wait():
        company.note("kill-ps-at-first")
        company.await_file("ps-was-killed")
        begun.append(time.monotonic())
        return 0.0

    def model(features, labels, mode):
        tf1.get_variable("w", [1, 1], tf.float64)
        b = tf1.get_variable("b", [1], tf.float64)  # is on the second server
        with tf1.control_dependencies([tf1.py_func(wait, [], tf.float64)]):
            after = b.read_value() + 0.0
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, after.op)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            return plain(features, labels, mode)

    strategy = replicate.ParameterServerStrategy(["/cpu:0"], timeout=task.WAITED)
    estimator = made(company.folder, "first", model, lambda: tf1.train.AdamOptimizer(0.05),
                     strategy=strategy)  # fmt: skip
    text = said_by(lambda: estimator.train(rows, max_steps=1000))
    company.tell("lost_at_first", said=text, lasted=time.monotonic() - begun[0])
    company.note("start-ps")
    while not membership.is_there(strategy.cluster.servers[1].address):
        time.sleep(0.02)


def lost(company) -> None:
    """A parameter server is killed for good: the chief ends, and says which."""
    estimator = patient(company, "lost", 5, timeout=task.WAITED)
    begun: list = []

    def each(number, session):
        if number == 7:
            company.note("kill-ps-for-good")
            company.await_file("ps-is-gone")
            begun.append(time.monotonic())

    text = said_by(lambda: estimator.train(rows, max_steps=1000, hooks=[Seen(each)]))
    company.tell("lost", said=text, lasted=time.monotonic() - begun[0])
