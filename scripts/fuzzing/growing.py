"""Grows a random model_fn from a seed, line by line, in a graph in which each line is tried."""

import random
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from scripts.fuzzing import drawing, programs, running, vocabulary
from scripts.fuzzing.grammar import STEPS, endings
from tests import control_flow, exactness

LINES = 12  # the most that a model has, unless otherwise asked for
LARGEST = 4000  # items of a value
LOUDEST = 20.0  # the largest number of a value that is not squashed
KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool", "O": "text", "S": "text"}
STRATEGIES = ("parameter_server",) * 6 + ("mirrored", "mirrored", "round_robin", "balanced")


def grow(seed: int, lines: int = LINES) -> programs.Program:
    """Returns the random model of a seed, of at most so many lines."""
    drawn = random.Random(seed)
    program = _begin(seed, drawn)
    with control_flow.of_version(program.setting.control_flow), _Bench(program) as bench:
        wanted = drawn.randint(min(2, lines), lines)
        for number in range(5 * wanted):
            if len(bench.lines) >= wanted:
                break
            bench.add(f"v{number}", _filled(STEPS, drawn, bench, f"v{number}"))
        return _end(program, drawn, bench)


def _begin(seed: int, drawn: random.Random) -> programs.Program:
    """Draws how a model is run, and what it is given."""
    devices = drawn.choice((2, 2, 3, 3, 4, 6))
    is_static = drawn.random() < 0.4
    common = (1, 2, devices - 1, devices, devices + 1, 2 * devices, 5, 7)
    sizes = [drawn.choice(common) for _ in range(3)]
    setting = running.Setting(
        devices,
        tuple([sizes[0]] * 3 if is_static else sizes),
        drawn.choice(STRATEGIES),
        is_static,
        drawn.choice((1, 2)),
        drawn.choice((("train",), ("train",), ("train", "eval"), ("train", "infer"))),
    )
    features = [programs.Line("x0", _numbers(drawn, setting, drawn.choice((1, 2, 2, 2, 3, 3, 4))))]
    for number in range(1, drawn.randint(2, 4)):
        features.append(programs.Line(f"x{number}", _feature(drawn, setting)))
    labels = [
        programs.Line("y", "random.uniform(0, 1, rows)"),
        programs.Line("c", "random.randint(0, 3, rows)"),
    ]
    return programs.Program(
        f"Seed {seed} of scripts/fuzz_models.py.", setting, tuple(features), tuple(labels)
    )


def _lengths(setting: running.Setting) -> list[int]:
    """Lengths that rules break on."""
    rows = setting.sizes[0]
    return [1, 1, 2, 3, 4, setting.devices, rows, *([2 * rows] if rows < 4 else [])]


def _numbers(drawn: random.Random, setting: running.Setting, rank: int) -> str:
    shape = ["rows", *(str(drawn.choice(_lengths(setting))) for _ in range(rank - 1))]
    if rank > 1 and not setting.is_static and drawn.random() < 0.25:
        shape[1] = drawn.choice(("2 + number", "1 + number", "rows", "rows + 1"))
        return f"random.uniform(-1, 1, [{', '.join(shape)}]).view(running.Padded)"
    return f"random.uniform(-1, 1, [{', '.join(shape)}])"


def _feature(drawn: random.Random, setting: running.Setting) -> str:
    width = drawn.choice(_lengths(setting))
    return drawn.choice(
        (
            _numbers(drawn, setting, drawn.choice((1, 2, 2, 3))),
            "random.randint(0, 6, rows)",
            f"random.randint(0, 6, [rows, {width}])",
            "random.uniform(size=rows) < 0.5",
            f"sparse(random, rows, {width}, 6)",
            "ragged(random, rows, 6)",
            'random.choice([b"a", b"b", b"c"], rows).astype(object)',
            f"random.randint(0, {width + 1}, rows).astype(np.int32)",
        )
    )


