"""What is known of a graph for every size of the batch."""

import numpy as np
import pytest

from replicate.compat import inference
from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.inference import extents, folding
from replicate.splitting.inference.extents import BATCH, PICKED, Extent, UnknownError, rows
from replicate.splitting.inference.facts import Facts
from replicate.splitting.inference.probes import KnownRows, KnownShape
from replicate.splitting.states import OWN, SIZE, WHOLE, ListOf, Rows, Shape, Space, WholeError
from replicate.splitting.structure import loops
from tests import control_flow

BATCH_SPACE = Space("the batch")
ROW = Extent(None, 1)  # one entry for each row
INNER = extents.Amount({(extents.Inner(),): 1})  # an unknown inner length
OPEN = Extent(None)  # of which nothing is known


def facts_of(graph, given, static_rows=None, num_devices=2):
    known = [KnownRows(*each) if type(each) is tuple else each for each in given]
    return Facts(graph, known, loops.Structure(graph), num_devices, static_rows)


def begun(facts, rows_of, sizes=()):
    """A run in which some tensors have rows, by `(tensor, axis)`, and some are sizes."""
    states = {tensor.ref(): Rows(axis, BATCH_SPACE) for tensor, axis in rows_of}
    states.update((tensor.ref(), SIZE) for tensor in sizes)
    facts.begin(lambda tensor: states.get(tensor.ref(), WHOLE))
    return facts


def behind(tensor):
    """All tensors of sizes that a tensor is made of, itself included."""
    found, waiting = [], [tensor]
    while waiting:
        each = waiting.pop()
        found.append(each)
        if each.op.type not in folding.LEAVES:
            waiting += [t for t in each.op.inputs if t.op.type != "Const"]
    return found


@pytest.fixture
def graph(fresh_graph):
    return fresh_graph


def batch(*inner):
    return tf1.placeholder(tf.float32, [None, *inner])


# Amounts.


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (rows(BATCH) * 4, rows(BATCH, 4)),
        (rows(BATCH, 4) // 2, rows(BATCH, 2)),
        (rows(BATCH, 6) // rows(BATCH, 2), 3),
        (rows(BATCH, 6) % 3, 0),
        (rows(BATCH) - rows(BATCH), 0),
        (rows(BATCH, 2) + rows(BATCH, 3), rows(BATCH, 5)),
        (7 - rows(BATCH) + rows(BATCH), 7),
        (extents.larger(rows(BATCH), 1), rows(BATCH)),
        (extents.smaller(rows(BATCH), 1), 1),
        (extents.larger(INNER, 1), INNER),
        (extents.larger(0, INNER), INNER),
        (extents.larger(rows(BATCH, 3), rows(BATCH, 2)), rows(BATCH, 3)),
    ],
)
def test_arithmetic_holds_for_every_number_of_rows(found, wanted):
    assert found == wanted


@pytest.mark.parametrize(
    "work",
    [
        lambda: rows(BATCH) // 4,
        lambda: rows(BATCH) % 2,
        lambda: extents.larger(rows(BATCH), 10),
        lambda: extents.smaller(rows(BATCH), 10),
        lambda: extents.same(rows(BATCH), 1),
        lambda: extents.less(rows(BATCH), 100),
        lambda: rows(PICKED) // rows(PICKED),  # they may be picked by two operations
        lambda: extents.same(rows(PICKED), rows(PICKED)),
        lambda: extents.larger(rows(PICKED), 1),  # an operation may pick none
        lambda: rows(BATCH) // rows(BATCH_SPACE),
    ],
)
def test_what_holds_for_some_numbers_of_rows_only_is_unknown(work):
    with pytest.raises(UnknownError):
        work()


def test_what_is_decided_for_every_number_of_rows():
    assert not extents.same(rows(BATCH), 0)
    assert extents.same(rows(BATCH, 2), rows(BATCH) + rows(BATCH))
    assert extents.less(0, rows(BATCH))
    assert not extents.less(rows(BATCH), rows(BATCH))


# Extents.


def test_lengths_are_multiples_of_the_rows_or_do_not_depend_on_them(graph):
    x = batch(6)
    tall = tf.reshape(x, [-1, 3])  # 6·B / 3 = 2·B
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, Extent(6))
    assert facts.shape(tall) == (Extent(None, 2), Extent(3))
    assert facts.shape(tf.constant([[1.0]])) == (Extent(1), Extent(1))
    assert facts.multiple(tall, 0) == 2
    assert facts.rank(tall) == 2
    assert facts.known_shape(tall, 0) == [None, 3]
    assert [facts.dims(x, probe)[1] for probe in (0, 1)] == [6, 6]


def test_lengths_that_grow_otherwise_are_unknown(graph):
    x = batch(4)
    outer = tf.reshape(tf.matmul(x, x, transpose_b=True), [-1])  # B·B
    more = tf.concat([x, tf.zeros([1, 4])], 0)  # B + 1
    some = x[:10]  # the smaller of B and 10
    remainder = tf.zeros([tf.shape(x)[0] % 2 + 1])  # 1 or 2
    facts = facts_of(graph, [(x, 0)])
    for tensor in (outer, more, some, remainder):
        assert facts.shape(tensor)[0] == OPEN


