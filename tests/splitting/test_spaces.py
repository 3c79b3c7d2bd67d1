"""Rows that are picked from others, sparse and ragged ones, stay on their devices.

Each model is trained two steps on one device and split over K, from the same weights, on 7, 2 and
1 rows of which some devices have none, and some batches pick nothing. All that it names and all
variables must be one device's, and the operations that it tells must be split.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from replicate.splitting.writing import inputs
from tests import exactness

F64 = tf.float64
DEVICES = [f"/device:CPU:{k}" for k in range(8)]
PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)
STEPS = 3
MODELS: dict[str, "Model"] = {}


class Model(NamedTuple):
    """A model.

    Attributes:
        build: From a batch to a loss, and other tensors by name.
        split: The kinds of operations that must be split, all of those before the gradients.
        statics: Whether it can be built of static and dynamic batches.
        tolerance: Relative and absolute.
    """

    build: Callable
    split: Sequence[str]
    statics: Sequence[bool] = (False, True)
    tolerance: tuple[float, float] = (1e-12, 1e-12)


def model(split: str = "", **options) -> Callable:
    """Adds a function to the models, with the kinds of operations that it is to split."""

    def add(function):
        MODELS[function.__name__] = Model(function, split.split(), **options)
        return function

    return add


def batch(rows: int, step: int) -> dict:
    """Returns a batch; in the second step nothing is picked, and sparse rows are empty."""
    numbers = np.random.RandomState(100 * rows + step)
    some = 0.0 if step == 1 else 0.6
    counts = numbers.randint(0, 4, rows) * (step != 1)
    return {
        "x": numbers.uniform(-1, 1, [rows, 3]),
        "t": numbers.uniform(-1, 1, [rows, 4, 3]),
        "y": numbers.uniform(-1, 1, [rows, 3]),
        "mask": numbers.uniform(size=rows) < some,
        "mask2": numbers.uniform(size=[rows, 4]) < some,
        "label": numbers.randint(0, 3, rows),
        "ids": numbers.randint(0, 6, [rows, 2]),
        "ages": numbers.uniform(0, 90, [rows]),
        "texts": numbers.choice(["a b", "c", "", "d e f"], rows).astype(object),
        "dense_words": numbers.choice(["a", "b", "c", ""], [rows, 2]).astype(object),
        "bags": sparse(counts, numbers.randint(0, 6, counts.sum())),
        "weights": sparse(counts, numbers.uniform(0.1, 2, counts.sum())),
        "weights32": sparse(counts, numbers.uniform(0.1, 2, counts.sum()).astype(np.float32)),
        "words": sparse(counts, numbers.choice(["a", "b", "c", "d"], counts.sum()).astype(object)),
        "ragged": ragged(counts, numbers.uniform(-1, 1, counts.sum())),
        "ragged_ids": ragged(counts, numbers.randint(0, 6, counts.sum())),
        "ragged2": ragged(counts[::-1], numbers.uniform(-1, 1, counts.sum())),
        "ended": sparse([*counts[:-1], 2], numbers.randint(0, 6, counts[:-1].sum() + 2)),
    }


def sparse(counts, values):
    indices = [[row, column] for row, count in enumerate(counts) for column in range(count)]
    indices = np.array(indices, np.int64).reshape([-1, 2])
    return tf1.SparseTensorValue(indices, values, [len(counts), 4])


def ragged(counts, values):
    splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return tf1.ragged.RaggedTensorValue(values, splits)


def squares(found, f):
    return tf.reduce_mean(tf.square(found - f["y"]))


def weight(name, *shape):
    return tf1.get_variable(name, shape, F64, exactness.start, use_resource=True)


def hidden(x, name="hidden"):
    return tf.tanh(tf.tensordot(x, weight(name, 3, 3).read_value(), 1))


# Masks.


@model("Where GatherV2 SquaredDifference Tanh MatMul")
def masked_rows(f):
    kept = tf.boolean_mask(hidden(f["x"]), f["mask"])
    wanted = tf.boolean_mask(f["y"], f["mask"])
    losses = tf.math.squared_difference(hidden(kept, "second"), wanted)
    total = tf.reduce_sum(losses)
    loss = tf.math.divide_no_nan(total, tf.cast(tf.shape(kept)[0], F64)) + squares(f["x"], f)
    return loss, {"kept": kept, "losses": losses}


@model("Where GatherV2 Tanh MatMul")
def masked_entries(f):
    """A mask of two dimensions."""
    kept = tf.boolean_mask(hidden(f["t"]), f["mask2"])
    return tf.reduce_sum(tf.square(hidden(kept, "second"))), {"kept": kept}


@model("Where GatherV2 Tanh MatMul")
def masked_twice(f):
    """Of what a mask leaves a mask of its own leaves some."""
    kept = tf.boolean_mask(f["x"], f["mask"])
    kept = hidden(kept)
    again = tf.boolean_mask(kept, kept[:, 0] > 0.0)
    return tf.reduce_sum(hidden(again, "second")), {"again": again, "count": tf.shape(again)[0]}


@model("Where GatherV2 Tanh MatMul")
def masked_entries_of_masked_rows(f):
    """A mask of two dimensions of what a mask leaves: it counts entries, four of each row."""
    kept = tf.boolean_mask(f["t"], f["mask"])
    kept = hidden(kept)
    again = tf.boolean_mask(kept, kept[:, :, 0] > 0.0)
    places = tf.where(tf.reshape(kept[:, :, 0] > 0.0, [-1]))
    return tf.reduce_sum(hidden(again, "second")), {"again": again, "places": places}


@model("Where")
def two_masks(f):
    """Of two masks' rows each is of its own space."""
    x = hidden(f["x"])
    one = tf.boolean_mask(x, f["mask"])
    other = tf.boolean_mask(x, tf.logical_not(f["mask"]))
    both = tf.concat([one, other], 0)
    return tf.reduce_sum(tf.square(both)) + tf.reduce_sum(one[:, 0]), {"both": both}


