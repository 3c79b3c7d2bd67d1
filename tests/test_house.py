"""The rules of the house, proved on every room."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = sorted(
    path.relative_to(ROOT)
    for folder in ("replicate", "scripts")
    for path in (ROOT / folder).glob("**/*.py")
)
MAX_ROOM, MAX_FUNCTION = 400, 60

each_room = pytest.mark.parametrize("room", ROOMS, ids=str)


def test_rooms_import_only_from_the_floors_below(monkeypatch, run_python):
    monkeypatch.chdir(ROOT)
    # In a process of its own: the linter's set-up of logging disables every other logger.
    run_python(
        "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    )


@each_room
def test_room_has_a_size_that_a_reader_can_hold(room):
    text = (ROOT / room).read_text()
    assert text.count("\n") <= MAX_ROOM
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < MAX_FUNCTION, node.name


@each_room
def test_nothing_outside_of_tests_is_asserted(room):
    tree = ast.parse((ROOT / room).read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def test_every_lint_exception_has_a_reason():
    exceptions = re.findall(r'^ *"[A-Z]+\d+",.*$', (ROOT / "ruff.toml").read_text(), re.MULTILINE)
    assert [line for line in exceptions if "#" not in line] == []
    assert len(exceptions) > 5
