"""The rules for modules, proved on each: layers, sizes, no assert in the package."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(
    path.relative_to(ROOT)
    for folder in ("replicate", "scripts")
    for path in (ROOT / folder).glob("**/*.py")
)
MAX_MODULE = 500
MAX_FUNCTION = 40  # without the docstring
MAX_PARAMETERS = 6  # beside self, and options that are given by name alone

each_module = pytest.mark.parametrize("module", MODULES, ids=str)


def test_modules_import_only_from_the_layers_below(monkeypatch, run_python):
    monkeypatch.chdir(ROOT)
    # In a process of its own: the linter's set-up of logging disables every other logger.
    run_python(
        "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True))"
    )


@each_module
def test_module_has_a_size_that_a_reader_can_hold(module):
    assert (ROOT / module).read_text().count("\n") <= MAX_MODULE


@each_module
def test_functions_have_a_size_that_a_reader_can_hold(module):
    long = {node.name for node in functions(module) if length(node) > MAX_FUNCTION}
    assert long == set()


@each_module
def test_functions_have_few_parameters(module):
    many = {node.name for node in functions(module) if parameters(node) > MAX_PARAMETERS}
    assert many == set()


@each_module
def test_nothing_outside_of_tests_is_asserted(module):
    assert not [node.lineno for node in nodes(module) if isinstance(node, ast.Assert)]


def test_every_lint_exception_has_a_reason():
    exceptions = re.findall(r'^ *"[A-Z]+\d+",.*$', (ROOT / "ruff.toml").read_text(), re.MULTILINE)
    assert [line for line in exceptions if "#" not in line] == []
    assert len(exceptions) > 5


def functions(module):
    """Returns the functions of a module, at whatever depth."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in nodes(module) if isinstance(node, kinds)]


@functools.cache
def nodes(module):
    return list(ast.walk(ast.parse((ROOT / module).read_text())))


def length(function):
    """Returns how many lines a function has beside its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    told = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - told


def parameters(function):
    """Returns how many parameters a call may give by position."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return len([name for name in names if name not in ("self", "cls")])
