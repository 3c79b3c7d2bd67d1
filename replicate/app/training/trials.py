"""`replicate train --fast-dev-run`: one batch of all that a config has, and nothing kept of it."""

import contextlib
import itertools
import tempfile
from collections.abc import Sequence
from typing import Any

from replicate.app.config import config
from replicate.app.training import runner, trainings
from replicate.console import interrupts, progress


class _Display(progress.Display):
    """Shows what another one would, but says of the folder that it is not kept."""

    def __init__(self, other: progress.Display, folder: str):
        super().__init__(other.quiet, tell=other.tell)
        self._folder = folder

    def say(self, text: str) -> None:
        """See base class."""
        super().say(text.replace(self._folder, "(not kept)"))


def run(
    settings: config.Config, display: progress.Display, command: Sequence[str] = ()
) -> trainings.Trained:
    """Trains, evaluates, exports and predicts, as far as the config has these sections.

    Training makes one update, which are `accumulate_steps` batches.
    """
    display.say("one batch of everything; nothing is kept")
    with tempfile.TemporaryDirectory(prefix="replicate-") as folder:
        changed = _one_batch(settings, folder)
        display = _Display(display, folder)
        try:
            done = runner.train(changed, display, command)
        except interrupts.Interrupted:
            raise interrupts.Interrupted("stopped; nothing is kept") from None
        if changed.predict is not None:
            with contextlib.closing(runner.predict(changed, display)) as rows:
                first = list(itertools.islice(rows, changed.predict.input.batch_size))
            display.say(f"predicted {len(first)} rows")
    return done._replace(path=None)


def _one_batch(settings: config.Config, folder: str) -> config.Config:
    """Returns a config like another one, of one update and one batch of each other input."""
    wanted: dict[str, dict[str, Any]] = {
        "train": {"steps": settings.accumulate_steps, "epochs": None},
        "eval": {"steps": 1},
        "predict": {},
        "export": {"directory": None},
        "cluster": {"evaluator": False},
    }
    changes: dict[str, Any] = {"model_dir": folder}
    for name, keys in wanted.items():
        section = getattr(settings, name)
        if hasattr(section, "input"):
            kept = {"cache": False} if hasattr(section.input, "cache") else {}
            keys["input"] = section.input.model_copy(update={"shuffle": False, **kept})
        changes[name] = section and section.model_copy(update=keys)
    return settings.model_copy(update=changes)
