"""`replicate describe`: one dense layer on two towers, whose bytes are worked out by hand."""

import json

import numpy as np
import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.app.config import config
from replicate.app.inspect import description
from replicate.compat.tensorflow import tf, tf1


def dense(features, labels, mode, params):
    """y = x W + b, W of shape [3, 2]; loss is the mean square."""
    y = tf1.layers.dense(features["x"], 2, name="dense")
    loss = tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())


def noisy(features, labels, mode, params):
    """As dense, with a number added to each entry of y."""
    y = tf1.layers.dense(features["x"], 2, name="dense")
    noise = tf1.random.uniform(tf1.shape(y), name="noise")
    loss = tf1.reduce_mean(tf1.square(y + noise - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())


def bag(features, labels, mode, params):
    """y sums what a table has for each word; a text may have any number of words."""
    table = tf1.get_variable("table", [10, 2])
    y = tf1.reduce_sum(tf1.gather(table, features["words"]), axis=1)
    loss = tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op())


def texts():
    rows = tf.data.Dataset.range(1, 7).map(lambda n: (tf.zeros([n], tf.int64), tf.zeros([2])))
    return rows.padded_batch(6).map(lambda words, y: ({"words": words}, y)).repeat()


HERE = __name__
CONFIG = """
model_fn: tests.app.test_description:dense
optimizer: {name: Momentum, learning_rate: 0.1, momentum: 0.9}
devices: [/cpu:0, /cpu:1]
train:
  steps: 1
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 6}
"""

FIRST, SECOND = "/device:CPU:0", "/device:CPU:1"


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with the model, its data and its config."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "dense.yaml").write_text(CONFIG)
    np.savez(folder / "d.npz", x=np.zeros([6, 3], np.float32), y=np.zeros([6, 2], np.float32))
    return folder


