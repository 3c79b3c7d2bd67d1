"""When evaluations say that a training is over."""

import math

import pytest

from replicate import errors
from replicate.app.config import sections
from replicate.app.training import improvement


def judged(folder, values, start=100, **rule):
    """Returns an EarlyStopping that has taken one value for each step from 1 on."""
    rule = {"higher_is_better": False, "patience": 2, "min_delta": 0.0} | rule
    wanted = sections.EarlyStopping(metric="loss", **rule)
    made = improvement.EarlyStopping(str(folder), wanted, start)
    for step, value in enumerate(values, start=1):
        made.take({"loss": value, "global_step": step})
    return made


@pytest.mark.parametrize(
    ("values", "rule", "text"),
    [
        ([3, 2, 1], {}, None),
        ([3, 2, 2], {}, None),
        ([3, 2, 2, 2], {}, "loss has not improved on 2 (step 2) for 2 evaluations"),
        ([3, 2, 4, 1], {}, None),
        ([3, 4], {"patience": 1}, "loss has not improved on 3 (step 1) for 1 evaluation"),
        ([1, 2, 3], {"higher_is_better": True}, None),
        ([3, 2, 1], {"higher_is_better": True}, "on 3 (step 1) for 2 evaluations"),
        # 2.9 and 2.8 are better than 3, but by no more than 0.5.
        ([3, 2.9, 2.8], {"min_delta": 0.5}, "on 3 (step 1) by more than 0.5 for 2"),
        ([3, 2.9, 2.4], {"min_delta": 0.5}, None),
        ([math.nan, math.inf], {}, "loss was not a number in 2 evaluations"),
        ([math.nan, 5], {}, None),
    ],
)
def test_training_is_over_when_nothing_improved_for_as_long_as_patience_says(
    tmp_path, values, rule, text
):
    reason = judged(tmp_path, values, **rule).reason()
    assert (reason is None) if text is None else (text in reason)
    assert judged(tmp_path, [], **rule).reason() == reason  # a run that continues remembers


def test_an_accuracy_that_rises_ends_nothing(tmp_path):
    made = improvement.EarlyStopping(
        str(tmp_path), sections.EarlyStopping(metric="accuracy", patience=1), 100
    )
    for step, value in ((1, 0.5), (2, 0.75)):
        made.take({"accuracy": value, "global_step": step})
    assert made.reason() is None
    made.take({"accuracy": 0.6, "global_step": 3})
    assert made.reason().startswith("accuracy has not improved on 0.75 (step 2) ")


def test_a_run_that_continues_judges_by_its_own_patience(tmp_path):
    assert judged(tmp_path, [1, 2, 3]).reason() is not None
    assert judged(tmp_path, [], patience=3).reason() is None


def test_evaluations_after_the_checkpoint_that_a_run_continues_from_do_not_count(tmp_path):
    assert judged(tmp_path, [1, 2, 3]).reason() is not None
    assert judged(tmp_path, [], start=2).reason() is None


def test_a_damaged_file_is_no_file(tmp_path):
    (tmp_path / improvement.FILE).write_text('{"metric": "loss", "evaluations": [[1], 2]}')
    assert judged(tmp_path, []).reason() is None


def test_a_metric_that_is_not_there_is_told(tmp_path):
    with pytest.raises(errors.RunError, match=r"train.early_stopping.metric: the model must have"):
        judged(tmp_path, []).take({"los": 1.0, "global_step": 1})