@model("Where")
def mask_of_another_mask(f):
    """The rows of one mask are numbered by another: they are no rows of these numbers."""
    one = tf.boolean_mask(hidden(f["x"]), f["x"][:, 0] > 0.0)
    number = tf.minimum(tf.shape(one)[0], tf.shape(tf.where(f["mask"]))[0])
    other = tf.where(f["mask"])[:number]
    return tf.reduce_sum(tf.gather(hidden(f["x"], "second"), other[:, 0])), {"one": one}


@model("Where GatherNd ScatterNd")
def gathered_and_scattered(f):
    places = tf.where(f["mask2"])
    found = tf.gather_nd(hidden(f["t"]), places)
    made = tf.scatter_nd(places, hidden(found, "second"), tf.cast(tf.shape(f["t"]), tf.int64))
    return tf.reduce_sum(tf.square(made)), {"found": found, "made": made, "places": places}


@model("Where GatherV2 UnsortedSegmentSum UnsortedSegmentMax")
def summed_back_to_rows(f):
    places = tf.where(f["mask2"])
    found = hidden(tf.gather_nd(f["t"], places))
    sums = tf.math.unsorted_segment_sum(found, places[:, 0], tf.shape(f["t"])[0])
    largest = tf.math.unsorted_segment_max(
        found, tf.cast(places[:, 0], tf.int32), tf.shape(sums)[0]
    )
    largest = tf.maximum(largest, -2.0)
    back = tf.gather(sums, places[:, 0])
    return squares(sums, f) + tf.reduce_sum(tf.square(back)), {"largest": largest, "back": back}


@model("Where Max Sum")
def mean_and_largest_of_masked(f):
    kept = tf.boolean_mask(hidden(f["x"]), f["mask"])
    mean = tf.math.divide_no_nan(tf.reduce_sum(kept, 0), tf.cast(tf.shape(kept)[0], F64))
    largest = tf.maximum(tf.reduce_max(kept, 0), -1.0)
    return squares(mean + largest, f), {"mean": mean, "largest": largest, "all": tf.shape(kept)}


@model("Where")
def softmax_of_masked(f):
    """A softmax over what a mask leaves of all rows."""
    scores = tf.boolean_mask(hidden(f["x"]), f["mask"])
    found = tf.nn.softmax(scores, 0)
    return tf.reduce_sum(found * scores) + squares(f["x"], f), {"found": found}


