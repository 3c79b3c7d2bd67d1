"""What kind of a reduction an operation is, and what towers' reductions come to."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import row_reductions

HOME = "/device:CPU:7"
TRUTHS = ("static", "dynamic")


@pytest.fixture
def x(fresh_graph):
    """Rows of three numbers."""
    return tf1.placeholder(tf.float32, [None, 3])


def kind_of(tensor):
    """The kind of an operation whose inputs' unknown dimensions are rows."""
    axes = [
        tuple(i for i, size in enumerate(read.shape.as_list()) if size is None)
        for read in tensor.op.inputs
    ]
    return row_reductions.kind_of(tensor.op, [bool(own) for own in axes], axes)


# Kinds.


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [
        (lambda x: tf.reduce_sum(x), "sum"),
        (lambda x: tf.reduce_sum(x, 0), "sum"),
        (lambda x: tf.reduce_mean(x, 0, keepdims=True), "mean"),
        (tf.nn.l2_loss, "sum"),
        (lambda x: tf.raw_ops.Size(input=x), "size"),
        (lambda x: tf.raw_ops.Shape(input=x), "shape"),
        (lambda x: tf.shape_n([x, x])[1], "shape"),
        (lambda x: tf.raw_ops.Rank(input=x), "first"),
        (lambda x: tf.reduce_all(x > 0.0), "all"),
        (lambda x: tf.reduce_any(x > 0.0, 0), "any"),
        (tf.reduce_max, "unknown"),
        (tf.reduce_min, "unknown"),
        (tf.reduce_prod, "unknown"),
        (lambda x: tf.raw_ops.EuclideanNorm(input=x, axis=0), "unknown"),
        (lambda x: x[0], "unknown"),
        (lambda x: tf.argmax(x, 0), "unknown"),
        (lambda x: tf.gather(x, [0, 1]), "unknown"),
    ],
)
def test_reductions_have_their_kinds(x, reduce, kind):
    assert kind_of(reduce(x)) == kind


def test_a_product_that_contracts_rows_of_both_is_a_sum(x):
    assert kind_of(tf.matmul(x, x, transpose_a=True)) == "sum"
    batched = tf1.placeholder(tf.float32, [2, None, 3])
    assert kind_of(tf.matmul(batched, batched, transpose_a=True)) == "sum"


def test_a_product_with_weights_that_take_the_place_of_rows_is_unknown(x):
    """Weights that count the rows of a tower belong to no other's."""
    vector = tf.ones([1, 7])
    assert kind_of(tf.matmul(vector, x)) == "unknown"
    assert kind_of(tf.matmul(x, tf.ones([7, 2]), transpose_a=True)) == "unknown"
    batched = tf1.placeholder(tf.float32, [2, None, 3])
    assert kind_of(tf.matmul(tf.ones([2, 1, 7]), batched)) == "unknown"


@pytest.mark.parametrize(
    ("equation", "kind"),
    [
        ("bi,bj->ij", "sum"),
        ("bi,bi->", "sum"),
        ("bi,cj->ij", "unknown"),  # each sums its own rows: a product of two sums
        ("bi,ci->i", "unknown"),
    ],
)
def test_an_einsum_over_one_label_of_rows_is_a_sum(x, equation, kind):
    assert kind_of(tf.raw_ops.Einsum(inputs=[x, x], equation=equation)) == kind


def test_an_einsum_of_rows_and_weights_is_a_sum(x):
    assert kind_of(tf.raw_ops.Einsum(inputs=[x, tf.ones([3, 2])], equation="bi,ij->j")) == "sum"
    assert kind_of(tf.raw_ops.Einsum(inputs=[x], equation="bi->i")) == "sum"
    turned = tf.transpose(x)
    assert kind_of(tf.raw_ops.Einsum(inputs=[turned, turned], equation="ib,jb->ij")) == "sum"


def test_an_einsum_over_two_dimensions_of_rows_is_unknown(fresh_graph):
    pairs = tf1.placeholder(tf.float32, [None, None])
    assert kind_of(tf.raw_ops.Einsum(inputs=[pairs], equation="bc->")) == "unknown"


def test_an_ellipsis_is_unknown(x):
    assert kind_of(tf.raw_ops.Einsum(inputs=[x, x], equation="b...,b...->...")) == "unknown"


def test_rows_scattered_into_a_table_are_a_sum(x):
    classes = tf1.placeholder(tf.int32, [None])
    assert kind_of(tf.scatter_nd(classes[:, None], x, [5, 3])) == "sum"
    assert kind_of(tf.math.unsorted_segment_sum(x, classes, 5)) == "sum"
    assert kind_of(tf.math.unsorted_segment_max(x, classes, 5)) == "unknown"
    assert kind_of(tf.math.unsorted_segment_mean(x, classes, 5).op.inputs[0]) == "sum"