@pytest.mark.parametrize("most", [1, 2, 3, 2040, 5000, 100_000])
def test_cuts_and_fillings_are_unknown_wherever_they_are(graph, most):
    x = batch(4)
    n = tf.shape(x)[0]
    lengths = [
        tf.shape(x[: most + 1])[0],
        tf.minimum(n, most + 1),
        tf.reduce_max([n, most + 1]),
        tf.nn.relu(most + 1 - n) + n,
        tf.minimum(n, tf.constant(most + 1) * 8),
        tf.cast(tf.math.ceil(n / (most + 1)), tf.int32) * (most + 1),
    ]
    made = [tf.zeros(tf.maximum(tf.shape(x), [most + 1, 1])), *map(tf.zeros, zip(lengths))]
    facts = facts_of(graph, [(x, 0)])
    for tensor in made:
        assert facts.shape(tensor)[0] == OPEN, tensor


GROWN = {
    "Cumprod": lambda x: tf.math.cumprod(tf.constant([20, 20, 10]))[2],
    "LeftShift": lambda x: tf.bitwise.left_shift(1, 12),
    "Mul": lambda x: tf.constant(64) * tf.constant(50),
    "Pow": lambda x: tf.pow(2, 12),
    "Pow, rounded": lambda x: tf.cast(tf.pow(2.0, 12.0), tf.int32),
    "Prod": lambda x: tf.reduce_prod(tf.constant([50, 60])),
    "Prod of lengths": lambda x: tf.reduce_prod(tf.shape(x)[1:]),
    "Square": lambda x: tf.square(tf.constant(60)),
}


@pytest.mark.parametrize("kind", GROWN)
def test_cuts_at_products_of_numbers_are_unknown(graph, kind):
    x = batch(60, 50)
    most = GROWN[kind](x)  # some thousand, of numbers below 100
    assert kind.split(maxsplit=1)[0].strip(",") in {op.type for op in graph.get_operations()}
    cut = tf.zeros([tf.minimum(tf.shape(x)[0], most)])
    assert facts_of(graph, [(x, 0)]).shape(cut) == (OPEN,)


def test_a_rank_that_one_row_changes_is_unknown(graph):
    x = batch(1)
    squeezed = tf.squeeze(x)  # [B], and of one row []
    two = tf.squeeze(tf.reshape(tf.concat([x, x], 1), [-1, 1]))  # [2·B]
    facts = facts_of(graph, [(x, 0)])
    assert facts.rank(squeezed) is None
    assert facts.rank(tf.identity(squeezed)) is None
    assert facts.shape(two) == (Extent(None, 2),)


def test_a_graph_that_wants_more_rows_has_them(graph):
    x = batch(4)
    first = tf.slice(x, [0, 0], [10, 4])  # fails on fewer
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, Extent(4))
    assert facts.shape(first) == (Extent(10), Extent(4))


def test_a_branch_of_more_rows_leaves_others_lengths_to_one_row(graph):
    x = batch(4)
    first = tf.matmul(x, x, transpose_b=True)[:, :3]  # [B, min(B, 3)]
    with control_flow.of_version(1):
        either = tf.cond(
            tf.shape(x)[0] > 5,
            lambda: first * tf.reduce_sum(tf.reshape(x[:6], [2, 12])),  # fails on fewer rows
            lambda: tf.tanh(first),
        )
        by_value = tf.cond(x[0, 0] > 0, lambda: tf.reshape(x[:6], [24]), lambda: tf.zeros([24]))
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, Extent(4))
    assert facts.shape(first) == (ROW, OPEN)
    assert facts.shape(either) == (ROW, OPEN)
    assert facts.shape(by_value) == (Extent(24),)


def test_told_lengths_that_want_more_rows_leave_what_was_inferred(graph):
    x = batch(4)
    four = tf.size(x) // tf.shape(x)[0]
    told = tf.fill([tf.shape(x[:, :four])[1] - 1], 1) * [2, 3, 4]  # no importer knows it
    six = tf.reshape(tf.reshape(x[:6], told), [-1, 4]) * x[:6]  # fails on fewer rows
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, Extent(4))
    assert facts.shape(six) == (OPEN, Extent(4))


def test_rows_may_be_along_another_axis(graph):
    x = tf1.placeholder(tf.float32, [5, None])
    facts = facts_of(graph, [(x, 1)])
    assert facts.shape(x) == (Extent(5), ROW)
    assert facts.known_shape(x, 1) == [5, None]


def test_what_has_no_rank_or_no_such_axis_is_let_be(graph):
    x, scalar, any_rank = batch(6), tf1.placeholder(tf.float32, []), tf1.placeholder(tf.float32)
    facts = facts_of(graph, [(x, 0), (scalar, 0), (any_rank, 0)])
    assert facts.shape(scalar) == ()
    assert facts.shape(any_rank) is None
    assert facts.rank(any_rank) is None
    assert facts.shape(x) == (ROW, Extent(6))


