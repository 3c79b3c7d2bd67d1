"""The walk back from a tensor without rows: where it ends, what it keeps, what it reads."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import row_reductions, tails
from tests.graph import by_hand

STATICS = [False, True]


def tail_of(make, declared=None, **options):
    """The towers, and the tail of what they make."""
    towers = by_hand.Towers(make, **options)
    return towers, towers.whole.tail(towers.column, declared)


def kinds(tail):
    return sorted(part.kind for part in tail.reductions)


def types(tail):
    return [op.type for op in tail.operations]


@pytest.mark.parametrize("is_static", STATICS)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: tf.reduce_mean(x), ["mean"]),
        (lambda x: tf.exp(tf.reduce_mean(x)), ["mean"]),
        (lambda x: tf.reduce_sum(x) / tf.reduce_sum(x[:, 0]), ["sum", "sum"]),
        (lambda x: tf.reduce_mean(x) + tf.nn.l2_loss(x), ["mean", "sum"]),
        (lambda x: tf.reduce_max(x) * tf.reduce_mean(x), ["mean", "unknown"]),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, 0)), ["mean"]),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x, 1)), ["mean"]),
        (lambda x: tf.cast(tf.reduce_all(x > 0.0), tf.float64), ["all"]),
        (lambda x: tf.constant(7.0), []),
    ],
)
def test_the_walk_ends_at_what_reduces_rows(session, make, expected, is_static):
    _, tail = tail_of(make, is_static=is_static)
    assert kinds(tail) == expected
    for part in tail.reductions:
        assert len(part.column) == 3
        assert [tensor.graph for tensor in part.column] == [session.graph] * 3
        assert part.source.op.type == part.column[0].op.type
        assert (part.source is part.column[0]) is not is_static
    assert bool(tail.unknown) is ("unknown" in expected)


def test_a_reduction_is_its_own_tail(fresh_graph):
    towers, tail = tail_of(lambda x: tf.reduce_mean(x))
    assert tail.operations == []
    assert tail.inputs == {}
    assert [part.column for part in tail.reductions] == [towers.column]


def test_operations_come_after_what_they_read(fresh_graph):
    _, tail = tail_of(lambda x: tf.sqrt(tf.exp(tf.reduce_mean(x))) + 2.0 * tf.reduce_sum(x))
    assert types(tail)[-1] == "AddV2"
    seen = {part.source.op for part in tail.reductions} | {t.op for t in tail.inputs.values()}
    for op in tail.operations:
        assert all(tensor.op in seen for tensor in op.inputs)
        seen.add(op)


def test_what_is_met_twice_is_kept_once(fresh_graph):
    def make(x):
        mean = tf.reduce_mean(x)
        root = tf.sqrt(mean)
        return root * root + root / mean

    _, tail = tail_of(make)
    assert kinds(tail) == ["mean"]
    assert sorted(types(tail)) == ["AddV2", "Mul", "RealDiv", "Sqrt"]


def test_an_operation_with_several_outputs_is_kept_once(fresh_graph):
    def make(x):
        first, second, third = tf.unstack(tf.reduce_mean(x, 0))
        return first * second + third

    _, tail = tail_of(make)
    assert types(tail).count("Unpack") == 1


def test_weights_are_read_and_not_copied(fresh_graph):
    w = tf1.get_variable("w", [3], tf.float64, use_resource=True).read_value()
    penalty = tf.exp(tf.reduce_sum(tf.square(w)))
    towers, tail = tail_of(lambda x: tf.reduce_mean(x * w) + 0.1 * penalty)
    assert types(tail) == ["AddV2"]
    (read,) = tail.inputs.values()
    assert read.op.type == "Mul"  # 0.1 times the penalty, the first tower's
    assert read is towers.column[0].op.inputs[1]


def test_twins_are_all_that_was_met(fresh_graph):
    towers, tail = tail_of(lambda x: tf.exp(tf.reduce_mean(x)) * 2.0, is_static=True)
    first = towers.column[0]
    met = [first, first.op.inputs[0], first.op.inputs[1], first.op.inputs[0].op.inputs[0]]
    assert set(tail.twins) == {tensor.ref() for tensor in met}
    for own, source in tail.twins.items():
        assert source.deref().name == own.deref().name
        assert source.deref().graph is not first.graph


def test_a_folded_count_is_the_whole_batchs(fresh_graph):
    """The towers divide by 3, 2 and 2, one device by 7."""
    _, tail = tail_of(lambda x: tf.reduce_sum(x) / x.shape[0], is_static=True)
    assert kinds(tail) == ["sum"]
    assert types(tail) == ["Const", "RealDiv"]
    assert tail.inputs == {}
    assert tf.get_static_value(tail.operations[0].outputs[0]) == 7.0


def test_a_folded_width_is_a_weight(fresh_graph):
    _, tail = tail_of(lambda x: tf.reduce_sum(x) / x.shape[1], is_static=True)
    assert types(tail) == ["RealDiv"]
    assert [tf.get_static_value(tensor) for tensor in tail.inputs.values()] == [3.0]


def test_what_is_made_of_a_folded_count_is_copied(fresh_graph):
    """And what the product reads of weights is the first tower's own."""

    def make(x):
        w = tf1.get_variable("w", [], tf.float64, use_resource=True).read_value()
        return tf.reduce_sum(x) + tf.exp(tf.constant(1.0, tf.float64) / x.shape[0]) * tf.exp(w)

    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
        _, tail = tail_of(make, is_static=True)
    assert types(tail) == ["Const", "RealDiv", "Exp", "Mul", "AddV2"]
    assert [tensor.op.type for tensor in tail.inputs.values()] == ["Const", "Exp"]
    assert all(tensor.graph is fresh_graph for tensor in tail.inputs.values())


