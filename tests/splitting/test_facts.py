"""What is known of a graph for every size of the batch."""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.inference import extents
from replicate.splitting.inference.extents import BATCH, PICKED, Extent, UnknownError, rows
from replicate.splitting.inference.facts import Facts
from replicate.splitting.inference.probes import KnownRows, KnownShape
from replicate.splitting.states import OWN, SIZE, WHOLE, Rows, Space, WholeError
from replicate.splitting.structure import loops

BATCH_SPACE = Space("the batch")
ROW, ROWS_2 = Extent(None, 1), Extent(None, 2)  # one entry for each row, two
INNER = extents.Amount({(extents.Inner(),): 1})  # an unknown inner length
OPEN, OPEN_ROWS = Extent(None), Extent(None, None)  # of which nothing is known; a multiple of rows


def facts_of(graph, given, static_rows=None, num_devices=2):
    known = [KnownRows(*each) if type(each) is tuple else each for each in given]
    return Facts(graph, known, loops.Structure(graph), num_devices, static_rows)


def begun(facts, rows_of, sizes=()):
    """A run in which some tensors have rows, by `(tensor, axis)`, and some are sizes."""
    states = {tensor.ref(): Rows(axis, BATCH_SPACE) for tensor, axis in rows_of}
    states.update((tensor.ref(), SIZE) for tensor in sizes)
    facts.begin(lambda tensor: states.get(tensor.ref(), WHOLE))
    return facts


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


# Lengths.

LENGTHS = {}


def batch_of(*inner, static_rows=None):
    """Adds a function of a batch that lists tensors with their lengths."""

    def add(function):
        LENGTHS[function.__name__] = function, inner, static_rows
        return function

    return add


@batch_of(6)
def multiples_of_the_rows(x):
    tall = tf.reshape(x, [-1, 3])  # 6·B / 3 = 2·B
    return [(x, [ROW, 6]), (tall, [ROWS_2, 3]), (tf.constant([[1.0]]), [1, 1])]


@batch_of(4)
def what_grows_otherwise(x):
    pairs = tf.reshape(tf.matmul(x, x, transpose_b=True), [-1])  # B·B
    more = tf.concat([x, tf.zeros([1, 4])], 0)  # B + 1
    some = x[:10]  # the smaller of B and 10
    remainder = tf.zeros([tf.shape(x)[0] % 2 + 1, 4])  # 1 or 2
    return [(pairs, [OPEN]), *((each, [OPEN, 4]) for each in (more, some, remainder))]


@batch_of(1)
def an_axis_that_one_row_loses(x):
    squeezed = tf.squeeze(x)  # [B], and of one row []
    two = tf.squeeze(tf.reshape(tf.concat([x, x], 1), [-1, 1]))  # [2·B]
    return [(squeezed, None), (tf.identity(squeezed), None), (two, [ROWS_2])]


@batch_of(4)
def more_rows_that_the_graph_wants(x):
    return [(x, [ROW, 4]), (tf.slice(x, [0, 0], [10, 4]), [10, 4])]  # fails on fewer


@batch_of(4)
def more_rows_that_told_lengths_want(x):
    four = tf.size(x) // tf.shape(x)[0]
    told = tf.fill([tf.shape(x[:, :four])[1] - 1], 1) * [2, 3, 4]  # no importer knows it
    six = tf.reshape(tf.reshape(x[:6], told), [-1, 4]) * x[:6]  # fails on fewer rows
    return [(x, [ROW, 4]), (six, [OPEN, 4])]


@batch_of(None)
def lengths_compared_in_the_order_of_data(x):
    read = tf.identity(x)
    shape = tf.shape(read)
    reshaped, made_later = tf.reshape(read, shape), tf.tanh(x)
    shape.op._update_input(0, made_later)
    reshaped.op._update_input(0, made_later)
    return [(reshaped, [ROW, OPEN])]


@batch_of(None)
def a_width_that_no_guess_fits(x):
    return [(x, [ROW, OPEN]), (tf.matmul(x, tf.zeros([7, 5])), [ROW, 5])]


@batch_of(5)
def whole_groups_of_rows(x):
    return [(tf.reshape(x, [8, -1, 5]), [8, OPEN, 5]), (x, [ROW, 5])]  # needs a multiple of 8 rows


@batch_of(5)
def groups_that_no_inference_fits(x):
    return [(tf.reshape(x, [7, -1, 5]), [7, OPEN, 5]), (x, [ROW, 5])]


@batch_of(14, static_rows=7)
def a_static_batch(x):
    # 14 = 2·7: it may be cut.
    return [
        (x, [ROW, ROWS_2]),
        (tf.zeros([5, 7]), [5, ROW]),
        (tf.zeros([21, 1]), [Extent(None, 3), 1]),
    ]