def test_unknown_inner_lengths_are_told_from_fixed_ones(graph):
    x = tf1.placeholder(tf.float32, [None, None, 8])
    flat = tf.reshape(x, [-1, 8])  # B·T: the number of entries per row is known in a run
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, OPEN, Extent(8))
    assert facts.shape(flat) == (Extent(None, None), Extent(8))
    assert facts.multiple(flat, 0) is None
    assert facts.known_shape(x, 0) == [None, None, 8]


def test_two_unknown_lengths_are_not_taken_for_the_same(graph):
    x, y = (tf1.placeholder(tf.float32, [None, None]) for _ in range(2))
    shapes = tf.shape(x), tf.shape(y)
    args = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])
    own = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[0])
    rest, product = tf.zeros([shapes[0][0], shapes[0][1] - shapes[1][1] + 1]), x * y
    facts = begun(facts_of(graph, [(x, 0), (y, 0)]), [(x, 0), (y, 0)], [*shapes, *args, *own])
    assert facts.shape(product) == (ROW, OPEN)  # they fit if one of them is 1, too
    assert facts.value(args.r0) is None
    np.testing.assert_array_equal(facts.value(own.r0), [])
    assert facts.shape(rest) == (ROW, OPEN)


def test_lengths_are_compared_in_the_order_of_data(graph):
    x, y = (tf1.placeholder(tf.float32, [None, None]) for _ in range(2))
    read = tf.identity(x)
    shape = tf.shape(read)
    reshaped = tf.reshape(read, shape)
    made_later = tf.tanh(x)
    shape.op._update_input(0, made_later)
    reshaped.op._update_input(0, made_later)
    facts = facts_of(graph, [(x, 0), (y, 0)])
    assert facts.shape(reshaped) == (ROW, OPEN)


@pytest.mark.parametrize("most", [2, 40, 100])
def test_a_cut_of_an_unknown_length_may_leave_less(graph, most):
    x = tf1.placeholder(tf.float32, [None, None, 8])
    cut = x[:, :most]
    flat = tf.reshape(cut, [-1, 8])
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(cut) == (ROW, OPEN, Extent(8))
    assert facts.shape(flat) == (Extent(None, None), Extent(8))


def test_a_table_of_places_bounds_an_unknown_length(graph):
    x = tf1.placeholder(tf.float32, [None, None, 8])  # at most 512 steps, or the slice fails
    places = tf.slice(tf.zeros([512, 8]), [0, 0], tf.stack([tf.shape(x)[1], 8]))
    flat = tf.reshape(x + places, [-1, 8])
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(flat) == (Extent(None, None), Extent(8))


def test_guesses_that_do_not_fit_leave_lengths_unknown(graph):
    x = tf1.placeholder(tf.float32, [None, None])  # 7 wide: no guess is
    y = tf.matmul(x, tf.zeros([7, 5]))
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(x) == (ROW, OPEN)
    assert facts.shape(y) == (ROW, Extent(5))


def test_graphs_that_want_whole_groups_of_rows_get_them(graph):
    x = batch(5)
    groups = tf.reshape(x, [8, -1, 5])  # needs a multiple of 8 rows
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(groups) == (Extent(8), OPEN, Extent(5))
    assert facts.shape(x) == (ROW, Extent(5))


def test_where_no_inference_fits_nothing_is_known(graph):
    x = batch(5)
    groups = tf.reshape(x, [7, -1, 5])
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(groups) == (Extent(7), OPEN, Extent(5))
    assert facts.shape(x) == (ROW, Extent(5))


def test_picked_rows_are_told_from_the_batchs(graph):
    x = batch(4)
    where = tf.where(tf.reduce_sum(x, 1) > 0)
    picked = tf.gather(x, where[:, 0])
    facts = facts_of(graph, [(x, 0), KnownRows(where, is_picked=True)])
    row = Extent(None, 1, is_picked=True)
    assert facts.shape(where) == (row, Extent(1))
    assert facts.shape(picked) == (row, Extent(4))
    assert not facts.shape(picked)[0].has_rows(BATCH_SPACE)


def test_shapes_of_sparse_tensors_have_entries(graph):
    sparse = tf1.sparse_placeholder(tf.float32, [None, 9])
    weights = tf.zeros([9, 4])
    product = tf.sparse.sparse_dense_matmul(sparse, weights)
    ends = [KnownRows(sparse.indices, is_picked=True), KnownRows(sparse.values, is_picked=True)]
    vector = sparse.dense_shape
    facts = facts_of(graph, [*ends, KnownShape(vector, [BATCH, 9])])
    assert facts.shape(product) == (ROW, Extent(4))
    assert facts.shape_entries(vector) == (ROW, Extent(9))
    assert facts.value(vector[1]) == 9


