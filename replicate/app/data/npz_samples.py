"""What an npz file holds: arrays, by their headers alone."""

import ast
import zipfile
import zlib
from collections import Counter
from typing import Any, NamedTuple

from replicate import errors
from replicate.app.data import samples

__all__ = ["look"]

_ENDING = ".npy"
_SHARE = 0.8  # of the rows are for training
_FEW = 10  # rows are not divided
_READABLE = "biufcSU"  # kinds of dtypes


class _Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"{self.dtype} {list(self.shape[1:])}" if self.shape[1:] else self.dtype


def look(path: str, label: str | None) -> samples.Sample:
    """Looks at a file.

    Args:
        path: The file.
        label: The array that is the label; None: the one that is called so.

    Raises:
        RunError: If it has no arrays that can be read.
    """
    arrays = _arrays(path)
    pairs = {name: samples.counterpart(name, arrays) for name in arrays}
    if any(pairs.values()):
        return _divided(path, label, arrays, pairs)
    label = label or samples.label_of(arrays)
    rows = _rows(arrays, label)
    features = [name for name, one in arrays.items() if one.shape[0] == rows and name != label]
    _require(features, path)
    keys: dict[str, Any] = {"kind": "npz", "file": path, "features": features}
    other_keys = {}
    notes = {"features": _told(arrays, features)}
    if rows >= _FEW:
        edge = int(rows * _SHARE)
        keys["rows"], other_keys["rows"] = [0, edge], [edge, rows]
        notes["rows"] = "the rest is held out for evaluation"
    return samples.Sample(keys, list(arrays), label, other_keys, notes)


def _divided(
    path: str, label: str | None, arrays: dict[str, _Array], pairs: dict[str, str | None]
) -> samples.Sample:
    """Describes a file that has arrays for training and others for evaluation."""
    train = {name: samples.stem(name) for name, other in pairs.items() if other is not None}
    if label is None:
        named = samples.label_of(train.values())
        label = next((name for name, stem in train.items() if stem == named), None)
    features = {stem: name for name, stem in train.items() if name != label}
    _require(features, path)
    keys: dict[str, Any] = {"kind": "npz", "file": path, "features": features}
    others: dict[str, Any] = {"features": {stem: pairs[name] for stem, name in features.items()}}
    if pairs.get(label or "") is not None:
        others["label"] = pairs[label]
    return samples.Sample(
        keys, list(arrays), label, others, {"features": _told(arrays, list(features.values()))}
    )


def _require(features: Any, path: str) -> None:
    if not features:
        raise errors.RunError(f"{path}: must have an array besides the label. Add it.")


def _told(arrays: dict[str, _Array], names: list[str]) -> str:
    return ", ".join(f"{name}: {arrays[name].text}" for name in names)


def _rows(arrays: dict[str, _Array], label: str | None) -> int:
    """Returns how many rows the label has, or else most arrays."""
    if label in arrays:
        return arrays[label].shape[0]
    return Counter(one.shape[0] for one in arrays.values()).most_common(1)[0][0]


def _arrays(path: str) -> dict[str, _Array]:
    """Returns the arrays that have rows, and can be read without unpickling."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(_ENDING)]
            found = {name.removesuffix(_ENDING): _header(archive, name) for name in names}
    except (
        OSError,
        EOFError,
        SyntaxError,
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as e:
        raise errors.RunError(
            f"{path}: must be a readable npz file: {e}. Write it with numpy.savez."
        ) from e
    arrays = {name: one for name, one in found.items() if one is not None}
    if not arrays:
        raise errors.RunError(
            f"{path}: must have arrays of numbers or text with rows, has none. "
            "Write it with numpy.savez."
        )
    return arrays


def _header(archive: zipfile.ZipFile, name: str) -> _Array | None:
    """Returns an array by its header; None where it has no rows, or holds Python's objects."""
    import numpy as np  # takes a tenth of a second

    with archive.open(name) as file:
        start = file.read(8)
        if len(start) < 8 or start[:6] != b"\x93NUMPY":
            raise ValueError(f"{name} is no array")
        size = int.from_bytes(file.read(2 if start[6] == 1 else 4), "little")
        header = ast.literal_eval(file.read(min(size, 2**16)).decode("utf-8", "replace").strip())
    dtype, shape = np.dtype(header["descr"]), tuple(map(int, header["shape"]))
    if dtype.kind not in _READABLE or not shape:
        return None
    return _Array("string" if dtype.kind in "SU" else dtype.name, shape)
