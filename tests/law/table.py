"""The table: every model that several devices must train as one does, by name."""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.law import (
    gradients,
    idioms,
    libraries,
    losses,
    meetings,
    networks,
    optimizers,
    parts,
    penalties,
    running,
    writes,
)
from tests.splitting.corpus import (
    batchwise,
    effects,
    lookups,
    normalisation,
    picked,
    recurrent,
    static_widths,
)
from tests.splitting.corpus import gradients as of_the_corpus
from tests.splitting.corpus import model as corpus
from tests.splitting.corpus.model import AS_ONE_DEVICE, EXACT, Model

# Each adds its models to the corpus.
ADDING = (
    batchwise,
    effects,
    lookups,
    normalisation,
    of_the_corpus,
    picked,
    recurrent,
    static_widths,
)
CORPUS = corpus.MODELS
GROUPS = (
    losses.PLAIN,
    losses.MASKS,
    losses.TAILS,
    losses.STATISTICS,
    penalties.PENALTIES,
    penalties.GRADIENTS,
    penalties.REDUCED,
)
CASES = libraries.LIBRARIES | libraries.COUNTS
CASES |= {name: losses.Case(loss) for group in GROUPS for name, loss in group.items()}


def model(
    step: Callable, optimizer_fn: Callable | None = None, tolerance=EXACT, options=None, **more
) -> Model:
    """Returns a model of a function of features, labels and weights.

    Args:
        step: Returns a loss and a train_op, or a loss alone.
        optimizer_fn: Makes the step of a loss alone.
        tolerance: Relative and absolute.
        options: Of `replicate_model_fn`.
        **more: See `Model`.
    """
    build = lambda f, y: step(f, y, losses.Weights())  # noqa: E731
    options = {} if options is None else options
    return Model(build, batch, None, optimizer_fn, tolerance, options, **more)


def batch(rows: int, step: int, is_static: bool) -> tuple[dict, dict]:
    """Returns features and labels, padded to lengths of their own where they may be."""
    return losses.batch(rows, step, 4 if is_static else 3 + step % 3)


def models_of(module: Any) -> dict[str, Callable]:
    """Returns the models of a module by name: they are its public functions."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__
        if not name.startswith("_")
    }


def over(network: Callable) -> Callable:
    """A loss of what a network makes."""
    return lambda f, y, v: tf.reduce_mean(tf.square(network(f, y) - y["y"]))


def clip(loss):
    """As BERT's code does; the norm is below that of every gradient, so that it binds."""
    trained = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, trained), 1e-3)
    return running.apply(zip(gradients, trained, strict=True))


def with_keras(loss):
    optimizer = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.5)
    optimizer.iterations = tf1.train.get_global_step()
    return tf1.group(optimizer.get_updates(loss, tf1.trainable_variables()))


WAYS = (
    None,  # an optimizer_fn
    lambda loss: running.momentum().minimize(loss, tf1.train.get_global_step()),
    clip,
    with_keras,
)


def stepping(case: losses.Case, way: Callable | None) -> Model:
    """A model of a loss, whose step is made inside, or by an optimizer_fn (None)."""

    def step(f, y, v):
        loss = case.loss(f, y, v)
        return loss if way is None else (loss, way(loss))

    # Reassociation alone. TensorFlow computes some losses in float32, whatever it is given.
    tolerance = EXACT if case.dtype == np.float64 else running.SINGLE
    optimizer_fn = running.adam if way is None else None
    return model(step, optimizer_fn, tolerance, statics=case.statics)


