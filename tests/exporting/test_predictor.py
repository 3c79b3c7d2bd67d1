"""Loading an exported model."""

import numpy as np
import pytest

from replicate.exporting import predictor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]


def batch(size):
    left = np.arange(size, dtype=np.float32)
    return {"left": left, "right": np.ones(size, np.float32)}, 2 * left - 1


@pytest.mark.parametrize("devices", [None, 1, 2, 4, ["/cpu:7", "/cpu:1", "/cpu:6"]])
def test_any_batch_size_is_answered_on_any_devices(devices, merged):
    with predictor.load_exported(merged[0], devices=devices) as loaded:
        shown = {device.name[-5:] for device in loaded._session.list_devices()}
        assert shown >= {"CPU:1", "CPU:6", "CPU:7"}
        for size in (1, 2, 3, 7, 100):
            inputs, answer = batch(size)
            np.testing.assert_array_equal(loaded(inputs)["y"], answer)


@pytest.mark.parametrize("tags", ["serve", ["serve"], ("serve",)])
def test_tags_are_one_or_several(tags, merged):
    with predictor.load_exported(merged[1], tags=tags) as loaded:
        assert list(loaded.signatures) == ["serving_default"]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"left": [1.0]}, "'right' is missing"),
        ({"left": [1.0], "rihgt": [1.0]}, "no input 'rihgt'. Did you mean 'right'"),
        ({"left": [1.0], "right": [1.0], "x": [1.0]}, "takes the inputs 'left', 'right': no inp"),
        ([1.0], "Inputs are a dict of arrays; got list"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs, text, merged):
    with (
        predictor.load_exported(merged[1]) as loaded,
        pytest.raises(ValueError, match=text),
    ):
        loaded(inputs)


def test_a_signature_that_does_not_exist_is_named(merged):
    with predictor.load_exported(merged[1]) as loaded:
        assert loaded.signatures == {"serving_default": (("left", "right"), ("y",))}
        with pytest.raises(ValueError, match="Did you mean 'serving_default'"):
            loaded(batch(1)[0], signature="serve_default")


def test_a_directory_without_a_model_says_what_it_holds(merged, tmp_path):
    with pytest.raises(ValueError, match="has nothing in it"):
        predictor.load_exported(tmp_path)
    with pytest.raises(ValueError, match="it is no directory"):
        predictor.load_exported(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"has graphs with the tags \[\['serve'\]\]; got"):
        predictor.load_exported(merged[0], tags=["gpu"])
