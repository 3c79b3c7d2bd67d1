"""Advice of TensorFlow that users of Estimators cannot take is not shown.

That is to use tf.keras, or other names; what libraries call that is deprecated; and to give params
to a replicated model_fn that names none. Where an Estimator writes is told at INFO. That the global
step stands still is told the second time: a step may be read before its update or after it.
"""

import logging
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

_OTHER_NAMES = ("tf.estimator", "Use tf.keras instead.")


class _Filter(logging.Filter):
    """Drops such advice.

    Args:
        libraries: The folders of libraries.
    """

    def __init__(self, *libraries: Path):
        super().__init__()
        self._libraries = tuple(map(str, libraries))
        self._step: tuple[Any, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        """See base class."""
        text, args = str(record.msg), record.args if isinstance(record.args, tuple) else ()
        if "is deprecated" in text and args:  # the first one says where that was called
            is_advice = any(str(one).startswith(_OTHER_NAMES) for one in args)
            return not is_advice and not str(args[0]).startswith(self._libraries)
        if "includes params argument" in text and args:
            return getattr(args[0], "names_params", True)
        if text.startswith("Using temporary folder as model directory"):
            return logging.getLogger(record.name).isEnabledFor(logging.INFO)
        if text.startswith("It seems that global step"):
            before, self._step = self._step, args[:1]
            return self._step == before
        return True


def drop(tensorflow: ModuleType) -> None:
    """Drops such advice from now on.

    Args:
        tensorflow: The module.
    """
    libraries = Path(str(tensorflow.__file__)).parents[1], Path(__file__).parents[1]
    tensorflow.get_logger().addFilter(_Filter(*libraries))
    warnings.filterwarnings("ignore", r"`tf\.layers\.\w+` is deprecated", UserWarning)
