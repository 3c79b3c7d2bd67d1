"""What a model of the corpus is, the batches that it is given, and how it is compared."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import report, splitter
from tests import exactness
from tests.law import losses, running

MODELS: dict[str, "Model"] = {}
EXACT = (1e-9, 1e-11)  # reassociation alone
SINGLE = (2e-4, 2e-5)  # in float32
F64 = tf.float64
AS_ONE_DEVICE = {"random_numbers": "one_device"}


def batch(rows: int, step: int, is_static: bool) -> tuple[dict, dict]:
    """Returns features and labels: those of the law's losses, pictures, ids, bags of ids."""
    length = 4 if is_static else 3 + step % 3
    features, labels = losses.batch(rows, step, length)
    numbers = np.random.RandomState(1000 + 10 * rows + step)
    bags = numbers.randint(0, 6, [rows, 3])
    bags[:, 1:][numbers.uniform(size=[rows, 2]) < 0.5] = -1
    features |= {
        "images": numbers.uniform(-1, 1, [rows, 6, 6, 2]),
        "ids": numbers.randint(0, 6, [rows, 2]),
        "bags": bags,
        "other": numbers.uniform(-1, 1, [rows, losses.WIDTH]),
        "lengths": np.asarray(features["is_token"].sum(1), np.int32),
        "words": numbers.choice(["a", "b", "c", "d"], [rows, 2]).astype(object),
        "group": numbers.randint(0, 3, rows),
    }
    return features, labels


class Model(NamedTuple):
    """A model that trains.

    Attributes:
        build: From features and labels to a loss, alone or with other tensors by name and, where
            the model trains by itself, a step.
        batch: From a number of rows, a step and whether its size is known to features and labels.
        optimizer: Makes the optimizer of a step inside the model, where `build` gives none.
        optimizer_fn: Makes the step in its place.
        tolerance: Relative and absolute.
        options: Of `replicate_model_fn`.
        statics: With which static batches (True, False) it can be built.
        sizes: The numbers of rows that it can be given; None: any.
        split: The kinds of operations that must be split, all of those before the gradients.
        gradients: The kinds of operations of gradients that must be split.
    """

    build: Callable[[Any, Any], tuple]
    batch: Callable = batch
    optimizer: Callable | None = running.descend
    optimizer_fn: Callable | None = None
    tolerance: tuple[float, float] = EXACT
    options: dict[str, Any] = AS_ONE_DEVICE
    statics: Sequence[bool] = (False, True)
    sizes: Sequence[int] | None = None
    split: Sequence[str] = ()
    gradients: Sequence[str] = ()

    def __call__(self, features, labels, mode):
        """The model_fn."""
        return Built(self)(features, labels, mode)

    def fits(self, setting: running.Setting) -> bool:
        """Whether it can be built in a setting, and split where it wants that."""
        least = 3 if self.split or self.gradients else 2 if False in self.statics else 1
        return setting.is_static in self.statics and (
            not setting.is_static or setting.rows[0] >= least
        )

    def parts(self, features: Any, labels: Any) -> tuple[tf.Tensor, dict, Any]:
        """Builds it; returns the loss, other tensors by name, and a step or None."""
        made = self.build(features, labels)
        loss, *others = made if isinstance(made, tuple) else (made,)
        named = others.pop(0) if others and isinstance(others[0], dict) else {}
        return loss, named, others[0] if others else None

    def require_exact(self, setting: running.Setting) -> splitter.Result | None:
        """Requires K devices to be one device; returns what became of the graph, if it is split."""
        rows = setting.rows if self.sizes is None else self.sizes
        rows = rows[:1] * 3 if setting.is_static else rows
        given = [self.batch(number, n, setting.is_static) for n, number in enumerate(rows)]
        built = Built(self)
        with report.heard() as results:
            found = running.require_exact(
                built,
                setting,
                given=given,
                fetch=built.fetched,
                narrowed=built.narrowed,
                optimizer_fn=self.optimizer_fn,
                tolerance=self.tolerance,
                **self.options,
            )
        assert np.isfinite([fetched["loss"] for fetched in found.fetched]).all()
        for result in results:
            whole = built.not_split(result)
            assert not whole, "\n".join(["", *whole])
        return results[0] if results else None