def _filled(templates: Sequence, drawn: random.Random, bench: "_Bench", name: str) -> str:
    """Draws a template that fits, and fills it."""
    weights = [weight for weight, _ in templates]
    for _ in range(50):
        _, template = drawn.choices(templates, weights)[0]
        draw = drawing.Draw(drawn, bench.values, bench.lengths, name)
        try:
            if text := template(draw):
                return text
        except drawing.NothingFitsError:
            continue
    return "tf.identity(x0)"


def _end(program: programs.Program, drawn: random.Random, bench: "_Bench") -> programs.Program:
    """Draws losses of what is left over, predictions, metrics, an optimizer."""
    losses = _losses(drawn, bench)
    total = f"({' + '.join(losses)})"
    if not bench.tries(total, has_gradients=True):
        losses.append("tf.reduce_mean(tf.square(x0 * var('w') - 0.3))")
    more = _filled(endings.MORE, drawn, bench, "loss")
    is_fit = bench.tries(more.format(loss=total), has_gradients=True)
    metrics = [_filled(endings.METRICS, drawn, bench, "metric") for _ in range(drawn.randint(0, 3))]
    dense = [value.name for value in bench.values if value.kind not in ("sparse", "ragged")]
    program = program._replace(
        lines=tuple(bench.lines),
        losses=tuple(losses),
        more=more if is_fit else "{loss}",
        metrics=tuple(text for text in metrics if bench.tries(text)),
        predictions=tuple(sorted(drawn.sample(dense, min(len(dense), drawn.randint(1, 4))))),
        optimizer=drawn.choices(*zip(*[row[::-1] for row in endings.OPTIMIZERS], strict=True))[0],
        way=drawn.choice(endings.WAYS),
    )
    is_mixed = programs.names(line.text for line in program.lines) & {"columns", "normed"}
    return program._replace(way="minimized") if is_mixed else program


def _losses(drawn: random.Random, bench: "_Bench") -> list[str]:
    """Draws losses until they read all that no line reads."""
    left, values, losses = bench.left_over(), bench.values, []
    for _ in range(8):
        bench.values = [*bench.labels, *(left or bench.floats())]
        text = _filled(endings.LOSSES, drawn, bench, "loss")
        if len(losses) < 3 and "identity" not in text and bench.tries(text):
            losses.append(text)
            left = [value for value in left if value.name not in programs.names([text])]
        bench.values = values
        if losses and not left:
            break
    return losses + [f"0.1 * tf.reduce_mean({value.name})" for value in left]


