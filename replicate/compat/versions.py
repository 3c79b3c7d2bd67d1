"""Which TensorFlow this package runs on, and which Keras with it.

Does not import TensorFlow. From 2.16 on, `tf.keras` is Keras 3, which knows no graphs;
tf-keras is Keras 2 for these releases, and `TF_USE_LEGACY_KERAS=1` makes it `tf.keras`.
The variable is read when Keras is first touched; for imports from `tensorflow.keras`, while
TensorFlow is imported.
"""

import importlib.metadata
import re
from collections.abc import Iterable, MutableMapping
from types import ModuleType

from replicate import errors

OLDEST = (2, 15)
NEWEST = (2, 21)
KERAS_VARIABLE = "TF_USE_LEGACY_KERAS"

_FIRST_WITH_KERAS_3 = (2, 16)
_YES = ("1", "true", "True")  # TensorFlow takes these three for a yes


def parse(version: str) -> tuple[int, int] | None:
    """Returns the two leading numbers of a version, None where there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def require_supported(found: str | None) -> None:
    """Refuses a TensorFlow outside the range.

    Args:
        found: What TensorFlow says is its version; None where it is not installed.

    Raises:
        UnsupportedTensorFlowError: If the version is older or newer than the range.
    """
    number = parse(found) if found else None
    if number and OLDEST <= number <= NEWEST:
        return
    came = f"found TensorFlow {found}" if found else "found no TensorFlow"
    raise errors.UnsupportedTensorFlowError(
        f"replicate runs on TensorFlow {_text(OLDEST)} - {_text(NEWEST)}; {came}. "
        f'Install one of these: pip install "tensorflow~={_text(NEWEST)}.0".'
    )


def choose_keras(environment: MutableMapping[str, str]) -> None:
    """Makes Keras 2 `tf.keras`, where TensorFlow 2.16 or later would take Keras 3.

    Sets `TF_USE_LEGACY_KERAS`, if tf-keras is installed and nobody has set it. A tf-keras
    has the number of its TensorFlow: beside 2.15, whose Keras is Keras 2, nothing is set.

    Args:
        environment: The process's variables, `os.environ`.
    """
    number = parse(_installed("tf-keras") or "")
    if number and number >= _FIRST_WITH_KERAS_3:
        environment.setdefault(KERAS_VARIABLE, "1")


def require_keras_2(found: str, setting: str | None) -> None:
    """Refuses an environment in which `tf.keras` would be Keras 3.

    Args:
        found: TensorFlow's version.
        setting: The value of `TF_USE_LEGACY_KERAS`, None where it is not set.

    Raises:
        UnsupportedTensorFlowError: If tf-keras is missing, or the variable says no to it.
    """
    number = parse(found)
    if not number or number < _FIRST_WITH_KERAS_3:
        return
    tf_keras = _installed("tf-keras")
    if (parse(tf_keras or "") or OLDEST) < _FIRST_WITH_KERAS_3:
        came = f"tf-keras {tf_keras}" if tf_keras else "no tf-keras"
        raise errors.UnsupportedTensorFlowError(
            f"Beside TensorFlow {found}, replicate needs the tf-keras of the same number; "
            f'found {came}. Install it: pip install "tf-keras~={_text(number)}.0".'
        )
    if setting not in _YES:
        raise errors.UnsupportedTensorFlowError(
            f"replicate needs Keras 2 (tf-keras), as model_fns use it; {KERAS_VARIABLE} is "
            f"{setting!r}, which makes tf.keras Keras 3. Unset it, or set it to 1."
        )


def bound_to_keras_3(modules: Iterable[ModuleType]) -> list[str]:
    """Returns the names of TensorFlow modules that are Keras 3 already.

    Args:
        modules: Public modules of TensorFlow. Nothing in them is loaded by asking: TensorFlow's
            lazy modules say in their repr whether and to what they are bound.
    """
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, ModuleType)
        and re.search(r"'keras\._tf_keras|keras[/\\]+_tf_keras|\(keras_3\)", repr(value))
    ]


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