@batch_of(None, 3, static_rows=8)
def a_static_batch_of_an_unknown_width(x):
    return [(x, [ROW, OPEN, 3]), (tf.reshape(x, [-1, 3]), [OPEN_ROWS, 3])]


@batch_of(4, 3)
def sums_over_time_in_a_loop(x):
    """With a `TensorArray`, and the gradient."""
    array = tf.TensorArray(tf.float32, 4).unstack(tf.transpose(x, [1, 0, 2]))

    def body(n, state, out):
        state = tf.tanh(state + array.read(n))
        return n + 1, state, out.write(n, state)

    start = (0, tf.zeros([tf.shape(x)[0], 3]), tf.TensorArray(tf.float32, 4))
    _, state, out = tf.while_loop(lambda n, *_: n < 4, body, start)
    out = out.stack()
    (gradient,) = tf.gradients(out, x)
    pops = [op.outputs[0] for op in x.graph.get_operations() if op.type == "StackPopV2"]
    pops = [pop for pop in pops if pop.dtype == tf.float32 and pop.shape.rank]  # no flows
    assert pops
    return [
        *((state, [ROW, 3]), (out, [4, ROW, 3]), (gradient, [ROW, 4, 3])),
        *((pop, [ROW, 3]) for pop in pops),
    ]


@batch_of(2)
def elements_of_a_list_and_of_an_array(x):
    def filled(made, write):
        body = lambda n, held: (n + 1, write(held, n))  # noqa: E731
        return tf.while_loop(lambda n, _: n < 4, body, (0, made))[1]

    def item(held, n):
        return tf.raw_ops.TensorListSetItem(input_handle=held, index=n, item=tf.exp(x))

    kind = {"element_shape": -1, "element_dtype": tf.float32}
    made = tf.raw_ops.TensorListReserve(num_elements=4, **kind)
    stacked = tf.raw_ops.TensorListStack(input_handle=filled(made, item), **kind)
    array = tf.TensorArray(tf.float32, 4, infer_shape=False)
    array = filled(array, lambda held, n: held.write(n, tf.exp(x)))
    return [(stacked, [4, ROW, 2]), (array.gather([0, 2, 3]), [3, ROW, 2])]


@batch_of(4)
def what_does_not_grow_with_the_batch(x):
    summed = tf.reduce_sum(x, tf.range(1, tf.raw_ops.Rank(input=x)))
    return [(summed, [ROW]), (tf.pad(x, tf.pad([[0, 2]], [[1, 0], [0, 0]])), [ROW, 6])]


# What is as long as the batch, of whatever is told its size.
SIZED = {
    "BroadcastTo": lambda n: tf.broadcast_to(tf.constant([1]), [n]),
    "Fill": lambda n: tf.fill([n], 1),
    "LinSpace": lambda n: tf.cast(tf.raw_ops.LinSpace(start=1.0, stop=1.0, num=n), tf.int32),
    "OneHot": lambda n: tf.one_hot([0], n, dtype=tf.int32)[0],
    "Pad": lambda n: tf.pad([1], [[0, n - 1]]),
    "PadV2": lambda n: tf.pad([1], [[0, n - 1]], constant_values=1),
    "Range": lambda n: tf.range(n),
    "ScatterNd": lambda n: tf.scatter_nd([[0]], [1], [n]),
    "SparseToDense": lambda n: tf1.sparse_to_dense([0], [n], 1),
    "StatelessRandomUniformIntV2": lambda n: tf.random.stateless_uniform(
        [n], [1, 2], 0, 9, tf.int32
    ),
    "Tile": lambda n: tf.tile([1], [n]),
}


@batch_of(4)
def what_no_one_evaluates(x):
    """Inference would have to add up all entries to know how long the last ones are."""
    grown = [grow(tf.shape(x)[0]) for grow in SIZED.values()]
    made = {op.type for op in x.graph.get_operations()}
    assert made >= set(SIZED)
    sums = [tf.zeros([tf.reduce_sum(tf.abs(each)) + 1, 3]) for each in grown]
    return [*((each, [ROW]) for each in grown), *((each, [OPEN, 3]) for each in sums)]


@batch_of(None)
def what_is_learned_from_values(x):
    # A product of entries of which one is unknown: an importer evaluates all of them, or none.
    counts = tf.stack([tf.shape(x)[0], tf.shape(tf.unique(tf.reshape(x, [-1]))[0])[0]])
    return [(tf.tanh(tf.zeros([tf.reduce_prod(counts[:1]), 3])), [ROW, 3])]


@batch_of(4)
def values_of_an_optional(x):
    other = batch(2, 2)
    held = tf.raw_ops.OptionalFromValue(components=[x, other])
    first, second = tf.raw_ops.OptionalGetValue(
        optional=held, output_types=[tf.float32] * 2, output_shapes=[None, None]
    )
    return [(first, [ROW, 4]), (second, [ROW, 2, 2])]