@model("Where GatherV2 MatMul")
def masked_softmax_loss(f):
    """A language model's loss of the tokens that are there."""
    logits = tf.tensordot(hidden(f["t"]), weight("out", 3, 5).read_value(), 1)
    kept = tf.boolean_mask(logits, f["mask2"])
    labels = tf.boolean_mask(tf.tile(f["label"][:, None], [1, 4]), f["mask2"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=kept)
    number = tf.maximum(tf.cast(tf.size(labels), F64), 1.0)
    return tf.reduce_sum(losses) / number, {"losses": losses, "labels": labels}


@model("Where")
def three_operands(f):
    chosen = tf.where(f["mask"][:, None], hidden(f["x"]), f["y"])
    places = tf.where(tf.reduce_any(tf.greater(f["x"], 0.9), 1))
    return squares(chosen, f), {"places": places, "squeezed": tf.squeeze(places, 1)}


@model()
def numbers_in_arithmetic(f):
    """What is worked out from numbers of rows is one device's."""
    places = tf.where(f["mask2"])
    rows = places[:, 0]
    found = {
        "twice": rows * 2,
        "even": tf.equal(rows % 2, 0),
        "largest": tf.reduce_max(tf.concat([rows, [0]], 0)),
        "both": places[:, 0] * 4 + places[:, 1],
        "columns": tf.reverse(places, [1]),
        "picked": tf.gather(tf.range(50), tf.cast(rows, tf.int32)),
        "real": tf.cast(rows, F64),
    }
    return squares(hidden(f["x"]) * tf.reduce_sum(found["real"]), f), found


# Different values.


@model("Unique GatherV2")
def different_values(f):
    ids = tf.reshape(f["ids"], [-1])
    values, places = tf.unique(ids)
    found = tf.gather(tf.gather(weight("table", 6, 3), values), places)
    found = tf.reshape(found, [-1, 2, 3])
    return squares(tf.reduce_sum(found, 1), f), {"values": values, "places": places, "found": found}


@model()
def different_values_in_arithmetic(f):
    """What a device's own different values are is no part of what all are."""
    values, places = tf.unique(tf.reshape(f["ids"], [-1]))
    table = weight("table", 6, 3)
    found = {
        "twice": values * 2,
        "number": tf.size(values),
        "sum": tf.reduce_sum(values),
        "by values": tf.gather(tf.gather(table, values), places * 0),
        "by themselves": tf.gather(tf.concat([values] * 6, 0), values),
        "sums": tf.math.unsorted_segment_sum(tf.ones_like(places), places, tf.size(values)),
        "one hot": tf.one_hot(places, 12),
        "shape": tf.shape(values),
    }
    different, other, counts = tf.unique_with_counts(f["label"])
    found |= {"counts": counts, "different": different, "other": other}
    loss = squares(tf.reduce_sum(found["by values"], 0), f)
    return loss, found


@model("UniqueWithCounts")
def how_often_each_occurs(f):
    """How many rows of all have a row's label, which no device knows by itself."""
    _, places, counts = tf.unique_with_counts(f["label"])
    often = tf.gather(tf.cast(counts, F64), places)
    more = tf.gather(tf.sqrt(tf.cast(counts, F64) + 1.0), places)
    return tf.reduce_sum(hidden(f["x"])[:, 0] / often), {"often": often, "more": more}


@model()
def values_by_values(f):
    """Values are no places, though both are of one operation."""
    values, _ = tf.unique(tf.reshape(tf.minimum(f["ids"], 0), [-1]))
    table = tf.gather(weight("table", 6, 3), values)
    return squares(tf.gather(table, values), f), {"twice": tf.gather(values, values)}


# Sparse tensors.


def lookups(f, **options):
    return {
        name: tf.nn.embedding_lookup_sparse(
            weight(name, 6, 3), f["bags"], None, combiner=name, **options
        )
        for name in ("sum", "mean", "sqrtn")
    }


def filled(f, key="bags"):
    """A sparse tensor in which each row has an entry."""
    return tf.sparse.fill_empty_rows(f[key], tf.zeros([], f[key].dtype))[0]


@model("SparseFillEmptyRows Unique SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN")
def embeddings_of_bags(f):
    found = lookups({"bags": filled(f)})
    return squares(tf.add_n(list(found.values())), f), found


@model("Unique SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN ResourceGather ConcatV2")
def embeddings_of_bags_of_which_the_last_is_not_empty(f):
    """Bags without an id count as zeros, but one at the end would make an error."""
    found = lookups({"bags": f["ended"]})
    beside = tf.concat([f["x"][:, None], tf.tanh(found["sum"])[:, None], f["y"][:, None]], 1)
    both = tf.add_n([f["x"], tf.reshape(found["mean"], [-1, 3]), found["sqrtn"] * 2.0])
    return squares(tf.reduce_sum(beside, 1) * both, f), {**found, "beside": beside}


@model()
def embeddings_of_bags_of_which_the_last_may_be_empty(f):
    """There are only as many as up to the last bag that has an id."""
    found = {name: tf.tanh(each)[:, None] for name, each in lookups(f).items()}
    found |= {"shape": tf.shape(found["sum"]), "size": tf.size(found["mean"])}
    sums = tf.reduce_sum(found["sum"] * found["mean"] + found["sqrtn"], [0, 1])
    return squares(sums, f) + tf.reduce_sum(tf.square(found["sum"])), found


@model()
def embeddings_of_bags_in_a_tensor(f):
    """Looked up by the values themselves: each different one of these has a gradient, in order."""
    ids, table = filled(f), tf.tanh(weight("table", 6, 3).read_value())
    found = {
        name: getattr(tf.raw_ops, f"SparseSegment{name}")(
            data=table, indices=ids.values, segment_ids=ids.indices[:, 0], sparse_gradient=True
        )
        for name in ("Sum", "Mean", "SqrtN")
    }
    kept = tf.gradients(tf.reduce_sum(tf.square(found["Mean"])), table)[0]
    found |= {"gradient": kept.values * 2.0, "of": kept.indices, "number": tf.size(kept.indices)}
    return squares(found["Sum"] + found["Mean"] * found["SqrtN"], f), found


@model("SparseFillEmptyRows Unique")
def embeddings_of_weighted_bags(f):
    ids = filled(f)
    weights = tf.sparse.SparseTensor(
        ids.indices, tf.cast(ids.values, F64) * 0.3 + 0.1, ids.dense_shape
    )
    found = {
        name: tf.nn.embedding_lookup_sparse(weight(name, 6, 3), ids, weights, combiner=name)
        for name in ("sum", "mean", "sqrtn")
    }
    return squares(tf.add_n(list(found.values())), f), found


@model()
def embeddings_of_bags_with_weights_beside(f):
    """Nothing says before a run that there are as many weights as values: it is whole."""
    found = tf.nn.safe_embedding_lookup_sparse(weight("w", 6, 3), f["bags"], f["weights"])
    return squares(found, f), {"found": found}


@model("SparseFillEmptyRows Unique")
def embeddings_of_bags_with_a_largest_norm(f):
    found = lookups({"bags": filled(f)}, max_norm=0.5)
    return squares(tf.add_n(list(found.values())), f), found


@model("SparseFillEmptyRows SparseSegmentMean Unique Where GatherV2 ResourceGather")
def embeddings_of_bags_that_may_be_empty(f):
    found = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), f["bags"])
    default = tf.nn.safe_embedding_lookup_sparse(weight("other", 6, 3), f["bags"], default_id=2)
    return squares(found + default, f), {"found": found}


