"""What towers made of their rows, joined, is what one device makes of all rows."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.graph import by_hand

STATICS = pytest.mark.parametrize("is_static", [False, True])
COUNTS = pytest.mark.parametrize("counts", [(3, 2, 2), (1, 1, 0)])


def weight():
    """[3], the same in every tower; read once."""
    found = tf1.get_collection("weight")
    if not found:
        found = [tf.constant([0.5, -0.25, 2.0], tf.float64, name="one_weight")]
        tf1.add_to_collection("weight", found[0])
    return found[0]


def count(x):
    return tf.cast(tf.shape(x)[0], x.dtype)


def errors_of(x):
    """Each row's error, [B]."""
    return tf.reduce_sum(tf.square(x - weight()), 1)


def kept(x):
    return tf.boolean_mask(errors_of(x), x[:, 0] > 0.5)


def quotient(x):
    mask = tf.cast(x[:, 0] > 0.3, x.dtype)
    return tf.reduce_sum(errors_of(x) * mask) / tf.reduce_sum(mask)


EXACT = {
    "mean": lambda x: tf.reduce_mean(errors_of(x)),
    "sum": lambda x: tf.reduce_sum(errors_of(x)),
    "quotient": quotient,
    "exp": lambda x: tf.exp(tf.reduce_mean(errors_of(x)) * 0.1),
    "sum by the number of rows": lambda x: tf.reduce_sum(errors_of(x)) / count(x),
    "sum by the size": lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), x.dtype),
    "sum by the size of a shape": lambda x: (
        tf.reduce_sum(x) / tf.cast(tf.reduce_prod(tf.shape(x)), x.dtype)
    ),
    "sum by a length of no rows": lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], x.dtype),
    "mean and sum": lambda x: tf.reduce_mean(errors_of(x)) + 0.1 * tf.nn.l2_loss(x - weight()),
    "penalty": lambda x: tf.reduce_mean(errors_of(x)) + tf.nn.l2_loss(weight()),
    "nested penalties": lambda x: (
        tf.sqrt(tf.reduce_sum(errors_of(x)) + 0.1 * (1.0 + tf.exp(tf.nn.l2_loss(weight()))))
        + tf.reduce_max(tf.abs(weight()))
    ),
    "penalty by the number of rows": lambda x: (
        tf.reduce_mean(errors_of(x)) + tf.nn.l2_loss(weight()) / count(x)
    ),
    "penalty alone": lambda x: tf.nn.l2_loss(weight()),
    "seven": lambda x: tf.constant(7.0),
    "seven as an integer": lambda x: tf.constant(7),
    "stack": lambda x: tf.stack([tf.reduce_mean(x), tf.reduce_sum(x), tf.nn.l2_loss(weight())]),
    "concat": lambda x: tf.concat([tf.reduce_mean(x, 0), weight(), tf.reduce_sum(x, 0)], 0),
    "moments": lambda x: tf.reduce_mean(x * x, 0) - tf.square(tf.reduce_mean(x, 0)),
    "covariance": lambda x: tf.matmul(x, x, transpose_a=True) / count(x),
    "products by einsum": lambda x: tf.einsum("bi,bj->ij", x, tf.exp(x)),
    "kept dimensions": lambda x: tf.reduce_mean(x, keepdims=True)[0, 0],
    "mean of kept rows": lambda x: tf.reduce_mean(kept(x)),
    "sum by the kept rows": lambda x: tf.reduce_sum(kept(x)) / tf.cast(tf.size(kept(x)), x.dtype),
    "number of kept rows": lambda x: tf.size(kept(x)),
    "number of rows": lambda x: tf.shape(x)[0],
    "number of rows times weights": lambda x: count(x) * tf.reduce_logsumexp(weight()),
    "a shape": lambda x: tf.shape(x),
    "a shape of what is turned": lambda x: tf.shape(tf.transpose(x)),
    "two shapes": lambda x: tf.shape_n([x, errors_of(x)])[1],
    "rank": lambda x: tf.rank(tf.boolean_mask(x, x[:, 0] > 0.5)),
    "all": lambda x: tf.reduce_all(x > 0.2),
    "any": lambda x: tf.reduce_any(x > 0.9, 0),
    "counted by a table": lambda x: tf.math.unsorted_segment_sum(
        errors_of(x), tf.cast(x[:, 0] * 4.0, tf.int32), 4
    ),
    "scattered": lambda x: tf.scatter_nd(tf.cast(x[:, :1] * 4.0, tf.int32), x, [4, 3]),
    "histogram": lambda x: tf.math.bincount(
        tf.cast(x[:, 0] * 4.0, tf.int32), minlength=4, maxlength=4
    ),
    "nonzero": lambda x: tf.math.count_nonzero(x > 0.5),
    "softplus of mean units": lambda x: tf.reduce_sum(
        tf.nn.softplus(tf.reduce_mean(x * weight(), 0))
    ),
    "log of a sum of exponentials": lambda x: tf.math.log(tf.reduce_sum(tf.exp(x))),
    "a branch that was selected": lambda x: tf.where(
        tf.reduce_mean(x) > 0.0, tf.reduce_sum(x), tf.reduce_mean(x)
    ),
    "several": lambda x: {"one": tf.reduce_mean(x), "two": (tf.reduce_sum(x, 0), count(x))},
}


