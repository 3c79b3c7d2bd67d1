"""A person's input: its first batches, and placeholders that look like them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows
from replicate.verification import batches


class Form(NamedTuple):
    """What all batches of an input have in common.

    Attributes:
        nest: Features and labels, with a number in place of each leaf.
        specs: For each leaf a `tf.TypeSpec`, or None where there is none.
    """

    nest: tuple
    specs: tuple

    def has_labels(self) -> bool:
        """Whether there is more than features."""
        return any(self.specs[i] is not None for i in tf.nest.flatten(self.nest[1]))

    def is_static(self) -> bool:
        """Whether graphs know the number of rows before they run."""
        return any(spec is not None and rows.static_count(spec) is not None for spec in self.specs)


def named(fn: Callable, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the offered arguments that a function names, or takes by `**`."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin that hides its signature
        return {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    bound = getattr(fn, "keywords", {})  # of a functools.partial
    return {
        name: value
        for name, value in offered.items()
        if (takes_all or name in parameters) and name not in bound
    }


def read(
    input_fn: Callable, offered: Mapping[str, Any], count: int, session_config: Any
) -> tuple[Form, list[list]]:
    """Reads the first batches of an input_fn, in a graph and a session of their own.

    Args:
        input_fn: Returns a `tf.data.Dataset`, or features, or a pair with labels.
        offered: Arguments that it may name.
        count: How many batches at most.
        session_config: Of the session.

    Raises:
        BatchError: If there is no batch, or one has no rows, or leaves disagree on them.
    """
    with tf.Graph().as_default():
        element = input_fn(**named(input_fn, offered))
        if isinstance(element, tf.data.Dataset):
            iterator = tf1.data.make_initializable_iterator(element)
            tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            element = iterator.get_next()
        is_pair = isinstance(element, (list, tuple)) and len(element) == 2
        nest = tuple(element) if is_pair else (element, None)
        leaves = [_as_tensor(leaf) for leaf in tf.nest.flatten(nest)]
        specs = tuple(None if leaf is None else tf.type_spec_from_value(leaf) for leaf in leaves)
        form = Form(tf.nest.pack_sequence_as(nest, list(range(len(leaves)))), specs)
        found = _run([leaf for leaf in leaves if leaf is not None], count, session_config)
    taken = []
    for values in found:
        given = iter(values)
        taken.append([None if spec is None else next(given) for spec in specs])
    if not taken:
        raise errors.BatchError(
            "verify compares on batches; the input_fn came to its end before the first one. "
            "Check the input_fn."
        )
    for batch in taken:
        batches.row_count(batch)
    return form, taken


def _as_tensor(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, rows.KINDS) else tf.convert_to_tensor(leaf)


def _run(leaves: list, count: int, session_config: Any) -> list[list]:
    """Runs leaves until there are `count` batches, or there is no more."""
    creator = tf1.train.ChiefSessionCreator(config=session_config)
    found: list[list] = []
    with tf1.train.MonitoredSession(creator) as session:  # starts an old input's queues, too
        while len(found) < count:
            try:
                found.append(session.run(leaves))
            except tf.errors.OutOfRangeError:
                break
    return found


class Inputs(NamedTuple):
    """Placeholders for the batches of one form.

    Attributes:
        features: The nest that a model_fn gets.
        labels: Likewise, or None.
        leaves: All leaves, as `Form.specs` has them.
    """

    features: Any
    labels: Any
    leaves: list

    def feed(self, batch: Sequence) -> dict:
        """Returns the feed_dict of a batch."""
        pairs = zip(self.leaves, batch, strict=True)
        return {holder: value for holder, value in pairs if holder is not None}


def placeholders(form: Form, row_count: int) -> Inputs:
    """Makes placeholders in the default graph.

    Args:
        form: Of the batches.
        row_count: B, for leaves whose shapes say how many rows there are.
    """
    leaves = [_placeholder(spec, row_count) for spec in form.specs]
    features, labels = tf.nest.pack_sequence_as(form.nest, leaves)
    return Inputs(features, labels, leaves)


def _placeholder(spec: Any, row_count: int) -> Any:
    if spec is None:
        return None
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    if shape and shape[0] is not None:
        shape[0] = row_count
    if isinstance(spec, tf.SparseTensorSpec):
        return tf1.sparse_placeholder(spec.dtype, shape)
    if isinstance(spec, tf.RaggedTensorSpec):
        return _ragged_placeholder(spec, shape)
    return tf1.placeholder(spec.dtype, shape)


def _ragged_placeholder(spec: Any, shape: list | None) -> tf.RaggedTensor:
    inner = None if shape is None else [None, *shape[spec.ragged_rank + 1 :]]
    made = tf1.placeholder(spec.dtype, inner)
    for level in reversed(range(spec.ragged_rank)):
        knows = level == 0 and shape is not None and shape[0] is not None
        splits = tf1.placeholder(spec.row_splits_dtype, [shape[0] + 1 if knows else None])
        made = tf.RaggedTensor.from_row_splits(made, splits, validate=False)
    return made
