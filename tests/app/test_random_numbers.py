"""A seeded run that continues draws the numbers that follow, and ends with the same bits."""

import json
import pathlib

import numpy as np
import pytest

from replicate.app.command import cli
from replicate.app.training import random_numbers
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.lowering import random_states

# Of Keras 2.15 itself, where it draws a seed.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")

MODEL = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def model_fn(features, labels, mode, params):
    x = features["x"]
    if "shuffled" in params:
        x += 0.1 * tf.random.shuffle(x)
    x = tf1.layers.dense(x, 8, tf.tanh)
    x = tf1.layers.dropout(x, 0.5, training=True) + 0.1 * tf.random.normal(tf.shape(x))
    turn = lambda n, x: (n + 1, tf.nn.dropout(x, 0.1))
    x = tf.while_loop(lambda n, _: n < 2, turn, [0, x])[1]
    loss = tf1.losses.mean_squared_error(labels, tf.reduce_sum(x, 1))
    tf1.summary.scalar("noise", tf.random.uniform([]))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())
"""
CONFIG = """
model_fn: model_that_draws:model_fn
optimizer: {name: Adam, learning_rate: 0.1}
devices: {cpu: 2}
seed: 5
train:
  steps: 9
  save_checkpoints_steps: 3
  save_summary_steps: 2
  keep_checkpoint_max: 2
  input: {kind: npz, file: d.npz, features: [x], label: y, batch_size: 5}
"""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory):
    """Returns a folder with a model, its data and its config."""
    folder = tmp_path_factory.mktemp("draws")
    (folder / "model_that_draws.py").write_text(MODEL)
    (folder / "c.yaml").write_text(CONFIG)
    x = np.random.RandomState(3).standard_normal((23, 4)).astype(np.float32)
    np.savez(folder / "d.npz", x=x, y=x.sum(1))
    return folder


def train(folder, out, *options):
    """Trains; returns all variables."""
    line = ["train", str(folder / "c.yaml"), "--model-dir", str(folder / out), *options]
    assert cli.main(line) == 0
    return variables(folder / out)


def variables(path):
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


WAYS = {
    "one": ["--set", "devices=[/cpu:0]"],
    "per_device": [],
    "one_device": ["--random_numbers", "one_device"],
    "mirrored": ["--strategy", "mirrored"],
    "call": ["--tower_building", "call"],
}


@pytest.mark.thorough("one", "per_device")
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_continues_ends_with_the_same_bits(folder, capsys, way):
    whole = train(folder, f"{way}-whole", *WAYS[way])
    # The last checkpoint of the first run is one that no multiple of 3 asks for.
    train(folder, f"{way}-parts", "--train.steps", "4", *WAYS[way])
    capsys.readouterr()
    parts = train(folder, f"{way}-parts", *WAYS[way])
    assert "begin again" not in capsys.readouterr().err
    assert_same(parts, whole)


def test_each_checkpoint_that_is_kept_has_its_numbers(folder):
    train(folder, "kept")
    found = {one.name for one in (folder / "kept").glob("model.ckpt-*.json")}
    assert found == {"model.ckpt-6.random.json", "model.ckpt-9.random.json"}
    at_six, at_nine = (json.loads((folder / "kept" / one).read_text()) for one in sorted(found))
    assert at_six.keys() == at_nine.keys()
    # The summary draws a number in the first of each two steps, which are 1, 3, 5, 7 and 9.
    assert at_nine["random_uniform/RandomUniform"] == 5
    # Nine batches of five rows, of eight units each, are dropped out of once, and in a loop twice;
    # the devices draw for their own rows, of which there are three and two.
    dropped = sorted(n for name, n in at_nine.items() if "/dropout/" in f"/{name}")
    assert dropped == [9 * rows * 8 * times for rows, times in ((2, 1), (3, 1), (2, 2), (3, 2))]


def test_a_damaged_record_of_numbers_is_said_to_be_begun_again(folder, capsys):
    train(folder, "damaged", "--train.steps", "4")
    (record,) = (folder / "damaged").glob("model.ckpt-4.random.json")
    record.write_text('{"dropout/random_uniform/RandomUniform": -1, "a": true, "b": 1e99')
    capsys.readouterr()
    train(folder, "damaged", "--train.steps", "6")
    assert "random numbers begin again, as at step 0: " in capsys.readouterr().err


def test_what_cannot_be_kept_is_named_where_a_run_continues(folder, capsys):
    options = ["--set", "params.shuffled=1", "--set", "devices=[/cpu:0]"]
    train(folder, "named", "--train.steps", "3", *options)
    assert "begin again" not in capsys.readouterr().err
    train(folder, "named", "--train.steps", "6", *options)
    assert "random numbers begin again, as at step 0: RandomShuffle\n" in capsys.readouterr().err


@pytest.mark.parametrize("is_of_chief", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_a_worker_says_whose_counts_it_continues_from(fresh_graph, tmp_path, is_of_chief, start):
    said = []
    drawn = tf.identity(tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, seed=1, name="u"))
    states = random_states.RandomStates(fresh_graph, [drawn])
    if start:
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"')
        (tmp_path / "model.ckpt-3.index").touch()
        (tmp_path / "model.ckpt-3.random.json").write_text('{"u": 5}')
    hook = random_numbers.RestoringHook(states, str(tmp_path), said.append, start, is_of_chief)
    with tf1.Session() as session:
        hook.after_create_session(session, None)
        assert states.read(session) == {"u": 5 if start else 0}
    assert [line[:49] for line in said] == (
        ["random numbers continue from the chief's counts, "] if start and is_of_chief else []
    )


SHARED = """
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