def test_nodes_of_what_is_assumed_have_their_operations_attributes_alone(graph, monkeypatch):
    written = []
    infer = inference.Inferred
    monkeypatch.setattr(inference, "Inferred", lambda made: written.append(made) or infer(made))
    sparse = tf1.sparse_placeholder(tf.float32, [None, 9])
    tf.sparse.reduce_sum(sparse, 1)
    facts_of(graph, [KnownShape(sparse.dense_shape, [BATCH, None])])
    with tf.Graph().as_default() as other:
        tf.import_graph_def(written[-1], name="")
    for node in written[-1].node:
        definition = other.get_operation_by_name(node.name).op_def
        named = {name for name in node.attr if not name.startswith("_")}
        assert named <= {each.name for each in definition.attr}, node.name


# Values.


def test_values_are_the_same_for_every_batch(graph):
    x = batch(6)
    size = tf.shape(x)
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(size[1]) + behind(size[0]))
    assert facts.value(size[1]) == 6
    assert facts.value(size[0]) is None
    assert facts.value(size) is None
    np.testing.assert_array_equal(facts.value(tf.constant([0.5, 2.0])), [0.5, 2.0])


def test_small_batches_count_too(graph):
    # Of 20 and more rows it is always 20.
    x = batch(6)
    few = tf.minimum(tf.shape(x)[0], 20)
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(few))
    assert facts.value(few) is None


def test_values_of_unknown_inner_lengths_are_no_constants(graph):
    x = tf1.placeholder(tf.float32, [None, None])
    width = tf.shape(x)[1]
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(width))
    assert facts.value(width) is None
    assert facts.shape_entries(tf.shape(x)) == (ROW, OPEN)


def test_constants_are_what_the_graph_has(graph):
    # The graph does not know that B / B · 4 is 4; inferences for 3 and 2,030 rows find it.
    x = batch(6)
    size = tf.shape(x)
    found = tf.shape(tf.zeros([size[0] // size[0] * 4]))
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)])
    assert facts.constant(size[1]) == 6
    assert facts.value(found) == [4]
    assert facts.constant(found) is None


def test_axes_of_broadcast_gradients_are_values(graph):
    x = batch(6)
    args = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=tf.constant([6]))
    facts = begun(
        facts_of(graph, [(x, 0)]), [(x, 0)], [*args, args.r0.op.inputs[0]]
    )  # [B, 6] with [6]: the other is summed over axis 0
    np.testing.assert_array_equal(facts.value(args.r0), [])
    np.testing.assert_array_equal(facts.value(args.r1), [0])


# Views of shapes.


def test_a_device_makes_its_own_shape_where_that_is_the_scaled_one(graph):
    x = batch(6)
    shape = tf.stack([tf.shape(x)[0] * 2, 3])  # [2·B, 3]
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(shape))
    assert facts.shape_view(shape, 0, BATCH_SPACE) is OWN
    assert facts.shape_entries(shape) == (Extent(None, 2), Extent(3))
    with pytest.raises(WholeError, match="no rows there"):
        facts.shape_view(shape, 1, BATCH_SPACE)


def test_a_shape_with_all_rows_twice_is_scaled_in_one_entry(graph):
    x = batch(6)
    shape = tf.stack([tf.shape(x)[0], tf.shape(x)[0]])  # as of x·xᵀ
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(shape))
    assert facts.shape_view(shape, 0, BATCH_SPACE) == Shape(0, BATCH_SPACE)


def test_a_size_of_a_whole_tensor_is_whole(graph):
    x = batch(6)
    other = tf.identity(x)  # whole: its shape is the same on every device
    shape = tf.shape(other)
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], [shape])
    assert facts.shape_view(shape, 0, BATCH_SPACE) == Shape(0, BATCH_SPACE)


def test_what_is_left_over_is_each_devices_own(graph):
    x = batch(6)
    constant, mixed = tf.constant([-1, 3]), tf.stack([-1, tf.shape(x)[0]])
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(mixed))
    assert facts.shape_view(constant, 0, BATCH_SPACE) is WHOLE
    assert facts.shape_entries(constant) == (Extent(-1), Extent(3))
    # [-1, B]: each device wants all B of the other dimension.
    assert facts.shape_view(mixed, 0, BATCH_SPACE) is WHOLE


def test_a_number_of_rows_is_each_devices_own(graph):
    x = batch(6)
    shape = tf.stack([tf.shape(x)[0], 6])
    number = shape[0]
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], [*behind(shape), *behind(number)])
    assert facts.number_view(number, BATCH_SPACE) is OWN
    assert facts.is_own(shape, BATCH_SPACE)
    assert not facts.is_own(tf.constant([3, 6]), BATCH_SPACE)
    assert facts.is_own_shape(shape, 0, BATCH_SPACE)
    assert facts.is_own_shape(tf.constant([3, 6]), 0, BATCH_SPACE)
    assert not facts.is_own_shape(number, 0, BATCH_SPACE)
    assert not facts.is_own_shape(tf1.placeholder(tf.int32, [2]), 0, BATCH_SPACE)


def test_values_that_no_run_decides_are_unknown(graph):
    x = batch(6)
    n = tf.shape(x)[0]
    facts = begun(facts_of(graph, [(x, 0)]), [])
    for unknown in (
        tf.dynamic_stitch([[0], [2]], [[3], [4]]),  # nothing sets the entry between
        tf.broadcast_dynamic_shape([n, 6], [5, 6]),
        tf.raw_ops.BroadcastGradientArgs(s0=[n, 6], s1=[5, 6])[0],
    ):
        assert facts.value(unknown) is None
        assert facts.shape_entries(unknown) is None