NETWORKS = models_of(networks)
STEPS = models_of(gradients) | models_of(writes) | optimizers.STEPS
MEETINGS = models_of(meetings) | {name: over(network) for name, network in NETWORKS.items()}
PARTS = models_of(parts)
del PARTS["made_in_functions_and_trained"]  # which makes its step
MODELS = {
    **{name: model(step) for name, step in STEPS.items()},
    **{name: model(loss, running.momentum) for name, loss in MEETINGS.items()},
    **{
        name: model(loss, running.momentum, running.SINGLE, AS_ONE_DEVICE)
        for name, loss in models_of(idioms).items()
    },
    **{
        name: stepping(losses.Case(loss), WAYS[i % 2])
        for i, (name, loss) in enumerate(PARTS.items())
    },
    "made in functions and trained": model(parts.made_in_functions_and_trained),
    **{
        f"an optimizer_fn's that {name}": model(optimizers.loss, optimizer_fn)
        for name, optimizer_fn in optimizers.OPTIMIZERS.items()
    },
}
# Nobody says whether it is a mean or a sum.
LOSSES = {
    name: stepping(case, WAYS[(i + i // len(WAYS)) % len(WAYS)])
    for i, (name, case) in enumerate(CASES.items())
}
# Some of each kind, and those that ask the strategy in force.
QUICK_LOSSES = {
    *("sum", "sum by params", "learned task weights", "quotient", "mean of kept tokens"),
    *("perplexity of kept tokens", "sparsity", "a penalty of all weights of layers"),
    *("adversarial unit length", "two inner steps", "gradient penalty of a loop"),
    *("tf.losses collected", "a scaled penalty", *penalties.REDUCED),
    *("Keras none real", "Keras sum_over_batch_size unweighted"),
    *(name for name in libraries.COUNTS if "replicas" in name or "average" in name),
}
# What takes longest, of operations that smaller models have, too.
LARGE = (
    *("lstm_static_with_lengths", "lstm_dynamic_with_lengths", "lstm_bidirectional"),
    *("beam_search", "deep_columns", "crf", "ctc_of_dense_labels"),
    *("lstm_zero_state", "tables_of_words"),
)
# Each is nearly like one that is quick, whose name is part of its own or stands beside it here.
VARIANTS = (
    *("attention_of_two_heads", "causal_attention"),  # attention
    *("masked_in_a_branch_of_a_loop", "masked_entries_of_masked_rows"),  # masked_in_a_loop
    *("norm_by_moments", "norm_second_order", "norm_ahead_of_the_step"),  # norm_fused_second_order
    *("norm_fused_with_averages", "norm_of_tokens", "norm_weighted"),  # norm_layers_fused
    *("norm_layers_2d", "norm_layers_virtual_batches", "norm_layers_renormalised"),
    *("ragged_otherwise", "ragged_edits", "ragged_lengths"),  # ragged_softmax, sparse_edits
    *("simclr_of_concatenated_views", "triplets_batch_hard"),  # simclr, hardest_rows
    "products_with_lengths_of_one",  # square_reductions
    *("several_ys_and_weights_of_theirs", "a_y_with_rows_and_weights"),  # several_ys
    *(name for name in CORPUS if name.startswith("embeddings_of_bags_")),
    *(name for name in CORPUS if name.endswith("_doubled")),  # widths of 2B, beside those of B
)
THOROUGH = {*(LOSSES.keys() - QUICK_LOSSES), *LARGE, *VARIANTS}
TURNS = int(os.environ.get("LAW_TURNS", "1"))
FEW = [setting for setting in running.SETTINGS if setting.devices < 8]


def in_turn(models: dict, settings: Sequence[running.Setting], turn: int = 0) -> Iterable:
    """Yields parameters: each model in the setting whose turn it is.

    Args:
        models: The models by name.
        settings: The settings.
        turn: How often the models had a turn; after the first one they are thorough.
    """
    for i, (name, model) in enumerate(models.items()):
        fitting = [setting for setting in settings if model.fits(setting)]
        setting = fitting[(i + 3 * turn) % len(fitting)]
        marks = [pytest.mark.thorough] if turn else []
        yield pytest.param(model, setting, marks=marks, id=f"{name}-{setting}")


def in_turns(models: dict, quick: Sequence[running.Setting] = FEW) -> Iterable:
    """Yields parameters: each model in one setting, or in as many as `LAW_TURNS` says.

    What splits a model knows neither its name nor how many devices there are: a fault that it shows
    in one setting, some model shows in each.

    Args:
        models: The models by name.
        quick: The settings of those that are quick; by default those of few devices.
    """
    thorough = {name: model for name, model in models.items() if name in THOROUGH}
    yield from in_turn({name: models[name] for name in models if name not in THOROUGH}, quick)
    yield from in_turn(thorough, running.SETTINGS, 1)
    for turn in range(1, TURNS):
        yield from in_turn(models, running.SETTINGS, 1 + turn)
