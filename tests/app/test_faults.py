"""What becomes of a run whose files are damaged, or whose numbers are none any more."""

import json
import pathlib
import re
import shutil

import pytest

from replicate import estimator
from replicate.app.runs import checkpoints
from replicate.compat.tensorflow import tf, tf1
from tests.app import line
from tests.app.line import WEIGHTS

TOP = pathlib.Path(__file__).parents[2]
HERE = __name__


def odd(features, labels, mode, params):
    """The line, whose loss, or its gradient alone, is no number at the third step."""
    spec = line.line(features, labels, mode, params)
    if spec.loss is None or not params:
        return spec
    (w,) = tf1.trainable_variables()
    third = tf.equal(tf1.train.get_global_step(), 2)
    loss = spec.loss + tf.where(third, float(params.get("odd", 0)), 0.0) * w
    if params.get("steep"):  # 0, of a gradient that is 0 as well, but 0 * infinity
        change, is_other = w - tf.stop_gradient(w), tf.where(third, 0.0, 1.0)
        loss += tf.sqrt((change + 1.0) * is_other) - is_other - change / 2.0
    return spec._replace(loss=loss)


@pytest.fixture(name="trained", scope="module")
def train_once(tmp_path_factory):
    """Returns the folder of a config after a training: checkpoints of steps 0, 2 and 4."""
    folder = line.write(tmp_path_factory.mktemp("faults"), f"model_fn: {HERE}:odd\n")
    assert run(folder, "train") == 0
    return folder


@pytest.fixture(name="model_dir")
def copy(trained, tmp_path):
    """Returns a copy of the training's model_dir."""
    return shutil.copytree(trained / "run", tmp_path / "run")


def run(folder, command, *options, model_dir="run"):
    """Runs a command on the config; returns the exit code."""
    return line.run(folder, command, "--quiet", *options, model_dir=model_dir)


def damage(model_dir, how, step=4):
    """Damages a checkpoint, or the file that names the newest one."""
    state, index = model_dir / "checkpoint", model_dir / f"model.ckpt-{step}.index"
    data = max(model_dir.glob(f"model.ckpt-{step}.data-*"), key=lambda path: path.stat().st_size)
    if how == "flipped":
        data.write_bytes(bytes([*data.read_bytes()[:-1], data.read_bytes()[-1] ^ 1]))
    elif how == "truncated":
        data.write_bytes(data.read_bytes()[:-1])
    elif how == "torn index":
        index.write_bytes(index.read_bytes()[:20])
    elif how == "no data":
        data.unlink()
    elif how == "no index":
        index.unlink()
    elif how == "torn state":
        state.write_bytes(b"\xff torn")


def weight(model_dir):
    return tf.train.load_checkpoint(str(model_dir)).get_tensor("w")


@pytest.mark.thorough("flipped", "no index")
@pytest.mark.parametrize("how", ["flipped", "truncated", "torn index", "no data", "no index"])
def test_a_training_falls_back_to_the_checkpoint_before(trained, model_dir, caplog, how):
    damage(model_dir, how)
    assert run(trained, "train", model_dir=model_dir) == 0
    assert f"Training continues from {model_dir}/model.ckpt-2." in caplog.text
    assert weight(model_dir) == pytest.approx(WEIGHTS[4], rel=1e-6)
    assert list(model_dir.glob("*.damaged")) or how == "no index"
    assert list(checkpoints.all_of(str(model_dir))) == [0, 2, 4]


@pytest.mark.thorough
def test_a_training_of_which_nothing_names_the_newest_checkpoint_goes_on(trained, model_dir):
    damage(model_dir, "torn state")
    assert run(trained, "train", "--train.steps", "6", model_dir=model_dir) == 0
    assert weight(model_dir) == pytest.approx(WEIGHTS[6], rel=1e-6)


@pytest.mark.thorough
def test_a_training_falls_back_over_several(trained, model_dir, caplog):
    damage(model_dir, "flipped", 2)
    damage(model_dir, "torn index", 4)
    assert run(trained, "train", model_dir=model_dir) == 0
    assert f"Training continues from {model_dir}/model.ckpt-0." in caplog.text
    assert weight(model_dir) == pytest.approx(WEIGHTS[4], rel=1e-6)