def test_an_elements_shape_is_that_of_its_list(graph):
    x = batch(6)
    facts = begun(facts_of(graph, [(x, 0)]), [])
    made = [
        tf.raw_ops.EmptyTensorList(
            element_shape=[3, 4], max_num_elements=7, element_dtype=tf.float32
        ),
        tf.raw_ops.TensorListReserve(
            element_shape=[3, 4], num_elements=7, element_dtype=tf.float32
        ),
        tf.raw_ops.TensorListFromTensor(tensor=tf.zeros([7, 3, 4]), element_shape=[3, 4]),
    ]
    for each in made:
        shape = tf.raw_ops.TensorListElementShape(input_handle=each, shape_type=tf.int32)
        np.testing.assert_array_equal(facts.value(shape), [3, 4])


def test_the_shape_of_elements_with_rows_is_each_devices_own(graph):
    x = tf1.placeholder(tf.float32, [6, 4])
    facts = facts_of(graph, [(x, 0)], static_rows=6)  # of which each of two devices has 3
    held = tf.raw_ops.TensorListReserve(
        element_shape=[6, 4], num_elements=7, element_dtype=tf.float32
    )
    shape = tf.raw_ops.TensorListElementShape(input_handle=held, shape_type=tf.int32)
    states = {held.ref(): ListOf(Rows(0, BATCH_SPACE)), shape.ref(): SIZE}
    facts.begin(lambda tensor: states.get(tensor.ref(), WHOLE))
    assert facts.value(shape) is None
    assert facts.is_own(shape, BATCH_SPACE)
    assert facts.shape_view(shape, 0, BATCH_SPACE) is OWN


def test_what_is_popped_is_what_all_have_pushed(graph):
    x = batch(6)

    def popped(*pushed):
        held = tf.raw_ops.EmptyTensorList(
            element_shape=[2], max_num_elements=-1, element_dtype=tf.int32
        )
        for each in pushed:
            held = tf.raw_ops.TensorListPushBack(input_handle=held, tensor=tf.constant(each))
        return tf.raw_ops.TensorListPopBack(
            input_handle=held, element_shape=[2], element_dtype=tf.int32
        )[1]

    same, different, nothing = popped([3, 4], [3, 4]), popped([3, 4], [3, 5]), popped()
    facts = begun(facts_of(graph, [(x, 0)]), [])
    np.testing.assert_array_equal(facts.value(same), [3, 4])
    assert facts.value(different) is None
    assert facts.value(nothing) is None


def test_what_a_stack_gives_is_what_was_pushed(graph):
    x = batch(6)

    def popped(*pushed):
        stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.int32)
        for each in pushed:
            tf.raw_ops.StackPushV2(handle=stack, elem=tf.constant(each))
        return tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.int32)

    one, two, nothing = popped([3, 4]), popped([3, 4], [3, 4]), popped()
    facts = begun(facts_of(graph, [(x, 0)]), [])
    np.testing.assert_array_equal(facts.value(one), [3, 4])
    assert facts.value(two) is None  # which push fills it is not known
    assert facts.value(nothing) is None


@pytest.mark.parametrize(
    ("size", "expected"), [([0], []), ([1], [5]), ([2], [5, 6]), ([-1], [5, 6])]
)
def test_a_slice_is_as_long_as_it_says(graph, size, expected):
    x = batch(5, 6)
    cut = tf.slice(tf.shape(x), [1], size)
    facts = begun(facts_of(graph, [(x, 0)]), [])
    np.testing.assert_array_equal(facts.value(cut), expected)


def test_expressions_of_sizes_are_known(graph):
    x = batch(6)
    n = tf.shape(x)[0]
    table = tf.stack([tf.stack([n, 2]), tf.stack([3, n * 2])])
    facts = begun(facts_of(graph, [(x, 0)]), [])
    twice, both = Extent(None, 2), tf.constant([[True, False], [False, True]])
    for found, wanted in (
        (table[0], (ROW, Extent(2))),
        (table[..., 0], (ROW, Extent(3))),
        (table[:, tf.newaxis, 1][:, 0], (Extent(2), twice)),
        (tf.reduce_prod(table, 1), (twice, Extent(None, 6))),
        (tf.reduce_sum(table, -1)[1:], (OPEN,)),
        (tf.reduce_max([[1, 5], [7, 2]], 0) * n, (Extent(None, 7), Extent(None, 5))),
        (tf.raw_ops.Select(condition=[False, True], x=table, y=table * 2)[0], (twice, Extent(4))),
        (tf.raw_ops.Select(condition=[False, True], x=table, y=table * 2)[1], (Extent(3), twice)),
        (tf.raw_ops.Select(condition=both, x=table, y=table * 2)[0], (ROW, Extent(4))),
        (tf.gather(table, [1], axis=1)[:, 0], (Extent(2), twice)),
        (tf.cast(tf.cast(tf.stack([n, 6]), tf.bool), tf.int32), (Extent(1), Extent(1))),
    ):
        facts = begun(facts_of(graph, [(x, 0)]), [])
        assert facts.shape_entries(found) == wanted, found


