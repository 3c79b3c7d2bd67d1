"""How subjects and measures are named; nothing here imports TensorFlow."""

from typing import NamedTuple

KINDS = ("one", "ours", "mirrored", "central", "loop", "limit", "bound", "servers", "sliced")
ON_SERVERS = ("servers", "sliced")
IN_CLUSTERS = ("ours", "mirrored", "one", *ON_SERVERS)
MODELS = ("mlp", "cnn", "deep", "embedding", "table", "bert", "wide", "tagger")
BUILDINGS = ("call", "split")
STRATEGIES = ("parameter_server", "round_robin", "balanced", "sliced", "mirrored")
NO_NCCL, XLA = "no_nccl", "xla"
BESIDE = "@beside"


class Measure(NamedTuple):
    """One thing that is measured.

    Attributes:
        title: With its unit.
        decimals: How many are shown.
        is_better_high: Whether more is better.
    """

    title: str
    decimals: int
    is_better_high: bool = False


MEASURES = {
    "build": Measure("building the training graph, seconds", 2),
    "first": Measure("from the start of building to the end of the first step, seconds", 2),
    "steps": Measure("steps per second", 1, True),
    "nodes": Measure("nodes of the training graph, session set-up included", 0),
    "memory": Measure("peak memory of the process, MB", 0),
    "growth": Measure("peak memory that the steps after the first add, MB", 1),
    "checkpoint": Measure("saving a checkpoint, seconds", 3),
    "predict": Measure("rows predicted per second", 0, True),
    "export": Measure("exporting a SavedModel, seconds", 2),
}
OF_CLUSTERS = {
    "steps": MEASURES["steps"],
    "collectives": Measure("collectives in a step", 0),
    "sent": Measure("bytes that the chief sends in a step, counted by relays", 0),
    "sent by formula": Measure("bytes that the chief sends in a step, by the formula", 0),
    "received": Measure("bytes that the chief receives in a step, counted by relays", 0),
    "received by formula": Measure("bytes that the chief receives in a step, by the formula", 0),
}


class Request(NamedTuple):
    """What a process measures.

    Attributes:
        subject: As on the command line.
        model: One of `MODELS`.
        towers: K.
        workers: How many such processes there are.
        measures: Some of `MEASURES` or of `OF_CLUSTERS`, or `profile`, `graph`, `turns` or `gpus`.
        seconds: How long steps and predictions are timed.
        is_fed: Whether batches come from a dataset; else they are on their devices already.
        on_cpu: Whether GPUs are left alone.
        graphs: Where the training graph is written (`graph`), or what runs in turns (`turns`).
    """

    subject: str
    model: str
    towers: int
    workers: int
    measures: tuple[str, ...]
    seconds: float
    is_fed: bool
    on_cpu: bool
    graphs: tuple[str, ...] = ()


class Subject(NamedTuple):
    """Who is measured.

    Attributes:
        text: As it was written, e.g. `ours:call:mirrored:own`.
        kind: One of `KINDS`.
        tower_building: Of ours; None: the default.
        strategy: Of ours.
        has_own_optimizer: Of ours: whether the model_fn uses its own optimizer, or
            `optimizer_fn` is given.
        has_nccl: Of ours under `mirrored`: whether NCCL adds up between GPUs, else one of them.
        has_xla: Whether XLA compiles what it can of a step.
        is_beside: Whether it runs from the other checkout.
    """

    text: str
    kind: str
    tower_building: str | None = None
    strategy: str = "parameter_server"
    has_own_optimizer: bool = False
    has_nccl: bool = True
    has_xla: bool = False
    is_beside: bool = False


def parse(text: str) -> Subject:
    """Reads a subject.

    Raises:
        ValueError: If there is none of that name, or an option that it does not have.
    """
    kind, *options = text.removesuffix(BESIDE).split(":")
    subject = Subject(text, kind, is_beside=text.endswith(BESIDE))
    if XLA in options:
        subject = subject._replace(has_xla=True)
        options.remove(XLA)
    if kind not in KINDS or (options and kind != "ours"):
        raise ValueError(
            f"A subject is one of {', '.join(KINDS)}, and only ours has options but xla, as in "
            f"ours:call:mirrored:own; got {text!r}."
        )
    for option in options:
        if option in BUILDINGS:
            subject = subject._replace(tower_building=option)
        elif option in STRATEGIES:
            subject = subject._replace(strategy=option)
        elif option == "own":
            subject = subject._replace(has_own_optimizer=True)
        elif option == NO_NCCL:
            subject = subject._replace(has_nccl=False)
        else:
            allowed = ", ".join((*BUILDINGS, *STRATEGIES, "own", NO_NCCL, XLA))
            raise ValueError(f"The options of ours are {allowed}; got {option!r} in {text!r}.")
    return subject
