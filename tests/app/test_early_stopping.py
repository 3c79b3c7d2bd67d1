"""When evaluations say that a training is over."""

import math

import pytest

from replicate import errors
from replicate.app.config import sections
from replicate.app.training import improvement


def reason(folder, values, step=100, metric="loss", **rule):
    """Returns why a training is over that has one value for each step from 1 on."""
    for at, value in enumerate(values, start=1):
        improvement.note(str(folder), {metric: value, "global_step": at})
    rule = {"higher_is_better": False, "patience": 2, "min_delta": 0.0} | rule
    wanted = sections.EarlyStopping(metric=metric, **rule)
    return improvement.why_over(str(folder), wanted, step)


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
    found = reason(tmp_path, values, **rule)
    assert (found is None) if text is None else (text in found)


def test_a_run_that_continues_judges_by_its_own_patience_and_metric(tmp_path):
    assert reason(tmp_path, [1, 2, 3]) is not None
    assert reason(tmp_path, [], patience=3) is None
    assert reason(tmp_path, [], metric="accuracy", higher_is_better=True) is None


def test_evaluations_after_the_checkpoint_that_a_run_continues_from_do_not_count(tmp_path):
    assert reason(tmp_path, [1, 2, 3]) is not None
    assert reason(tmp_path, [], step=2) is None


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"a": 1, "1": {"loss": "low"}, "2": {}}'])
def test_a_damaged_file_is_no_file(tmp_path, text):
    (tmp_path / improvement.FILE).write_text(text)
    assert reason(tmp_path, []) is None


@pytest.mark.parametrize(
    ("earlier", "value", "expected"),
    [([], 5.0, True), ([2, 1], 0.5, True), ([2, 1], 1.0, False), ([2], math.nan, False)],
)
def test_the_best_is_better_than_all_before(tmp_path, earlier, value, expected):
    reason(tmp_path, earlier)
    found = {"loss": value, "global_step": len(earlier) + 1}
    assert improvement.is_best(str(tmp_path), found, sections.KeepBest(), "key") is expected


def test_a_metric_that_is_not_there_is_told():
    with pytest.raises(errors.RunError, match=r"a.key: the model must have this metric, got 'l"):
        improvement.value_of({"los": 1.0}, "loss", "a.key")
