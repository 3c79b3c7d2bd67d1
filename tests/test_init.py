"""The root: public names, loaded on first use."""

import importlib
import inspect
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import replicate


@pytest.mark.parametrize("name", replicate.__all__)
def test_public_name_exists(name):
    assert getattr(replicate, name) is not None


def test_public_names_are_in_dir_once():
    assert {*replicate.__all__} <= {*dir(replicate)}
    assert len(replicate.__all__) == len({*replicate.__all__})


def test_whole_strategy_room_is_public():
    strategy = importlib.import_module("replicate.strategy")
    assert {*strategy.__all__} <= {*replicate.__all__}
    assert all(getattr(strategy, name) is getattr(replicate, name) for name in strategy.__all__)


def undocumented(value, name):
    """Yields what of a public name the API reference would have nothing to say about."""
    if not (inspect.getdoc(value) or "").strip():
        yield name
    if inspect.isclass(value) or inspect.ismodule(value):
        for member in getattr(value, "__all__", None) or vars(value):
            one = vars(value).get(member)
            of_ours = getattr(one, "__module__", "replicate").startswith("replicate")
            if not member.startswith("_") and callable(one) and of_ours and one is not value:
                yield from undocumented(one, f"{name}.{member}")


@pytest.mark.parametrize("name", [name for name in replicate.__all__ if name[0] != "_"])
def test_public_names_and_their_members_are_described(name):
    assert list(undocumented(getattr(replicate, name), name)) == []


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'replicate' has no attribute 'replica'"):
        replicate.replica  # noqa: B018 - the look-up is what is tested


@pytest.mark.parametrize(
    "code",
    [
        "import replicate; replicate.errors, replicate.__version__, dir(replicate)",
        "from replicate.app.command import cli; from replicate.app.config import config",
    ],
)
def test_tensorflow_is_not_imported_before_it_is_used(run_python, code):
    run_python(f"{code}\nimport sys; assert 'tensorflow' not in sys.modules")


@pytest.mark.thorough
def test_star_import_takes_the_public_names(run_python):
    run_python("from replicate import *; get_tower_context(), estimator.Estimator")


def test_an_editable_install_is_found_beside_a_clone_of_the_same_name(tmp_path):
    root, clone = pathlib.Path(__file__).parent.parent, tmp_path / "replicate"
    (clone / "replicate").mkdir(parents=True)  # the clone itself has no __init__.py
    for name in ("setup.cfg", "setup.py", "README.md", "LICENSE", "replicate/__init__.py"):
        shutil.copy(root / name, clone / name)
    build = "from setuptools import build_meta; build_meta.build_editable('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = (clone / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    find = "import site; site.addsitedir('installed'); import replicate; print(replicate.__file__)"
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", find], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(clone / "replicate" / "__init__.py"), done.stderr
