"""Every model of the table is one device's on several, and warned of in nothing."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import control_flow, exactness
from tests.law import meetings, running, table

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
STRATEGIES = ["round_robin", "mirrored"]  # variables on several devices, and on each


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        *table.in_turns(table.MODELS, running.SETTINGS),
        *table.in_turns(table.LOSSES),
    ],
)
def test_several_devices_are_one(model, setting):
    model.require_exact(setting)


@pytest.mark.filterwarnings("ignore")  # the models' own, of TensorFlow's older functions
@pytest.mark.parametrize(("model", "setting"), [*table.in_turns(table.CORPUS)])
def test_a_split_model_is_one_devices(model, setting):
    model.require_exact(setting)


# Loops and branches that read and write variables.


@pytest.mark.thorough("*-mirrored")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "name", ["rows_in_a_branch", "a_sparse_step_in_a_branch", "a_loop_of_means"]
)
def test_what_runs_once_has_variables_wherever_they_are(name, strategy):
    table.MODELS[name].require_exact(running.SETTINGS[0]._replace(strategy=strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("loss", [meetings.a_loop_of_means, meetings.a_loop_of_rows])
def test_what_a_loop_of_version_1_keeps_of_variables_is_kept_anywhere(loss, strategy):
    def step(f, y, v):
        value = loss(f, y, v)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(value, colocate_gradients_with_ops=True)
        return value, optimizer.apply_gradients(pairs, tf1.train.get_global_step())

    with control_flow.of_version(1):
        table.model(step).require_exact(running.SETTINGS[0]._replace(strategy=strategy))


# Rows of a table.


class Looking:
    """A model that looks rows up; a run fetches the gradient that it took of its table.

    Args:
        num_lookups: How often it does.
        change: What it makes of the gradient before it is applied.
    """

    def __init__(self, num_lookups=1, change=lambda gradients: gradients):
        self.num_lookups = num_lookups
        self.change = change
        self.taken = None

    def __call__(self, features, labels, mode):
        table = tf1.get_variable("table", [4, 3], tf.float64, exactness.start)
        looked_up = [
            tf.nn.embedding_lookup(table, (labels["class"] + i) % 4)
            for i in range(self.num_lookups)
        ]
        output = tf.add_n([row * (i + 1.0) for i, row in enumerate(looked_up)])
        loss = tf.reduce_mean(tf.square(output - labels["y"]))
        self.taken = tf.gradients(loss, [table])
        step = running.apply(zip(self.change(self.taken), [table], strict=True))
        return exactness.spec_of(mode, loss, train_op=step)

    def slices(self, spec):
        """Returns what a run fetches."""
        del spec
        (slices,) = self.taken
        return {"indices": slices.indices, "values": slices.values}


@pytest.mark.parametrize("setting", running.SETTINGS[:5], ids=str)
def test_gradients_of_a_table_are_the_slices_of_one_device_in_its_order(setting):
    model = Looking()
    running.require_exact(model, setting, fetch=model.slices)


CLIPS = {
    "global norm": lambda gradients: tf.clip_by_global_norm(gradients, 1e-2)[0],
    "norm": lambda gradients: [tf.clip_by_norm(g, 1e-2) for g in gradients],
    "scaled values": lambda gradients: [
        tf.IndexedSlices(0.5 * g.values, g.indices, g.dense_shape) for g in gradients
    ],
}


@pytest.mark.parametrize(("name", "setting"), running.in_turn(CLIPS))
def test_what_is_made_of_slices_is_one_devices(name, setting):
    running.require_exact(Looking(num_lookups=2, change=CLIPS[name]), setting)