# What towers wait for.


def test_towers_waits_are_kept(fresh_graph):
    waited = []

    def make(x):
        waited.append(tf.reduce_min(x).op)
        mean = tf.reduce_mean(x)
        with tf1.control_dependencies([waited[-1]]):
            return tf.exp(mean) + 1.0

    _, tail = tail_of(make)
    assert set(tail.waits) == set(waited[:3])  # the fourth is one device's


def test_what_weights_wait_for_is_theirs(fresh_graph):
    w = tf1.get_variable("w", [], tf.float64, use_resource=True)

    def make(x):
        with tf1.control_dependencies([tf1.no_op("before")]):
            penalty = tf.square(w.read_value())
        return tf.reduce_mean(x) + penalty

    _, tail = tail_of(make)
    assert tail.waits == []


# What is whole already.


@pytest.mark.parametrize("is_static", STATICS)
def test_the_walk_ends_at_a_value_that_is_noted(fresh_graph, is_static):
    inner = []

    def make(x):
        inner.append(tf.exp(tf.reduce_mean(x)))
        return tf.square(inner[-1]) + tf.reduce_sum(x)

    towers = by_hand.Towers(make, is_static=is_static)
    towers.whole.note(inner[:3])
    tail = towers.whole.tail(towers.column)
    assert kinds(tail) == ["sum", tails.WHOLE]
    assert types(tail) == ["Square", "AddV2"]
    (whole,) = [part for part in tail.reductions if part.kind == tails.WHOLE]
    assert whole.column == tuple(inner[:3])


def test_what_is_made_of_noted_values_alone_is_a_tail(fresh_graph):
    """It depends on the batch, so gradients go through it; it has no part of any tower."""
    inner = []

    def make(x):
        inner.append(tf.reduce_mean(x))
        return tf.exp(inner[-1]) * 2.0

    towers = by_hand.Towers(make)
    towers.whole.note(inner[:3])
    assert towers.whole.is_whole(towers.column[0])
    tail = towers.whole.tail(towers.column)
    assert kinds(tail) == [tails.WHOLE]
    assert types(tail) == ["Exp", "Mul"]


def test_what_nobody_can_copy_reads_noted_values_itself(fresh_graph):
    inner = []

    @tf.function(autograph=False)
    def hidden(value):
        return value * 2.0

    def make(x):
        inner.append(tf.reduce_mean(x))
        return hidden(inner[-1])

    towers = by_hand.Towers(make)
    towers.whole.note(inner[:3])
    tail = towers.whole.tail(towers.column)
    assert kinds(tail) == []
    assert len(tail.inputs) == 1


# What a person says.


@pytest.mark.parametrize(
    ("make", "declared", "expected"),
    [
        (lambda x: tf.reduce_mean(x), "mean", ["mean"]),
        (lambda x: tf.reduce_sum(x), "sum", ["sum"]),
        (lambda x: tf.reduce_mean(x), "sum", ["sum"]),
        (lambda x: tf.reduce_sum(x), "mean", ["unknown"]),
        (lambda x: tf.reduce_sum(x) / tf.reduce_sum(x[:, 0]), "mean", ["unknown"]),
        (lambda x: tf.reduce_sum(x) / 7.0 - tf.reduce_mean(x), "sum", ["sum", "sum"]),
        (lambda x: tf.add_n([tf.reduce_max(x), -tf.reduce_mean(x)]), "mean", ["unknown"] * 2),
        (lambda x: tf.identity(tf.exp(tf.reduce_mean(x))), "sum", ["sum"]),
    ],
)
def test_addends_are_reduced_as_was_said(fresh_graph, make, declared, expected):
    _, tail = tail_of(make, declared)
    assert kinds(tail) == expected
    assert tail.unknown == []  # nobody is warned of what was said


