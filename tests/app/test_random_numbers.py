"""A seeded run that continues draws the numbers that follow, and ends with the same bits."""

import numpy as np
import pytest

from replicate import estimator
from replicate.app.command import cli
from replicate.compat.tensorflow import tf, tf1

# Of Keras 2.15 itself, where it draws a seed.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")


def model_fn(features, labels, mode, params):
    x = features["x"]
    x += 0.1 * tf.random.shuffle(x)
    if "poisson" in params:
        x += 0.1 * tf.random.poisson([4], 3.0)
    x = tf1.layers.dense(x, 8, tf.tanh)
    x = tf1.layers.dropout(x, 0.5, training=True) + 0.1 * tf.random.normal(tf.shape(x))
    x = tf.while_loop(lambda n, _: n < 2, lambda n, x: (n + 1, tf.nn.dropout(x, 0.1)), [0, x])[1]
    loss = tf1.losses.mean_squared_error(labels, tf.reduce_sum(x, 1))
    tf1.summary.scalar("noise", tf.random.uniform([]))
    return estimator.EstimatorSpec(mode, loss=loss, train_op=tf1.no_op())


CONFIG = """
model_fn: tests.app.test_random_numbers:model_fn
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


@pytest.mark.thorough("per_device")
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_continues_ends_with_the_same_bits(folder, capsys, way):
    whole = train(folder, f"{way}-whole", *WAYS[way])
    # The last checkpoint of the first run is one that no multiple of 3 asks for.
    train(folder, f"{way}-parts", "--train.steps", "4", *WAYS[way])
    capsys.readouterr()
    parts = train(folder, f"{way}-parts", *WAYS[way])
    assert "begin again" not in capsys.readouterr().err
    assert_same(parts, whole)


def test_what_cannot_be_kept_is_named_where_a_run_continues(folder, capsys):
    options = ["--set", "params.poisson=1", "--set", "devices=[/cpu:0]"]
    train(folder, "named", "--train.steps", "3", *options)
    assert "begin again" not in capsys.readouterr().err
    train(folder, "named", "--train.steps", "6", *options)
    assert (
        "random numbers begin again, as at step 0: random_poisson/RandomPoissonV2\n"
        in capsys.readouterr().err
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


@pytest.mark.thorough("{cpu: 2}")
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
