"""What scripts/mutants.py changes in a module."""

import types

import pytest

from scripts.mutating import mutations, reach


def mutants(source: str) -> list[str]:
    """Returns what a module becomes."""
    return [one.applied(source) for one in mutations.of(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["x = (a <= b)"]),
        ("x = a is None", ["x = (a is not None)"]),
        ("x = a and b", ["x = (a or b)"]),
        ("x = not a", ["x = (a)"]),
        ("x = a - b", ["x = (a + b)"]),
        ("x = f(0)", ["x = f((1))"]),
        ("x = f(flag=True)", ["x = f(flag=(False))"]),
        ("x = min(a, b)", ["x = (max(a, b))"]),
        ("x = a if b else c", ["x = (a if not b else c)"]),
        ("def f():\n    return a", ["def f():\n    return"]),
        ("f(a)", ["pass"]),
        ("for x in y:\n    continue", ["for x in y:\n    break"]),
        ("x = [a for a in y if a != b]", ["x = [a for a in y if (a == b)]"]),
        ("x = 'é' + a", ["x = ('é' - a)"]),
    ],
)
def test_changes_one_thing_at_a_time(source, expected):
    assert mutants(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring: 1 + 1."""',
        "raise ValueError(a + b)",
        "def f(a: 'int | None') -> 'x < y':\n    pass",
        "def __repr__(self):\n    return a + b",
        "x = f'{a + b}'",
        "def f():\n    return None",
    ],
)
def test_leaves_what_no_test_could_notice(source):
    assert mutants(source) == []


def test_says_where_a_change_is():
    source = "class A:\n    def f(self, b):\n        x = (\n            b + 1.5\n        )\n"
    (change,) = mutations.of(source)
    assert (change.function, change.line, change.statement) == ("A.f", 4, 3)
    assert (change.before, change.after) == ("b + 1.5", "(b - 1.5)")


def test_tests_that_fail_are_written_down(tmp_path):
    kept = reach.Failures(tmp_path)
    for test, failed in {"a[1]": True, "b": False, "c": True}.items():
        kept.pytest_runtest_logreport(types.SimpleNamespace(nodeid=test, failed=failed))
    assert reach.failed(tmp_path) == ["a[1]", "c"]
    reach.Failures(tmp_path)  # of the next run
    assert reach.failed(tmp_path) == []


def test_tests_of_a_mutant_are_of_many_functions_and_end_in_time():
    seconds = {"a[1]": 1.0, "a[2]": 2.0, "a[3]": 3.0, "b": 5.0, "c": 90.0}
    assert reach.in_turns(seconds, 9.0) == ["a[1]", "b", "a[2]"]  # 1 + 5 + 2, and 3 are too many
    assert reach.in_turns(seconds, 0.5) == ["a[1]"]  # one at least
    assert reach.in_turns({}, 9.0) == []