class _Bench:
    """A graph of one device in which the lines of a model are tried, on all of its batches.

    Args:
        program: How the model is run, and its batches.
    """

    def __init__(self, program: programs.Program):
        self.lines: list[programs.Line] = []
        self.values: list[drawing.Value] = []
        self.labels: list[drawing.Value] = []
        self.lengths = _lengths(program.setting)
        self._program = program
        self._graph = tf.Graph()
        self._names: dict[str, Any] = {**vars(vocabulary), "mode": "train"}
        self._initialized: set[str] = set()
        self._code: list[types.CodeType] = []

    def __enter__(self) -> "_Bench":
        setting, features = self._program.setting, dict(self._program.features)
        source = self._program._replace(
            predictions=tuple(line.name for line in self._program.features),
            losses=tuple(line.name for line in self._program.labels),
        ).source()
        made: dict[str, Any] = {"__name__": "program"}
        exec(compile(source, "<program>", "exec"), made)
        batches = [made["batch"](rows, i) for i, rows in enumerate(setting.sizes)]
        self._entered = self._graph.as_default()
        self._entered.__enter__()
        vocabulary.from_shapes()
        self._session = tf1.Session(graph=self._graph, config=exactness.session_config())
        holders = exactness.placeholders(batches[0], setting.is_static)
        self._feeds = [exactness.feeds(holders, batch) for batch in batches]
        self._names["features"] = holders[0]
        for name, value in {**holders[1], **holders[0]}.items():
            self._keep(name, value)
            if "randint(0, 6" in features.get(name, ""):
                self.values[-1] = self.values[-1]._replace(is_small=True)
        self.labels = [
            one._replace(kind="label" if one.kind == "float" else "class")
            for one in self.values
            if one.name not in features
        ]
        self.values = [one for one in self.values if one.name in features]
        return self

    def __exit__(self, *unused) -> None:
        self._session.close()
        self._entered.__exit__(*unused)

    def add(self, name: str, text: str) -> None:
        """Adds a line, if one device can run it; squashes what is loud."""
        value = self._made(text)
        if value is None or (loudness := self._keep(name, value)) is None:
            return
        self.lines.append(programs.Line(name, text))
        if loudness > LOUDEST:
            self.add(f"{name}t", f"tf.tanh({name} * {1 / loudness:.1g})")

    def tries(self, text: str, has_gradients: bool = False) -> bool:
        """Whether one device can make a value, or a metric; and its gradients."""
        value = self._made(text)
        if value is None or isinstance(value, tuple):
            return value is not None
        fetches = [value, *(_gradients(value) if has_gradients else ())]
        found = self._run([fetches]) if len(fetches) > has_gradients else None
        return found is not None and all(
            np.all(np.isfinite(getattr(one, "values", one))) for one in tf.nest.flatten(found)
        )

    def floats(self) -> list[drawing.Value]:
        """The values that are tensors of numbers."""
        return [value for value in self.values if value.kind == "float"]

    def left_over(self) -> list[drawing.Value]:
        """The numbers that no line reads."""
        read = programs.names(line.text for line in self.lines)
        return [value for value in self.floats() if value.name not in read]

    def _made(self, text: str) -> Any:
        try:
            # NOTE: operations keep the code that made them, and TensorFlow does not keep it alive.
            self._code.append(compile(text, "<line>", "eval"))
            return eval(self._code[-1], self._names)
        except Exception:  # noqa: BLE001 - a line that one device refuses is none
            return None

    def _run(self, fetches: list) -> list | None:
        new = [v for v in tf1.global_variables() if v.name not in self._initialized]
        self._initialized |= {variable.name for variable in new}
        try:
            self._session.run([[v.initializer for v in new], tf1.tables_initializer()])
            return [self._session.run(fetches, feed, exactness.PATIENCE)[0] for feed in self._feeds]
        except (tf.errors.OpError, ValueError):
            return None

    def _keep(self, name: str, value: Any) -> float | None:
        """Keeps a value that can be run; returns its largest number."""
        is_kept = isinstance(value, tf.Tensor | tf.SparseTensor | tf.RaggedTensor)
        found = self._run([value]) if is_kept else None
        kind, known, arrays = ("", None, []) if found is None else _described(value, found)
        sizes = [array.size for array in arrays]
        if known is None or not kind or not max(sizes) or max(sizes) > LARGEST:
            return None
        loudest = 0.0
        if kind == "float":
            loudest = max(float(np.max(np.abs(array), initial=0)) for array in arrays)
        if not np.isfinite(loudest):
            return None
        self._names[name] = value
        self.values.append(drawing.Value(name, kind, known, tuple(a.shape for a in arrays)))
        return loudest


def _gradients(loss: tf.Tensor) -> list:
    """Returns the gradients of weights, as far as there are any."""
    try:
        found = tf.gradients(loss, tf1.trainable_variables())
    except Exception:  # noqa: BLE001 - some operations have none
        return []
    return [gradient for gradient in found if gradient is not None]


def _described(value: Any, found: list) -> tuple[str, tuple | None, list[np.ndarray]]:
    """Returns the kind of a value, the lengths that are known, and what batches have of it."""
    if isinstance(value, tf.SparseTensor):
        return "sparse", (None, None), [np.zeros(one.dense_shape) for one in found]
    if isinstance(value, tf.RaggedTensor):
        return "ragged", (None, None), [np.zeros([len(one.row_splits) - 1, 1]) for one in found]
    arrays = [np.asarray(one) for one in found]
    kind = KINDS.get(arrays[0].dtype.kind, "")
    if value.shape.rank is None or (kind == "float" and value.dtype != tf.float64):
        return kind, None, arrays
    return kind, tuple(value.shape.as_list()), arrays
