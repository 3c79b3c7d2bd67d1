"""What takes long is done once in a test run, by whichever of its processes needs it first."""

import os
import pathlib
import pickle
import shutil
from collections.abc import Callable
from typing import Any

import filelock
import pytest


def made(factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], Any]) -> Any:
    """Returns what `make` returns, in all processes of the test run.

    Args:
        factory: Whose base directory holds it; of several processes each has one inside.
        name: Of what is made, in the whole run.
        make: Called with an empty folder, which stays until the run has ended.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, kept = base / name, base / f"{name}.pickle"
    with filelock.FileLock(base / f"{name}.lock"):
        if not kept.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            kept.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(kept.read_bytes())