@COUNTS
@STATICS
@pytest.mark.parametrize("name", EXACT)
def test_the_whole_is_one_devices(session, name, is_static, counts):
    towers = by_hand.Towers(EXACT[name], counts=counts, is_static=is_static)
    towers.require_exact(session)
    assert towers.warned == []


@pytest.mark.parametrize("counts", [(4, 3), (1, 0, 0), (1, 1, 1, 1, 1, 1, 1)])
@STATICS
def test_any_number_of_towers_is_one_device(session, is_static, counts):
    names = ["mean", "quotient", "nested penalties", "covariance", "number of kept rows", "all"]
    towers = by_hand.Towers(
        lambda x: [EXACT[name](x) for name in names], counts=counts, is_static=is_static
    )
    towers.require_exact(session)
    assert towers.warned == []


FOLDED = {
    "a number of rows": lambda x: tf.reduce_sum(errors_of(x)) / x.shape[0],
    "a number of entries": lambda x: tf.reduce_sum(x) / int(np.prod(x.shape)),
    "a number of columns": lambda x: tf.reduce_sum(x) / x.shape[1],
    "numbers in a tail": lambda x: tf.sqrt(x.shape[0] * tf.reduce_mean(x)) - 1.0 / x.shape[0],
    "a penalty by rows": lambda x: tf.reduce_mean(x) + tf.nn.l2_loss(weight()) / x.shape[0],
    "a number in a vector": lambda x: tf.reduce_mean(x, 0) * np.array([x.shape[0], 1.0, 2.0]),
    "rows alone": lambda x: tf.constant(x.shape[0]),
    "rows and weights": lambda x: tf.cast(x.shape[0], tf.float64) * tf.reduce_sum(weight()),
    "TensorFlow's own": lambda x: tf1.losses.mean_squared_error(x, tf.zeros_like(x)),
}


@pytest.mark.parametrize("counts", [(3, 2, 2), (4, 3), (1, 1, 0)])
@pytest.mark.parametrize("name", FOLDED)
def test_numbers_of_rows_that_were_folded_are_the_whole_batchs(session, name, counts):
    towers = by_hand.Towers(FOLDED[name], counts=counts, is_static=True)
    towers.require_exact(session)
    assert towers.warned == []


def test_padded_sequences_are_one_devices(session):
    def make(tokens):
        mask = tf.cast(tokens > 0.4, tokens.dtype)
        return [
            tf.reduce_mean(tokens),
            tf.reduce_sum(tokens * mask) / tf.reduce_sum(mask),
            tf.reduce_sum(tokens) / tf.cast(tf.shape(tokens)[1], tokens.dtype),
            tf.reduce_mean(tf.boolean_mask(tokens, tokens > 0.4)),
            tf.shape(tokens),
        ]

    towers = by_hand.Towers(make, [by_hand.batch(7, 4)], unknown_inner=True)
    towers.require_exact(session)
    assert towers.warned == []