@model("Unique ResourceGather SparseSegmentSumWithNumSegments SparseSegmentMeanWithNumSegments")
def sums_of_bags_whose_number_is_given(f):
    """Bags may be empty, the last one too: there are as many sums as rows."""
    values, places = tf.unique(f["bags"].values)
    table = tf.nn.embedding_lookup(weight("table", 6, 3), values)
    rows, number = tf.cast(f["bags"].indices[:, 0], tf.int32), tf.shape(f["x"])[0]
    found = tf.sparse.segment_sum(table, places, rows, num_segments=number)
    mean = tf.sparse.segment_mean(table, places, rows, num_segments=number)
    root = tf.sparse.segment_sqrt_n(table, places, rows, num_segments=number)
    return squares(found + mean * root, f), {"found": found, "mean": mean}


@model("CTCLoss", tolerance=(1e-4, 1e-5))
def losses_of_transcripts(f):
    """Labels of each row, and scores by time."""
    labels = tf.cast(filled(f), tf.int32)
    lengths = tf.minimum(tf.cast(f["label"], tf.int32) + 6, 8)
    frames = tf.tile(tf.transpose(f["t"], [1, 0, 2]), [2, 1, 1])
    scores = tf.tensordot(frames, weight("letters", 3, 7).read_value(), 1)
    scores = tf.cast(scores, tf.float32)
    losses = tf1.nn.ctc_loss(labels, scores, lengths)
    return tf.reduce_mean(tf.cast(losses, F64)) + squares(hidden(f["x"]), f), {"losses": losses}


@model("SparseToDense ResourceGather")
def dense_bags(f):
    dense = tf.sparse.to_dense(f["bags"], default_value=0)
    found = tf.gather(weight("table", 6, 3), dense)
    return squares(tf.reduce_sum(found, 1), f), {"dense": dense}


@model("SparseTensorDenseMatMul")
def sparse_product(f):
    w = weight("w", 4, 3)
    found = tf.sparse.sparse_dense_matmul(f["weights"], w)
    return squares(found, f), {"found": found}


@model("SparseReduceSum")
def sparse_sums(f):
    values = tf.SparseTensor(
        f["bags"].indices, tf.cast(f["bags"].values, F64), f["bags"].dense_shape
    )
    found = {
        "rows": tf.sparse.reduce_sum(values, 1),
        "columns": tf.sparse.reduce_sum(values, 0),
        "kept": tf.sparse.reduce_sum(values, 1, keepdims=True),
        "largest": tf.sparse.reduce_max(values, 1),
        "all": tf.sparse.reduce_sum(values),
    }
    return squares(hidden(f["x"]) * found["kept"], f), found


@model()
def sparse_edits(f):
    """What changes which entries there are."""
    bags, weights = f["bags"], f["weights"]
    joined = tf.sparse.concat(1, [bags, bags])
    below = tf.sparse.concat(0, [bags, bags])
    slice_ = tf.sparse.slice(weights, [0, 1], [tf.cast(tf.shape(f["x"])[0], tf.int64), 2])
    kept = tf.sparse.retain(weights, weights.values > 0.9)
    order = tf.sparse.reorder(weights)
    turned = tf.sparse.transpose(weights)
    flat = tf.sparse.reshape(weights, [-1])
    pairs = tf.sparse.reshape(weights, [-1, 2, 2])
    sparse_tensors = {
        "joined": joined,
        "below": below,
        "slice": slice_,
        "kept": kept,
        "order": order,
        "turned": turned,
        "flat": flat,
        "pairs": pairs,
        "added": tf.sparse.add(weights, weights),
        "softmax": tf.sparse.softmax(weights),
        "scaled": weights * tf.constant([1.0, 2.0, 3.0, 4.0], F64),
    }
    found = {}
    for name, each in sparse_tensors.items():
        found[f"{name} indices"], found[f"{name} values"] = each.indices, each.values
        found[f"{name} shape"] = tf.identity(each.dense_shape)
    dense = tf.sparse.to_dense(kept) + tf.sparse.to_dense(slice_)[:, :1]
    loss = tf.reduce_sum(tf.square(dense @ weight("w", 4, 3).read_value()))
    return loss, found


@model("SparseConcat SparseCrossV2 SparseCrossHashed")
def sparse_joined(f):
    """Entries side by side, and crossed with one another and with dense columns."""
    words, dense, bags = f["words"], f["dense_words"], f["bags"]
    joined = tf.sparse.concat(1, [bags, bags])
    found = {
        "joined": joined.values,
        "crossed": tf.sparse.cross([words, dense]).values,
        "dense crossed": tf.sparse.cross([dense, dense]).values,
        "hashed": tf.sparse.cross_hashed([words, dense], num_buckets=50).values,
    }
    table = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), joined)
    return squares(hidden(f["x"]) * table, f), found