def test_an_unknown_shape_is_refused(graph):
    x = batch(6)
    shape = tf1.placeholder(tf.int32, [2])
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)])
    with pytest.raises(WholeError, match="not known"):
        facts.shape_view(shape, 0, BATCH_SPACE)


def test_each_run_has_states_of_its_own(graph):
    x = batch(6)
    shape = tf.stack([tf.shape(x)[0], 6])
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], behind(shape))
    assert facts.shape_view(shape, 0, BATCH_SPACE) is OWN
    begun(facts, [])
    assert facts.shape_view(shape, 0, BATCH_SPACE) == Shape(0, BATCH_SPACE)


# Static batches.


def test_a_static_batch_has_rows_where_its_multiples_are(graph):
    x = tf1.placeholder(tf.float32, [7, 14])
    facts = facts_of(graph, [(x, 0)], static_rows=7)
    assert facts.shape(x) == (ROW, Extent(None, 2))  # 14 = 2·7: it may be cut
    assert facts.shape(tf.zeros([5, 7])) == (Extent(5), ROW)
    assert facts.shape_entries(tf.constant([-1, 21, 4])) == (
        Extent(-1),
        Extent(None, 3),
        Extent(4),
    )
    assert facts.known_shape(x, 0) == [None, 14]


def test_a_static_shape_is_scaled(graph):
    x = tf1.placeholder(tf.float32, [7, 5])
    facts = begun(facts_of(graph, [(x, 0)], static_rows=7), [(x, 0)])
    assert facts.shape_view(tf.constant([7, 5]), 0, BATCH_SPACE) == Shape(0, BATCH_SPACE)
    with pytest.raises(WholeError):
        facts.shape_view(tf.constant([7, 5]), 1, BATCH_SPACE)


@pytest.mark.parametrize(("rows_", "wanted"), [(8, 2), (7, None)])
def test_a_static_value_counts_on_each_number_of_rows(graph, rows_, wanted):
    # Of 8 rows over 4 devices each has 2; of 7 one has 1: the smaller of 2 and those is 2 or 1.
    x = tf1.placeholder(tf.float32, [rows_, 5])
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [rows_, 5])
        size = tf.raw_ops.Shape(input=x)
        few = tf.raw_ops.Minimum(x=size, y=tf.constant([2, 5]))
        facts = facts_of(graph, [(x, 0)], static_rows=rows_, num_devices=4)
    begun(facts, [(x, 0)], [size, few])
    found = facts.value(few)
    assert (None if found is None else found[0]) == wanted


def test_one_static_row_cannot_be_split(graph):
    x = tf1.placeholder(tf.float32, [1, 5])
    facts = facts_of(graph, [(x, 0)], static_rows=1)
    assert not facts.is_splittable
    assert facts.shape(tf.zeros([5, 3])) == (Extent(5), Extent(3))


def test_unknown_inner_lengths_of_a_static_batch(graph):
    x = tf1.placeholder(tf.float32, [8, None, 3])
    flat = tf.reshape(x, [-1, 3])  # 8·T
    facts = begun(facts_of(graph, [(x, 0)], static_rows=8), [(x, 0)])
    assert facts.shape(x) == (ROW, OPEN, Extent(3))
    assert facts.shape(flat) == (Extent(None, None), Extent(3))
    assert facts.value(tf.shape(x)[1]) is None


# Loops.


@pytest.fixture
def old_loops():
    before = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if before:
        tf1.enable_control_flow_v2()


def cumulated(x):
    """Sums over time with a `TensorArray`, and the gradient."""
    array = tf.TensorArray(tf.float32, 4).unstack(tf.transpose(x, [1, 0, 2]))

    def body(n, state, out):
        state = tf.tanh(state + array.read(n))
        return n + 1, state, out.write(n, state)

    start = (0, tf.zeros([tf.shape(x)[0], 3]), tf.TensorArray(tf.float32, 4))
    _, state, out = tf.while_loop(lambda n, *_: n < 4, body, start)
    return state, out.stack()


@pytest.mark.usefixtures("old_loops")
def test_shapes_go_around_loops(graph):
    x = batch(4, 3)
    state, out = cumulated(x)
    gradient = tf.gradients(out, x)[0]
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(state) == (ROW, Extent(3))
    assert facts.shape(out)[1:] == (ROW, Extent(3))
    assert facts.shape(gradient) == (ROW, Extent(4), Extent(3))
    pops = [op.outputs[0] for op in graph.get_operations() if op.type == "StackPopV2"]
    pops = [pop for pop in pops if pop.dtype == tf.float32 and pop.shape.rank]  # no flows
    assert pops
    assert {facts.shape(pop) for pop in pops} == {(ROW, Extent(3))}


