"""Models of every kind, split over K devices, compute what one device does.

Each is run three steps from the same weights, on 7, 2 and 1 rows: losses, everything that it
names, all variables. `corpus/run.py` runs one from the command line.
"""

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import running as law
from tests.splitting.corpus import running, table

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # the models' own, of TensorFlow's older functions
WIDE = ("simclr", "norm_layers_2d", "lstm_dynamic_with_lengths", "deep_columns", "dropout")
# Models that train as model_fns, too; for the quick tests that is enough.
MODEL_FNS = (
    *("norm_layers_fused", "norm_fused_with_averages", "norm_layers_2d", "norm_ahead_of_the_step"),
    *("simclr", "in_batch_softmax_with_corrections", "triplets_batch_hard", "pairwise_hinge"),
    *("sinkhorn", "softmax_over_the_batch", "sums_along_the_batch", "hardest_rows", "sorted_rows"),
    *("unique_classes", "masked_rows", "dynamic_partition", "gradient_penalty", "maml"),
    *("gradient_tape", "lstm_static_with_lengths", "lstm_dynamic_with_lengths"),
    *("lstm_bidirectional", "gru_dynamic", "keras_lstm_masked", "scan_over_rows", "loops_in_loops"),
    *("loop_with_a_batch_mean", "condition_on_a_batch_mean", "crf", "beam_search"),
    *("greedy_decoding_until_all_end", "embeddings_of_bags", "ragged_embeddings"),
    *("tables_of_words", "deep_columns", "sampled_softmax", "dropout", "noise"),
    *("mixed_up_at_random", "samples", "python_called", "python_derived", "counters", "checked"),
    *("datasets_inside", "summaries"),
)
# What is like others, and losses, which `tests/law` trains and puts behind networks, too.
ALIKE = (
    *[name for name in table.MODELS if name.startswith("law: ")],
    *[name for name in table.MODELS if name.endswith("_doubled")],
)
# What takes longest, of operations that smaller models have, too.
LARGE = ("keras_lstm", "deep_columns")
LARGE_MODEL_FNS = (
    *("lstm_static_with_lengths", "lstm_dynamic_with_lengths", "lstm_bidirectional"),
    *("gru_dynamic", "keras_lstm_masked", "beam_search"),
)


def on_three_devices():
    """Returns parameters: each model once."""
    for name, model in table.MODELS.items():
        marks = [pytest.mark.thorough] if name in (*MODEL_FNS, *ALIKE, *LARGE) else []
        is_static = False not in model.statics
        sizes = model.sizes[:1] if is_static else model.sizes
        yield parameter(running.Setting(name, sizes, is_static, 3), marks)


def on_others():
    """Returns parameters: fewer devices and more, and batches of which the graph knows the size."""
    for name, model in table.MODELS.items():
        if False in model.statics:
            for num_devices in (2, 4, 8) if name in WIDE else (2,):
                yield parameter(running.Setting(name, model.sizes, False, num_devices))
            if True in model.statics:
                yield parameter(running.Setting(name, model.sizes[:1], True, 3))
        else:
            for rows in model.sizes[1:]:
                yield parameter(running.Setting(name, (rows,), True, 3))


def parameter(setting, marks=()):
    kind = "static" if setting.is_static else "dynamic"
    rows = ",".join(map(str, setting.sizes))
    told = f"{setting.name}-K{setting.num_devices}-B{rows}-{kind}"
    return pytest.param(setting, marks=marks, id=told)


@pytest.mark.parametrize("setting", list(on_three_devices()))
def test_a_split_model_is_one_devices(setting):
    found = running.faults(setting)
    assert not found, "\n".join(["", *found[:20]])


@pytest.mark.thorough
@pytest.mark.parametrize("setting", list(on_others()))
def test_a_model_is_one_devices_on_fewer_and_more(setting):
    test_a_split_model_is_one_devices(setting)


class Named:
    """A model of the corpus as a model_fn, which keeps what it names.

    Args:
        name: Which model.
    """

    def __init__(self, name):
        self.model = table.MODELS[name]
        self.named = {}

    def __call__(self, features, labels, mode):
        with tf.variable_creator_scope(begun):
            loss, self.named, *train_op = self.model.build(features, labels)
        if not train_op:
            step = self.model.optimizer().minimize(loss, tf1.train.get_global_step())
            train_op = [step, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]
        return exactness.spec_of(mode, loss, train_op=tf.group(*train_op))

    def fetched(self, spec):
        """Returns what a step fetches: the model's own tensors, as a hook fetches them."""
        return {"loss": spec.loss, **self.named}


def begun(next_creator, **options):
    """Creates a variable; one that is trained starts from numbers that follow from its shape."""
    first = options["initial_value"]

    def value():
        given = tf.convert_to_tensor(first() if callable(first) else first)
        return exactness.start(given.shape.as_list(), given.dtype)

    if options.get("trainable", True):
        options["initial_value"] = value
    return next_creator(**options)


# Not all of them can be built for batches that are known to have one row.
@pytest.mark.thorough(*(f"{name}-*" for name in MODEL_FNS if name not in LARGE_MODEL_FNS))
@pytest.mark.parametrize(("name", "setting"), law.in_turn(MODEL_FNS, law.SETTINGS[:-1]))
def test_a_model_fn_is_one_devices(name, setting):
    model = Named(name)
    kind = model.model
    if setting.is_static not in kind.statics:
        setting = law.SETTINGS[0]
    rows = setting.rows if kind.sizes == (7, 2, 1) else kind.sizes
    law.require_exact(
        model,
        setting,
        "train",
        [kind.batch(number, step, setting.is_static) for step, number in enumerate(rows)],
        fetch=model.fetched,
        tolerance=kind.tolerance,
        random_numbers="one_device",
    )
