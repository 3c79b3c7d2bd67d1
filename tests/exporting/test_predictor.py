"""Loading an exported model, and placing its towers again."""

import os

import numpy as np
import pytest

from replicate import errors, estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export, predictor
from replicate.graph import portable

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]


def doubling(features, labels, mode):
    """y = 2 x, with an embedding that adds nothing."""
    w = tf1.get_variable("w", initializer=2.0)
    rows = tf1.get_variable("rows", initializer=tf.zeros([5, 1]))
    y = tf.multiply(features["left"], w, name="doubled") - features["right"]
    y += tf.nn.embedding_lookup(rows, tf.zeros_like(tf.cast(y, tf.int32)))[:, 0]
    outputs = {"serving_default": estimator.export.PredictOutput({"y": y})}
    return estimator.EstimatorSpec(
        mode,
        loss=tf.reduce_sum(y),
        train_op=tf1.no_op(),
        predictions=y,
        export_outputs=outputs if mode == "infer" else None,
    )


def raw():
    features = {name: tf1.placeholder(tf.float32, [None], name) for name in ("left", "right")}
    return estimator.export.ServingInputReceiver(features, features)


@pytest.fixture(scope="module", params=["parameter_server", "mirrored"])
def merged(request, tmp_path_factory):
    """A model of four towers on CPU:2 to CPU:5, and the same as one tower."""
    home = tmp_path_factory.mktemp("serving")
    devices = [f"/cpu:{i}" for i in range(2, 6)]
    replicated = model_fn.replicate_model_fn(
        doubling,
        lambda: tf1.train.GradientDescentOptimizer(0.0),
        devices,
        strategy=request.param,
    )
    made = estimator.Estimator(replicated, model_dir=str(home / "model"), params={})
    features = {"left": [1.0, 2.0], "right": [0.0, 0.0]}
    made.train(lambda: tf.data.Dataset.from_tensors((features, [0.0, 0.0])), steps=1)
    return tuple(
        os.fsdecode(export.export_saved_model(made, home / towers, raw, towers=towers))
        for towers in ("merged", "one")
    )


def batch(size):
    left = np.arange(size, dtype=np.float32)
    return {"left": left, "right": np.ones(size, np.float32)}, 2 * left - 1


@pytest.mark.parametrize("devices", [None, 1, 2, 4, ["/cpu:7", "/cpu:1", "/cpu:6"]])
def test_any_batch_size_is_answered_on_any_devices(devices, merged):
    with predictor.load_exported(merged[0], devices=devices) as loaded:
        for size in (1, 2, 3, 7, 100):
            inputs, answer = batch(size)
            np.testing.assert_array_equal(loaded(inputs)["y"], answer)


def test_towers_compute_where_they_are_placed(merged):
    with predictor.load_exported(merged[0], devices=["/cpu:6", "/cpu:7"]) as loaded:
        places = {
            name: loaded.graph.get_operation_by_name(name).device
            for name in ("doubled", "tower_1/doubled", "tower_2/doubled", "tower_3/doubled")
        }
    # Four towers on two devices: the first two on the one, the others on the other.
    assert list(places.values()) == ["/device:CPU:6"] * 2 + ["/device:CPU:7"] * 2


def test_a_placed_copy_is_loaded_by_any_loader(merged, tmp_path):
    placed = predictor.place_towers(merged[0], 4, tmp_path / "placed")
    assert placed == str(tmp_path / "placed")
    inputs, answer = batch(7)
    with predictor.load_exported(placed) as loaded:
        devices = [
            loaded.graph.get_operation_by_name(name).device
            for name in ("doubled", "tower_1/doubled", "tower_2/doubled", "tower_3/doubled")
        ]
        np.testing.assert_array_equal(loaded(inputs)["y"], answer)
    assert devices == [f"/device:CPU:{i}" for i in range(4)]
    found = tf.saved_model.load(placed).signatures["serving_default"](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    np.testing.assert_array_equal(found["y"], answer)
    nodes = export.read(merged[0]).meta_graphs[0].graph_def.node
    assert {node.device for node in nodes} == {""}


def test_a_copy_stands_beside_the_model_unless_told(merged):
    placed = predictor.place_towers(merged[0], 2)
    assert placed == f"{merged[0]}-placed"
    with pytest.raises(ValueError, match="exists already"):
        predictor.place_towers(merged[0], 2)


def test_every_tower_is_marked(merged):
    towers = portable.towers(export.read(merged[0]).meta_graphs[0])
    assert sorted(set(towers.values())) == [0, 1, 2, 3]
    assert portable.towers(export.read(merged[1]).meta_graphs[0]) == {}


def test_a_model_of_one_tower_cannot_be_placed(merged, tmp_path):
    with pytest.raises(errors.DeviceError, match="has 0 towers to place, got 2 devices"):
        predictor.place_towers(merged[1], 2, tmp_path / "placed")
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
        predictor.load_exported(merged[0], devices=devices)
    with pytest.raises(errors.DeviceError, match=text):
        predictor.place_towers(merged[0], devices, tmp_path / "placed")
    assert "all the same" not in caplog.text


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


def test_one_cpu_is_enough_to_load(merged, run_python):
    code = (
        "import replicate\n"
        f"predictor = replicate.load_exported({merged[0]!r})\n"
        "print(predictor({'left': [1.0, 2.0, 3.0], 'right': [1.0, 1.0, 1.0]})['y'].tolist())"
    )
    assert run_python(code).strip() == "[1.0, 3.0, 5.0]"