@model("SparseReduceSum")
def sparse_of_kept(f):
    """Entries of rows that a mask picks."""
    kept = tf.boolean_mask(hidden(f["x"]), f["mask"])
    sparse = tf.sparse.from_dense(tf.nn.relu(kept))
    found = tf.sparse.reduce_sum(sparse, 1)
    return squares(hidden(f["x"], "other"), f), {"found": found}


@model("SparseToDense Where GatherV2")
def retained(f):
    kept = tf.sparse.retain(f["weights"], f["weights"].values > 0.9)
    dense = tf.sparse.to_dense(kept)
    return squares(dense @ weight("w", 4, 3).read_value(), f), {"dense": dense}


@model("LookupTableFindV2 StringToHashBucketFast SparseToDense")
def tables_of_words(f):
    keys, values = tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
    words = f["words"]
    found = tf.sparse.to_dense(table.lookup(words))
    hashed = tf.SparseTensor(
        words.indices, tf.strings.to_hash_bucket_fast(words.values, 6), words.dense_shape
    )
    hashed = tf.sparse.to_dense(hashed)
    ids = tf.gather(weight("a", 6, 3), hashed) + tf.gather(weight("b", 6, 3), found)
    return squares(tf.reduce_sum(ids, 1), f), {"found": found, "hashed": hashed}


# Feature columns, of sparse and of dense inputs.


def columns_of(f, keys):
    return {key: f[key] for key in keys}


def start(shape, dtype=None, partition_info=None):
    return exactness.start(shape, tf.float32)


SINGLE = (2e-5, 2e-6)  # feature columns compute in float32


@model("ResourceGather SparseFillEmptyRows SparseSegmentMean SparseToDense Where", tolerance=SINGLE)
def deep_columns(f):
    column = tf.feature_column
    words = column.categorical_column_with_hash_bucket("words", 5)
    listed = column.categorical_column_with_vocabulary_list("words", ["a", "b"], default_value=0)
    dense = column.categorical_column_with_vocabulary_list("dense_words", ["a", "b", "c"])
    ids = column.categorical_column_with_identity("bags", 6)
    ages = column.bucketized_column(column.numeric_column("ages"), [20.0, 40.0])
    columns = [
        column.embedding_column(words, 2, initializer=start),
        column.embedding_column(dense, 2, initializer=start, combiner="sqrtn"),
        column.embedding_column(ids, 2, initializer=start, combiner="sum"),
        column.indicator_column(listed),
        column.indicator_column(dense),
        column.embedding_column(
            column.crossed_column([ages, "dense_words"], 7), 2, initializer=start
        ),
        ages,
    ]
    keys = ("words", "dense_words", "bags", "ages")
    found = tf1.feature_column.input_layer(columns_of(f, keys), columns)
    found = tf1.layers.dense(found, 3, kernel_initializer=start)
    return squares(tf.cast(found, F64), f), {"found": found}


@model("ResourceGather SparseFillEmptyRows", tolerance=SINGLE)
def linear_columns(f):
    column = tf.feature_column
    words = column.categorical_column_with_hash_bucket("words", 5)
    ages = column.bucketized_column(column.numeric_column("ages"), [20.0, 40.0])
    columns = [
        words,
        column.categorical_column_with_vocabulary_list("dense_words", ["a", "b", "c"]),
        column.crossed_column([ages, "dense_words"], 7),
        ages,
    ]
    keys = ("words", "dense_words", "ages")
    found = tf1.feature_column.linear_model(columns_of(f, keys), columns, units=3)
    return squares(tf.cast(found, F64), f), {"found": found}


@model(tolerance=SINGLE)
def weighted_columns(f):
    """Nothing says before a run that there are as many weights as values: it is whole."""
    column = tf.feature_column
    ids = column.categorical_column_with_identity("bags", 6)
    ids = column.weighted_categorical_column(ids, "weights32")
    found = tf1.feature_column.input_layer(
        columns_of(f, ("bags", "weights32")),
        [column.embedding_column(ids, 3, initializer=start)],
    )
    return squares(tf.cast(found, F64), f), {"found": found}


# Numbers of rows.


@model("GatherNd Range Pack")
def chosen_by_labels(f):
    """The score of each row's label, by its coordinates."""
    scores = hidden(f["x"])
    numbers = [tf.range(tf.shape(scores)[0], dtype=tf.int64), f["label"]]
    places, upright = tf.stack(numbers, 1), tf.stack(numbers)
    found = tf.gather_nd(scores, places)
    made = {"found": found, "places": places, "next": places + 1, "next upright": upright + 1}
    return tf.reduce_sum(tf.square(found)), made


@model("GatherV2 Range")
def rows_by_their_numbers(f):
    scores = hidden(f["x"])
    rows = tf.range(tf.shape(scores)[0])
    same = tf.gather(scores, rows)
    back = tf.scatter_nd(rows[:, None], scores, tf.shape(scores))
    sums = tf.math.segment_sum(scores, rows)
    return squares(same + back + sums, f), {"rows": rows, "back": back, "twice": rows * 2}


