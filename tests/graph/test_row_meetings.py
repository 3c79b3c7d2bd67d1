"""Where rows meet rows, and where a number of rows enters them."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.graph import by_hand

STATICS = pytest.mark.parametrize("is_static", [False, True])


def meetings(make, is_number=False, **options):
    """The meetings behind the sum of what a function makes of rows, by operation."""
    towers = by_hand.Towers(lambda x: tf.reduce_sum(make(x)), **options)
    found = towers.whole.meetings.before(towers.column[0], is_number=is_number)
    assert all(meeting.is_number is is_number for meeting in found)
    return [(meeting.name.split("/", 1)[1], meeting.op.type) for meeting in found]


def types(found):
    return sorted({op_type for _, op_type in found})


def batch_norm(is_training):
    def make(x):
        scale, offset, mean = tf.ones([3]), tf.zeros([3]), tf.zeros([3])
        image = tf.cast(x, tf.float32)[:, None, None, :]
        given = {} if is_training else {"mean": mean, "variance": scale}
        made, *_ = tf1.nn.fused_batch_norm(
            image, scale, offset, is_training=is_training, data_format="NHWC", **given
        )
        return made

    return make


def pairwise(x):
    return tf.abs(x[:, None, :] - x[None, :, :])


def yes():
    """A truth that nobody knows before the run."""
    return tf1.placeholder_with_default(True, [])


def looped(step):
    def make(x):
        return tf.while_loop(lambda i, rows: i < 3, lambda i, rows: (i + 1, step(rows)), [0, x])[1]

    return make


def turning(x):
    """The second time round it is centred rows that come out."""

    def step(i, rows, other):
        return i + 1, other, rows - tf.reduce_mean(rows, 0)

    return tf.while_loop(lambda i, *_: i < 3, step, [0, x, x * 2.0])[1]


def of_each_key(x):
    found, places = tf.unique(keys(x))
    return tf.math.unsorted_segment_sum(x, places, tf.size(found))


def often(x):
    _, places, counts = tf.unique_with_counts(keys(x))
    return x / tf.cast(tf.gather(counts, places), x.dtype)[:, None]


def unique_keys(x):
    """As sparse embeddings look up each key once, whatever rows have it."""
    found, places = tf.unique(keys(x))
    vectors = tf.gather(tf.eye(3, dtype=x.dtype), found) * 2.0
    return x * tf.gather(vectors, places)


MEET = {
    "a mean of the rows in each row": (lambda x: x - tf.reduce_mean(x, 0), "Sub"),
    "a norm of the rows": (lambda x: x / tf.norm(x), "RealDiv"),
    "a largest row": (lambda x: x * tf.reduce_max(x, 0), "Mul"),
    "the first row": (lambda x: x + x[0], "AddV2"),
    "batch normalisation": (batch_norm(True), "FusedBatchNormV3"),
    "batch normalisation by hand": (
        lambda x: tf.nn.batch_normalization(x, *tf.nn.moments(x, [0]), None, None, 0.1),
        "Mul",
    ),
    "rows times rows": (lambda x: tf.matmul(x, x, transpose_b=True), "MatMul"),
    "rows times rows by einsum": (lambda x: tf.einsum("bi,ci->bc", x, x), "Einsum"),
    "differences of pairs": (pairwise, "Sub"),
    "softmax over rows": (lambda x: tf.nn.softmax(tf.transpose(x)), "Softmax"),
    "logarithm of softmax over rows": (lambda x: tf.nn.log_softmax(tf.transpose(x)), "LogSoftmax"),
    "cumulative sums over rows": (lambda x: tf.cumsum(x, 0), "Cumsum"),
    "cumulative sums counted from the end": (lambda x: tf.cumsum(x, -2), "Cumsum"),
    "cumulative products over rows": (lambda x: tf.math.cumprod(x, 0), "Cumprod"),
    "rows turned around": (lambda x: x * tf.reverse(x, [0]), "ReverseV2"),
    "neighbours": (lambda x: x - tf.roll(x, 1, 0), "Roll"),
    "neighbours, both axes": (lambda x: x - tf.roll(x, [1, 1], [1, 0]), "Roll"),
    "sorted rows": (lambda x: tf.sort(x, 0), "TopKV2"),
    "other rows by a number": (lambda x: x - tf.gather(x, keys(x)), "GatherV2"),
    "rows drawn at random": (lambda x: x - tf.gather(x, drawn(x)), "GatherV2"),
    "shuffled rows": (lambda x: x * tf.random.shuffle(x), "RandomShuffle"),
    "hard rows": (lambda x: tf.boolean_mask(x, x[:, 0] > tf.reduce_mean(x[:, 0])), "Greater"),
    "a largest whole number": (
        lambda x: x * tf.cast(keys(x) < tf.reduce_max(keys(x)), x.dtype)[:, None],
        "Less",
    ),
    "places of rows": (lambda x: x * tf.cast(tf.range(tf.shape(x)[0]), x.dtype)[:, None], "Range"),
    "rows of one key": (lambda x: tf.math.segment_sum(x, tf.sort(keys(x))), "SegmentSum"),
    "a filter over rows": (
        lambda x: tf.nn.conv1d(x[None], tf.ones([2, 3, 1], x.dtype), 1, "SAME"),
        "Conv2D",
    ),
    "one row more": (lambda x: tf.concat([x, tf.ones([1, 3], x.dtype)], 0), "ConcatV2"),
    "a row of zeros": (lambda x: tf.pad(x, [[0, 1], [0, 0]]), "Pad"),
    "numpy": (
        lambda x: tf.numpy_function(lambda rows: rows - rows.mean(0), [x], x.dtype),
        "PyFunc",
    ),
    "rows summed up in a loop": (
        lambda x: tf.scan(lambda last, row: last + row, x),
        "TensorListFromTensor",
    ),
    "the row before": (
        lambda x: tf.gather(x, tf.maximum(tf.range(tf.shape(x)[0]) - 1, 0)),
        "Sub",
    ),
    "a range backwards": (
        lambda x: x * tf.gather(x, tf.range(tf.shape(x)[0] - 1, -1, -1)),
        "Range",
    ),
    "pairs of rows": (
        lambda x: tf.math.segment_mean(x, tf.range(tf.shape(x)[0]) // 2),
        "FloorDiv",
    ),
    "sums of each key": (of_each_key, "UnsortedSegmentSum"),
    "how often each key is there": (often, "UniqueWithCounts"),
    "a mean in a loop over rows": (
        lambda x: tf.map_fn(lambda row: row - tf.reduce_mean(x), x),
        "Sub",
    ),
    "a choice of branches": (
        lambda x: tf.switch_case(
            tf.cast(tf.reduce_sum(x), tf.int32) % 2, [lambda: x * 2.0, lambda: x]
        ),
        "StatelessCase",
    ),
    "noise by a mean of rows": (
        lambda x: x * tf.one_hot(keys(x), 3, tf.reduce_mean(x), 0.0, dtype=x.dtype),
        "OneHot",
    ),
    "a function of rows": (lambda x: centred(x), "Sub"),
    "a function in a function": (lambda x: around(centred, x), "Sub"),
    "a branch": (lambda x: tf.cond(yes(), lambda: centred(x), lambda: x), "Sub"),
    "a choice of rows": (
        lambda x: tf.cond(tf.reduce_mean(x) > 0.5, lambda: x * 2.0, lambda: x),
        "StatelessIf",
    ),
    "a loop": (looped(lambda x: x - tf.reduce_mean(x, 0)), "Sub"),
    "a loop that sees it later": (turning, "Sub"),
}


def keys(x):
    """A whole number of each row, made from it."""
    return tf.cast(x[:, 0] * 2.0, tf.int32)


def drawn(x):
    return tf.random.uniform(tf.shape(x)[:1], 0, tf.shape(x)[0], tf.int32)


@tf.function(autograph=False)
def centred(x):
    return x - tf.reduce_mean(x, 0)


@tf.function(autograph=False)
def scaled(x):
    return tf.nn.softmax(x) * tf.reduce_sum(x, 1, keepdims=True) + tf.cumsum(x, 1)


def around(function, x):
    return tf.function(lambda rows: function(rows * 2.0), autograph=False)(x)


APART = {
    "rows": tf.exp,
    "weights in each row": lambda x: x * tf.constant([1.0, 2.0, 3.0], tf.float64),
    "a mean of each row": lambda x: x - tf.reduce_mean(x, 1, keepdims=True),
    "batch normalisation in inference": batch_norm(False),
    "pairs of columns": lambda x: x[:, :, None] - x[:, None, :],
    "products of each row": lambda x: tf.matmul(x[:, :, None], x[:, None, :]),
    "softmax over columns": tf.nn.softmax,
    "softmax of turned rows": lambda x: tf.nn.softmax(tf.transpose(x), 0),
    "cumulative sums over columns": lambda x: tf.cumsum(x, 1),
    "columns turned around": lambda x: tf.reverse(x, [1]),
    "columns rolled": lambda x: tf.roll(x, [1, 1], [1, -1]),
    "sorted columns": tf.sort,
    "ones as long as rows": lambda x: x * tf.ones_like(x[:, :1]),
    "zeros of a shape": lambda x: x + tf.zeros(tf.shape(x), x.dtype),
    "rows kept": lambda x: tf.boolean_mask(x, x[:, 0] > 0.5),
    "rows in a turned order of axes": tf.transpose,
    "a function of each row": lambda x: scaled(x),
    "a function in a function": lambda x: around(scaled, x),
    "branches": lambda x: tf.cond(yes(), lambda: scaled(x), lambda: -x),
    "a loop": lambda x: looped(lambda rows: rows * 0.5 + tf.nn.softmax(rows))(x),
    "each row in a loop": lambda x: tf.map_fn(tf.nn.l2_normalize, x),
    "keys looked up": lambda x: x * tf.nn.embedding_lookup(tf.eye(3, dtype=x.dtype), keys(x)),
    "keys looked up once each": unique_keys,
    "rows stacked": lambda x: tf.unstack(tf.stack([x, x * 2.0], 1), axis=1)[0],
    "rows twice": lambda x: tf.concat([x, x], 0),
    "rows beside rows": lambda x: tf.concat([x, x], 1)[:, ::2],
    "one of each row": lambda x: tf.gather_nd(x, tf.stack([tf.range(tf.shape(x)[0]), keys(x)], 1)),
    "entries of each row": lambda x: tf.gather(x, keys(x)[:, None], axis=1, batch_dims=1),
    "a convolution of each row": lambda x: tf.nn.conv1d(
        x[:, :, None], tf.ones([2, 1, 1], x.dtype), 1, "SAME"
    ),
    "padded columns": lambda x: tf.pad(x, [[0, 0], [1, 1]]),
    "all but the last column": lambda x: x[..., :-1],
    "ones": lambda x: x + tf.ones([tf.shape(x)[0], 1], x.dtype),
    "a reshape and back": lambda x: tf.reshape(tf.reshape(x, [-1]), tf.shape(x)),
}


@STATICS
@pytest.mark.parametrize("name", MEET)
def test_rows_that_meet_are_found(fresh_graph, name, is_static):
    make, op_type = MEET[name]
    assert op_type in types(meetings(make, is_static=is_static))


@STATICS
@pytest.mark.parametrize("is_number", [False, True])
@pytest.mark.parametrize("name", APART)
def test_rows_that_never_meet_are_not(fresh_graph, name, is_static, is_number):
    assert meetings(APART[name], is_number, is_static=is_static) == []


def rows_of(x):
    return tf.cast(tf.shape(x)[0], x.dtype)


NUMBERS = {
    "a division": lambda x: x / rows_of(x),
    "a product": lambda x: x * (1.0 / tf.sqrt(rows_of(x))),
    "a size": lambda x: x / tf.cast(tf.size(x), x.dtype),
    "a number of ones": lambda x: x / tf.reduce_sum(tf.ones_like(x[:, 0])),
}


@STATICS
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_rows_in_each_row_is_told_from_a_meeting(fresh_graph, name, is_static):
    assert meetings(NUMBERS[name], is_number=True, is_static=is_static)
    assert meetings(NUMBERS[name], is_number=False, is_static=is_static) == []


def test_a_folded_number_of_rows_in_each_row_is_found(fresh_graph):
    """3, 2 and 2 in the towers, 7 on one device."""
    found = meetings(lambda x: x / x.shape[0], is_number=True, is_static=True)
    assert found == [("truediv", "RealDiv")]
    made = meetings(
        lambda x: x * tf.sqrt(tf.constant(float(x.shape[0]), x.dtype)), True, is_static=True
    )
    assert types(made) == ["Mul"]


def test_a_folded_number_of_columns_is_none(fresh_graph):
    assert meetings(lambda x: x / x.shape[1], is_number=True, is_static=True) == []
    assert meetings(lambda x: x / x.shape[1], is_number=False, is_static=True) == []


def test_a_number_of_kept_rows_is_a_statistic_of_the_batch(fresh_graph):
    """It depends on values, so each tower's is no fixed part of the batch's."""

    def make(x):
        return x / tf.reduce_sum(tf.cast(x > 0.5, x.dtype))

    assert types(meetings(make)) == ["RealDiv"]
    assert meetings(make, is_number=True) == []


# Padded sequences: [B, T, 3].


def of_tokens(make, is_number=False):
    options = {"arrays": [by_hand.batch(7, 4, 3)], "unknown_inner": True}
    return meetings(make, is_number, **options)


def length_of(tokens):
    return tf.cast(tf.shape(tokens)[1], tokens.dtype)


def causal(tokens):
    """Each token sees those before it."""
    length = tf.shape(tokens)[1]
    past = tf.linalg.band_part(tf.ones(tf.stack([length, length]), tokens.dtype), -1, 0)
    scores = tf.matmul(tokens, tokens, transpose_b=True) + (past - 1.0) * 1e4
    return tf.matmul(tf.nn.softmax(scores), tokens)


@pytest.mark.parametrize("is_number", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda tokens: tokens / length_of(tokens),
        lambda tokens: tokens - tf.reduce_mean(tokens, 1, keepdims=True),
        lambda tokens: tf.nn.softmax(tokens, 1),
        lambda tokens: tf.cumsum(tokens, 1),
        lambda tokens: tokens[:, :, None] - tokens[:, None],
        lambda tokens: tokens + tf.cast(tf.range(tf.shape(tokens)[1]), tokens.dtype)[:, None],
        causal,
    ],
)
def test_tokens_of_one_row_may_meet(fresh_graph, make, is_number):
    assert of_tokens(make, is_number) == []


def test_tokens_of_other_rows_may_not(fresh_graph):
    assert "Sub" in types(of_tokens(lambda tokens: tokens - tf.reduce_mean(tokens, [0, 1])))
    assert "Softmax" in types(
        of_tokens(lambda tokens: tf.nn.softmax(tf.transpose(tokens, [2, 1, 0])))
    )
    assert "Cumsum" in types(of_tokens(lambda tokens: tf.cumsum(tokens, 0)))


def test_a_number_of_tokens_is_one_of_rows(fresh_graph):
    found = of_tokens(lambda tokens: tokens / tf.cast(tf.size(tokens), tokens.dtype), True)
    assert types(found) == ["RealDiv"]


# What was asked, and what was not.


def test_meetings_are_those_behind_what_is_asked(fresh_graph):
    towers = by_hand.Towers(
        lambda x: {"apart": tf.reduce_sum(x), "meeting": tf.reduce_sum(x - tf.reduce_mean(x))}
    )
    apart, meeting = [column[0] for column in towers.columns]
    before = towers.whole.meetings.before
    assert before(apart, is_number=False) == []
    (found,) = before(meeting, is_number=False)
    assert found.op.type == "Sub"
    assert found.tensor.op.type == "Mean"
    assert before(apart, is_number=False) == []
    assert before(meeting, is_number=False) == [found]  # and again


def test_a_later_meeting_is_found_as_well(fresh_graph):
    towers = by_hand.Towers(
        lambda x: [tf.reduce_sum(x - tf.reduce_mean(x)), tf.reduce_sum(tf.cumsum(x))]
    )
    first, second = [column[0] for column in towers.columns]
    before = towers.whole.meetings.before
    assert [meeting.op.type for meeting in before(first, is_number=False)] == ["Sub"]
    assert "Cumsum" in [meeting.op.type for meeting in before(second, is_number=False)]


def test_a_whole_value_may_enter_rows(fresh_graph):
    """A loss of the whole batch, by which each row is divided."""
    whole = []

    def make(x):
        whole.append(tf.reduce_mean(x))
        return tf.reduce_sum(x / whole[-1])

    towers = by_hand.Towers(make)
    towers.whole.note(whole[:3])
    assert towers.whole.meetings.before(towers.column[0], is_number=False) == []


def test_nobody_looks_before_what_was_cleared(fresh_graph):
    """A gradient by rows is each row's part of a whole loss's, whatever it was made from."""
    made = []

    def make(x):
        made.append(x - tf.reduce_mean(x))
        return tf.reduce_sum(made[-1] * 2.0)

    towers = by_hand.Towers(make)
    towers.whole.meetings.part(made[:1])
    assert towers.whole.meetings.before(towers.column[0], is_number=False) == []


def test_a_statistic_of_a_part_is_a_towers_own(fresh_graph):
    """As the norm of a gradient by rows, by which adversarial training divides."""
    made = []

    def make(x):
        made.append(x - tf.reduce_mean(x))
        return tf.reduce_sum(made[-1] / tf.norm(made[-1]))

    towers = by_hand.Towers(make)
    towers.whole.meetings.part(made[:1])
    met = towers.whole.meetings.before(towers.column[0], is_number=False)
    assert [meeting.op.type for meeting in met] == ["RealDiv"]


def test_a_folded_number_in_a_constant_of_each_row_is_found(fresh_graph):
    def make(x):
        return x * np.full([x.shape[0], 1], 1.0 / x.shape[0])

    (found,) = meetings(make, is_number=True, is_static=True)
    assert found[1] == "Const"


def test_a_folded_number_in_a_function_is_found(fresh_graph):
    def make(x):
        return tf.function(lambda rows: rows / x.shape[0], autograph=False)(x)

    assert types(meetings(make, is_number=True, is_static=True)) == ["RealDiv"]


def test_what_a_sum_of_products_reads_beside_rows_is_looked_at(fresh_graph):
    towers = by_hand.Towers(lambda x: tf.einsum("bi,i->", x, tf.reduce_mean(x, 0)))
    (met,) = towers.whole.meetings.before(towers.column[0], is_number=False)
    assert (met.op.type, met.tensor.op.type) == ("Einsum", "Mean")


def test_integers_may_meet(fresh_graph):
    """Offsets into all rows at once, as BERT's code gathers tokens by them."""

    def make(x):
        flat = tf.reshape(x, [-1])
        places = tf.range(tf.shape(x)[0]) * tf.shape(x)[1] + tf.math.argmax(
            x, 1, output_type=tf.int32
        )
        return tf.gather(flat, places)

    assert meetings(make) == []
    assert meetings(make, is_number=True) == []


