"""Which rows of the input are a worker's: its part of each batch, or every Wth batch."""

from collections.abc import Callable
from typing import Any

from replicate.app.cluster import tasks
from replicate.app.config import functions, input_config
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import rows

__all__ = ["left_to", "own_part"]


def left_to(
    fn: Callable[..., Any], source: input_config.Input, task: tasks.Task
) -> tuple[input_config.Input, tasks.Task, tf.distribute.InputContext]:
    """Leaves it to a function that names `input_context` to read this worker's rows alone.

    Returns:
        The input, with the rows that are this worker's of each batch; whose part is still to be
        taken; and the context.
    """
    context = tf.distribute.InputContext(task.size, task.position, task.size)
    if task.size == 1 or not functions.names(fn, "input_context"):
        return source, task, context
    begin, end = _part(source.batch_size, task)
    share = source.batch_size if task.has_servers else max(end - begin, 1)
    return source.model_copy(update={"batch_size": share}), tasks.ALONE, context


def own_part(dataset: tf.data.Dataset, task: tasks.Task) -> tf.data.Dataset:
    """Returns what of a dataset's batches is a worker's.

    Workers that make each step together share each batch, as towers do; others take turns.
    """
    if task.size == 1:
        return dataset
    if task.has_servers:
        return dataset.shard(task.size, task.position)
    is_tuple = isinstance(dataset.element_spec, tuple)

    def cut(*element: Any) -> Any:
        nest = element if is_tuple else element[0]
        batched = [leaf for leaf in tf.nest.flatten(nest) if rows.is_batched(leaf)]
        number = next(filter(None, map(rows.static_count, batched)), None)
        if number is None or number % task.size:
            # Workers' parts differ: none of them is to have a size that is known beforehand.
            number = tf1.placeholder_with_default(rows.count(batched[0]), [])
        begin, end = _part(number, task)
        return tf.nest.map_structure(
            lambda leaf: rows.cut(leaf, begin, end) if rows.is_batched(leaf) else leaf, nest
        )

    return dataset.map(cut)


def _part(number: Any, task: tasks.Task) -> tuple[Any, Any]:
    """Returns the first of a worker's rows, and the one after the last; ints, or tensors."""
    base, longer, place = number // task.size, number % task.size, task.position
    if isinstance(number, int):
        begin = base * place + min(place, longer)
        return begin, begin + base + (place < longer)
    begin = base * place + tf.minimum(place, longer)
    return begin, begin + base + tf.cast(place < longer, base.dtype)
