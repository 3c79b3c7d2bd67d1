"""Checkpoints by name, the best one, and the mean of several."""

import errno
import os

import ml_dtypes
import numpy as np
import pytest

from replicate import errors
from replicate.app.config import sections
from replicate.app.runs import averaging, checkpoints
from replicate.app.training import improvement
from replicate.compat.tensorflow import tf, tf1


def save(folder, step, **values):
    """Writes a checkpoint with a global step, as Estimators do; returns its path."""
    with tf.Graph().as_default(), tf1.Session() as session:
        values = {"global_step": np.int64(step)} | values
        variables = [
            tf1.get_variable(name, initializer=tf.constant(one)) for name, one in values.items()
        ]
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(variables, max_to_keep=None)
        return saver.save(session, str(folder / "model.ckpt"), global_step=step)


@pytest.fixture(name="run", scope="module")
def make_run(tmp_path_factory):
    """Returns a model_dir with checkpoints of steps 2, 4 and 10."""
    folder = tmp_path_factory.mktemp("run")
    # w: 1, 2, 6; h is half precision, i is whole, t is text.
    for step, w, h, i in ((2, 1.0, 1.0, 7), (4, 2.0, 2.0, 8), (10, 6.0, 2.0, 9)):
        save(
            folder,
            step,
            w=np.float32([w, -w]),
            h=np.float16(h),
            b=ml_dtypes.bfloat16(w),
            i=np.int32(i),
            t=np.array([f"step {step}"], object),
        )
    return folder