class Told(tf1.train.SessionRunHook):
    def __init__(self, fetches):
        self.fetches = fetches

    def before_run(self, context):
        return tf1.train.SessionRunArgs(self.fetches)

    def after_run(self, context, values):
        number, used, loss, used_loss = values.results
        print("told", number, number == used, loss == used_loss)

def model_fn(features, labels, mode):
    kernel = tf1.get_variable("kernel", [4], initializer=tf1.ones_initializer())
    noise = tf.random.normal([4])
    first = tf1.get_variable("first", initializer=noise, trainable=False)

    @tf.function(autograph=False)
    def losses(x, y):
        x = tf.nn.dropout(x, 0.5) + noise + first
        return tf.reduce_mean(tf.square(tf.linalg.matvec(x, kernel) - y))

    loss = losses(features["x"], labels)
    number = tf.random.uniform([], 0, 1000, tf.int32)
    hook = Told([number, number * 1, loss, loss * 1.0])
    scaffold = tf1.train.Scaffold(init_fn=lambda scaffold, session: session.run(number))
    loss_and_more = loss + 0.0 * tf.cast(number, tf.float32)
    return estimator.EstimatorSpec(
        mode, loss=loss_and_more, train_op=tf1.no_op(), training_hooks=[hook], scaffold=scaffold
    )
"""


@pytest.mark.parametrize("devices", ["[/cpu:0]", "{cpu: 2}"])
def test_hooks_see_what_a_step_has_drawn(folder, capsys, devices):
    (folder / "model_that_shares.py").write_text(SHARED)
    out = "shared-one" if devices == "[/cpu:0]" else "shared-two"
    options = ["--set", "model_fn=model_that_shares:model_fn", "--set", f"devices={devices}"]
    train(folder, out, "--train.steps", "5", *options)
    told = [line.split() for line in capsys.readouterr().out.splitlines() if "told" in line]
    assert [(same, same_loss) for _, _, same, same_loss in told] == [("True", "True")] * 5
    assert len({number for _, number, _, _ in told}) > 1
    train(folder, out, "--train.steps", "6", *options)
    again = "random numbers begin again, as at step 0: random_normal/RandomStandardNormal\n"
    assert again in capsys.readouterr().err  # an initial value is made from it, too


def test_without_a_seed_nothing_is_kept(folder):
    train(folder, "unseeded", "--train.steps", "3", "--seed", "null")
    assert not list((folder / "unseeded").glob("*.random.json"))


def test_a_fresh_start_deletes_the_records(folder):
    train(folder, "fresh", "--train.steps", "3")
    train(folder, "fresh", "--train.steps", "2", "--fresh", "--yes")
    left = {one.name for one in pathlib.Path(folder, "fresh").glob("*.random.json")}
    assert left == {"model.ckpt-0.random.json", "model.ckpt-2.random.json"}