@model("GatherNd Range")
def last_of_each_row(f):
    """What is there at the end of rows of different lengths."""
    x = tf.reshape(hidden(f["t"]), [-1, 4, 3])
    last = tf.cast(f["label"], tf.int32)
    rows = tf.expand_dims(tf.range(tf.shape(x)[0]), 1)
    found = tf.gather_nd(x, tf.concat([rows, last[:, None]], 1))
    return squares(found, f), {"found": found}


@model()
def other_ranges(f):
    number = tf.shape(f["x"])[0]
    found = {
        "from one": tf.range(1, number + 1),
        "by two": tf.range(0, 2 * number, 2),
        "twice": tf.range(2 * number),
        "back": tf.range(number - 1, -1, -1),
        "less": tf.range(number - 1),
        "real": tf.range(tf.cast(number, F64)),
        "matrix": tf.range(number)[:, None] - tf.range(number)[None, :],
        "odd": tf.gather(f["x"], tf.range(number) // 2),
        "reversed": tf.gather(f["x"], tf.range(number)[::-1]),
        "masked": tf.boolean_mask(tf.range(number), f["mask"]),
        "picked": tf.range(tf.shape(tf.where(f["mask"]))[0]),
    }
    return squares(hidden(found["odd"]), f), found


# In loops and branches of TensorFlow 2, where rows are counted anew in each iteration.


def iterated(step, x):
    return tf.while_loop(lambda n, _: n < 3, lambda n, h: (n + 1, step(n, h)), (0, x))[1]


@model()
def masked_in_a_loop(f):
    mask = f["mask"]

    def step(n, h):
        kept = tf.boolean_mask(h, mask)
        places = tf.where(h[:, 0] > 0.1)
        back = tf.scatter_nd(places, tf.gather_nd(h, places), tf.cast(tf.shape(h), tf.int64))
        return tf.tanh(h + back) + 0.1 * tf.reduce_sum(kept, 0)

    found = iterated(step, hidden(f["x"]))
    return squares(found, f), {"found": found}


@model()
def numbered_in_a_loop(f):
    def step(n, h):
        rows = tf.range(tf.shape(h)[0])
        values, places = tf.unique(tf.cast(h[:, 0] * 3.0, tf.int32))
        by_value = tf.cast(tf.gather(values, places), F64)[:, tf.newaxis]
        return tf.tanh(h) + 0.1 * tf.gather(h, rows[::-1]) + 0.01 * by_value

    found = iterated(step, hidden(f["x"]))
    return squares(found, f), {"found": found}


@model()
def words_in_a_loop(f):
    texts = f["texts"]

    def step(n, h):
        words = tf1.string_split(texts, " ")
        rows, number = words.indices[:, 0], tf.shape(h, tf.int64)[0]
        counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, number)
        return tf.tanh(h) + 0.1 * tf.cast(counts, F64)[:, tf.newaxis]

    found = iterated(step, hidden(f["x"]))
    return squares(found, f), {"found": found}


@model()
def masked_in_a_branch_of_a_loop(f):
    mask, steps, t = f["mask"], f["mask2"], f["t"]

    def step(n, h):
        picked = tf.boolean_mask(t[:, n], steps[:, n])
        return tf.cond(
            tf.reduce_any(mask),
            lambda: tf.tanh(h) + tf.reduce_sum(tf.boolean_mask(h, mask), 0),
            lambda: h * 1.1 + tf.reduce_sum(picked, 0),
        )

    found = iterated(step, hidden(f["x"]))
    return squares(found, f), {"found": found}


# Ragged tensors.


@model("UnsortedSegmentSum RaggedTensorToTensor")
def ragged_sums(f):
    ragged = f["ragged"]
    found = {
        "sums": tf.reduce_sum(ragged, 1),
        "lengths": ragged.row_lengths(),
        "dense": ragged.to_tensor(shape=[None, 2]),
    }
    return squares(hidden(f["x"]) * found["sums"][:, None], f), found


@model("UnsortedSegmentSum GatherV2")
def ragged_softmax(f):
    """Sums by rows that are looked up again by the rows' numbers."""
    ragged, ids = f["ragged"], f["ragged"].value_rowids()
    scores = tf.exp(ragged.flat_values * weight("w", 1))
    sums = tf.math.unsorted_segment_sum(scores, ids, ragged.nrows())
    shares = scores / tf.gather(sums, ids)
    found = tf.math.unsorted_segment_sum(shares * scores, ids, ragged.nrows())
    return squares(hidden(f["x"]) * found[:, None], f), {"sums": sums, "found": found}


@model("ResourceGather UnsortedSegmentSum RaggedTensorToTensor")
def ragged_embeddings(f):
    ids = f["ragged_ids"]
    table = weight("table", 6, 3)
    vectors = tf.ragged.map_flat_values(lambda ids: tf.nn.embedding_lookup(table, ids), ids)
    sums = tf.reduce_sum(vectors, 1)
    dense = vectors.to_tensor(shape=[None, 3, 3])
    padded = vectors.to_tensor(tf.tanh(weight("padding", 3)), shape=[None, 4, 3])
    mean = tf.math.divide_no_nan(sums, tf.cast(ids.row_lengths(), F64)[:, None])
    loss = squares(sums + mean, f) + tf.reduce_sum(tf.square(dense) + tf.square(padded[:, :3]))
    return loss, {"sums": sums, "padded": padded}