@pytest.mark.usefixtures("old_loops")
@pytest.mark.parametrize("number", [4, -1])
@pytest.mark.parametrize("width", [2, 0])
def test_lists_of_a_loop_have_as_many_elements_as_are_reserved(graph, number, width):
    x = batch(2)
    made = tf.raw_ops.TensorListReserve(element_shape=-1, num_elements=4, element_dtype=tf.float32)

    def body(n, held):
        item = tf.exp(x[:, :width])
        return n + 1, tf.raw_ops.TensorListSetItem(input_handle=held, index=n, item=item)

    _, held = tf.while_loop(lambda n, _: n < 4, body, (0, made))
    stacked = tf.raw_ops.TensorListStack(
        input_handle=held, element_shape=-1, element_dtype=tf.float32, num_elements=number
    )
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(stacked) == (Extent(4), ROW, Extent(width))


@pytest.mark.usefixtures("old_loops")
@pytest.mark.parametrize("width", [2, 3])
def test_elements_of_a_list_of_a_loop_may_be_of_several_widths(graph, width):
    x = batch(3)
    made = tf.raw_ops.TensorListReserve(element_shape=-1, num_elements=5, element_dtype=tf.float32)
    made = tf.raw_ops.TensorListSetItem(input_handle=made, index=4, item=tf.exp(x[:, :width]))

    def body(n, held):
        item = tf.exp(x[:, :2])
        return n + 1, tf.raw_ops.TensorListSetItem(input_handle=held, index=n, item=item)

    _, held = tf.while_loop(lambda n, _: n < 4, body, (0, made))
    item = tf.raw_ops.TensorListGetItem(
        input_handle=held, index=3, element_shape=-1, element_dtype=tf.float32
    )
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(item) == (ROW, Extent(2) if width == 2 else OPEN)


@pytest.mark.usefixtures("old_loops")
def test_an_array_gives_as_many_elements_as_are_asked_for(graph):
    x = batch(2)

    def body(n, array):
        return n + 1, array.write(n, tf.exp(x))

    start = (0, tf.TensorArray(tf.float32, 4, infer_shape=False))
    _, array = tf.while_loop(lambda n, _: n < 4, body, start)
    found = array.gather([0, 2, 3])
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(found) == (Extent(3), ROW, Extent(2))


@pytest.mark.usefixtures("old_loops")
def test_a_variable_that_grows_in_a_loop_is_unknown(graph):
    x = batch(3)
    start = (0, x[:, :1])
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]))
    _, grown = tf.while_loop(
        lambda n, _: n < 4,
        lambda n, y: (n + 1, tf.concat([y, y], 1)),
        start,
        shape_invariants=shapes,
    )
    facts = facts_of(graph, [(x, 0)])
    assert facts.shape(grown)[1] == OPEN


@pytest.mark.usefixtures("old_loops")
@pytest.mark.parametrize("static_rows", [None, 6])
def test_an_lstm_and_its_gradients_have_rows(graph, static_rows):
    x = tf1.placeholder(tf.float32, [static_rows, None, 8])
    with pytest.warns(UserWarning, match="deprecated"):
        cell = tf1.nn.rnn_cell.LSTMCell(5)
    out, state = tf1.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    gradient = tf.gradients(tf.reduce_mean(out), x)[0]
    facts = facts_of(graph, [(x, 0)], static_rows)
    assert facts.shape(state.h) == (ROW, Extent(5))
    assert facts.shape(out) == (ROW, OPEN, Extent(5))
    assert facts.shape(gradient) == (ROW, OPEN, Extent(8))


# The law: what is known holds in runs.


def dense_net():
    x, y = batch(6), tf1.placeholder(tf.int64, [None])
    h = tf1.nn.relu(tf.matmul(x, tf1.get_variable("w", [6, 4])) + tf1.get_variable("b", [4]))
    loss = tf1.losses.sparse_softmax_cross_entropy(y, h)
    tf1.train.AdamOptimizer().minimize(loss)
    return [(x, 0), (y, 0)]


