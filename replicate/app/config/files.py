"""Data files that a config names: patterns made out, and what a file is by its first bytes."""

import contextlib
import glob
import os
import zlib
from collections.abc import Iterable

from replicate import errors

KINDS = {"text": "csv", **{kind: kind for kind in ("npz", "parquet", "tfrecord")}}  # of inputs
_BEGINS = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "npz",
    b"PAR1": "parquet",
    b"\x93NUMPY": "npy",
}
_ADVICE = {
    "gzip": "compressed with gzip. Decompress it first",
    "npz": "an npz file. Set kind: npz",
    "npy": "a single NumPy array. Write it with numpy.savez, and set kind: npz",
    "parquet": "a Parquet file. Set kind: parquet",
    "tfrecord": "a TFRecord file. Set kind: tfrecord",
    "text": "text. Set kind: csv if it is a table",
}


def expanded(names: Iterable[str], key: str) -> list[str]:
    """Returns the files that names and patterns stand for, each pattern's in their order.

    Raises:
        RunError: If there is none by a name or pattern, or it is a folder or a device.
    """
    paths = []
    for name in names:
        found = _matching(name)
        if not found:
            raise missing(name, key)
        paths += found
    for path in paths:
        if os.path.exists(path) and not os.path.isfile(path):  # a device may have no end
            raise errors.RunError(f"{key}: {path}: must be a file, but is none. Check the path.")
    return paths


def relative(path: str, folder: str = ".") -> str:
    """Returns a path from a folder, the working directory if none is given, unless remote.

    What is kept of a run, such as its graph, so names no folder of the machine.
    """
    is_remote = "://" in path or "://" in folder
    return path if is_remote else os.path.relpath(path, folder)


def absent(names: Iterable[str]) -> list[str]:
    """Returns the names and patterns of this machine that nothing is found by."""
    return [name for name in names if "://" not in name and not _matching(name)]


def missing(name: str, key: str) -> errors.RunError:
    """Returns the fault of a name or pattern that nothing is found by."""
    rule = "the file must exist, but does not"
    if glob.has_magic(name):
        rule = "a file must exist by this name or pattern, there is none"
    return errors.RunError(f"{key}: {name}: {rule}. Check the path.")


def _matching(name: str) -> list[str]:
    return [name] if os.path.lexists(name) else sorted(glob.glob(name, recursive=True))


def kind_of(path: str) -> str:
    """Returns what a file is: gzip, npz, npy, parquet, tfrecord, text; empty if not known."""
    return _kind_of(_head(path)[:1024])


def form_of(path: str) -> str:
    """Returns what a file is, or has in it if it is compressed; see `kind_of`."""
    head = _head(path)
    with contextlib.suppress(zlib.error):
        head = zlib.decompressobj(47).decompress(head, 1024)  # gzip or zlib
    return _kind_of(head[:1024])


def _head(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(2**16)
    return b""


def _kind_of(head: bytes) -> str:
    for begin, kind in _BEGINS.items():
        if head.startswith(begin):
            return kind
    if len(head) > 12 and head[4:8] == bytes(4) and head[:4] != bytes(4):
        return "tfrecord"  # a length of 8 bytes comes first
    return "text" if head and not any(byte < 9 for byte in head) else ""


def refuse_other_kind(path: str, wanted: str, key: str) -> None:
    """Raises a RunError where a file is plainly of another kind than the config says."""
    kind = kind_of(path)
    if kind in _ADVICE and kind != wanted:
        raise errors.RunError(f"{key}: {path}: must be {wanted}, but is {_ADVICE[kind]}.")