@model("ResourceGather RaggedTensorToSparse SparseFillEmptyRows")
def ragged_to_sparse(f):
    ids = f["ragged_ids"].to_sparse()
    found = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), ids)
    return squares(found, f), {"found": found}


@model()
def ragged_edits(f):
    ragged = f["ragged"]
    found = {
        "rows": ragged.value_rowids(),
        "starts": ragged.row_starts(),
        "total": ragged.flat_values[:0],
        "count": ragged.nrows(),
        "first": ragged[:, :1].to_tensor(),
        "values": ragged.flat_values * 2.0,
        "concat": tf.concat([ragged, ragged], 1).to_tensor(),
        "below": tf.concat([ragged, ragged], 0).to_tensor(),
        "gathered": tf.gather(ragged, tf.zeros_like(f["label"])).to_tensor(),
        "masked": tf.ragged.boolean_mask(
            ragged, ragged.with_values(tf.greater(ragged.values, 0.0))
        ).to_tensor(),
        "longest of all": ragged.to_tensor(),
        "as long as the longest": ragged.to_tensor(shape=[None, None]),
        "largest": tf.maximum(tf.reduce_max(ragged, 1), -9.0),
        "longest": ragged.bounding_shape(),
    }
    return squares(hidden(f["x"]) * found["largest"][:, None], f), found


@model("StridedSlice Sub Erf")
def ragged_lengths(f):
    """Ends less begins, of which either may name the first place."""
    splits = f["ragged"].row_splits
    found = {"lengths": splits[1:] - splits[0:-1], "again": splits[1:] - splits[:-1]}
    lengths = tf.math.erf(0.3 * tf.cast(found["lengths"], F64))
    return tf.reduce_mean(tf.square(weight("w", 1) * lengths - f["y"][:, 0])), found


@model("UnsortedSegmentSum")
def ragged_otherwise(f):
    """Values of others, inner dimensions, places that are no begins and ends: all whole."""
    ragged, others = f["ragged"], tf.identity(f["ragged2"].flat_values)
    splits = ragged.row_splits
    inner = ragged.with_values(tf.stack([others, others], 1))
    one_more = tf.RaggedTensor.from_value_rowids(
        ragged.flat_values, ragged.value_rowids(), nrows=ragged.nrows() + 1, validate=False
    )
    found = {
        "others": ragged.with_values(others).to_sparse().indices,
        "others' values": ragged.with_values(others).to_sparse().values,
        "others, dense": ragged.with_values(others).to_tensor(shape=[None, 3]),
        "inner": inner.to_sparse().indices,
        "inner, dense": inner.to_tensor(shape=[None, 3, 2]),
        "nested": tf.expand_dims(ragged, 1).to_tensor(shape=[None, 1, 3]),
        "one more": one_more.to_tensor(shape=[None, 3]),
        "each other": splits[::2],
        "but the last two": splits[:-2],
        "from the third": splits[2:],
        "begins of begins": splits[:-1][1:],
        "nothing": splits[1:] - splits[1:],
        "negative": splits[:-1] - splits[1:],
    }
    sums = tf.reduce_sum(ragged, 1)
    return squares(hidden(f["x"]) * sums[:, None], f), found


# Texts.


@model("StringSplitV2 SparseToDense", statics=(False, True))
def split_texts(f):
    words = tf1.string_split(f["texts"], " ")
    ids = tf.SparseTensor(
        words.indices, tf.strings.to_hash_bucket_fast(words.values, 6), words.dense_shape
    )
    found = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), ids)
    dense = tf.sparse.to_dense(ids, default_value=-1)
    return squares(found, f), {"dense": dense}


class Read(dict):
    """Features of which a placeholder is made when a model first reads it."""

    def __init__(self, arrays, is_static):
        super().__init__()
        self.arrays = arrays
        self.is_static = is_static
        self.fed = {}

    def __missing__(self, key):
        value = self.arrays[key]
        with tf.control_dependencies(None), tf.name_scope(f"given/{key}"):
            if isinstance(value, tf1.SparseTensorValue):
                shape = [value.dense_shape[0] if self.is_static else None, 4]
                self[key] = tf1.sparse_placeholder(value.values.dtype, shape)
            elif isinstance(value, tf1.ragged.RaggedTensorValue):
                self.fed[key] = tf1.ragged.placeholder(value.values.dtype, 1, [])
                self[key] = inputs.numbered(self.fed[key])
            else:
                self[key] = exactness.placeholders(value, self.is_static)
        return self[key]


