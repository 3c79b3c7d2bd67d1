"""The order in which rows are read, how passes become batches, and where in them a run begins.

The rule: the order of a pass is made from the seed and the number of the pass, and each step reads
a batch. So the global step of a checkpoint says where in the data it is: a run that continues reads
what it would have read without a stop. Passes that are over are not read again, and of a pass
that was begun rows are passed over before anything is parsed. What a user's function returns may
draw its own order, pass after pass; it is read again from its beginning, if there is a seed.

With `train.epochs` each pass is cut into batches by itself, so its last batch may be short. As many
batches are the steps of an epoch, and N epochs end at step N times that: absolute, like steps.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from replicate import errors
from replicate.app.config import input_config
from replicate.compat.tensorflow import tf, tf1

Change: TypeAlias = Callable[[tf.data.Dataset], tf.data.Dataset]
Rows: TypeAlias = Callable[[tf.Tensor | None], tf.data.Dataset]  # of a pass, by its seed

_ORDER = 1  # what tells the order of rows from the model's random numbers


class Position(NamedTuple):
    """Where in the data a run begins, and how passes become batches.

    Attributes:
        start: How many batches the runs before have read.
        is_seeded: Whether what is drawn at random is the same in each run.
        by_pass: Whether each pass is cut into batches by itself; else a batch may have rows of two.
        length: How many batches such a pass has, where that is known.
        times: How many passes there are, -1: no end; None: as the config says.
    """

    start: int = 0
    is_seeded: bool = False
    by_pass: bool = False
    length: int | None = None
    times: int | None = None

    def times_of(self, source: input_config.Input) -> int:
        """Returns how often an input is read; -1: for ever."""
        if self.times is not None:
            return self.times
        return -1 if source.repeat is True else int(source.repeat or 1)


FIRST = Position()


class Epochs(NamedTuple):
    """N passes over the training data, from the step on that a run begins at.

    Attributes:
        end: The step at which training is over; None where that is not known yet.
        dataset: Makes the batches that are left.
    """

    end: int | None
    dataset: Callable[[], tf.data.Dataset]


def of_rows(
    position: Position,
    source: input_config.Input,
    rows: Rows,
    buffer: int,
    count: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of an input whose order is made here, from the position on.

    Args:
        position: Where to begin.
        source: The input as the config has it.
        rows: Returns the rows of a pass, not shuffled, from a seed for what it shuffles itself.
        buffer: How many rows are shuffled at a time; 0: none.
        count: How many rows a pass has; None: they are counted where that matters.
    """
    times, size, by_pass = position.times_of(source), source.batch_size, position.by_pass
    done, left = 0, position.start * (1 if by_pass else size)
    if left and times != 1:
        length = position.length if by_pass else count or length_of(lambda: rows(None), left)
        done, left = divmod(left, length) if length else (0, left)
        times = _left_of(times, done)
    kept = rows(None).cache() if getattr(source, "cache", False) else None

    def one_pass(seed: tf.Tensor | None) -> tf.data.Dataset:
        if seed is not None:  # in a graph of its own
            # NOTE: with a graph's seed of 0 TensorFlow would look at the value of this one.
            tf1.get_default_graph().seed = None
        found = rows(seed) if kept is None else kept
        if seed is not None:
            found = found.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)
        return found.batch(size) if by_pass else found

    if buffer:
        seed = None if tf1.get_default_graph().seed is None else _ORDER
        found = tf.data.Dataset.random(seed).skip(done).take(times).flat_map(one_pass)
        if count and times >= 0:  # which a flat map does not know
            all_of_them = times * (-(-count // size) if by_pass else count)
            found = found.apply(tf.data.experimental.assert_cardinality(all_of_them))
    else:
        found = one_pass(None).repeat(times)
    found = found.skip(left)
    return found if by_pass else found.batch(size)


def of_function(
    position: Position, source: input_config.Function, found: tf.data.Dataset, is_batched: bool
) -> tf.data.Dataset:
    """Returns batches of what a user's function returned, from the position on.

    Args:
        position: Where to begin.
        source: The input as the config has it.
        found: What the function returned.
        is_batched: Whether that has batches, not rows.
    """
    times, left = position.times_of(source), position.start
    if position.length and not position.is_seeded:
        # As another order is drawn anyhow, passes are not read again.
        done, left = divmod(left, position.length)
        times = _left_of(times, done)
    if position.by_pass and not is_batched:
        found, is_batched = found.batch(source.batch_size), True
    found = found.repeat(times)
    return (found if is_batched else found.batch(source.batch_size)).skip(left)


def _left_of(times: int, done: int) -> int:
    """Returns how many passes are left; -1: no end."""
    return times if times < 0 else max(times - done, 0)


def length_of(make: Callable[[], tf.data.Dataset], most: int) -> int | None:
    """Returns how many elements a dataset has; None where it has none, or nobody knows.

    Args:
        make: Makes it.
        most: How many of them are read to find out, where the dataset itself does not know.

    Raises:
        RunError: If it never ends.
    """
    with (
        tf.Graph().as_default(),
        tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session,
    ):
        made = make()
        read = made.take(most).reduce(tf.constant(0, tf.int64), lambda n, *_: n + 1)
        try:
            found = int(session.run(tf.data.experimental.cardinality(made)))
            if found == tf.data.UNKNOWN_CARDINALITY and most:
                found = int(session.run(read))
                found = found if found < most else 0
        except tf.errors.OpError:  # it waits for tables or variables of the training's graph
            return None
    if found == tf.data.INFINITE_CARDINALITY:
        raise errors.RunError(
            "train.input: must come to an end for train.epochs to be counted, but repeats for "
            "ever. Leave out its repeat(), or set train.steps in place of train.epochs."
        )
    return found if found > 0 else None