def tensors(path):
    """Returns all that a checkpoint holds."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_checkpoints_are_listed_by_rising_steps(run):
    assert list(checkpoints.all_of(str(run))) == [2, 4, 10]


@pytest.mark.parametrize(
    "named", ["4", "{run}/model.ckpt-4", "{run}/model.ckpt-4.index", "{run}/model.ckpt-4.meta"]
)
def test_a_step_and_a_path_name_the_same_checkpoint(run, named):
    path = checkpoints.chosen(str(run), named.format(run=run))
    assert path == str(run / "model.ckpt-4")


def test_a_folder_names_its_newest_checkpoint(run):
    assert checkpoints.chosen("elsewhere", str(run)) == str(run / "model.ckpt-10")


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("3", r"has none at this step. Name a step that is there \(2, 4, 10"),
        ("best", "there is none; train.keep_best keeps it"),
        ("averaged", "there is none; `replicate average` writes it"),
        ("nowhere/model.ckpt-4", "there is no nowhere/model.ckpt-4.index"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(tmp_path, run, named, text):
    for step in (2, 4, 10):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    with pytest.raises(errors.RunError, match=f"--checkpoint {named}: .*{text}"):
        checkpoints.chosen(str(tmp_path), named)


def test_the_mean_is_exact_and_whole_numbers_are_the_newest(run, tmp_path):
    paths = list(checkpoints.all_of(str(run)).values())
    path = averaging.average(paths[:3], str(tmp_path / "out"))
    assert path == str(tmp_path / "out" / "model.ckpt-10")
    assert checkpoints.chosen("elsewhere", str(tmp_path / "out")) == path
    found = tensors(path)
    assert found["global_step"] == 10
    # (1 + 2 + 6) / 3 = 3; (1 + 2 + 2) / 3 = 5 / 3; the newest i and t.
    np.testing.assert_array_equal(found["w"], np.float32([3, -3]))
    assert found["h"] == np.float16(5 / 3)
    assert found["h"].dtype == np.float16
    assert float(found["b"]) == 3
    assert found["i"] == 9
    assert found["t"][0] == b"step 10"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "checkpoint",
        "model.ckpt-10.data-00000-of-00001",
        "model.ckpt-10.index",
    ]


def test_the_mean_is_added_up_in_double_precision(tmp_path):
    # In float32 1e8 + 1 is 1e8: the sum from left to right would be 1e8 - 1e8 = 0, +1, = 1.
    values = (1e8, 1.0, -1e8, 1.0)
    paths = [save(tmp_path, step, w=np.float32(w)) for step, w in enumerate(values)]
    assert tensors(averaging.average(paths, str(tmp_path / "out")))["w"] == 0.5


def test_a_checkpoint_of_something_else_has_no_step(tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", [])
        session.run(w.initializer)
        path = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert checkpoints.step_in(path) is None


def test_what_is_whole_or_cannot_be_looked_at_is_not_damaged(run, tmp_path, monkeypatch):
    assert not checkpoints._is_damaged(str(run / "model.ckpt-4"))

    class Lost:
        def __init__(self, path, mode):
            raise tf.errors.UnavailableError(None, None, "not now")

    (tmp_path / "model.ckpt-1.index").write_bytes(b"torn")
    assert checkpoints._is_damaged(str(tmp_path / "model.ckpt-1"))
    monkeypatch.setattr(tf.io.gfile, "GFile", Lost)
    assert not checkpoints._is_damaged(str(tmp_path / "model.ckpt-1"))


@pytest.mark.parametrize(
    ("index", "saved"), [(None, "Nothing is saved yet."), (b"torn", "Nothing is saved yet.")]
)
def test_on_a_full_disk_what_cannot_be_read_is_not_saved(tmp_path, index, saved):
    if index is not None:
        (tmp_path / "model.ckpt-1.index").write_bytes(index)
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"')
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(errors.RunError, match=f"disk is full: .*{saved}") as raised,
        checkpoints.naming_full_disk(str(tmp_path)),
    ):
        raise full
    assert raised.value.__cause__ is full


def test_another_fault_of_the_system_is_raised_as_it_is(tmp_path):
    with pytest.raises(PermissionError), checkpoints.naming_full_disk(str(tmp_path)):
        raise PermissionError(errno.EACCES, "no")


def test_checkpoints_of_two_models_have_no_mean(run, tmp_path):
    other = save(tmp_path, 3, w=np.float32(1))
    with pytest.raises(errors.RunError, match=r"must be of one model to be averaged; .* in b, h"):
        averaging.average([str(run / "model.ckpt-2"), other], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_average_is_the_only_one_of_its_folder(run, tmp_path):
    for steps in ((2,), (2, 4)):
        averaging.average([str(run / f"model.ckpt-{step}") for step in steps], str(tmp_path))
    found = {path.stem for path in tmp_path.glob("model.ckpt-*")}
    assert found == {"model.ckpt-4"}


def test_a_checkpoint_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "model.ckpt-1.index").write_bytes(b"torn")
    with pytest.raises(errors.RunError, match=r"model.ckpt-1 must be a readable checkpoint"):
        averaging.average([str(tmp_path / "model.ckpt-1")], str(tmp_path / "out"))


def keep(model_dir, checkpoint, **metrics):
    """Keeps a checkpoint if its accuracy, or else its loss, is the best; returns where."""
    metrics["global_step"] = np.int64(checkpoint.name.rpartition("-")[2])
    wanted = sections.KeepBest(metric="accuracy" if "accuracy" in metrics else "loss")
    is_best = improvement.is_best(str(model_dir), metrics, wanted, "train.keep_best.metric")
    kept = improvement.keep_best(str(model_dir), str(checkpoint)) if is_best else None
    improvement.note(str(model_dir), metrics)
    return kept


@pytest.mark.parametrize("model_dir", ["runs/a", "."])
def test_a_model_dir_may_be_relative_to_where_we_are(run, tmp_path, monkeypatch, model_dir):
    monkeypatch.chdir(tmp_path)
    kept = keep(model_dir, run / "model.ckpt-2", loss=1.0)
    assert keep(model_dir, run / "model.ckpt-4", loss=2.0) is None  # the first one is still known
    assert checkpoints.chosen(model_dir, "best") == kept
    mean = averaging.average([str(run / "model.ckpt-4")], f"{model_dir}/averaged")
    assert checkpoints.chosen(model_dir, "averaged") == mean
    # What is moved as a whole is still found.
    (tmp_path / model_dir / "best").rename(tmp_path / "elsewhere")
    assert checkpoints.chosen(model_dir, "elsewhere") == "elsewhere/model.ckpt-2"


def test_of_an_accuracy_the_highest_is_kept_without_a_word(run, tmp_path):
    for step, accuracy in ((2, 0.5), (4, 0.75), (10, 0.25)):
        keep(tmp_path, run / f"model.ckpt-{step}", accuracy=accuracy)
    assert checkpoints.chosen(str(tmp_path), "best").endswith("model.ckpt-4")


def test_the_best_checkpoint_is_kept_and_a_worse_one_is_not(run, tmp_path):
    two, four, ten = (run / f"model.ckpt-{step}" for step in (2, 4, 10))
    assert keep(tmp_path, two, loss=np.float32(3)) == str(tmp_path / "best" / "model.ckpt-2")
    assert keep(tmp_path, four, loss=3.0) is None
    assert keep(tmp_path, four, loss=float("nan")) is None
    assert keep(tmp_path, ten, loss=2.5) is not None
    path = checkpoints.chosen(str(tmp_path), "best")
    assert path == str(tmp_path / "best" / "model.ckpt-10")
    np.testing.assert_array_equal(tensors(path)["w"], [6, -6])
    names = sorted(one.name for one in (tmp_path / "best").iterdir())
    assert not [name for name in names if "ckpt-2." in name or name.endswith(".tmp")]
    assert checkpoints.chosen(str(tmp_path), "10") == path
    with pytest.raises(errors.RunError, match=r"train.keep_best.metric: .* Did you mean accuracy"):
        improvement.value_of({"accuracy": 1.0}, "acuracy", "train.keep_best.metric")
