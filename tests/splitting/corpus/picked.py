"""Models of rows that are picked from others, of sparse and of ragged ones.

They stay on their devices: the operations that a model tells must be split. Of 7, 2 and 1 rows some
devices have none, and some batches pick nothing.
"""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus.model import EXACT, F64, MODELS, Model

OF_BAGS = "SparseSegmentSumGrad SparseSegmentMeanGrad SparseSegmentSqrtNGrad"
OPTIMIZERS = (tf1.train.AdagradOptimizer, tf1.train.GradientDescentOptimizer)


def model(split="", gradients="", tolerance=EXACT):
    """Adds a function of features to the corpus, with the kinds of operations that it splits."""

    def add(function):
        optimizer = OPTIMIZERS[len(MODELS) % 2]
        MODELS[function.__name__] = Model(
            lambda features, labels: function(features),
            batch,
            lambda: optimizer(0.1),
            tolerance=tolerance,
            split=split.split(),
            gradients=gradients.split(),
        )
        return function

    return add


def batch(rows: int, step: int, is_static: bool) -> tuple[dict, dict]:
    """Returns features; in the second step nothing is picked, and sparse rows are empty."""
    del is_static
    numbers = np.random.RandomState(100 * rows + step)
    some = 0.0 if step == 1 else 0.6
    counts = numbers.randint(0, 4, rows) * (step != 1)
    features = {
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
        "words": sparse(counts, numbers.choice(["a", "b", "c", "d"], counts.sum()).astype(object)),
        "ragged": ragged(counts, numbers.uniform(-1, 1, counts.sum())),
        "ragged_ids": ragged(counts, numbers.randint(0, 6, counts.sum())),
        "ragged2": ragged(counts[::-1], numbers.uniform(-1, 1, counts.sum())),
        "ended": sparse([*counts[:-1], 2], numbers.randint(0, 6, counts[:-1].sum() + 2)),
    }
    return features, {}


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


@model(
    "SparseFillEmptyRows Unique SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN",
    gradients=OF_BAGS,
)
def embeddings_of_bags(f):
    found = lookups({"bags": filled(f)})
    return squares(tf.add_n(list(found.values())), f), found


@model(
    "Unique SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN ResourceGather ConcatV2",
    gradients=OF_BAGS,
)
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


@model(gradients="SparseSegmentSumGradV2 SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2")
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


@model("SparseFillEmptyRows Unique", gradients="UnsortedSegmentSum")
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


@model(
    "SparseFillEmptyRows SparseSegmentMean Unique Where GatherV2 ResourceGather",
    gradients="SparseSegmentMeanGrad",
)
def embeddings_of_bags_that_may_be_empty(f):
    found = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), f["bags"])
    default = tf.nn.safe_embedding_lookup_sparse(weight("other", 6, 3), f["bags"], default_id=2)
    return squares(found + default, f), {"found": found}


@model(
    "Unique ResourceGather SparseSegmentSumWithNumSegments SparseSegmentMeanWithNumSegments",
    gradients="SparseSegmentMeanGrad SparseSegmentSqrtNGrad",
)
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


# Tables in slices, as partitioners cut them.


@model("DynamicPartition ParallelDynamicStitch ResourceGather")
def lookups_in_slices(f):
    slices = tf1.fixed_size_partitioner(3)
    start = tf.constant_initializer(0.3)
    with tf1.variable_scope("cut", partitioner=slices, use_resource=True):
        table = tf1.get_variable("table", [6, 3], F64, start)
        words = tf1.get_variable("words", [6, 3], F64, start)
    found = tf1.nn.embedding_lookup(table, f["ids"], partition_strategy="div")
    label = tf1.nn.embedding_lookup(words, f["label"])
    return squares(hidden(tf.reduce_sum(found, 1) + label), f), {"found": found, "label": label}


@model("DynamicPartition DynamicStitch")
def parts_by_numbers(f):
    """What a model does with one part of the rows and not with the others."""
    of, x = tf.cast(f["label"], tf.int32), hidden(f["x"])
    parts = tf.dynamic_partition(x, of, 3)
    rows = tf.dynamic_partition(tf.range(tf.shape(x)[0]), of, 3)
    changed = [parts[0], hidden(parts[1], "second"), parts[2] * 2.0]
    found = tf.dynamic_stitch(rows, changed)
    return squares(found, f) + tf.reduce_sum(parts[2]), {"found": found, "part": parts[1]}


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


@model("StringSplitV2 SparseToDense")
def split_texts(f):
    words = tf1.string_split(f["texts"], " ")
    ids = tf.SparseTensor(
        words.indices, tf.strings.to_hash_bucket_fast(words.values, 6), words.dense_shape
    )
    found = tf.nn.safe_embedding_lookup_sparse(weight("table", 6, 3), ids)
    dense = tf.sparse.to_dense(ids, default_value=-1)
    return squares(found, f), {"dense": dense}
