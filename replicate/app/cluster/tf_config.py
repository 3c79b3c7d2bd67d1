"""`TF_CONFIG` while a command runs: what launchers say of a cluster, as Estimators hear it."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["said"]

_NAME = "TF_CONFIG"


@contextlib.contextmanager
def said(given: Mapping[str, Any] | None) -> Iterator[None]:
    """While entered, the environment says this and nothing else of a cluster; None: no word."""
    before = os.environ.pop(_NAME, None)
    try:
        if given is not None:
            os.environ[_NAME] = json.dumps(given)
        yield
    finally:
        os.environ.pop(_NAME, None)
        if before is not None:
            os.environ[_NAME] = before
