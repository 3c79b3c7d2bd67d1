"""The root: public names, loaded on first use."""

import importlib

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


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'replicate' has no attribute 'replica'"):
        replicate.replica  # noqa: B018 - the look-up is what is tested


@pytest.mark.parametrize(
    "code",
    [
        "import replicate; replicate.errors, replicate.__version__, dir(replicate)",
        "from replicate import estimator; dir(estimator)",
        "from replicate.app import cli, config",
    ],
)
def test_tensorflow_is_not_imported_before_it_is_used(run_python, code):
    run_python(f"{code}\nimport sys; assert 'tensorflow' not in sys.modules")


def test_star_import_takes_the_public_names(run_python):
    run_python("from replicate import *; get_tower_context(), estimator.Estimator")
