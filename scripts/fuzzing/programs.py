"""A random model_fn as text: its lines, how it is run, and the program that they make."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from scripts.fuzzing import running, vocabulary

WORDS = {
    name: inspect.getsource(word)
    for name, word in vars(vocabulary).items()
    if inspect.isfunction(word)
}
_NAMES = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")


class Line(NamedTuple):
    """A name, and the expression of what it stands for."""

    name: str
    text: str


class Program(NamedTuple):
    """A model_fn, its batches, and how it is run.

    Attributes:
        title: What the program shows.
        setting: How it is run.
        features: Of a batch of `rows` rows; each line uses `random` numbers of its own.
        labels: The same.
        lines: The steps of the model.
        losses: Expressions whose sum is the loss.
        more: What is made of the loss: an expression of `{loss}`.
        predictions: Names of what is predicted.
        metrics: Expressions.
        optimizer: An expression.
        way: "optimizer_fn", or the word that makes a step in the model_fn.
    """

    title: str
    setting: running.Setting
    features: tuple[Line, ...]
    labels: tuple[Line, ...]
    lines: tuple[Line, ...] = ()
    losses: tuple[str, ...] = ()
    more: str = "{loss}"
    predictions: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    optimizer: str = "tf1.train.GradientDescentOptimizer(0.1)"
    way: str = "minimized"

    def source(self) -> str:
        """The program's text, in which nothing is that it does not need."""
        return _text(self._pruned())

    def _pruned(self) -> "Program":
        """Without lines, features and labels that nothing reads."""
        read = names([*self.losses, self.more, *self.metrics, *self.predictions])
        kept = []
        for line in reversed(self.lines):
            if line.name in read:
                kept.append(line)
                read |= names([line.text])
        quoted = set(re.findall(r"\w+", " ".join(line.text for line in kept)))  # by columns
        features = [line for line in self.features if line.name in read | quoted]
        features = features or self.features[:1]
        labels = [line for line in self.labels if line.name in read]
        return self._replace(
            lines=tuple(reversed(kept)), features=tuple(features), labels=tuple(labels)
        )


def names(texts: Iterable[str]) -> set[str]:
    """The names that some expressions read."""
    return {name for text in texts for name in _NAMES.findall(text)}


def _text(program: Program) -> str:
    setting = f"SETTING = {_of_setting(program.setting)}"
    optimizer_fn = f"optimizer_fn = {_optimizer_fn(program)}"
    body = [*_of_batch(program), "", "", setting, optimizer_fn, "", "", *_of_model(program)]
    body = "\n".join(body)
    imports = [
        "from replicate.compat.tensorflow import tf, tf1",
        "from scripts.fuzzing import running",
    ]
    words = "\n\n".join(_words(body))
    if "np." in words + body:
        imports = ["import numpy as np", "", *imports]
    if "zlib." in words:
        imports = ["import zlib", "", *imports]
    head = [f'"""{program.title}"""', "", *imports, "", ""]
    end = ["", "", 'if __name__ == "__main__":', "    running.main(globals())", ""]
    return "\n".join([*head, *([words, ""] if words else []), body, *end])


def _words(body: str) -> Iterator[str]:
    """Yields the sources of the words that a text uses, and that these use."""
    wanted, seen = names([body]) & WORDS.keys(), set()
    while wanted - seen:
        seen |= wanted
        wanted = names(WORDS[name] for name in seen) & WORDS.keys()
    yield from (WORDS[name] for name in WORDS if name in seen)


def _of_setting(setting: running.Setting) -> str:
    given = {
        name: value
        for name, value in setting._asdict().items()
        if value != running.Setting._field_defaults.get(name)
    }
    return f"running.Setting({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _of_batch(program: Program) -> Iterator[str]:
    yield "def batch(rows, number):"
    yield "    random = np.random.RandomState(100 * number + rows)"
    for name, lines in (("features", program.features), ("labels", program.labels)):
        yield f"    {name} = {{"
        yield from (f'        "{line.name}": {line.text},' for line in lines)
        yield "    }"
    yield "    return features, labels or None"


def _optimizer_fn(program: Program) -> str:
    return f"lambda: {program.optimizer}" if program.way == "optimizer_fn" else "None"


def _of_model(program: Program) -> Iterator[str]:
    yield "def model_fn(features, labels, mode):"
    if any("tf1." in line.text for line in program.lines):
        yield "    from_shapes()"
    yield from (f'    {line.name} = features["{line.name}"]' for line in program.features)
    yield from (f"    {line.name} = {line.text}" for line in program.lines)
    predicted = ", ".join(f'"{name}": {name}' for name in program.predictions)
    yield f"    predictions = {{{predicted}}}"
    modes = program.setting.modes
    if "infer" in modes:
        yield '    if mode == "infer":'
        yield "        return running.spec_of(mode, predictions=predictions)"
    yield from (f'    {line.name} = labels["{line.name}"]' for line in program.labels)
    yield f"    loss = {' + '.join(program.losses)}"
    if program.more != "{loss}":
        yield f"    loss = {program.more.format(loss='loss')}"
    if "eval" in modes:
        metrics = ", ".join(f'"{n}": {text}' for n, text in enumerate(program.metrics))
        yield '    if mode == "eval":'
        yield f"        metrics = {{{metrics}}}"
        yield "        return running.spec_of(mode, loss, predictions, eval_metric_ops=metrics)"
    if "train" not in modes:
        return
    if program.way == "optimizer_fn":
        yield "    loss += 0.1 * tf.square(loss)  # so that no step is made before it is known"
        yield "    return running.spec_of(mode, loss)"
    else:
        yield f"    step = {program.way}({program.optimizer}, loss, predictions.values())"
        yield "    return running.spec_of(mode, loss, predictions, train_op=step)"