def shape_games():
    x = batch(6)
    n = tf.shape(x)[0]
    tiled = tf.tile(tf.reshape(x, [n, 1, 6]), [1, 3, 1])
    wide = tf.broadcast_to(tf.reduce_mean(x, 0, keepdims=True), tf.shape(x))
    flat = tf.reshape(tiled, [n * 3, -1])
    ones = tf.fill([n, 2], 1.0) + tf.concat([x[:, :1], x[:, -1:]], 1)
    back = tf.reshape(tf.transpose(flat), [3 * 6, n])
    total = tf.reduce_sum(tf.stack([tf.reduce_sum(t) for t in (wide, flat, ones, back)]))
    tf.gradients(total, x)
    tf.zeros([tf.maximum(n, 4), tf.minimum(n, 4), tf.maximum(n // 2, 1)])
    return [(x, 0)]


def all_pairs():
    x = batch(6)
    outer = tf.matmul(x, x, transpose_b=True) - tf.linalg.eye(tf.shape(x)[0])
    tf.gradients(tf.reduce_sum(outer) + tf.reduce_mean(tf.reshape(outer, [-1, 1])), x)
    return [(x, 0)]


def sequences():
    x = tf1.placeholder(tf.float32, [None, None, 4])
    scores = tf.nn.softmax(tf.matmul(x, x, transpose_b=True))
    kept = tf.reshape(tf.matmul(scores, x), [-1, tf.shape(x)[1] * 4])
    tf.gradients(tf.reduce_mean(kept) + tf.reduce_sum(x[:, 0]), x)
    return [(x, 0)]


def size_games():
    x = batch(6)
    n = tf.shape(x)[0]
    table = tf.stack([[n, 2], [3, n * 2]])
    outer = tf.stack([[True, False], [False, True]])
    tf.reduce_prod(table, 1)
    tf.reduce_max(table, [0, 1], keepdims=True)
    tf.reduce_max(table[:, :1], 1)
    table[..., 1]
    table[1, tf.newaxis, 1]
    table[:, tf.newaxis, 1]
    tf.gather(table, [[1], [0]], batch_dims=1)
    tf.range(5000)[:1] * n
    tf.fill([3, 5000], n)[0, :1]
    tf.raw_ops.Select(condition=[False, True], x=table, y=table * 2)[0]
    tf.raw_ops.Select(condition=outer, x=table, y=table * 2)[0]
    tf.cast(tf.shape(x), tf.bool)
    tf.cast(tf.cast([[300, 5]], tf.int8), tf.int32)[0] * n
    tf.cast(tf.equal([n, 6], [7, 6]), tf.int32)
    return [(x, 0)]


@pytest.mark.parametrize("build", [dense_net, shape_games, size_games, all_pairs, sequences])
def test_what_is_known_holds_for_every_batch(graph, build):
    given = build()
    facts = begun(facts_of(graph, given), [])
    tensors = [
        tensor
        for op in graph.get_operations()
        for tensor in op.outputs
        if op.type not in ("Placeholder", "ReadVariableOp", "VariableV2")
        and tensor.dtype in (tf.float32, tf.int32, tf.int64, tf.bool)
    ]
    with tf1.Session(graph=graph) as session:
        session.run(tf1.global_variables_initializer())
        for number, inner in ((1, 2), (2, 7), (5, 3)):
            feed = {
                tensor: np.ones([number] + [d or inner for d in tensor.shape.as_list()[1:]])
                for tensor, _ in given
            }
            for tensor, value in zip(tensors, session.run(tensors, feed), strict=True):
                check(facts, tensor, np.asarray(value), number)


@pytest.mark.parametrize("build", [dense_net, shape_games, sequences])
def test_devices_own_shapes_are_the_scaled_ones(graph, build):
    # A device with 2 of 6 rows makes of its own rows what one device makes of a batch of 2.
    given = build()
    facts = facts_of(graph, given)

    def state(tensor):
        if tensor.dtype == tf.int32:
            return SIZE
        extents_ = facts.shape(tensor) or ()
        axis = next((n for n, each in enumerate(extents_) if each.has_rows(BATCH_SPACE)), None)
        return WHOLE if axis is None else Rows(axis, BATCH_SPACE)

    facts.begin(state)
    found = []
    for op in graph.get_operations():
        for tensor in op.outputs:
            if tensor.dtype == tf.int32 and tensor.shape.rank == 1 and op.type != "Placeholder":
                for axis in range(tensor.shape[0] or 0):
                    try:
                        is_own = facts.shape_view(tensor, axis, BATCH_SPACE) is OWN
                    except WholeError:
                        continue
                    found += [(tensor, axis)] if is_own else []
    assert found
    with tf1.Session(graph=graph) as session:
        session.run(tf1.global_variables_initializer())
        values = []
        for number in (6, 2):
            shapes = [[number] + [d or 7 for d in t.shape.as_list()[1:]] for t, _ in given]
            feed = {t: np.ones(dims) for (t, _), dims in zip(given, shapes, strict=True)}
            values.append(session.run([tensor for tensor, _ in found], feed))
    for (tensor, axis), whole, own in zip(found, *values, strict=True):
        if whole[axis] > 0:
            whole[axis] = whole[axis] // 6 * 2
        np.testing.assert_array_equal(own, whole, str(tensor))


def check(facts, tensor, value, number):
    found = facts.shape(tensor)
    assert found is None or len(found) == value.ndim, tensor
    for extent, length in zip(found or (), value.shape, strict=False):
        assert extent.size in (None, length), (tensor, found, value.shape)
        if extent.multiple:
            assert extent.multiple * number == length, (tensor, found, value.shape)
        elif extent.multiple is None:
            assert length % number == 0, (tensor, found, value.shape)
    if (same := facts.value(tensor)) is not None:
        if tensor.op.type != "BroadcastGradientArgs" or number > 1:  # over 1 row a sum is itself
            np.testing.assert_array_equal(same, value, str(tensor))
    entries = facts.shape_entries(tensor) if tensor.dtype == tf.int32 else None
    for extent, entry in zip(entries or (), value.reshape(-1), strict=False):
        assert extent.size in (None, entry), (tensor, entries, value)
        assert not extent.multiple or extent.multiple * number == entry, (tensor, entries)