@batch_of(4)
def what_differs_by_turn_or_enters_a_loop(x):
    wide, size, inside = batch(2), tf.shape(x), []

    def body(n, y):
        inside[:] = [x[:, :n], tf.zeros([n + 1, 3])]
        inside.append(tf.reshape(tf.concat([wide, wide], 1), size) + y)
        return n + 1, y * 2.0 + sum(map(tf.reduce_sum, inside))

    tf.while_loop(lambda n, _: n < 4, body, (0, x))
    return list(zip(inside, ([ROW, OPEN], [OPEN, 3], [ROW, 4]), strict=True))


@batch_of(4)
def one_of_several_elements(x):
    """What is popped is known where all that is pushed is equal."""
    kind = {"element_shape": -1, "element_dtype": tf.int32}
    found = []
    for last in ([2, 3], [3, 2]):
        held = tf.raw_ops.EmptyTensorList(max_num_elements=-1, **kind)
        push = lambda held, item=(2, 3): tf.raw_ops.TensorListPushBack(  # noqa: E731
            input_handle=held, tensor=tf.constant(item)
        )
        turn = lambda n, held, push=push: (n + 1, push(held))  # noqa: E731
        held = push(tf.while_loop(lambda n, _: n < 4, turn, (0, held))[1], last)
        shape = tf.raw_ops.TensorListPopBack(input_handle=held, **kind).tensor
        found += [(shape, [2]), (tf.zeros(shape), [2, 3] if last == [2, 3] else [OPEN, OPEN])]
    return found


@batch_of(2, 3)
def a_variable_that_grows_in_a_loop(x):
    """It keeps the lengths that no turn changes."""
    grown = tf.while_loop(
        lambda n, _: n < 4,
        lambda n, y: (n + 1, tf.concat([y, y], 1)),
        (0, x),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None, None])),
    )[1]
    return [(grown, [ROW, OPEN, 3])]


@pytest.mark.filterwarnings("ignore:.*sparse_to_dense.*")
@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_those_of_every_batch(graph, name):
    function, inner, static_rows = LENGTHS[name]
    x = tf1.placeholder(tf.float32, [static_rows, *inner])
    expected = function(x)
    others = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
    facts = facts_of(graph, [(each, 0) for each in others], static_rows)
    for tensor, lengths in expected:
        found = facts.shape(tensor)
        if lengths is not None:
            lengths = tuple(n if isinstance(n, Extent) else Extent(n) for n in lengths)
        assert found == lengths, tensor


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
    product = tf.sparse.sparse_dense_matmul(sparse, tf.zeros([9, 4]))
    ends = [KnownRows(sparse.indices, is_picked=True), KnownRows(sparse.values, is_picked=True)]
    vector = sparse.dense_shape
    facts = facts_of(graph, [*ends, KnownShape(vector, [BATCH, 9])])
    assert facts.shape(product) == (ROW, Extent(4))
    assert facts.shape_entries(vector) == (ROW, Extent(9))
    assert facts.value(vector[1]) == 9


@pytest.mark.thorough
def test_inference_of_many_rows_takes_no_memory_for_them(run_python):
    # Far more rows are assumed than the constant; as many int32 are half a GiB.
    run_python(
        """
import resource
from replicate.compat.tensorflow import tf
from tests.splitting.test_facts import SIZED, batch, facts_of

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with tf.Graph().as_default():
    x = batch(4)
    tf.minimum(tf.shape(x)[0], 8_000_000)
    graph = tf.compat.v1.get_default_graph()
    facts_of(graph, [(x, 0)])
    before = peak()
    for grow in SIZED.values():
        tf.zeros([tf.reduce_sum(tf.abs(grow(tf.shape(x)[0]))), 3])
    facts = facts_of(graph, [(x, 0)])
    assert facts._probes[-1].sizes.batch == 134217757
    assert peak() - before < 200, (before, peak())
"""
    )


# Values.


def test_values_are_the_same_for_every_batch(graph):
    x = batch(6, None)
    size = tf.shape(x)
    few, same = tf.minimum(size[0], 20), tf.shape(tf.zeros([size[0] // size[0] * 4]))
    facts = begun(facts_of(graph, [(x, 0)]), [(x, 0)], [size, size[1]])
    assert facts.value(size[1]) == 6
    assert facts.value(few) is None  # of 20 and more rows it is always 20
    assert facts.value(size[2]) is None  # an unknown inner length
    assert facts.value(same) == [4]
    assert facts.shape_entries(size) == (ROW, Extent(6), OPEN)
    np.testing.assert_array_equal(facts.value(tf.constant([0.5, 2.0])), [0.5, 2.0])
    # The graph itself knows no more than its own shape functions do.
    assert facts.constant(size[1]) == 6
    assert facts.constant(same) is None


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


@pytest.mark.parametrize("build", [dense_net, shape_games, all_pairs, sequences])
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
