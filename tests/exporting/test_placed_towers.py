"""Towers of an exported model on devices of this machine."""

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.exporting import export, placed_towers, portable, predictor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]


def test_towers_compute_where_they_are_placed(merged):
    with predictor.load_exported(merged.merged, devices=["/cpu:6", "/cpu:7"]) as loaded:
        places = [loaded.graph.get_operation_by_name(name).device for name in merged.products]
    # Four towers on two devices: the first two on the one, the others on the other.
    assert places == ["/device:CPU:6"] * 2 + ["/device:CPU:7"] * 2


def test_a_placed_copy_is_loaded_by_any_loader(merged, tmp_path):
    placed = placed_towers.place_towers(merged.merged, 4, tmp_path / "placed")
    assert placed == str(tmp_path / "placed")
    left = np.arange(7, dtype=np.float32)
    inputs = {"left": left, "right": np.ones(7, np.float32)}
    with predictor.load_exported(placed) as loaded:
        devices = [loaded.graph.get_operation_by_name(name).device for name in merged.products]
        np.testing.assert_array_equal(loaded(inputs)["y"], 2 * left - 1)
    assert devices == [f"/device:CPU:{i}" for i in range(4)]
    found = tf.saved_model.load(placed).signatures["serving_default"](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    np.testing.assert_array_equal(found["y"], 2 * left - 1)
    nodes = export.read(merged.merged).meta_graphs[0].graph_def.node
    assert {node.device for node in nodes} == {""}


def test_a_copy_stands_beside_the_model_unless_told(merged):
    placed = placed_towers.place_towers(merged.merged, 2)
    assert placed == f"{merged.merged}-placed"
    with pytest.raises(ValueError, match="exists already"):
        placed_towers.place_towers(merged.merged, 2)


def test_every_tower_is_marked(merged):
    towers = portable.towers(export.read(merged.merged).meta_graphs[0])
    assert sorted(set(towers.values())) == [0, 1, 2, 3]
    assert portable.towers(export.read(merged.one).meta_graphs[0]) == {}


def test_a_model_of_one_tower_cannot_be_placed(merged, tmp_path):
    with pytest.raises(errors.DeviceError, match="has 0 towers to place, got 2 devices"):
        placed_towers.place_towers(merged.one, 2, tmp_path / "placed")
    assert not tmp_path.joinpath("placed").exists()


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (["/gpu:3"], "it lacks /device:GPU:3"),
        (5, "has 4 towers to place, got 5 devices"),
        (["/cpu:1", "/cpu:1"], "Name each device once"),
    ],
)
def test_devices_that_do_not_fit_are_refused(devices, text, merged, tmp_path, caplog):
    with pytest.raises(errors.DeviceError, match=text):
        predictor.load_exported(merged.merged, devices=devices)
    with pytest.raises(errors.DeviceError, match=text):
        placed_towers.place_towers(merged.merged, devices, tmp_path / "placed")
    assert "all the same" not in caplog.text