# What is neither exact nor told would be assumed silently.


def of_groups(reduce):
    """Rows of one group follow each other; groups are cut in two by towers."""
    return lambda x, group: tf.reduce_sum(tf.square(reduce(x, group)))


def index(x):
    return tf.cast(tf.range(tf.shape(x)[0]), x.dtype)


ENDS = {
    "the first rows": lambda x, group: tf.reduce_sum(x[:2]),
    "the last row": lambda x, group: tf.reduce_sum(x[-1:]),
    "the largest row": lambda x, group: tf.reduce_sum(tf.cast(tf.argmax(x, 0), x.dtype)),
}
SILENT = {
    "sums of groups": of_groups(tf.math.segment_sum),
    "means of groups": of_groups(tf.math.segment_mean),
    "a number of groups": lambda x, group: tf.cast(tf.size(tf.unique(group)[0]), x.dtype),
    "differences of neighbours": lambda x, group: tf.nn.l2_loss(x[1:] - x[:-1]),
    "rows backwards": lambda x, group: tf.reduce_sum(x * x[::-1]),
    "rows gathered backwards": lambda x, group: tf.reduce_sum(
        x * tf.gather(x, tf.range(tf.shape(x)[0])[::-1])
    ),
    "a filter over rows": lambda x, group: tf.nn.l2_loss(
        tf.nn.conv1d(x[None], tf.ones([2, 3, 1], x.dtype), 1, "VALID")
    ),
    "one row more": lambda x, group: tf.reduce_mean(tf.concat([x, tf.ones([1, 3], x.dtype)], 0)),
    "places of rows": lambda x, group: tf.reduce_sum(x[:, 0] * index(x)),
}
CASES = [(name, is_static) for name in SILENT for is_static in (False, True)]
CASES += [("the first rows", False), ("the last row", False)]
GROUPS = np.array([0, 0, 0, 0, 1, 1, 2], np.int32)


def require_exact_or_told(session, make, is_static):
    towers = by_hand.Towers(make, [by_hand.batch(7), GROUPS], is_static=is_static)
    (found,), (expected,) = towers.values(session)
    parts = towers.whole.tail(towers.column).reductions
    before = towers.whole.meetings.before
    met = [meeting for part in parts for meeting in before(part.column[0], is_number=False)]
    assert towers.warned or met or np.isclose(found, expected, 1e-9)


@pytest.mark.parametrize("name", ENDS)
def test_single_rows_of_a_static_batch_are_told(session, name):
    require_exact_or_told(session, ENDS[name], is_static=True)


@STATICS
def test_groups_that_are_added_up_in_a_table_are_exact(session, is_static):
    make = of_groups(lambda x, group: tf.math.unsorted_segment_sum(x, group, 3))
    require_exact_or_told(session, make, is_static)


@pytest.mark.parametrize(("name", "is_static"), CASES)
def test_what_is_not_exact_is_told(session, name, is_static):
    require_exact_or_told(session, {**SILENT, **ENDS}[name], is_static)