def test_a_worker_leaves_a_damaged_checkpoint_to_the_chief(trained, model_dir, capsys, monkeypatch):
    damage(model_dir, "torn index")
    cluster = {"chief": ["127.0.0.1:9"], "worker": ["127.0.0.1:10"]}
    task = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    assert run(trained, "train", model_dir=model_dir) == 1
    said = capsys.readouterr().err
    assert f"{model_dir}/model.ckpt-4, but worker:0 cannot. Look at what the chief says" in said
    assert not list(model_dir.glob("*.damaged"))


def test_a_chief_falls_back_and_has_all_tasks_begin_again(trained, model_dir, capsys, monkeypatch):
    damage(model_dir, "torn index")
    cluster = {"chief": ["127.0.0.1:9"], "worker": ["127.0.0.1:10"]}
    task = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    assert run(trained, "train", model_dir=model_dir) == 1
    said = capsys.readouterr().err
    assert "model_dir: all tasks must begin at the same checkpoint, but others may have" in said
    assert f"The same command continues from {model_dir}/model.ckpt-2." in said
    assert checkpoints.step_of(str(model_dir)) == 2


# Each command opens a checkpoint in the same place, whatever is wrong with it.
@pytest.mark.parametrize(
    ("command", "how"),
    [("evaluate", "flipped"), ("predict", "no index"), ("export", "torn state")],
)
def test_what_reads_a_checkpoint_takes_the_one_before(
    trained, model_dir, caplog, capsys, command, how
):
    damage(model_dir, how)
    before = sorted(path.name for path in model_dir.glob("*ckpt*"))
    options = ["--output", str(model_dir / "p.csv")] if command == "predict" else ["--json"]
    assert run(trained, command, *options, model_dir=model_dir) == 0
    step = 4 if how == "torn state" else 2
    assert f"{model_dir}/model.ckpt-{step} is taken." in caplog.text
    assert sorted(path.name for path in model_dir.glob("*ckpt*")) == before
    if command == "evaluate":
        assert f'"global_step": {step}' in capsys.readouterr().out
    if command == "predict":
        assert len((model_dir / "p.csv").read_text().splitlines()) == 5


def test_a_checkpoint_that_is_named_is_not_replaced(trained, model_dir, capsys):
    damage(model_dir, "flipped")
    assert run(trained, "evaluate", "--checkpoint", "4", model_dir=model_dir) == 1
    assert "model.ckpt-4 must be a readable checkpoint" in capsys.readouterr().err


def test_a_whole_checkpoint_of_another_model_stays(trained, model_dir):
    given = ["--train.steps", "6", "--set", "params={variable: v}"]
    assert run(trained, "train", *given, model_dir=model_dir) == 1
    assert not list(model_dir.glob("*.damaged"))


@pytest.mark.thorough("nan")
@pytest.mark.parametrize("odd", ["nan", "inf"])
def test_a_loss_that_is_not_finite_ends_a_training_at_its_step(trained, tmp_path, capsys, odd):
    given = ["--set", f"params={{odd: '{odd}'}}"]
    assert run(trained, "train", *given, model_dir=tmp_path / "run") == 1
    shown = "NaN" if odd == "nan" else "inf"
    assert f"a finite number, but became {shown} at step 3." in capsys.readouterr().err
    assert weight(tmp_path / "run") == pytest.approx(WEIGHTS[2], rel=1e-6)


@pytest.mark.thorough("mirrored")
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_weights_that_are_not_finite_are_not_saved(trained, tmp_path, capsys, strategy):
    given = ["--set", "params={steep: true}", "--train.save_checkpoints_steps", "1"]
    given += ["--strategy", strategy]
    assert run(trained, "train", *given, model_dir=tmp_path / "run") == 1
    assert "but after step 3 these do not: w." in capsys.readouterr().err
    assert weight(tmp_path / "run") == pytest.approx(WEIGHTS[2], rel=1e-6)


