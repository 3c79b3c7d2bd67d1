"""Numbers over steps, from the event files of a run; needs TensorFlow for large files alone.

A run that was stopped goes on from its last checkpoint, in a file of its own: what an earlier
file has of the steps from there on is what nobody trained any further, and is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import message
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub import errors as reading_errors
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.util import tensor_util

from replicate import errors

__all__ = ["Curve", "Run", "read"]

_FILES = "*.tfevents.*"
_LARGE = 20_000_000  # bytes that TensorFlow, once it is loaded, has read sooner

Curve = dict[int, float]
"""A value for each step, in the order of steps."""


class Run(NamedTuple):
    """What a model_dir has of one run.

    Attributes:
        name: The model_dir, as it was given.
        train: Curves by tag.
        evals: The same for each folder of an evaluation: eval, or eval_<name>.
    """

    name: str
    train: Mapping[str, Curve]
    evals: Mapping[str, Mapping[str, Curve]]


def read(model_dirs: Iterable[str]) -> list[Run]:
    """Reads the curves of some runs.

    Raises:
        RunError: If there is no such directory, or none of its event files has a number.
    """
    roots = {name: _require(name) for name in dict.fromkeys(model_dirs)}
    folders = [folder for root in roots.values() for folder in (root, *_evaluations(root))]
    sizes = [path.stat().st_size for folder in folders for path in folder.glob(_FILES)]
    is_large = sum(sizes) > _LARGE
    records = _records_by_tensorflow if is_large else _records
    return [_run(name, root, records) for name, root in roots.items()]


def _require(name: str) -> Path:
    root = Path(name).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "is not there"
        raise errors.RunError(
            f"{name}: must be the model_dir of a run, but {what}. Check the path; it is looked "
            "up from the working directory."
        )
    return root


def _evaluations(root: Path) -> list[Path]:
    """Returns the folders of evaluations: eval, and eval_<name> where they have one."""
    return sorted(path for path in root.glob("eval*") if path.is_dir())


def _run(name: str, root: Path, records: Callable[[Path], Iterable[bytes]]) -> Run:
    evals = {}
    for folder in _evaluations(root):
        # NOTE: an evaluation of an older checkpoint comes later, and takes nothing back.
        curves = _curves(folder, records, is_taken_back=False)
        if curves:
            evals[folder.name] = curves
    train = _curves(root, records, is_taken_back=True)
    if not train and not evals:
        raise errors.RunError(
            f"{name}: must hold event files with numbers ({_FILES}), has none. Run `replicate "
            "train` first, or name the model_dir of a run."
        )
    return Run(name, train, evals)


def _curves(
    folder: Path, records: Callable[[Path], Iterable[bytes]], is_taken_back: bool
) -> dict[str, Curve]:
    """Returns the curves of a folder's files, later ones over earlier ones."""
    files = []
    for path in folder.glob(_FILES):
        events = list(_events(records(path)))
        if events:
            files.append((events[0].wall_time, path.name, events))
    found: dict[str, Curve] = {}
    for *_, events in sorted(files, key=lambda file: file[:2]):
        numbers = [(event.step, *number) for event in events for number in _numbers(event)]
        start = min((step for step, _, _ in numbers), default=0)
        for tag in {tag for _, tag, _ in numbers} if is_taken_back else ():
            kept = found.get(tag, {})
            found[tag] = {step: value for step, value in kept.items() if step < start}
        for step, tag, value in numbers:
            found.setdefault(tag, {})[step] = value
    return {tag: dict(sorted(curve.items())) for tag, curve in found.items()}


def _events(records: Iterable[bytes]) -> Iterator[event_pb2.Event]:
    """Yields the events of a file, up to one that is none."""
    for record in records:
        try:
            event = event_pb2.Event.FromString(record)
        except message.DecodeError:
            return
        event.ClearField("graph_def")
        event.ClearField("meta_graph_def")
        yield event


def _numbers(event: event_pb2.Event) -> Iterator[tuple[str, float]]:
    """Yields the tags and values of an event's scalars, as either TensorFlow writes them."""
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield value.tag, value.simple_value
        elif kind == "tensor":
            number = _scalar(value.tensor)
            if number is not None:
                yield value.tag, number


def _scalar(tensor: Any) -> float | None:
    """Returns a tensor's number; None where it is something else."""
    try:
        array = tensor_util.make_ndarray(tensor)
        return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        return None


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of a file, up to one that is cut off, or is none."""
    try:
        reader = pywrap_tensorflow.PyRecordReader_New(str(path))
        while True:
            reader.GetNext()
            yield reader.record()
    except (reading_errors.OpError, OSError):
        return


def _records_by_tensorflow(path: Path) -> Iterable[bytes]:
    """As above, much faster, once TensorFlow is loaded."""
    from tensorboard.backend.event_processing import event_file_loader

    return event_file_loader.RawEventFileLoader(str(path)).Load()
