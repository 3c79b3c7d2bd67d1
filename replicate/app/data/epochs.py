"""Passes over the training data: `train.epochs`.

The rule: an epoch is one pass over the input, cut into batches by itself, so that the last
batch of a pass may be short and no batch has rows of two passes. As many batches are the
steps of an epoch, and N epochs end at step N times that: absolute, like `train.steps`.

How many batches a pass has is known beforehand for arrays (npz, csv), and for functions whose
dataset knows it. Of a stream they are counted while it is first read to its end, and written
down for runs that continue. Where these begin in the data, `positions` tells.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

from replicate import errors, types
from replicate.app.data import positions
from replicate.app.runs import atomic_files
from replicate.compat.tensorflow import tf, tf1

_FILE = "epochs.json"


@dataclasses.dataclass(frozen=True)
class Notes:
    """Where the number of batches in a pass is written down.

    Attributes:
        model_dir: The folder of the run.
        description: What says which input it is: a number noted for another one is not used.
        is_written: Whether what is counted is written down.
    """

    model_dir: str
    description: str
    is_written: bool = True

    def read(self) -> int | None:
        """Returns the number that was written down for this input."""
        noted = atomic_files.read_json(os.path.join(self.model_dir, _FILE))
        steps = noted.get("steps_per_epoch")
        is_same = noted.get("input") == self.description
        return steps if is_same and isinstance(steps, int) and steps > 0 else None

    def write(self, steps: int) -> None:
        """Writes it down."""
        if self.is_written:
            known = {"steps_per_epoch": steps, "input": self.description}
            atomic_files.write_json(os.path.join(self.model_dir, _FILE), known)


class Epochs:
    """N passes over the training data.

    Args:
        number: N, at least 1.
        make: Returns batches of the training data, from a position on.
        start: The step that the run begins at.
        is_seeded: Whether what is drawn at random is the same in each run.
        notes: Where the number of batches in a pass is written down.

    Raises:
        RunError: If the input never ends.
    """

    def __init__(
        self,
        number: int,
        make: Callable[[positions.Position], tf.data.Dataset],
        start: int,
        is_seeded: bool,
        notes: Notes,
    ):
        self._number = number
        self._make = make
        self._notes = notes
        first = positions.Position(each=lambda batches: batches, times=1)
        self._steps_per_epoch = _length(lambda: make(first)) or notes.read()
        self._from = first._replace(start=start, is_seeded=is_seeded, length=self._steps_per_epoch)
        self._seen = 0

    @property
    def end(self) -> int | None:
        """The step at which training is over; None where that is not known yet."""
        return None if self._steps_per_epoch is None else self._number * self._steps_per_epoch

    def dataset(
        self, repeat: int | None, prefetch: int, counted: Callable[[int], None] = lambda end: None
    ) -> tf.data.Dataset:
        """Returns the batches from the step that the run begins at.

        Args:
            repeat: How often the config lets the input be read: true for ever, false or None once.
            prefetch: Batches made ahead of time.
            counted: Called with the step at which training ends, as soon as that is known.
        """
        times, each = -1 if repeat is True else int(repeat or 1), self._from.each
        if self._steps_per_epoch is None:
            times = self._number if times < 0 else min(self._number, times)
            each = functools.partial(self._counting, counted)
        batches = self._make(self._from._replace(each=each, times=times))
        return batches.prefetch(prefetch) if prefetch else batches

    def _counting(
        self, counted: Callable[[int], None], batches: tf.data.Dataset
    ) -> tf.data.Dataset:
        """Returns a pass that is counted while it is read."""

        @tf.autograph.experimental.do_not_convert
        def see(index: tf.Tensor, batch: types.Nest) -> types.Nest:
            tf.numpy_function(self._see, [index], [])
            return batch

        @tf.autograph.experimental.do_not_convert
        def note(_: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(lambda: self._note(counted), [], tf.bool), [])

        seen = batches.enumerate().map(see)
        nothing = tf.data.Dataset.range(1).filter(note).flat_map(lambda _: batches.take(0))
        return seen.concatenate(nothing)

    def _see(self, index: int) -> None:
        self._seen = int(index) + 1

    def _note(self, counted: Callable[[int], None]) -> bool:
        """Notes that the end of a pass was reached; returns that nothing follows."""
        if self._steps_per_epoch is None and self._seen:
            self._steps_per_epoch = self._seen
            self._notes.write(self._seen)
            counted(self._number * self._seen)
        return False


def _length(make: Callable[[], tf.data.Dataset]) -> int | None:
    """Returns how many batches a pass has, where its dataset knows.

    Raises:
        RunError: If it never ends.
    """
    with tf.Graph().as_default():
        cardinality = tf.data.experimental.cardinality(make())
        with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            try:
                count = int(session.run(cardinality))
            except tf.errors.OpError:  # it waits for tables or variables of the training's graph
                return None
    if count == tf.data.INFINITE_CARDINALITY:
        raise errors.RunError(
            "train.input: must come to an end for train.epochs to be counted, but repeats for "
            "ever. Leave out its repeat(), or set train.steps in place of train.epochs."
        )
    return count if count > 0 else None