@pytest.mark.parametrize(
    ("make", "is_opaque"),
    [
        (lambda x: tf.function(lambda y: tf.reduce_sum(y))(x), True),
        (lambda x: tf.cond(x[0, 0] > 0, lambda: x, lambda: -x), True),
        (lambda x: tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32), True),
        (lambda x: tf1.py_func(lambda y: y, [x], tf.float32), True),
        (lambda x: tf1.get_variable("v", [3], use_resource=True).read_value(), True),
        (tf.reduce_sum, False),
        (tf.exp, False),
    ],
)
def test_what_nobody_can_see_into_is_opaque(x, make, is_opaque):
    made = make(x)
    made = made.op.inputs[0] if made.op.type == "Identity" else made
    assert row_reductions.is_opaque(made.op) is is_opaque


# Joining.


class OneByOne:
    """Joins one column at a time: `sum(column)` and so on.

    Args:
        join: The `Join`.
    """

    def __init__(self, join):
        self._join = join

    def __getattr__(self, kind):
        return lambda *asked: self._join.join([(kind, *asked)])[0]


class Three:
    """Joins of three towers.

    Args:
        counts: The towers' rows; the weights are their parts.
        kind: Whether only a run tells which towers have rows.
    """

    def __init__(self, counts, kind):
        has_rows = [n > 0 for n in counts]
        weights = [n / sum(counts) for n in counts]
        if kind == "dynamic":
            has_rows = [tf1.placeholder_with_default(has, []) for has in has_rows]
            weights = [tf.constant(weight, tf.float64) for weight in weights]
        devices = [f"/device:CPU:{i}" for i in range(3)]
        self.join = OneByOne(row_reductions.Join(has_rows, devices, HOME, weights))
        self.counts = counts
        self.kind = kind

    def rows(self, *parts, dtype=tf.float64):
        """Tensors of the towers' rows."""
        found = []
        for part in parts:
            part = np.asarray(part, dtype.as_numpy_dtype)
            shape = part.shape if self.kind == "static" else [None, *part.shape[1:]]
            found.append(tf1.placeholder_with_default(part, shape))
        return found


def plain(factors, session):
    return [float(session.run(f)) if tf.is_tensor(f) else f for f in factors]


@pytest.mark.parametrize("kind", TRUTHS)
def test_many_reductions_are_joined_at_once(session, kind):
    three = Three((2, 1, 1), kind)
    parts = three.rows([1.0, 2.0], [3.0], [4.0])
    sums, means = [tf.reduce_sum(part) for part in parts], [tf.reduce_mean(part) for part in parts]
    found = three.join._join.join([("sum", sums), ("mean", means), ("size", [2, 1, 1])])
    assert session.run([value for value, _ in found]) == [10.0, 2.5, 4]


@pytest.mark.parametrize("kind", TRUTHS)
def test_sums_add_up(session, kind):
    three = Three((3, 2, 2), kind)
    column = [tf.constant(value) for value in (1.0, 10.0, 100.0)]
    value, factors = three.join.sum(column)
    assert session.run(value) == 111.0
    assert factors is None
    assert value.device == HOME


@pytest.mark.parametrize("kind", TRUTHS)
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float16, tf.float64, tf.complex64])
def test_sums_keep_their_dtype(session, kind, dtype):
    column = [tf.constant(value, dtype) for value in (1, 10, 100)]
    value, _ = Three((3, 2, 0), kind).join.sum(column)
    assert value.dtype == dtype
    assert session.run(value) == 11


