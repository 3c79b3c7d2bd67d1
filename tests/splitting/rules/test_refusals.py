"""Operations on rows that no device can do on its own rows alone: each gives one device's values.

Numbers of rows count from a device's own first row, picked rows are a run of a length that only a
run tells, and lists and sparse tensors have entries for some rows: what uses them otherwise must
not take them for that.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from tests.splitting import alike

I64 = tf.int64
VALUES = np.random.RandomState(3).uniform(-1, 1, [4, 4])

_RAW = tf.raw_ops

SHAPES = [
    ("Squeeze", lambda x: tf.squeeze(x[:, :1] * tf.cast(_open([[2.0]]), tf.float64))),
    ("Squeeze", lambda x: tf.squeeze(x[:, :1])),
    ("MirrorPad", lambda x: tf.pad(_kept(x), [[0, 0], [1, 1]], "REFLECT")),
    ("Bitcast", lambda x: tf.bitcast(_whole_numbers(x, tf.int16)[:, 0], tf.int64)),
    ("BroadcastTo", lambda x: tf.broadcast_to(x, [4, 4])),
    ("Sum", lambda x: tf.reduce_sum(tf.reshape(tf.cumsum(x), [-1, *[1] * 7, 2, 2]), [1, 2])),
    ("EnsureShape", lambda x: tf.ensure_shape(x, [4, 4])),
]

GATHERS = [
    ("GatherV2", lambda x: tf.gather(tf.transpose(x), _ids(x))),
    ("GatherV2", lambda x: tf.gather(x, _ids(_kept(x)))),
    ("GatherV2", lambda x: tf.gather(_whole(4, 4), _whole_numbers(x)[:, :2], batch_dims=1)),
    (
        "ScatterNd",
        lambda x: tf.scatter_nd(
            tf.ensure_shape(tf.transpose(_whole_numbers(x)), [4, None]), _whole(4), [4, 4, 4, 4]
        ),
    ),
    ("ReverseSequence", lambda x: tf.reverse_sequence(x, [1, 2, 3, 4], seq_axis=0, batch_axis=1)),
    (
        "ResourceGather",
        lambda x: _RAW.ResourceGather(
            resource=_variable(4, 4).handle,
            indices=_whole_numbers(x)[:, :2],
            dtype=tf.float64,
            batch_dims=1,
        ),
    ),
]


def _rows(x):
    """Returns the number of rows."""
    return tf.shape(x)[0]


def _ids(x):
    """Returns the numbers of all rows."""
    return tf.range(_rows(x))


def _picked(x):
    """Returns the numbers of the rows that a mask picks, in a column, [n, 1]."""
    return tf.where(x[:, 0] > 0.0)


def _columns(x):
    """Returns numbers of rows beside other numbers, which come first, [n, 2]."""
    return tf.stack([tf.zeros_like(_ids(x)), _ids(x)], 1)


def _in_loop(x, function):
    body = lambda i, total: (i + 1, total + function())  # noqa: E731
    return tf1.while_loop(lambda i, total: i < 2, body, (0, tf.zeros([], I64)))[1]


def _whole(*dims, dtype=tf.float64):
    """Returns a value that no rows went into."""
    return tf.reshape(tf.cast(tf.range(int(tf.TensorShape(dims).num_elements())), dtype), dims)


def _unique(x, **more):
    return tf.unique(tf.cast(x[:, 0] * 2.0, I64), **more)


def _kept(x):
    """Returns the rows that a mask picks, [n, 4]."""
    return tf.boolean_mask(x, x[:, 0] > 0.0)


def _open(value):
    """Returns a whole value of which the graph knows the rank alone."""
    value = tf.convert_to_tensor(value)
    return tf1.placeholder_with_default(value, [None] * value.shape.rank)


def _whole_numbers(x, dtype=tf.int32):
    return tf.cast(tf.abs(x) * 3.0, dtype)


def _variable(*dims):
    return tf1.get_variable("v", initializer=_whole(*dims), use_resource=True)


def _image(x):
    """Returns one image, whose height the rows are, [1, B, 4, 1]."""
    return x[None, :, :, None]


def _flows(x, function):
    arrays = [tf.TensorArray(tf.float64, 1, element_shape=[None, 4]).write(0, x) for _ in range(2)]
    flow = function(*[array.flow for array in arrays])
    return _RAW.TensorArrayReadV3(handle=arrays[0].handle, index=0, flow_in=flow, dtype=tf.float64)


def _sparse(x):
    """Returns the numbers of rows that are above 0, as a sparse tensor of shape [B, 4]."""
    return tf.sparse.from_dense(tf.nn.relu(x))


def _words(x):
    return _RAW.StringSplitV2(input=tf.as_string(x[:, 0]), sep=".").values


def _of_shape(x, dense_shape):
    return tf.sparse.SparseTensor(_sparse(x).indices, _sparse(x).values, dense_shape)


def _columns64(x):
    return tf.cast(_columns(x), I64)


def _crossed(x, dense):
    return tf.sparse.cross(
        [
            tf.sparse.SparseTensor(
                _sparse(x).indices, tf.as_string(_sparse(x).values), _sparse(x).dense_shape
            ),
            tf.as_string(dense),
        ]
    )


SPACES = [
    ("Where", lambda x: tf.where(tf.transpose(x) > 0)),
    ("Where", lambda x: _in_loop(x, lambda: tf.reduce_sum(tf.where(x > 0)))),
    ("Range", lambda x: _in_loop(x, lambda: tf.reduce_sum(tf.cast(_ids(x), I64)))),
    ("Range", lambda x: tf.range(_rows(x) // 2)),
    ("Range", lambda x: tf.range(1, _rows(x))),
    ("Cast", lambda x: tf.cast(_ids(x), tf.float64)),
    ("StridedSlice", lambda x: tf.where(x > 0)[1:, 0]),
    ("Reshape", lambda x: tf.reshape(_columns(x), [-1])),
    ("Tile", lambda x: tf.tile(_ids(x), [2])),
    ("Pack", lambda x: tf.stack([_ids(x), _ids(x)], 1)),
    ("ConcatV2", lambda x: tf.concat([_columns(x), _columns(x)], 0)),
    ("ConcatV2", lambda x: tf.concat([tf.where(x > 0), tf.zeros_like(tf.where(x > 0))], 1)),
    ("GatherV2", lambda x: tf.gather(x, _ids(x), axis=1)),
    ("GatherNd", lambda x: tf.gather_nd(_whole(4, 4), tf.where(x > 0))),
    ("UnsortedSegmentSum", lambda x: tf.math.unsorted_segment_sum(x, _ids(x), 2 * _rows(x))),
    ("UnsortedSegmentSum", lambda x: tf.math.unsorted_segment_sum(_whole(4, 1), _ids(x), _rows(x))),
    (
        "SegmentSum",
        lambda x: tf.math.segment_sum(tf.boolean_mask(x, x[:, 0] > 0), _picked(x)[:, 0]),
    ),
    ("ScatterNd", lambda x: tf.scatter_nd(_columns(x), x, [4, 4, 4])),
    ("ScatterNd", lambda x: tf.scatter_nd(_ids(x)[:, None], x, [5, 4])),
    ("UniqueV2", lambda x: tf.raw_ops.UniqueV2(x=x, axis=[0])),
    ("UniqueV2", lambda x: tf.raw_ops.UniqueV2(x=x[:, 0], axis=[-1])),
    ("GatherV2", lambda x: tf.gather(_unique(x).y, [0, 0])),
    ("GatherV2", lambda x: tf.gather(tf.unique(x[:, 0]).y, tf.unique(tf.exp(x[:, 0])).idx)),
    ("AddV2", lambda x: tf.unique(x[:, 0]).y + tf.unique(tf.exp(x[:, 0])).y),
]

OTHERS = [
    (
        "DenseBincount",
        lambda x: _RAW.DenseBincount(
            input=tf.ensure_shape(tf.transpose(_whole_numbers(x)), [4, None]),
            size=5,
            weights=tf.zeros([0]),
        ),
    ),
    ("Sum", lambda x: tf.reduce_sum(_kept(x), axis=_open([1]))),
    ("Conv2D", lambda x: tf.nn.conv2d(_image(x), tf.ones([2, 2, 1, 1], tf.float64), 1, "SAME")),
    (
        "Conv2DBackpropInput",
        lambda x: _RAW.Conv2DBackpropInput(
            input_sizes=_open([4, 4, 1, 1]),
            filter=tf.ones([1, 1, 1, 1], tf.float64),
            out_backprop=x[:, :, None, None],
            strides=[1] * 4,
            padding="SAME",
        ),
    ),
    (
        "Dilation2DBackpropFilter",
        lambda x: _RAW.Dilation2DBackpropFilter(
            input=_whole_numbers(x)[:, :, None, None],
            filter=tf.zeros([1, 1, 1], tf.int32),
            out_backprop=_whole_numbers(x)[:, :, None, None],
            strides=[1] * 4,
            rates=[1] * 4,
            padding="SAME",
        ),
    ),
    (
        "ImageProjectiveTransformV3",
        lambda x: _RAW.ImageProjectiveTransformV3(
            images=_image(x),
            transforms=[[1.0, 0, 0, 0, 1, 0, 0, 0]],
            output_shape=[4, 4],
            fill_value=0.0,
            interpolation="NEAREST",
        ),
    ),
    ("MatrixTriangularSolve", lambda x: tf.linalg.triangular_solve(x, tf.exp(x))),
    ("Add", lambda x: _flows(x, lambda a, b: _RAW.Add(x=a, y=b))),
]

SPARSE = [
    ("StringSplitV2", lambda x: _in_loop(x, lambda: tf.size(_words(x), I64))),
    (
        "SparseSegmentSum",
        lambda x: tf.sparse.segment_sum(_whole(4, 2), tf.constant([3, 1, 1, 0]), _ids(x)),
    ),
    ("SparseReduceSum", lambda x: tf.sparse.reduce_sum(_of_shape(x, tf.shape(x, I64) * [2, 1]), 1)),
    (
        "SparseReshape",
        lambda x: tf.sparse.reshape(_sparse(_kept(x)), tf.stack([_rows(_kept(x)), 2, -1])),
    ),
    ("SparseReshape", lambda x: tf.sparse.reshape(_sparse(x), [2, 8])),
    (
        "SparseToDense",
        lambda x: _RAW.SparseToDense(
            sparse_indices=_columns(x),
            output_shape=[1, 4],
            sparse_values=x[:, 0],
            default_value=tf.constant(0.0, tf.float64),
        ),
    ),
    ("SparseReduceMax", lambda x: tf.sparse.reduce_max(_sparse(x), 0)),
    (
        "SparseConcat",
        lambda x: tf.sparse.concat(
            1,
            [
                _sparse(x),
                tf.sparse.SparseTensor(_sparse(_kept(x)).indices, _sparse(_kept(x)).values, [4, 4]),
            ],
        ),
    ),
    ("SparseCrossV2", lambda x: _crossed(x, _whole(4, 1))),
    (
        "SparseFillEmptyRows",
        lambda x: tf.sparse.fill_empty_rows(
            tf.sparse.SparseTensor(_columns64(x), x[:, 0], [1, 4]), tf.constant(1.0, tf.float64)
        )[0],
    ),
    (
        "SparseTensorDenseMatMul",
        lambda x: tf.sparse.sparse_dense_matmul(
            tf.sparse.SparseTensor(_columns64(x), x[:, 0], [1, 4]), _whole(4, 2)
        ),
    ),
]


def _array(x, number=2):
    return tf.TensorArray(tf.float64, number, infer_shape=False, clear_after_read=False)


def _read(array, flow):
    return _RAW.TensorArrayReadV3(handle=array.handle, index=0, flow_in=flow, dtype=tf.float64)


def _read_first(x):
    """Reads an element by a flow from before it is written."""
    array = _array(x)
    written = array.write(0, x)
    with tf.control_dependencies([written.flow]):
        return _read(array, tf.identity(array.flow))


def _without_order(x):
    array = _array(x)
    flow = _RAW.TensorArrayWriteV3(
        handle=array.handle, index=0, value=x, flow_in=tf.exp(array.flow)
    )
    return _read(array, flow)


def _graded_first(x):
    """Makes the array of gradients before the array is written."""
    array = _array(x)
    _, flow = _RAW.TensorArrayGradV3(handle=array.handle, flow_in=array.flow, source="g")
    with tf.control_dependencies([flow]):
        return array.write(0, x).read(0)


def _list(number=2):
    return _RAW.TensorListReserve(element_shape=-1, num_elements=number, element_dtype=tf.float64)


def _set(held, index, item):
    return _RAW.TensorListSetItem(input_handle=held, index=index, item=item)


def _get(held, index, shape=-1):
    return _RAW.TensorListGetItem(
        input_handle=held, index=index, element_shape=shape, element_dtype=tf.float64
    )


def _listed(tensor, shape=-1):
    return _RAW.TensorListFromTensor(tensor=tensor, element_shape=shape)


def _element_shape(held):
    return _RAW.TensorListElementShape(input_handle=held, shape_type=tf.int32)


def _added(start, x):
    """Adds sums over rows, of whole numbers, to what a loop begins with, [4, 4]."""
    x = _whole_numbers(x, tf.float64)
    sums = lambda: tf.matmul(x, x, transpose_a=True)  # noqa: E731
    return tf1.while_loop(lambda i, _: i < 3, lambda i, made: (i + 1, made + sums()), (0, start))


def _whole_sum(x):
    return tf.reduce_sum(tf.cast(_whole_numbers(x), tf.float64), 0)


LISTS = [
    ("Merge", lambda x: tf1.cond(x[0, 0] > 0.0, lambda: tf.exp(x), lambda: tf.transpose(x))),
    ("TensorArrayWriteV3", lambda x: _array(x).write(0, x).write(1, tf.transpose(x)).read(1)),
    ("TensorArrayReadV3", _read_first),
    ("TensorArrayWriteV3", _without_order),
    ("TensorArrayGradV3", _graded_first),
    ("TensorArrayConcatV3", lambda x: _array(x).write(0, x).write(1, 2.0 * x).concat()),
    ("TensorArraySplitV3", lambda x: _array(x).split(tf.transpose(x), [1, 3]).read(1)),
    ("TensorListFromTensor", lambda x: _get(_listed(_whole_sum(x)), 1)),
    ("TensorListSetItem", lambda x: _get(_set(_listed(_whole(2, 4)), 0, x[:, 0]), 0)),
    ("TensorListSetItem", lambda x: _get(_set(_set(_list(), 0, x), 1, tf.transpose(x)), 1)),
    ("TensorListGetItem", lambda x: _get(_listed(_whole(2, 4)), _rows(x) - 4)),
    ("TensorListElementShape", lambda x: _element_shape(_set(_list(), 0, x))),
    ("Enter", lambda x: _in_loop(x, lambda: tf.reduce_sum(_unique(x).y))),
    ("NextIteration", lambda x: _added(_whole(4, 4), x)),  # not one for each device
    (
        "NextIteration",
        lambda x: tf1.while_loop(
            lambda i, total: i < 2,
            lambda i, total: (i + 1, tf.sqrt(total)),
            (0, tf.reduce_sum(_whole_numbers(x, tf.float64))),
        ),
    ),
    (
        "IdentityN",
        lambda x: _RAW.ReadVariableOp(
            resource=_RAW.IdentityN(input=[x, _variable(4, 4).handle])[1], dtype=tf.float64
        ),
    ),
]

CASES = LISTS + SPACES + SHAPES + GATHERS + OTHERS + SPARSE


@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize(
    ("kind", "function"), CASES, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(CASES)]
)
def test_values_are_those_of_one_device(kind, function):
    def make(x):
        found = tf.nest.flatten(function(x), expand_composites=True)
        assert kind in {op.type for op in tf1.get_default_graph().get_operations()}
        return found

    alike.require_alike(make, [VALUES], tolerance=(0.0, 0.0))


def _of_branches(x, takes):
    total = tf.reduce_sum(x, 0)
    return tf1.cond(takes, lambda: total * 2.0, lambda: total * 3.0)


def _of_branches_of_which_one_is_whole(x, takes):
    return tf1.cond(takes, lambda: tf.exp(x), lambda: tf.cumsum(x, 0))


def _of_a_loop_that_adds(x, takes):
    def body(n, total):
        return n + 1, total + tf.reduce_sum(tf.exp(x), 0)

    times = tf.where(takes, 3, 1)
    return tf.while_loop(lambda n, _: n < times, body, [0, tf.zeros([4], tf.float64)])[1]


def _of_a_list_of_branches(x, takes):
    held, new = _set(_list(), 0, tf.exp(x)), _list()
    return _get(tf1.cond(takes, lambda: _set(held, 1, x), lambda: _set(new, 1, -x)), 1)


def _of_a_list_that_a_branch_makes(x, takes):
    held, empty = _set(_list(), 1, tf.exp(x)), _list()
    taken = tf.logical_or(takes, tf.reduce_any(x > -9.0))  # nothing can be read from an empty one
    return _get(tf1.cond(taken, lambda: tf.identity(held), lambda: tf.identity(empty)), 1)


@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("Merge", _of_branches),
        ("Sum", _of_a_loop_that_adds),
        ("Merge", _of_branches_of_which_one_is_whole),
        ("Merge", _of_a_list_of_branches),
        ("TensorListGetItem", _of_a_list_of_branches),
        ("TensorListGetItem", _of_a_list_that_a_branch_makes),
    ],
)
def test_what_branches_give_is_each_devices_own(kind, function, takes):
    made, results = [], []

    def make(x):
        found = function(x, tf1.placeholder_with_default(takes, []))
        made[:] = [op for op in tf1.get_default_graph().get_operations() if op.type == kind]
        return [found]

    alike.require_alike(make, [VALUES], look=results.append)
    assert [results[0].how(op) for op in made] == ["split"] * len(made) != []


@pytest.mark.parametrize("width", [4, None])
def test_a_sparse_batch_of_an_unknown_rank_is_split(fresh_graph, width):
    given = tf1.sparse_placeholder(tf.float64, None if width is None else [None, width])
    sums, dense = tf.sparse.reduce_sum(given, 1), tf.sparse.to_dense(given)
    kinds = ("SparseReduceSum", "SparseToDense")
    made = [op for op in fresh_graph.get_operations() if op.type in kinds]
    result = alike.split([given], [sums, dense, tf.identity(given.indices)])
    assert [result.how(op) for op in made] == ["split", "split"]
    places = [[0, 1], [0, 3], [2, 0], [3, 2]]
    value = tf1.SparseTensorValue(places, [1.0, 2.0, 3.0, 4.0], [4, 4])
    with alike.session() as session:
        found = session.run(result.fetch, {given: value})
    np.testing.assert_array_equal(found[0], [3.0, 0.0, 3.0, 4.0])
    np.testing.assert_array_equal(found[2], places)
    assert [found[1][place] for place in map(tuple, places)] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("num_devices", [0, 3])
def test_what_is_too_short_on_one_device_is_so_on_several(num_devices):
    def make(x, ids):
        found = tf.nn.embedding_lookup_sparse(tf.ones([6, 4]), ids, None, combiner="sum")
        return [x + found]

    bags = tf1.SparseTensorValue([[0, 0], [2, 1]], np.array([3, 4]), [4, 4])  # none in the last row
    with pytest.raises(tf.errors.InvalidArgumentError):
        alike.run(make, [(np.ones([4, 4], np.float32), bags)], num_devices)


@pytest.mark.parametrize(
    ("stitch", "reason"),
    [
        (lambda at, x: ([at[0], at[1]], [x[0], x[1]]), "split"),
        (lambda at, x: ([at[1], at[0]], [x[1], x[0]]), "not each row is put in once"),
        (lambda at, x: ([at[0]], [x[0]]), "not each row is put in once"),
        (lambda at, x: ([at[0], at[1]], [x[1], x[0]]), "an operand has other rows"),
    ],
    ids=["back", "turned", "a part", "crossed"],
)
def test_rows_are_put_together_as_they_were_parted(fresh_graph, stitch, reason):
    x, of = tf1.placeholder(tf.float64, [None, 2]), tf1.placeholder(tf.int32, [None])
    parts = tf.dynamic_partition(x, of, 2)
    numbers = tf.dynamic_partition(tf.range(tf.shape(x)[0]), of, 2)
    found = tf.dynamic_stitch(*stitch(numbers, parts))
    result = alike.split([x, of], [found])
    assert reason in (result.how(found.op), result.why(found.op))
    values = np.arange(8.0).reshape(4, 2)
    with alike.session() as session:
        given = session.run(result.fetch[0], {x: values, of: [0, 1, 1, 0]})
    if reason == "split":
        np.testing.assert_array_equal(given, values)