class Built:
    """A model as a model_fn, which keeps what it names.

    Args:
        model: The model.
    """

    def __init__(self, model: Model):
        self.model = model
        self.named: dict = {}
        self.forward: list = []
        self.read: list[set] = []

    def __call__(self, features, labels, mode):
        given = exactness.Noted(features), exactness.Noted(labels)
        with tf.variable_creator_scope(begun):
            loss, self.named, train_op = self.model.parts(*given)
        self.read = self.read or [nest.read for nest in given]
        self.forward = loss.graph.get_operations()
        if train_op is None and self.model.optimizer is not None:
            step = self.model.optimizer().minimize(loss, tf1.train.get_global_step())
            train_op = [step, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]
        return exactness.spec_of(
            mode, loss, train_op=tf.group([] if train_op is None else train_op)
        )

    def narrowed(self, batch) -> tuple[dict, ...]:
        """Returns what the model reads of a batch: to cut the others, too, would take longer."""
        if not any(self.read):
            return batch
        pairs = zip(batch, self.read, strict=True)
        return tuple({key: nest[key] for key in nest if key in read} for nest, read in pairs)

    def fetched(self, spec) -> dict:
        """Returns what a step fetches: the model's own tensors, as a hook fetches them."""
        return {"loss": spec.loss, **self.named}

    def not_split(self, result: splitter.Result) -> list[str]:
        """Returns a line for each operation that the model wants split, and that is not."""
        kinds, ours = self.model.split, ("replicate_", "tower_")
        whole = [op for op in self.forward if op.type in kinds and result.how(op) == "whole"]
        whole = [op for op in whole if not op.name.startswith(ours) and "Tensordot/" not in op.name]
        kinds = self.model.gradients
        whole += [op for op in result.whole if op.type in kinds and result.why(op)]
        lines = [f"{op.type} {op.name} is whole: {result.why(op)}" for op in whole]
        return lines + [f"no {kind}" for kind in {*kinds} - {op.type for op in result.split}]


def begun(next_creator: Callable, **options: Any) -> tf.Variable:
    """Creates a variable; one that is trained starts from numbers that follow from its shape."""
    first = options["initial_value"]

    def value():
        given = tf.convert_to_tensor(first() if callable(first) else first)
        return exactness.start(given.shape.as_list(), given.dtype)

    if options.get("trainable", True):
        options["initial_value"] = value
    return next_creator(**options)


def model(function: Callable | None = None, *, to: dict = MODELS, **options) -> Callable:
    """Adds a function to the corpus, or to other models, by its name."""
    if function is None:
        return lambda function: model(function, to=to, **options)
    to[function.__name__] = Model(function, **options)
    return function


def adam():
    return tf1.train.AdamOptimizer(0.05, epsilon=0.01)


def weight(name: str, *shape: int) -> tf.Tensor:
    """Returns a new variable's value."""
    return tf1.get_variable(name, shape, F64, exactness.start).read_value()


def hidden(x: tf.Tensor, width: int = 4, name: str = "hidden") -> tf.Tensor:
    """A layer: [..., D] to [..., width]."""
    return tf.tanh(tf.tensordot(x, weight(name, int(x.shape[-1]), width), 1))


def count(x: tf.Tensor) -> tf.Tensor:
    """The number of rows."""
    return tf.cast(tf.shape(x)[0], F64)


def squares(found: tf.Tensor, y: dict) -> tf.Tensor:
    """The mean squared error."""
    return tf.reduce_mean(tf.square(found - y["y"]))