@pytest.fixture(name="describe")
def make_describe(folder, monkeypatch):
    """Returns what describes the config; no session may run anything meanwhile."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(tf1.Session, "run", None)

    def run(*assignments):
        settings = config.load(str(folder / "dense.yaml"), assignments, str(folder / "runs"))
        found = description.describe(settings)
        assert not (folder / "runs").exists()
        return found

    return run


def test_variables_are_told_by_kind_size_and_device(describe):
    found = describe()
    assert [(one.name, one.kind, one.shape, one.dtype, one.bytes) for one in found.variables] == [
        ("dense/bias", "weight", (2,), "float32", 8),
        ("dense/kernel", "weight", (3, 2), "float32", 24),
        ("dense/bias/Momentum", "slot", (2,), "float32", 8),
        ("dense/kernel/Momentum", "slot", (3, 2), "float32", 24),
        ("global_step", "other", (), "int64", 8),
    ]
    assert {one.devices for one in found.variables} == {(FIRST,)}
    first, second = found.devices
    assert (first.name, first.tower, first.variables, first.bytes) == (FIRST, 0, 5, 72)
    assert (second.name, second.tower, second.variables, second.bytes) == (SECOND, 1, 0, 0)
    # Batch, split, joins and the update are the first one's work; both have the model's.
    assert first.operations > second.operations > 10


def test_a_split_graph_is_told_by_device(describe):
    found = describe()
    first, second = found.devices
    # Each tower multiplies and adds, forth and back; the update is the first device's alone.
    assert first.of_tower == second.of_tower == found.split.split >= 10
    assert first.operations > second.operations >= second.of_tower
    assert (found.split.devices, found.split.whole) == (2, ())


@pytest.mark.parametrize(
    ("strategy", "held"),
    [
        ("parameter_server", [64, 0]),  # W, b and a momentum of each: 24 + 8 + 24 + 8
        ("balanced", [48, 16]),  # W on the first device, b on the second
        ("mirrored", [64, 64]),
    ],
)
def test_each_device_is_told_beside_an_even_share_and_what_all_reduce_moves(
    describe, strategy, held
):
    found = describe(f"strategy={strategy}")
    assert [one.held for one in found.devices] == held
    # Two devices: (32 + 32) / 2 bytes each, and 2 * (2 - 1) / 2 of W and b.
    assert found.bound == description.Bound(held=32, moved=32)
    assert found.strategy == strategy
    kept = sum(one.bytes for one in found.variables if one.kind == "other")
    assert [one.bytes for one in found.devices] == [held[0] + kept, held[1]]


@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
@pytest.mark.parametrize("size", [6, 60])
def test_devices_are_told_with_what_they_send_and_receive(describe, strategy, size):
    found = describe(f"strategy={strategy}", f"train.input.batch_size={size}")
    first, second = found.devices
    # To the second one: its rows of x (12 bytes each) and y (8); W (24) and b (8), or the sum of
    # their gradients; and some numbers. Back: the gradients of W and b, its part of the loss (4).
    rows = size // 2 * (12 + 8)
    assert rows + 32 <= second.received == first.sent <= rows + 32 + 32
    assert first.received == second.sent == 32 + 4
    assert found.unsized == 0


def test_a_device_has_the_operations_of_all_its_parts(describe):
    found = describe("micro_batches=2")
    assert [one.of_tower for one in found.devices] == [2 * found.split.split] * 2
    assert found.micro_batches == 2


def test_a_bound_is_rounded_up(describe):
    # Three devices: 64 / 3 = 21 1/3 bytes of weights and slots, 2 * 2 / 3 * 32 = 42 2/3 moved.
    found = describe("devices=[/cpu:0, /cpu:1, /cpu:2]")
    assert found.bound == description.Bound(held=22, moved=43)
    assert found.devices[0].received == 2 * (32 + 4)


def test_what_only_a_run_can_size_is_counted_apart(describe):
    found = describe(f"model_fn={HERE}:bag", f"train.input={HERE}:texts")
    # The words are looked up where the table is. To the second tower: its texts' words and what
    # was found for them, both as many as the longest text has; its 16 of 32 labels; some numbers.
    assert found.unsized >= 2
    assert 16 * 8 <= found.devices[1].received <= 16 * 8 + 64


def test_towers_that_are_calls_are_told_by_device(describe):
    found = describe("tower_building=call")
    assert found.split is None
    first, second = found.devices
    assert (first.tower, second.tower, first.of_tower) == (0, 1, 0)
    assert first.operations > second.operations > 10


def test_one_device_is_told_by_its_name(describe):
    found = describe("devices=[/cpu:1]")
    assert found.strategy == "one_device"
    assert [one.name for one in found.devices if one.tower is not None] == [SECOND]
    assert found.bound is None
    assert describe("devices=[/cpu:1]", "strategy=multi_worker").strategy == "multi_worker"


def test_what_is_whole_of_a_split_graph_is_told_with_the_reason(describe):
    noisy = "model_fn=tests.app.test_description:noisy"
    found = describe("random_numbers=one_device", noisy)
    (drawn,) = found.split.whole
    assert (drawn.name, drawn.type) == ("noise/RandomUniform", "RandomUniform")
    assert drawn.reason == "draws random numbers"
    assert drawn.bytes == 6 * 2 * 4 + 2 * 4  # what it makes, and the shape that it reads
    assert describe(noisy).split.whole == ()


def test_the_command_prints_what_is_split(folder, capsys):
    line = ["describe", str(folder / "dense.yaml"), "--model_fn", f"{HERE}:noisy"]
    line += ["--random_numbers", "one_device"]
    assert cli.main(line) == 0
    shown = capsys.readouterr().out
    assert "one device's graph, split by rows: " in shown
    assert " operations on each of 2 devices; 1 with rows run once:" in shown
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["noise/RandomUniform", "RandomUniform", "56", "draws random numbers"] in cells
    assert cli.main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["split"]
    assert found["devices"] == 2
    assert found["whole"][0]["type"] == "RandomUniform"


def test_the_command_prints_tables(folder, capsys, tmp_path):
    path = tmp_path / "d.png"
    where = ["--model-dir", str(folder / "runs")]
    assert cli.main(["describe", str(folder / "dense.yaml"), *where, "--png", str(path)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "dense: 2 towers (parameter_server), batches of 6 rows"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert ["dense/kernel/Momentum", "slot", "3x2", "float32", "24", "CPU:0"] in cells
    assert ["global_step", "other", "scalar", "int64", "8", "CPU:0"] in cells
    assert f"picture: {path}" in shown.err
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not (folder / "runs").exists()


def test_machines_get_one_document(folder, capsys):
    assert cli.main(["describe", str(folder / "dense.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 6
    assert found["devices"][0]["tower"] == 0
    assert found["variables"][0] == {
        "name": "dense/bias",
        "kind": "weight",
        "shape": [2],
        "dtype": "float32",
        "bytes": 8,
        "devices": [FIRST],
    }


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--png", "d.jpg"], 2, "must end in .png, got 'd.jpg'"),
        (["--set", "train=null"], 2, "train: this section is required. Add it."),
        (["--set", "devices=[/cpu:0, /cpu:99]"], 1, "has no /device:CPU:99"),
        (["--set", "model_fn=tests.app.test_description:dens"], 1, "Did you mean dense?"),
        (["--png", "/none/d.png"], 1, "--png /none/d.png: must be a file that can be written"),
    ],
)
def test_what_cannot_be_described_is_a_text(folder, capsys, arguments, code, text):
    assert cli.main(["describe", str(folder / "dense.yaml"), *arguments]) == code
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.err