def test_what_was_said_leaves_penalties_alone(fresh_graph):
    w = tf1.get_variable("w", [], tf.float64, use_resource=True).read_value()
    _, tail = tail_of(lambda x: tf.reduce_mean(x) + tf.square(w), "sum")
    assert kinds(tail) == ["sum"]
    assert [tensor.op.type for tensor in tail.inputs.values()] == ["Square"]


# What cannot be seen.


def reasons(tail):
    return [reason for _, reason in tail.unknown]


def test_an_operation_that_hides_its_rows_is_named(fresh_graph):
    _, tail = tail_of(lambda x: tf.reduce_max(x, name="largest") * 2.0)
    assert reasons(tail) == ["model/largest hides how rows were reduced"]
    assert [tensor.name for tensor, _ in tail.unknown] == ["model/largest:0"]


def test_nobody_sees_into_a_function(fresh_graph):
    @tf.function(autograph=False)
    def total(x):
        return tf.reduce_sum(x)

    _, tail = tail_of(lambda x: total(x) * 2.0)
    assert kinds(tail) == ["unknown"]
    assert len(reasons(tail)) == 1


def test_nobody_sees_into_a_function_of_reductions(fresh_graph):
    @tf.function(autograph=False)
    def doubled(x):
        return x * 2.0

    _, tail = tail_of(lambda x: doubled(tf.reduce_sum(x)))
    (reason,) = reasons(tail)
    assert reason.startswith("nobody can see into model/")


def test_towers_that_differ_are_unknown(fresh_graph):
    made = []

    def make(x):
        made.append(x)
        return tf.reduce_sum(tf.exp(x) if len(made) != 2 else x) * (
            tf.exp(tf.reduce_mean(x)) if len(made) != 2 else tf.sqrt(tf.reduce_mean(x))
        )

    _, tail = tail_of(make)
    assert reasons(tail) == ["towers build different graphs there"]
    assert kinds(tail) == ["sum", "unknown"]


def test_another_graph_on_the_whole_batch_is_unknown(fresh_graph):
    """A model that looks at how many rows there are."""

    def make(x):
        return tf.reduce_mean(x, name="mean" if x.shape[0] == 7 else "loss")

    _, tail = tail_of(make, is_static=True)
    reason = "the model builds another graph on the whole batch than on a tower's rows"
    assert reasons(tail) == [reason]


def test_another_operation_on_the_whole_batch_is_unknown(fresh_graph):
    def make(x):
        with tf.name_scope("part"):
            part = tf.exp(tf.reduce_mean(x)) if x.shape[0] < 7 else tf.sqrt(tf.reduce_mean(x))
        return tf.square(part, name="loss")

    _, tail = tail_of(make, is_static=True)
    assert reasons(tail) == ["towers build different graphs there"]


@pytest.mark.parametrize("is_static", STATICS)
def test_a_number_of_rows_in_each_row_is_unknown(fresh_graph, is_static):
    """The sum of what each row was divided by: nobody sees from the sum that it is a mean."""

    def make(x):
        return tf.reduce_sum(x / tf.cast(tf.shape(x)[0], tf.float64))

    _, tail = tail_of(make, is_static=is_static)
    assert kinds(tail) == ["unknown"]
    (reason,) = reasons(tail)
    assert reason.endswith("brings a number of the tower's rows into each row")


def test_integers_that_cannot_be_seen_are_the_first_towers(fresh_graph):
    _, tail = tail_of(lambda x: tf.reduce_max(tf.cast(x * 10.0, tf.int32)))
    assert kinds(tail) == ["first"]


# The first tower alone has rows.


def test_a_lone_tower_is_the_whole_batch(fresh_graph):
    towers, tail = tail_of(lambda x: tf.exp(tf.reduce_max(x)), counts=(1, 0, 0), is_static=True)
    assert towers.whole.is_lone
    assert kinds(tail) == ["first"]
    assert tail.operations == []
    assert tail.unknown == []
    assert tail == tails.lone_tail(towers.column)


def test_every_kind_can_be_joined():
    """Those that a walk may end with have their rule in `row_reductions.Join`, or need none."""
    for kind in {*row_reductions._KINDS.values(), tails.UNKNOWN} - {"first"}:
        assert callable(getattr(row_reductions.Join, kind))
