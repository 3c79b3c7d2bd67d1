"""The kinds of models that the law names, by `replicate_model_fn`, and all that they name.

The models are those of `tests/splitting/corpus`, where each is split as a bare graph. Here each
trains as a model_fn, under another strategy on another number of devices, and what it names is
fetched as a hook fetches it: by the model's own tensors.
"""

import pytest

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import running
from tests.splitting.corpus import table

pytestmark = pytest.mark.filterwarnings("ignore")  # the models' own, of older functions

KINDS = {
    "batch normalisation": (
        "norm_layers_fused",
        "norm_fused_with_averages",
        "norm_layers_2d",
        "norm_ahead_of_the_step",
    ),
    "losses of all rows": (
        "simclr",
        "in_batch_softmax_with_corrections",
        "triplets_batch_hard",
        "pairwise_hinge",
        "sinkhorn",
    ),
    "over the batch": (
        "softmax_over_the_batch",
        "sums_along_the_batch",
        "hardest_rows",
        "sorted_rows",
        "unique_classes",
        "masked_rows",
        "dynamic_partition",
    ),
    "gradients": (
        "gradient_penalty",
        "maml",
        "gradient_tape",
    ),
    "recurrent": (
        "lstm_static_with_lengths",
        "lstm_dynamic_with_lengths",
        "lstm_bidirectional",
        "gru_dynamic",
        "keras_lstm_masked",
    ),
    "loops and branches": (
        "scan_over_rows",
        "loops_in_loops",
        "loop_with_a_batch_mean",
        "condition_on_a_batch_mean",
        "crf",
        "beam_search",
        "greedy_decoding_until_all_end",
    ),
    "lookups": (
        "embedding_of_sparse_ids",
        "ragged_means",
        "words_of_a_vocabulary",
        "feature_columns",
        "sampled_softmax",
    ),
    "random numbers": ("dropout", "noise", "mixed_up_at_random", "samples"),
    "effects": ("python_called", "python_derived", "counters", "checked", "datasets_inside"),
    "summaries": ("summaries",),
}
NAMES = [name for names in KINDS.values() for name in names]


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
        """Returns what a step fetches."""
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


def given_to(model, setting):
    """Returns batches; some models take batches of some sizes alone."""
    rows = setting.rows if model.sizes == (7, 2, 1) else model.sizes
    return [model.batch(number, step, setting.is_static) for step, number in enumerate(rows)]


# Not all of them can be built for batches that are known to have one row.
@pytest.mark.parametrize(("name", "setting"), running.in_turn(NAMES, running.SETTINGS[:-1]))
def test_a_kind_of_model_is_one_devices(name, setting):
    model = Named(name)
    if setting.is_static not in model.model.statics:
        setting = running.SETTINGS[0]
    running.require_exact(
        model,
        setting,
        "train",
        given_to(model.model, setting),
        fetch=model.fetched,
        tolerance=model.model.tolerance,
        random_numbers="one_device",
    )