@pytest.mark.parametrize("kind", TRUTHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_tower_without_rows_brings_nothing_even_nan(session, kind, bad):
    three = Three((2, 1, 0), kind)
    sums, _ = three.join.sum([tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.fill([2], bad)])
    parts = three.rows([1.0, 2.0], [6.0], [bad])
    means, factors = three.join.mean([tf.reduce_mean(part) for part in parts])
    unknown, _ = three.join.unknown([tf.constant(x) for x in (3.0, 9.0, bad)])
    assert session.run(sums).tolist() == [4.0, 6.0]
    assert session.run(means) == pytest.approx(3.0)  # (1 + 2 + 6) / 3
    assert plain(factors, session) == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert session.run(unknown) == pytest.approx(5.0)  # 3 * 2/3 + 9 * 1/3


@pytest.mark.parametrize("kind", TRUTHS)
def test_means_weigh_what_each_tower_averaged(session, kind):
    three = Three((2, 1, 1), kind)
    parts = three.rows([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], [[7.0, 8.0]])
    value, factors = three.join.mean([tf.reduce_mean(part) for part in parts])
    assert session.run(value) == pytest.approx(4.5)  # 36 / 8
    assert plain(factors, session) == pytest.approx([0.5, 0.25, 0.25])
    columns, _ = three.join.mean([tf.reduce_mean(part, 0) for part in parts])
    np.testing.assert_allclose(session.run(columns), [4.0, 5.0])  # 16 / 4, 20 / 4


def test_static_means_need_no_operations_for_their_weights(session):
    three = Three((2, 1, 1), "static")
    parts = three.rows([1.0, 2.0], [3.0], [4.0])
    _, factors = three.join.mean([tf.reduce_mean(part) for part in parts])
    assert factors == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("kind", TRUTHS)
def test_means_of_masked_rows_weigh_what_is_left(session, kind):
    # Kept: 1, 3 in the first tower, none in the second, 8 in the third: 12 / 3.
    three = Three((3, 2, 1), kind)
    parts = three.rows([1.0, -2.0, 3.0], [-4.0, -5.0], [8.0])
    column = [tf.reduce_mean(tf.boolean_mask(part, part > 0.0)) for part in parts]
    value, factors = three.join.mean(column)
    found = session.run([value, *column])
    assert np.isnan(found[2])  # the mean of nothing
    assert found[0] == pytest.approx(4.0)
    assert plain(factors, session) == pytest.approx([2 / 3, 0.0, 1 / 3])


@pytest.mark.parametrize("kind", TRUTHS)
def test_the_mean_of_nothing_in_all_towers_is_nan(session, kind):
    three = Three((2, 1, 1), kind)
    parts = three.rows([-1.0, -2.0], [-3.0], [-4.0])
    value, _ = three.join.mean(
        [tf.reduce_mean(tf.boolean_mask(part, part > 0.0)) for part in parts]
    )
    assert np.isnan(session.run(value))


def test_the_mean_of_no_columns_is_nan(session):
    """Rows of no numbers at all, as shapes say."""
    three = Three((2, 1, 1), "static")
    parts = three.rows(np.zeros([2, 0]), np.zeros([1, 0]), np.zeros([1, 0]))
    value, factors = three.join.mean([tf.reduce_mean(part) for part in parts])
    assert np.isnan(session.run(value))
    assert np.isnan(factors).all()


@pytest.mark.parametrize("kind", TRUTHS)
def test_means_of_integers_are_one_devices(session, kind):
    # One device: (1 + 2 + 3 + 5) / 4 = 2.75, rounded down: 2.
    three = Three((2, 1, 1), kind)
    parts = three.rows([1, 2], [3], [5], dtype=tf.int32)
    value, _ = three.join.mean([tf.reduce_mean(part) for part in parts])
    assert value.dtype == tf.int32
    assert session.run(value) == 2


@pytest.mark.parametrize("kind", TRUTHS)
def test_numbers_of_elements_add_up(session, kind):
    three = Three((2, 1, 0), kind)
    parts = three.rows([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], [[7.0, 8.0]])
    value, factors = three.join.size([tf.size(part, tf.int64) for part in parts])
    assert (session.run(value), value.dtype, factors) == (6, tf.int64, None)


@pytest.mark.parametrize("kind", TRUTHS)
def test_shapes_add_up_where_they_are_rows(session, kind):
    three = Three((2, 1, 0), kind)
    column = [tf.constant([rows, 4, 2 * rows]) for rows in (2, 1, 1)]
    assert session.run(three.join.shape(column, [0])[0]).tolist() == [3, 4, 4]
    assert session.run(three.join.shape(column, [0, 2])[0]).tolist() == [3, 4, 6]
    assert session.run(three.join.shape(column, [])[0]).tolist() == [2, 4, 4]


@pytest.mark.parametrize("kind", TRUTHS)
@pytest.mark.parametrize(
    ("truths", "all_", "any_"),
    [
        ((True, True, False), True, True),  # the third tower has no rows
        ((True, False, True), False, True),
        ((False, False, True), False, False),
    ],
)
def test_all_and_any_ask_towers_with_rows(session, kind, truths, all_, any_):
    three = Three((2, 1, 0), kind)
    column = [tf.constant([truth]) for truth in truths]
    found = [three.join.all(column)[0], three.join.any(column)[0]]
    assert [value.tolist() for value in session.run(found)] == [[all_], [any_]]


@pytest.mark.parametrize("kind", TRUTHS)
def test_what_is_unknown_weighs_rows(session, kind):
    three = Three((2, 1, 1), kind)
    value, factors = three.join.unknown([tf.constant(x, tf.float64) for x in (1.0, 2.0, 6.0)])
    assert session.run(value) == 2.5  # 1/2 + 2/4 + 6/4
    assert plain(factors, session) == [0.5, 0.25, 0.25]
