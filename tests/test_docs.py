"""What the documents name exists, and their links lead somewhere."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import replicate
from replicate import errors, strategy

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
MODULES = sorted(
    path.relative_to(ROOT / "replicate").with_suffix("").as_posix()
    for path in ROOT.glob("replicate/**/*.py")
    if path.name != "__init__.py"
)
FOLDERS = (ROOT, ROOT / "replicate")
EXAMPLE = re.compile(r"```.*?```", re.DOTALL)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def prose(document):
    """Returns a document's text without its examples."""
    return EXAMPLE.sub("", document.read_text(encoding="utf-8"))


def named(document):
    """Returns what stands between backticks."""
    return re.findall(r"`([^`\n]+)`", prose(document))


def names_in(module):
    """Returns all that a module defines, at whatever depth."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def module_of(text):
    """Returns the file of a module, and what of it is named."""
    folder, _, last = text.rpartition("/")
    module, *names = last.split(".")
    path = ROOT / "replicate" / folder / f"{module}.py"
    return (path if path.exists() else None), names


def exists(text):
    """Whether a path, a module, or a name in a module is there."""
    if any((folder / text).exists() for folder in FOLDERS):
        return True
    if "::" in text:
        path, _, test = text.partition("::")
        return (ROOT / path).exists() and test in names_in(ROOT / path)
    module, names = module_of(text)
    return module is not None and set(names) <= names_in(module)


def is_path(text):
    """Whether a text names a file, or something in one: slashes, and nothing but names."""
    is_module = text.split(".")[0] in MODULES and re.fullmatch(r"[\w.]+", text)
    is_written_so = re.fullmatch(r"[\w.-]+(/[\w.-]*)+(::\w+)?", text)
    return bool(is_module or is_written_so) and not re.match(r"tower_\d", text)


@each_document
def test_what_is_named_exists(document):
    assert [text for text in named(document) if is_path(text) and not exists(text)] == []


@each_document
def test_scripts_of_examples_can_be_run(document):
    for block in EXAMPLE.findall(document.read_text(encoding="utf-8")):
        for name in re.findall(r"^(?:\w+=\S+ )*(scripts/[\w.]+)", block, re.MULTILINE):
            assert os.access(ROOT / name, os.X_OK), name


@each_document
def test_public_names_are_public(document):
    for name in re.findall(r"\breplicate\.(\w+)", prose(document)):
        is_package = (ROOT / "replicate" / name).is_dir()
        assert name in replicate.__all__ or name in MODULES or is_package, name


@each_document
def test_values_of_options_are_taken(document):
    text = document.read_text(encoding="utf-8")
    names = "loss_reduction|random_numbers|tower_building|update_ops"
    if document.name == "CHANGELOG.md":
        text = text.partition("### Removed")[0]
    for name, value in re.findall(rf'\b({names})="(\w+)"', text):
        replicate.replicate_model_fn(lambda features: features, **{name: value})


@each_document
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_messages_name_pages_that_are_there():
    package = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("replicate/**/*.py"))
    named = re.findall(r'docs/([\w-]+\.md)|"([\w-]+\.md)(?:#([\w-]+))?"', package)
    named += re.findall(r"docs/([\w-]+\.md)()#([\w-]+)", package)
    assert len(named) > 5
    for one, another, anchor in named:
        file = ROOT / "docs" / (one or another)
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), anchor


def anchors(document):
    """Returns what a link to a heading of a document may end in."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_every_package_is_in_the_architecture():
    package = ROOT / "replicate"
    inside = (path.parent for path in package.rglob("__init__.py"))
    packages = {path.relative_to(package).as_posix() for path in inside} - {"."}
    modules = {path.stem for path in package.glob("[a-z]*.py")}
    listed = set(named(ROOT / "docs" / "architecture.md"))
    assert packages | modules <= listed


def test_every_public_name_is_in_the_api():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: replicate\.(\w+)", text, re.MULTILINE)
    documented_inside = {"__version__", "strategy", *errors.__all__} - {"errors"}
    assert set(replicate.__all__) - set(listed) <= documented_inside
    assert set(strategy.__all__) <= set(listed)
    assert set(listed) <= set(replicate.__all__)


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "replicate.replicate_model_fn" in page
    assert ":::" not in page


def test_lines_are_short_enough_to_read():
    lines = [line for document in DOCUMENTS for line in prose(document).splitlines()]
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_the_rules_that_are_explained_are_the_packages():
    text = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    lines, function = re.findall(r"```python\n((?:signature|@by_axes).*?)```", text, re.DOTALL)
    paths = (ROOT / "replicate" / "splitting" / "rules").glob("*.py")
    package = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert [shown for shown in [*lines.splitlines(), function] if shown not in package] == []
