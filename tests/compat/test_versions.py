"""The range of versions and the choice of Keras, as pure functions."""

import importlib.metadata
import sys
import types

import pytest

from replicate import errors
from replicate.compat import versions


@pytest.mark.parametrize("found", ["2.15.0", "2.16.0-rc1", "2.18.1", "2.21.0", "2.21"])
def test_versions_inside_the_range_pass(found):
    versions.require_supported(found)


@pytest.mark.parametrize(
    ("found", "came"),
    [
        *((number, f"TensorFlow {number}\\.") for number in ("2.14.1", "2.22.0-dev1", "3.0.0")),
        (None, "no TensorFlow"),
        ("of an unknown version", "TensorFlow of an unknown version"),
    ],
)
def test_others_are_refused(found, came):
    with pytest.raises(errors.UnsupportedTensorFlowError, match=f"2.15 - 2.21; found {came}"):
        versions.require_supported(found)


@pytest.fixture
def tf_keras(monkeypatch):
    """Lets tf-keras be installed in the version that is set, or not at all."""
    installed = {}

    def version(distribution):
        if distribution not in installed:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return installed[distribution]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return lambda number: installed.update({"tf-keras": number})


@pytest.mark.parametrize(
    ("installed", "before", "after"),
    [
        ("2.21.0", {}, {"TF_USE_LEGACY_KERAS": "1"}),
        ("2.16.0", {}, {"TF_USE_LEGACY_KERAS": "1"}),
        ("2.21.0", {"TF_USE_LEGACY_KERAS": "0"}, {"TF_USE_LEGACY_KERAS": "0"}),
        ("2.15.1", {}, {}),
        (None, {}, {}),
    ],
)
def test_keras_2_is_chosen_where_keras_3_would_come(tf_keras, installed, before, after):
    if installed:
        tf_keras(installed)
    environment = dict(before)
    versions.choose_keras(environment)
    assert environment == after


def test_keras_2_chosen_passes(tf_keras):
    versions.require_keras_2("2.15.1", None)  # it has Keras 2 itself
    tf_keras("2.21.0")
    for yes in ("1", "true", "True"):
        versions.require_keras_2("2.21.0", yes)


@pytest.mark.parametrize(
    ("installed", "setting", "came"),
    [
        *(("2.21.0", no, "TF_USE_LEGACY_KERAS is") for no in ("0", "", "False", None)),
        (None, "1", "found no tf-keras.*tf-keras~=2.21.0"),
        ("2.15.1", "1", "found tf-keras 2.15.1.*tf-keras~=2.21.0"),
    ],
)
def test_keras_3_asked_for_or_tf_keras_missing_is_refused(tf_keras, installed, setting, came):
    if installed:
        tf_keras(installed)
    with pytest.raises(errors.UnsupportedTensorFlowError, match=came):
        versions.require_keras_2("2.21.0", setting)


class _Lazy(types.ModuleType):
    """Says what it is bound to as TensorFlow's lazy modules do."""

    def __repr__(self):
        return "<KerasLazyLoader (keras_3) keras._tf_keras.keras.layers as layers mode=v1>"


def test_modules_bound_to_keras_3_are_named():
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.keras = types.ModuleType("keras._tf_keras.keras")
    tensorflow.layers = _Lazy("layers")
    tensorflow.losses = types.ModuleType("tf_keras.api._v2.keras.losses")
    tensorflow.version = "keras._tf_keras"
    named = versions.bound_to_keras_3([tensorflow])
    assert named == ["tensorflow.keras", "tensorflow.layers"]


def test_the_module_does_not_import_tensorflow(run_python):
    assert "tensorflow" in sys.modules
    run_python(
        "import sys; from replicate.compat import versions; assert 'tensorflow' not in sys.modules"
    )