def test_several_tensors_of_a_batch_are_one_devices(session):
    def make(x, y):
        return tf.reduce_mean(tf.square(tf.reduce_sum(x, 1) - y)) / tf.reduce_mean(y)

    by_hand.Towers(make, [by_hand.batch(7), by_hand.batch(7, 3)[:, 0]]).require_exact(session)


def test_what_a_tower_without_rows_makes_of_a_borrowed_one_counts_for_nothing(session):
    """Its row is the batch's first, of which it makes no number."""
    rows = np.array([[-1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    made = []

    def make(x):
        made.append(x)
        is_borrowed = len(made) == 3
        return tf.reduce_sum(tf.sqrt(x) if is_borrowed else x) / tf.reduce_mean(x)

    towers = by_hand.Towers(make, [rows], counts=(1, 1, 0))
    (found,), _ = towers.values(session)
    assert found == pytest.approx(6.0)  # 19 / (19 / 6)


# Values and what is kept of them.


def test_a_value_is_at_home_and_made_once(session):
    towers = by_hand.Towers(lambda x: tf.exp(tf.reduce_mean(x)))
    value = towers.whole.value(towers.column)
    assert value.device == "/device:CPU:7"
    assert value.name.startswith("replicate_whole/")
    before = len(session.graph.get_operations())
    assert towers.whole.value(towers.column) is value
    assert len(session.graph.get_operations()) == before


def test_reductions_are_joined_once_for_all_tails(session):
    inner = []

    def make(x):
        inner.append(tf.reduce_mean(x))
        return [tf.exp(inner[-1]), tf.square(inner[-1])]

    towers = by_hand.Towers(make)
    towers.require_exact(session)
    (part,) = towers.whole.tail(towers.columns[0]).reductions
    (other,) = towers.whole.tail(towers.columns[1]).reductions
    assert towers.whole.joined(part).value is towers.whole.joined(other).value


def test_all_that_lies_between_is_copied_too(session):
    inner = []

    def make(x):
        inner.append(tf.reduce_mean(x) * 2.0)
        return tf.exp(inner[-1])

    towers = by_hand.Towers(make)
    _, copies = towers.whole.copied(towers.column)
    found = session.run([copies[inner[0].ref()], inner[-1]], towers.feed)
    assert found[0] == pytest.approx(found[1])


def test_scopes_of_the_caller_are_left_alone(session):
    towers = by_hand.Towers(lambda x: tf.exp(tf.reduce_mean(x)))
    first = tf1.no_op("first")
    with tf1.control_dependencies([first]), tf.name_scope("mine"), tf.device("/device:CPU:1"):
        value = towers.whole.value(towers.column)
    assert value.name.startswith("replicate_whole/")
    assert value.op.control_inputs == []
    assert value.device == "/device:CPU:7"


# What is said.


@pytest.mark.parametrize(
    ("make", "declared", "join"),
    [
        (lambda x: tf.reduce_mean(x), "sum", lambda parts: sum(map(np.mean, parts))),
        (lambda x: tf.reduce_sum(x), "sum", lambda parts: sum(map(np.sum, parts))),
        (
            lambda x: tf.reduce_sum(x),
            "mean",
            lambda parts: sum(np.sum(part) * len(part) / 7.0 for part in parts),
        ),
        (
            lambda x: tf.reduce_max(x) / tf.reduce_sum(x),
            "mean",
            lambda parts: sum(part.max() / part.sum() * len(part) / 7.0 for part in parts),
        ),
        (
            lambda x: tf.reduce_mean(x) + tf.reduce_sum(weight()),
            "sum",
            lambda parts: sum(map(np.mean, parts)) + 2.25,  # 0.5 - 0.25 + 2
        ),
        (
            lambda x: tf.reduce_mean(x) - tf.reduce_max(x),
            "sum",
            lambda parts: sum(part.mean() - part.max() for part in parts),
        ),
    ],
)
@STATICS
def test_rows_are_reduced_as_was_said(session, make, declared, join, is_static):
    towers = by_hand.Towers(make, is_static=is_static)
    (found,), _ = towers.values(session, declared)
    assert found == pytest.approx(join(np.split(towers.arrays[0], [3, 5])))
    assert towers.warned == []


def test_what_was_said_and_what_is_seen_are_kept_apart(session):
    towers = by_hand.Towers(lambda x: tf.reduce_mean(x))
    seen, said = towers.whole.value(towers.column), towers.whole.value(towers.column, "sum")
    found = session.run([seen, said], towers.feed)
    parts = np.split(towers.arrays[0], [3, 5])
    assert found[0] == pytest.approx(towers.arrays[0].mean())
    assert found[1] == pytest.approx(sum(part.mean() for part in parts))


# What is whole already.


def test_what_was_noted_is_read_as_it_is(session):
    """Each tower was given the whole mean; what it makes of it is whole as well."""
    noted = []

    def make(x):
        noted.append(tf1.placeholder_with_default(tf.constant(2.0, tf.float64), []))
        return tf.square(noted[-1]) + tf.reduce_sum(x) * noted[-1]

    towers = by_hand.Towers(make)
    towers.whole.note(noted[:3])
    assert towers.whole.noted(noted[0]).kind == "whole"
    assert towers.whole.noted(towers.column[0]) is None
    assert towers.whole.is_whole(noted[0])
    assert not towers.whole.is_whole(towers.column[0])
    towers.require_exact(session)


def test_a_noted_sum_is_that_of_its_parts(session):
    parts = []

    def make(x):
        parts.append(tf.reduce_sum(x))
        return tf.exp(parts[-1] * 0.0)

    towers = by_hand.Towers(make)
    total = tf.add_n(parts[:3])
    towers.whole.note([total] * 3, "sum", parts[:3])
    noted = towers.whole.noted(total)
    assert noted.kind == "sum"
    assert noted.column == tuple(parts[:3])
    assert towers.whole.joined(noted).value is total
    made = tf.square(total)
    assert towers.whole.is_whole(made)
    found, expected = session.run([towers.whole.value([made] * 3), tf.square(total)], towers.feed)
    assert found == pytest.approx(expected)


def test_nests_are_whole_if_all_their_parts_are(fresh_graph):
    towers = by_hand.Towers(lambda x: tf.reduce_mean(x))
    x, seven = towers.given[0][0], tf.constant(7.0)
    sparse = tf.IndexedSlices(tf.reshape(x, [-1]), tf.constant([0]))
    assert towers.whole.is_whole(seven)
    assert towers.whole.is_whole([seven, weight()])
    assert not towers.whole.is_whole([seven, x])
    assert not towers.whole.is_whole(sparse)


# Rows.


@STATICS
def test_rows_are_told_from_none(fresh_graph, is_static):
    towers = by_hand.Towers(
        lambda x: {"a": x, "b": tf.transpose(x), "c": tf.reduce_sum(x, 0), "d": weight() * 2.0},
        is_static=is_static,
    )
    first = [column[0] for column in towers.columns]
    assert [towers.whole.has_rows(tensor) for tensor in first] == [True, True, False, False]
    assert [towers.whole.axes(tensor) for tensor in first] == [(0,), (1,), (), ()]


def test_an_unknown_rank_is_nobodys_guess(fresh_graph):
    def make(x):
        return tf.reshape(x, tf.concat([tf.shape(x), tf.range(0, tf.size(x) * 0)], 0))

    towers = by_hand.Towers(make)
    assert towers.column[0].shape.rank is None
    assert towers.whole.has_rows(towers.column[0]) is None


def test_a_tensor_without_partner_has_rows_if_it_is_as_long(fresh_graph):
    def make(x):
        name = "whole" if x.shape[0] == 7 else "part"
        return [tf.exp(x, name=name), tf.reduce_sum(x, 0, name=f"{name}_sum"), weight()]

    towers = by_hand.Towers(make, [by_hand.batch(7, 4)[:, :, None]], is_static=True)
    long, short, constant = [column[0] for column in towers.columns]
    assert towers.whole.source_of(long) is None
    assert towers.whole.has_rows(long)  # 3, as the first tower's rows
    assert not towers.whole.has_rows(short)  # 4
    assert not towers.whole.has_rows(constant)


# The first tower alone has rows.


def test_a_lone_tower_is_the_whole_batch(session):
    made = []

    def make(x):
        made.append(tf.exp(tf.reduce_max(x)))
        return made[-1]

    towers = by_hand.Towers(make, counts=(1, 0, 0), is_static=True)
    assert towers.whole.is_lone
    towers.require_exact(session)
    assert towers.warned == []
    assert towers.whole.value(towers.column) is made[0]


@pytest.mark.parametrize(
    ("counts", "is_static"), [((1, 1, 0), True), ((7,), True), ((1, 0, 0), False)]
)
def test_several_towers_one_tower_or_one_that_a_run_tells_are_not_alone(
    fresh_graph, counts, is_static
):
    assert not by_hand.Towers(tf.reduce_max, counts=counts, is_static=is_static).whole.is_lone


# What cannot be seen.


@STATICS
def test_what_is_hidden_is_a_mean_over_rows_and_told(session, is_static):
    towers = by_hand.Towers(
        lambda x: tf.sqrt(tf.reduce_max(x, name="largest")), is_static=is_static
    )
    (found,), _ = towers.values(session)
    largest = [part.max() * len(part) / 7.0 for part in np.split(towers.arrays[0], [3, 5])]
    assert found == pytest.approx(np.sqrt(sum(largest)))
    assert towers.warned == [("model/largest:0", "model/largest hides how rows were reduced")]


def test_what_is_hidden_is_told_once_for_each_tail(session):
    def make(x):
        largest = tf.reduce_max(x)
        return [largest * 2.0, largest * 3.0]

    towers = by_hand.Towers(make)
    for _ in range(2):
        towers.whole.value(towers.columns[0])
    assert len(towers.warned) == 1
    towers.whole.value(towers.columns[1])
    assert [name for name, _ in towers.warned] == ["model/Max:0"] * 2


def test_other_weights_of_what_is_hidden(session):
    towers = by_hand.Towers(lambda x: tf.reduce_max(x))
    towers.whole.unknown_weights = [tf.constant(weight, tf.float64) for weight in (0.5, 0.5, 0.0)]
    (found,), _ = towers.values(session)
    parts = np.split(towers.arrays[0], [3, 5])
    assert found == pytest.approx((parts[0].max() + parts[1].max()) / 2.0)


def test_nobody_is_told_of_what_is_seen_but_not_joined(session):
    """Asking for a tail warns nobody; joining it does."""
    towers = by_hand.Towers(lambda x: tf.reduce_max(x))
    assert towers.whole.tail(towers.column).unknown
    assert towers.warned == []


def test_graphs_that_differ_between_towers_are_told(session):
    made = []

    def make(x):
        made.append(x)
        return (
            tf.reduce_mean(x) if len(made) != 2 else tf.reduce_sum(x) / tf.cast(tf.size(x), x.dtype)
        )

    towers = by_hand.Towers(make)
    (found,), (expected,) = towers.values(session)
    assert found == pytest.approx(expected)  # a mean over rows after all
    ((name, reason),) = towers.warned
    assert (name, reason) == ("model/Mean:0", "towers build different graphs there")


def test_graphs_that_differ_from_the_whole_batchs_are_told(session):
    towers = by_hand.Towers(
        tf.reduce_mean, is_static=True, make_whole=lambda x: tf.reduce_sum(x) / 21.0
    )
    (found,), (expected,) = towers.values(session)
    assert found == pytest.approx(expected)
    ((_, reason),) = towers.warned
    assert reason.startswith("the model builds another graph on the whole batch")


@pytest.mark.parametrize(
    ("of_second", "shown"),
    [
        (lambda x: tf.reduce_mean(x, 0), r"tower 1 has the shape \(3,\), tower 0"),
        (lambda x: tf.cast(tf.reduce_mean(x), tf.float32), "tower 1 has the dtype float32"),
    ],
)
def test_towers_whose_values_differ_in_kind_are_named(fresh_graph, of_second, shown):
    made = []

    def make(x):
        made.append(x)
        return of_second(x) if len(made) == 2 else tf.reduce_mean(x)

    towers = by_hand.Towers(make)
    with pytest.raises(errors.TowerMismatchError, match=shown):
        towers.whole.value(towers.column)


# What a model waits for.


@pytest.mark.parametrize("place", ["reduction", "tail", "loss"])
@pytest.mark.parametrize("tower", [0, 1, 2])
def test_an_assertion_of_any_tower_still_runs(session, place, tower):
    rows = by_hand.batch(7)
    rows[[0, 3, 5][tower]] = -1.0  # the first row of each tower

    def check(x):
        return tf1.control_dependencies([tf1.Assert(tf.reduce_min(x) > 0.0, ["negative"])])

    def make(x):
        with check(x) if place == "reduction" else tf1.name_scope("none"):
            mean = tf.reduce_mean(x)
        with check(x) if place == "tail" else tf1.name_scope("none"):
            root = tf.square(mean)
        with check(x) if place == "loss" else tf1.name_scope("none"):
            return tf.identity(tf.exp(root))

    towers = by_hand.Towers(make, [rows])
    value = towers.whole.value(towers.column)
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
        session.run(value, towers.feed)
    good = {towers.holders[0]: np.abs(rows)}
    assert session.run(value, good) == pytest.approx(np.exp(np.abs(rows).mean() ** 2))


# Sizes.


@pytest.mark.parametrize(("is_static", "length"), [(False, 5000), (True, 1100)])
def test_a_long_tail_needs_no_recursion(session, is_static, length):
    """More additions than Python's limit of calls inside calls."""

    def make(x):
        total = tf.reduce_mean(x)
        if x.shape[0] is None and x.op.type == "Placeholder":
            return total  # one device's, to which we add below
        one = tf.constant(1.0, tf.float64)
        for _ in range(length):
            total = total + one
        return total

    towers = by_hand.Towers(make, counts=(4, 3), is_static=is_static)
    tail = towers.whole.tail(towers.column)
    assert [part.kind for part in tail.reductions] == ["mean"]
    assert len(tail.operations) == length
    found = session.run(towers.whole.value(towers.column), towers.feed)
    assert found == pytest.approx(length + towers.arrays[0].mean())


def test_many_reductions_are_joined_each_by_itself(session):
    def make(x):
        return tf.add_n([tf.reduce_mean(x) if n % 2 else tf.reduce_sum(x) for n in range(60)])

    towers = by_hand.Towers(make, counts=(4, 3))
    towers.require_exact(session)
    assert len(towers.whole.tail(towers.column).reductions) == 60


# Any loss at all.


class Tree:
    """A random scalar of row reductions and weights.

    Args:
        text: How it is written.
        make: From the rows x, [B, 3], and the weights w, [3], to the scalar.
    """

    def __init__(self, text, make):
        self.text = text
        self.make = make

    def __repr__(self):
        return self.text


def _rows_of(name):
    """Each row's own number, [B]; all are near 1."""
    return {
        "square": lambda x, w: tf.reduce_sum(tf.square(x * w - 1.0), 1) * 0.3,
        "exp": lambda x, w: tf.exp(-tf.square(tf.linalg.matvec(x, w))),
        "softplus": lambda x, w: tf.nn.softplus(x[:, 0] - w[1]),
        "positive": lambda x, w: x[:, 1] + 0.5,
    }[name]


REDUCTIONS = {
    "mean": tf.reduce_mean,
    "sum": lambda r: tf.reduce_sum(r) * 0.1,
    "l2": lambda r: tf.nn.l2_loss(r) * 0.1,
    "kept": lambda r: (
        tf.reduce_sum(r * tf.cast(r > 0.3, r.dtype))
        / (1.0 + tf.math.count_nonzero(r > 0.3, dtype=r.dtype))
    ),
    "by count": lambda r: tf.reduce_sum(r) / tf.cast(tf.shape(r)[0], r.dtype),
    "root": lambda r: tf.sqrt(tf.reduce_mean(tf.square(r)) + 0.1),
    "product": lambda r: tf.tensordot(r, r, 1) * 0.1,
    "units": lambda r: tf.reduce_sum(tf.reduce_mean(r[:, None] * [[1.0, 0.5]], 0)),
}
WEIGHTS = {
    "penalty": lambda x, w: tf.nn.l2_loss(w),
    "normalizer": lambda x, w: tf.reduce_logsumexp(w),
    "one weight": lambda x, w: tf.square(w[0]) + 0.2,
    "half": lambda x, w: tf.constant(0.5, w.dtype),
    "rows": lambda x, w: tf.cast(tf.shape(x)[0], w.dtype) * 0.1,
}
FUNCTIONS = {
    "tanh": tf.tanh,
    "exp": lambda y: tf.exp(tf.tanh(y)),
    "sqrt": lambda y: tf.sqrt(tf.abs(y) + 0.1),
    "log": lambda y: tf.math.log(tf.abs(y) + 1.0),
    "negative": tf.negative,
    "reciprocal": lambda y: 1.0 / (tf.square(y) + 1.0),
}
OPERATORS = {
    "+": tf.add,
    "-": tf.subtract,
    "*": tf.multiply,
    "/": lambda y, z: y / (1.0 + tf.square(z)),
    "max": tf.maximum,
    "stack": lambda y, z: tf.reduce_sum(tf.stack([y, z]) * [0.5, 2.0]),
}


def _reduced(reduction, name):
    rows_of = _rows_of(name)
    return Tree(f"{reduction}({name})", lambda x, w: REDUCTIONS[reduction](rows_of(x, w)))


def _applied(function, tree):
    return Tree(f"{function}({tree})", lambda x, w: FUNCTIONS[function](tree.make(x, w)))


def _combined(operator, left, right):
    return Tree(
        f"({left} {operator} {right})",
        lambda x, w: OPERATORS[operator](left.make(x, w), right.make(x, w)),
    )


def _deeper(trees):
    return st.one_of(
        st.builds(_applied, st.sampled_from(list(FUNCTIONS)), trees),
        st.builds(_combined, st.sampled_from(list(OPERATORS)), trees, trees),
    )


def trees(depth):
    """Trees of at most that depth, leaves included."""
    names = st.sampled_from(["square", "exp", "softplus", "positive"])
    found = st.one_of(
        st.builds(_reduced, st.sampled_from(list(REDUCTIONS)), names),
        st.sampled_from([Tree(name, make) for name, make in WEIGHTS.items()]),
    )
    for _ in range(depth - 1):
        found = st.one_of(found, _deeper(found))
    return found


def stepped(tree, batch, is_static, **options):
    """The loss and its gradient, on one device or in towers, of a batch."""

    def model(features, labels, mode):
        w = tf1.get_variable("w", [3], tf.float64, exactness.start)
        loss = tree.make(features, w.read_value())
        zero = tf.UnconnectedGradients.ZERO
        (gradient,) = tf.gradients(loss + 0.0 * tf.reduce_sum(w), [w], unconnected_gradients=zero)
        kept = tf1.get_variable("kept", [3], tf.float64, tf.zeros_initializer(), trainable=False)
        return exactness.spec_of(mode, loss, train_op=kept.assign(gradient).op)

    if options:
        model = model_fn.replicate_model_fn(model, None, **options)
    found = exactness.run(model, [(batch, None)], is_static=is_static)
    return found.fetched[0]["loss"], found.variables[0]["kept:0"]


@settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "24")),
    deadline=None,
    derandomize="LAW_EXAMPLES" not in os.environ,
)
@given(
    tree=trees(4),
    rows=st.integers(1, 9),
    num_towers=st.integers(2, 4),
    is_static=st.booleans(),
    strategy=st.sampled_from(["parameter_server", "mirrored"]),
)
def test_any_loss_and_its_gradient_are_one_devices(tree, rows, num_towers, is_static, strategy):
    """LAW_EXAMPLES=1000 draws a thousand others."""
    batch = by_hand.batch(rows)
    expected = stepped(tree, batch, is_static)
    found = stepped(tree, batch, is_static, devices=num_towers, strategy=strategy)
    np.testing.assert_allclose(found[0], expected[0], 1e-9, 1e-9)
    np.testing.assert_allclose(found[1], expected[1], 1e-9, 1e-9)