class Built:
    """A model in a graph of its own, which is one device's until it is split."""

    def __init__(self, name, sizes, is_static, num_devices):
        self.sizes, self.is_static, self.num_devices = sizes, is_static, num_devices
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.features = Read(batch(sizes[0], 0), is_static)
            self.features["x"], self.features["y"]
            loss, extras = MODELS[name].build(self.features)
            self.forward = self.graph.get_operations()
            if num_devices % 2:
                optimizer = tf1.train.AdagradOptimizer(0.1)
            else:
                optimizer = tf1.train.GradientDescentOptimizer(0.1)
            self.values, self.step = {"loss": loss, **extras}, [optimizer.minimize(loss)]

    def split(self):
        with self.graph.as_default():
            result = splitter.split_graph(
                given=list(self.features.values()),
                devices=DEVICES[: self.num_devices],
                keep=[*self.values.values(), *self.step],
                home=DEVICES[0],
                static_rows=self.sizes[0] if self.is_static else None,
            )
        found = list(result.fetch)
        self.values = dict(zip(self.values, found, strict=False))
        self.step = found[len(self.values) :]
        return result

    def run(self):
        """Returns for each number of rows what the steps give."""
        with self.graph.as_default(), tf1.Session(config=exactness.session_config()) as session:
            return {rows: self._run(session, rows) for rows in self.sizes}

    def _run(self, session, rows):
        # Nothing is added to the graph: it is not split yet.
        variables = {v.name: v for v in tf1.global_variables()}
        tables = tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
        session.run([[v.initializer for v in variables.values()], tables])
        found, holders = [], {**self.features, **self.features.fed}
        for step in range(STEPS):
            arrays = batch(rows, step)
            feed = {holder: arrays[key] for key, holder in holders.items()}
            values = session.run(self.values, feed, PATIENCE)
            session.run(self.step, feed, PATIENCE)
            found.append({"values": values, "variables": session.run(variables)})
        return found


def require_one_device(name, sizes, is_static, num_devices):
    """Requires that a split model is one device's; returns what of it is whole."""
    built = Built(name, sizes, is_static, num_devices)
    wanted = built.run()
    result = built.split()
    for rows, found in built.run().items():
        compare(name, found, wanted[rows])
    return whole(built, result, MODELS[name].split)


def compare(name, found, wanted):
    for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
        for part in ("values", "variables"):
            for key, value in other[part].items():
                given = one[part][key]
                assert np.shape(given) == np.shape(value), (step, key)
                if np.asarray(value).dtype.kind == "f":
                    assert np.isfinite(value).all(), (step, key)
                    relative, absolute = MODELS[name].tolerance
                    np.testing.assert_allclose(
                        given, value, relative, absolute, err_msg=f"{key} in step {step}"
                    )
                else:
                    np.testing.assert_array_equal(given, value, f"{key} in step {step}")


def whole(built, result, kinds):
    """Returns the operations of some kinds, before the gradients, that are not split."""
    return [
        f"{op.type} {op.name}: {result.why(op)}"
        for op in built.forward
        if op.type in kinds
        and result.how(op) == "whole"
        and not ("Tensordot/" in op.name or op.name.startswith("given/"))
    ]


@pytest.mark.thorough("*-3")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_devices", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_dynamic(name, num_devices):
    assert require_one_device(name, (7, 2, 1), False, num_devices) == []


@pytest.mark.filterwarnings("ignore")
def test_what_is_too_short_on_one_device_is_so_on_several():
    built = Built("embeddings_of_bags_of_which_the_last_is_not_empty", (7,), False, 3)
    built.split()
    arrays = batch(7, 0)
    arrays["ended"] = sparse([1, 0, 2, 1, 0, 1, 0], [0, 1, 2, 3, 4])
    feed = {holder: arrays[key] for key, holder in built.features.items()}
    with built.graph.as_default(), tf1.Session(config=exactness.session_config()) as session:
        session.run([v.initializer for v in tf1.global_variables()])
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(built.values["beside"], feed, PATIENCE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("embeddings_of_bags", "SparseSegmentSumGrad SparseSegmentMeanGrad SparseSegmentSqrtNGrad"),
        ("embeddings_of_bags_that_may_be_empty", "SparseSegmentMeanGrad"),
        (
            "embeddings_of_bags_of_which_the_last_is_not_empty",
            "SparseSegmentSumGrad SparseSegmentMeanGrad SparseSegmentSqrtNGrad",
        ),
        ("embeddings_of_weighted_bags", "UnsortedSegmentSum"),
        ("sums_of_bags_whose_number_is_given", "SparseSegmentMeanGrad SparseSegmentSqrtNGrad"),
        (
            "embeddings_of_bags_in_a_tensor",
            "SparseSegmentSumGradV2 SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2",
        ),
    ],
)
def test_gradients_are_added_up_for_the_different_values_of_each_device(name, kinds):
    built = Built(name, (7,), False, 3)
    result = built.split()
    for kind in kinds.split():
        ops = [op for op in result.split if op.type == kind]
        assert ops, kind
        assert [op.name for op in result.whole if op.type == kind and result.why(op)] == []


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [7, 2])
@pytest.mark.parametrize("name", [name for name in MODELS if True in MODELS[name].statics])
def test_static(name, rows):
    found = require_one_device(name, (rows,), True, 3)
    assert rows == 2 or found == []  # each length of two may be that of the rows