def scored(features, labels, mode, params):
    if params["one_row"]:
        features, labels = {name: one[0] for name, one in features.items()}, labels[0]
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    y = w * (features["nodes"] + tf.reduce_sum(features["edges"]))
    return estimator.EstimatorSpec(mode, {"y": y}, tf.reduce_mean((y - labels) ** 2), tf1.no_op())


def graphs(params):
    def packed():
        yield {"nodes": [1.0, 2.0, 3.0], "edges": [0.5, 0.5]}, [2.0, 3.0, 4.0]

    size = tf.TensorSpec([None])
    lengths = ({"nodes": size, "edges": size}, size)
    found = tf.data.Dataset.from_generator(packed, output_signature=lengths).repeat()
    return found.batch(1) if params["one_row"] else found


@pytest.mark.thorough("true")
@pytest.mark.parametrize("one_row", ["false", "true"])
def test_features_that_have_other_rows_are_told_in_one_line(trained, tmp_path, capsys, one_row):
    given = ["--model_fn", f"{HERE}:scored", f"--params.one_row={one_row}", "--eval", "null"]
    source = f"{{kind: function, function: '{HERE}:graphs', batched: true}}"
    given += ["--train.input", source]
    given += ["--export", "null", "--train.steps", "1"]
    code = run(trained, "train", *given, model_dir=tmp_path / "run")
    (*_, last) = ["", *capsys.readouterr().err.splitlines()]
    if one_row == "true":  # the gradient at w = 0 is -2 mean((x + 1) (x + 1)) = -58 / 3
        assert code == 0
        assert weight(tmp_path / "run") == pytest.approx(0.1 * 58 / 3, rel=1e-6)
    else:
        assert code == 1
        assert last.startswith(
            'train.input: The numbers of rows differ between features["edges"], features["nodes"], '
            "labels: [2 3 3]. All of a batch's tensors need the same first dimension; "
        )


def masked(features, labels, mode):
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    mask = tf1.get_variable("mask", initializer=tf.constant([0.0, float("-inf")]))
    if labels is None:
        return estimator.EstimatorSpec(mode, {"w": w * features["x"]})
    loss = tf1.reduce_mean(tf1.square(w * features["x"] - labels)) + mask[0] * 0.0
    return estimator.EstimatorSpec(mode, {"w": w}, loss, tf1.no_op())


def test_weights_may_be_infinite_from_their_beginning(trained, tmp_path):
    given = ["--model_fn", f"{HERE}:masked"]
    assert run(trained, "train", *given, model_dir=tmp_path / "run") == 0


@pytest.mark.parametrize(
    "reason",
    [tf.errors.ResourceExhaustedError, tf.errors.UnavailableError, tf.errors.NotFoundError],
)
def test_what_may_pass_is_no_damage(model_dir, monkeypatch, reason):
    class Reader:
        def get_variable_to_shape_map(self):
            raise reason(None, None, "not now")

    monkeypatch.setattr(tf.train, "load_checkpoint", lambda path: Reader())
    assert not checkpoints._is_damaged(str(model_dir / "model.ckpt-4"))


def twice(features, labels, mode):
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    if labels is None:
        return estimator.EstimatorSpec(mode, {"w": w * features["x"]})
    loss = tf1.reduce_mean(tf1.square(w * features["x"] - labels))
    step = tf1.train.get_global_step()
    first = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    with tf1.control_dependencies([first]):
        second = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    return estimator.EstimatorSpec(mode, {"w": w}, loss, tf1.group(first, second))


def test_steps_that_read_no_batch_are_told(trained, tmp_path, caplog):
    given = ["--model_fn", f"{HERE}:twice", "--set", "optimizer=null"]
    assert run(trained, "train", *given, model_dir=tmp_path / "run") == 0
    found = re.search(r"a batch for each step, and here (\d+) steps read (\d+):", caplog.text)
    assert int(found[1]) == 2 * int(found[2])
