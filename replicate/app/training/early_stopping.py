"""When a training ends before its last step: its evaluations get no better any more."""

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from replicate.app.runs import whole_files
from replicate.app.training import compared_metrics

__all__ = ["FILE", "EarlyStopping", "Rule"]

FILE = "early_stopping.json"
_KEY = "train.early_stopping.metric"


class Rule(NamedTuple):
    """What the config says of it.

    Attributes:
        metric: The metric that is watched.
        higher_is_better: Whether more of it is better.
        patience: After how many evaluations without an improvement training ends.
        min_delta: By how much more than this an improvement must be better.
    """

    metric: str
    higher_is_better: bool
    patience: int
    min_delta: float


class EarlyStopping:
    """All evaluations of a run, and whether they say that it is over.

    What is written down are the values, not the verdict: so a run that goes on, be it with
    more patience, judges all of them anew.

    Args:
        model_dir: Where the evaluations are written down.
        rule: What the config says.
        start: The step that the run begins at; evaluations of later ones do not count.
    """

    def __init__(self, model_dir: str, rule: Rule, start: int):
        self._path = os.path.join(model_dir, FILE)
        self._rule = rule
        self._values: dict[int, float] = {}
        self.read(start)

    def read(self, step: int) -> None:
        """Takes in what is written down, of evaluations up to a step."""
        known = whole_files.read_json(self._path) or {}
        if known.get("metric") == self._rule.metric:
            found = _pairs(known.get("evaluations"))
            self._values.update((at, value) for at, value in found if at <= step)

    @property
    def last_step(self) -> int:
        """The step of the newest evaluation; 0 where there was none."""
        return max(self._values, default=0)

    def take(self, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of an evaluation, and writes them down.

        Raises:
            RunError: If the metric that is watched is not among them.
        """
        value = compared_metrics.value_of(metrics, self._rule.metric, _KEY)
        self._values[int(metrics["global_step"])] = value if math.isfinite(value) else math.nan
        known = [
            [step, None if math.isnan(one) else one] for step, one in sorted(self._values.items())
        ]
        whole_files.write_json(self._path, {"metric": self._rule.metric, "evaluations": known})

    def reason(self) -> str | None:
        """Returns why training is over; None where it is not."""
        best, best_step, waited = None, None, 0
        rule = self._rule
        for step, value in sorted(self._values.items()):
            if compared_metrics.is_better(value, best, rule.higher_is_better, rule.min_delta):
                best, best_step, waited = value, step, 0
            else:
                waited += 1
            if waited >= rule.patience:
                return _reason(rule, best, best_step, waited)
        return None


def _reason(rule: Rule, best: float | None, best_step: int | None, waited: int) -> str:
    evaluations = "1 evaluation" if waited == 1 else f"{waited} evaluations"
    if best is None:
        return f"{rule.metric} has been no number for {evaluations}"
    delta = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
    return (
        f"{rule.metric} has not been better than {best:.6g}, of step {best_step},{delta} "
        f"for {evaluations}"
    )


def _pairs(known: Any) -> list[tuple[int, float]]:
    """Returns steps and values as they were written down; None stands for no number."""
    pairs = []
    for pair in known if isinstance(known, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int):
            is_number = isinstance(pair[1], int | float)
            pairs.append((pair[0], float(pair[1]) if is_number else math.nan))
    return pairs
