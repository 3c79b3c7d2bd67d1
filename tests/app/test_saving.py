"""A checkpoint is written once: others may be reading it."""

import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1


def model(features, labels, mode):
    w = tf1.get_variable("w", initializer=1.0)
    loss = tf.reduce_mean(w * features["x"])
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())


def rows():
    return tf.data.Dataset.from_tensors([1.0]).repeat(9).map(lambda x: ({"x": x}, x))


def own(model_dir):
    return tf1.train.CheckpointSaverHook(model_dir, save_steps=3, checkpoint_basename="mine")


CONFIG = """
model_fn: tests.app.test_saving:model
optimizer: {name: GradientDescent, learning_rate: 1e-3}
devices: {cpu: 1}
train:
  steps: 2
  save_checkpoints_steps: 1
  input: {kind: function, function: 'tests.app.test_saving:rows', batch_size: 1}
"""


@pytest.fixture(name="train")
def make_train(tmp_path):
    """Returns what trains, with further options; and the model_dir."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    model_dir = tmp_path / "run"

    def train(*options):
        line = ["train", str(tmp_path / "c.yaml"), "--quiet", "--model-dir", str(model_dir)]
        assert cli.main([*line, *options]) == 0
        return model_dir

    return train


def test_a_run_that_goes_on_leaves_alone_what_it_has_restored(train):
    model_dir = train()
    before = {file: file.stat().st_mtime_ns for file in model_dir.glob("model.ckpt-2.*")}
    assert len(before) >= 3  # index, data and meta
    train("--train.steps", "4")
    assert {file: file.stat().st_mtime_ns for file in before} == before
    listed = tf.train.get_checkpoint_state(str(model_dir)).all_model_checkpoint_paths
    assert [path.rpartition("-")[2] for path in listed] == ["0", "1", "2", "3", "4"]


def test_who_saves_by_a_hook_of_ones_own_saves_alone(train):
    model_dir = train("--set", "train.hooks=[tests.app.test_saving:own]")
    assert {file.stem for file in model_dir.glob("*.index")} == {"mine-0", "mine-2"}
