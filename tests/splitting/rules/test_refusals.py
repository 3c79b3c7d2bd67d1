"""Operations on rows that no device can do on its own rows alone: each gives one device's values.

Numbers of rows count from a device's own first row, picked rows are a run of a length that only a
run tells, and lists and sparse tensors have entries for some rows: what uses them otherwise must
not take them for that. A case says why the operation is whole, where there is one reason.
"""

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from tests import exactness

I64 = tf.int64
DEVICES = [f"/device:CPU:{k}" for k in range(3)]

_RAW = tf.raw_ops

SHAPES = [
    (
        "Squeeze",
        "which axes go away is not known",
        lambda x: tf.squeeze(x[:, :1] * tf.cast(_open([[2.0]]), tf.float64)),
    ),
    ("Squeeze", None, tf.squeeze),
    (
        "Squeeze",
        "the axis of rows goes away where there is one row",
        lambda x: tf.squeeze(x[:, :1]),
    ),
    (
        "MirrorPad",
        "a device may have no rows",
        lambda x: tf.pad(_kept(x), [[0, 0], [1, 1]], "REFLECT"),
    ),
    (
        "Roll",
        None,
        lambda x: tf.roll(tf.reduce_sum(tf.cast(_whole_numbers(x), tf.float64), 0), 1, 0),
    ),
    (
        "Bitcast",
        "it works along rows",
        lambda x: tf.bitcast(_whole_numbers(x, tf.int16)[:, 0], tf.int64),
    ),
    ("BroadcastTo", "the shape has no rows there", lambda x: tf.broadcast_to(x, [4, 4])),
    (
        "EnsureShape",
        None,
        lambda x: tf.ensure_shape(tf.reduce_sum(tf.cast(_whole_numbers(x), tf.float64), 0), [4]),
    ),
    (
        "Sum",
        "a tensor has more dimensions than kernels cut",
        lambda x: tf.reduce_sum(tf.reshape(tf.cumsum(x), [-1, *[1] * 7, 2, 2]), [1, 2]),
    ),
    ("EnsureShape", "it fixes the number of rows", lambda x: tf.ensure_shape(x, [4, 4])),
    ("Fill", None, lambda x: tf.zeros([tf.maximum(tf.shape(_kept(x))[0], tf.shape(_kept(-x))[0])])),
]

GATHERS = [
    ("GatherV2", None, lambda x: tf.gather(tf.transpose(x), _ids(x))),
    ("GatherV2", None, lambda x: tf.gather(x, _ids(_kept(x)))),
    ("GatherV2", None, lambda x: tf.gather(tf.reshape(x, [-1, 2]), _ids(x))),
    (
        "GatherV2",
        "an input has another length than there are rows",
        lambda x: tf.gather(_whole(4, 4), _whole_numbers(x)[:, :2], batch_dims=1),
    ),
    ("GatherNd", None, lambda x: tf.gather_nd(_whole(9), _whole_numbers(x)[:, :1] * _open([[1]]))),
    (
        "ScatterNd",
        "it works along rows",
        lambda x: tf.scatter_nd(
            tf.ensure_shape(tf.transpose(_whole_numbers(x)), [4, None]), _whole(4), [4, 4, 4, 4]
        ),
    ),
    (
        "ReverseSequence",
        "it works along rows",
        lambda x: tf.reverse_sequence(x, [1, 2, 3, 4], seq_axis=0, batch_axis=1),
    ),
    (
        "ReverseSequence",
        None,
        lambda x: tf.reverse_sequence(
            tf.tile(x[:, :, None], [1, 1, 2]), [1, 2], seq_axis=1, batch_axis=2
        ),
    ),
    (
        "ResourceGather",
        "it works along rows",
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


def _upright(x):
    return tf.stack([_ids(x), tf.zeros_like(_ids(x))], 0)


def _unique(x, **more):
    return tf.unique(tf.cast(x[:, 0] * 2.0, I64), **more)


def _kept(x):
    """Returns the rows that a mask picks, [n, 4]."""
    return tf.boolean_mask(x, x[:, 0] > 0.0)


def _open(value):
    """Returns a whole value of which the graph knows the rank alone."""
    value = tf.convert_to_tensor(value)
    return tf1.placeholder_with_default(value, [None] * value.shape.rank)


def _wide(x):
    """Returns rows of a width that the graph does not know, [B, 1]."""
    return x[:, :1] * _open([[2.0]]) if x.dtype == tf.float64 else x[:, :1] * _open([[2]])


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


def _picked_from_different(x):
    """Picks columns of what different values look up."""
    found = tf.unique(tf.cast(x[:, 0] > 0, I64))
    return tf.gather(tf.gather(_whole(2, 3), found.y), found.idx, axis=1)


SPACES = [
    (
        "Where",
        "its rows are not along the first dimension",
        lambda x: tf.where(tf.transpose(x) > 0),
    ),
    ("Where", None, lambda x: _in_loop(x, lambda: tf.reduce_sum(tf.where(x > 0)))),
    ("Range", None, lambda x: _in_loop(x, lambda: tf.reduce_sum(tf.cast(_ids(x), I64)))),
    ("Range", None, lambda x: tf.range(_rows(x) // 2)),
    ("Range", None, lambda x: tf.range(1, _rows(x))),
    ("Range", None, lambda x: tf.range(tf.cast(_rows(x), tf.float32))),
    ("Cast", None, lambda x: tf.cast(_ids(x), tf.float64)),
    ("StridedSlice", None, lambda x: _upright(x)[:, :1]),
    ("StridedSlice", None, lambda x: tf.where(x > 0)[1:, 0]),
    ("StridedSlice", None, lambda x: tf.where(x > 0)[:, 0:1]),
    ("Transpose", None, lambda x: tf.transpose(_upright(x), [0, 1])),
    ("Reshape", None, lambda x: tf.reshape(_columns(x), [-1])),
    ("Reshape", None, lambda x: tf.reshape(tf.where(x > 0), [-1])),
    ("Tile", None, lambda x: tf.tile(_ids(x), [2])),
    ("Pack", None, lambda x: tf.stack([_ids(x)[:, None]] * 2, 1)),
    ("Pack", None, lambda x: tf.stack([_ids(x), _ids(x)], 1)),
    ("Pack", None, lambda x: tf.stack([tf.where(x > 0), tf.zeros_like(tf.where(x > 0))], 2)),
    ("ConcatV2", None, lambda x: tf.concat([_columns(x), _columns(x)], 0)),
    ("ConcatV2", None, lambda x: tf.concat([tf.where(x > 0), tf.zeros_like(tf.where(x > 0))], 1)),
    (
        "Pack",
        None,
        lambda x: tf.stack(
            [_picked(x)[:, 0], tf.zeros(tf.shape(tf.where(x[:, 0] > 0.0))[:1], I64)], 1
        ),
    ),
    ("GatherV2", None, lambda x: tf.gather(x, _ids(x), axis=1)),
    ("GatherV2", None, lambda x: tf.gather(_whole(9), _ids(x))),
    ("GatherNd", None, lambda x: tf.gather_nd(_whole(4, 4, 4, 4), _ids(x))),
    ("GatherNd", None, lambda x: tf.gather_nd(_whole(4, 4), tf.where(x > 0))),
    ("UnsortedSegmentSum", None, lambda x: tf.math.unsorted_segment_sum(x, _ids(x), 2 * _rows(x))),
    ("UnsortedSegmentSum", None, lambda x: tf.math.unsorted_segment_sum(x, _ids(x), 7)),
    (
        "UnsortedSegmentSum",
        None,
        lambda x: tf.math.unsorted_segment_sum(_whole(4, 1), _ids(x), _rows(x)),
    ),
    (
        "UnsortedSegmentSum",
        None,
        lambda x: tf.math.unsorted_segment_sum(tf.concat([x, x], 1)[:, :2], _columns(x), _rows(x)),
    ),
    (
        "SegmentSum",
        None,
        lambda x: tf.math.segment_sum(tf.boolean_mask(x, x[:, 0] > 0), _picked(x)[:, 0]),
    ),
    ("ScatterNd", None, lambda x: tf.scatter_nd(_columns(x), x, [4, 4, 4])),
    ("ScatterNd", None, lambda x: tf.scatter_nd(_ids(x)[:, None], _whole(4), _rows(x)[None])),
    ("ScatterNd", None, lambda x: tf.scatter_nd(_ids(x)[:, None], x, [5, 4])),
    ("UniqueV2", "its values have no rows", lambda x: tf.raw_ops.UniqueV2(x=x, axis=[0])),
    (
        "UniqueV2",
        "it is along another dimension",
        lambda x: tf.raw_ops.UniqueV2(x=x[:, 0], axis=[-1]),
    ),
    ("GatherV2", None, lambda x: tf.gather(_unique(x).y, [0, 0])),
    ("GatherV2", None, lambda x: tf.gather(tf.unique(x[:, 0]).y, tf.unique(tf.exp(x[:, 0])).idx)),
    ("GatherV2", None, lambda x: tf.gather(x, tf.unique(_ids(x) // 2).y)),
    (
        "GatherV2",
        None,
        lambda x: tf.gather(_whole(2, 3), tf.unique(tf.cast(x[:, 0] > 0, I64)).y, axis=1),
    ),
    ("GatherV2", None, _picked_from_different),
    (
        "AddV2",
        None,
        lambda x: tf.reduce_sum(tf.unique(x[:, 0]).y[:1] + tf.unique(tf.exp(x[:, 0])).y[:1]),
    ),
    ("AddV2", None, lambda x: tf.unique(x[:, 0]).y + tf.unique(tf.exp(x[:, 0])).y),
    ("Sum", None, lambda x: tf.reduce_sum(tf.unique(x[:, 0]).y)),
]

OTHERS = [
    (
        "DenseBincount",
        "it works along rows",
        lambda x: _RAW.DenseBincount(
            input=tf.ensure_shape(tf.transpose(_whole_numbers(x)), [4, None]),
            size=5,
            weights=tf.zeros([0]),
        ),
    ),
    (
        "DenseBincount",
        None,
        lambda x: _RAW.DenseBincount(input=_whole_numbers(x)[:, 0], size=5, weights=tf.zeros([0])),
    ),
    ("Sum", None, lambda x: tf.reduce_sum(_kept(x), axis=_open([1]))),
    (
        "Conv2D",
        "it works along rows",
        lambda x: tf.nn.conv2d(_image(x), tf.ones([2, 2, 1, 1], tf.float64), 1, "SAME"),
    ),
    (
        "Conv2DBackpropInput",
        "a shape is not known",
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
        "only floating sums are joined",
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
        "it works along rows",
        lambda x: _RAW.ImageProjectiveTransformV3(
            images=_image(x),
            transforms=[[1.0, 0, 0, 0, 1, 0, 0, 0]],
            output_shape=[4, 4],
            fill_value=0.0,
            interpolation="NEAREST",
        ),
    ),
    (
        "MatrixTriangularSolve",
        "it works along rows",
        lambda x: tf.linalg.triangular_solve(x, tf.exp(x)),
    ),
    ("Add", None, lambda x: _flows(x, lambda a, b: _RAW.Add(x=a, y=b))),
    (
        "Add",
        None,
        lambda x: _flows(x, lambda a, b: _RAW.Add(x=a, y=tf.cast(tf.reduce_max(x), tf.float32))),
    ),
]

SPARSE = [
    ("StringSplitV2", None, lambda x: _in_loop(x, lambda: tf.size(_words(x), I64))),
    (
        "SparseSegmentSum",
        None,
        lambda x: tf.sparse.segment_sum(_whole(4, 2), tf.constant([3, 1, 1, 0]), _ids(x)),
    ),
    (
        "SparseSegmentSum",
        None,
        lambda x: tf.sparse.segment_sum(tf.exp(x), _whole_numbers(x)[:, 0], _ids(x)),
    ),
    (
        "SparseReduceSum",
        "it makes another number of rows",
        lambda x: tf.sparse.reduce_sum(_of_shape(x, tf.shape(x, I64) * [2, 1]), 1),
    ),
    (
        "SparseReduceSum",
        "it makes another number of rows",
        lambda x: tf.sparse.reduce_sum(_of_shape(x, tf.add(tf.shape(x, I64), [1, 0])), 1),
    ),
    ("SparseReshape", None, lambda x: tf.sparse.reshape(_sparse(_kept(x)), [-1, 2])),
    (
        "SparseReshape",
        "a length is left over beside rows that may be none",
        lambda x: tf.sparse.reshape(_sparse(_kept(x)), tf.stack([_rows(_kept(x)), 2, -1])),
    ),
    ("SparseReshape", None, lambda x: tf.sparse.reshape(_sparse(x), [2, 8])),
    ("SparseReshape", None, lambda x: tf.sparse.reshape(_sparse(x), tf.stack([8, 2]))),
    ("SparseReshape", None, lambda x: tf.sparse.reshape(_sparse(x), [1, -1])),
    (
        "SparseToDense",
        None,
        lambda x: _RAW.SparseToDense(
            sparse_indices=_columns(x),
            output_shape=[1, 4],
            sparse_values=x[:, 0],
            default_value=tf.constant(0.0, tf.float64),
        ),
    ),
    ("SparseReduceMax", None, lambda x: tf.sparse.reduce_max(_sparse(x), 0)),
    (
        "SparseConcat",
        None,
        lambda x: tf.sparse.concat(
            1,
            [
                _sparse(x),
                tf.sparse.SparseTensor(_sparse(_kept(x)).indices, _sparse(_kept(x)).values, [4, 4]),
            ],
        ),
    ),
    ("SparseCrossV2", None, lambda x: _crossed(x, _whole(4, 1))),
    ("SparseCrossV2", None, lambda x: _crossed(x, tf.reshape(x, [-1, 1])[:4])),
    (
        "SparseFillEmptyRows",
        None,
        lambda x: tf.sparse.fill_empty_rows(
            tf.sparse.SparseTensor(_columns64(x), x[:, 0], [1, 4]), tf.constant(1.0, tf.float64)
        )[0],
    ),
    (
        "SparseTensorDenseMatMul",
        None,
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
    (
        "Merge",
        "branches or loops give different rows",
        lambda x: tf1.cond(x[0, 0] > 0.0, lambda: tf.exp(x), lambda: tf.transpose(x)),
    ),
    (
        "Merge",
        "branches or loops give different rows",
        lambda x: tf1.cond(x[0, 0] < 0.0, lambda: tf.exp(x), lambda: tf.transpose(x)),
    ),
    ("TensorArrayWriteV3", None, lambda x: _array(x).write(0, x).write(1, tf.transpose(x)).read(1)),
    ("TensorArrayReadV3", None, _read_first),
    ("TensorArrayWriteV3", None, _without_order),
    ("TensorArrayGradV3", None, _graded_first),
    ("TensorArrayConcatV3", None, lambda x: _array(x).write(0, x).write(1, 2.0 * x).concat()),
    ("TensorArraySplitV3", None, lambda x: _array(x).split(tf.transpose(x), [1, 3]).read(1)),
    ("TensorListFromTensor", None, lambda x: _get(_listed(_whole_sum(x)), 1)),
    ("TensorListSetItem", None, lambda x: _get(_set(_listed(_whole(2, 4)), 0, x[:, 0]), 0)),
    ("TensorListSetItem", None, lambda x: _get(_set(_set(_list(), 0, x), 1, _whole(4, 4)), 0)),
    ("TensorListSetItem", None, lambda x: _get(_set(_set(_list(), 0, x), 1, tf.transpose(x)), 1)),
    ("TensorListGetItem", None, lambda x: _get(_listed(_whole(2, 4)), _rows(x) - 4)),
    ("TensorListElementShape", None, lambda x: _element_shape(_set(_list(), 0, x))),
    ("TensorListElementShape", None, lambda x: _element_shape(_listed(x, [4]))),
    ("TensorListElementShape", None, lambda x: _element_shape(_listed(tf.transpose(x), [4]))),
    ("Enter", None, lambda x: _in_loop(x, lambda: tf.reduce_sum(_unique(x).y))),
    ("NextIteration", None, lambda x: _added(_whole(4, 4), x)),  # not one for each device
    ("NextIteration", None, lambda x: _added(tf.zeros_like(x), x)),
    (
        "NextIteration",
        None,
        lambda x: tf1.while_loop(
            lambda i, total: i < 2,
            lambda i, total: (i + 1, tf.sqrt(total)),
            (0, tf.reduce_sum(_whole_numbers(x, tf.float64))),
        ),
    ),
    (
        "IdentityN",
        "an operand is a handle",
        lambda x: _RAW.ReadVariableOp(
            resource=_RAW.IdentityN(input=[x, _variable(4, 4).handle])[1], dtype=tf.float64
        ),
    ),
]

CASES = LISTS + SPACES + SHAPES + GATHERS + OTHERS + SPARSE


@pytest.fixture
def old_control_flow():
    before = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    yield
    if before:
        tf1.enable_control_flow_v2()


@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize(
    ("kind", "reason", "function"),
    CASES,
    ids=[f"{kind}-{n}" for n, (kind, *_) in enumerate(CASES)],
)
def test_values_are_those_of_one_device(fresh_graph, kind, reason, function):
    x = tf1.placeholder(tf.float64, [None, 4])
    made = tf.nest.flatten(function(x), expand_composites=True)
    made_by_it = [op for op in fresh_graph.get_operations() if op.type == kind]
    assert made_by_it
    result = splitter.split_graph([x], DEVICES, made, home=DEVICES[0])
    if reason is not None:
        reasons = [result.why(op) for op in made_by_it if result.how(op) == "whole"]
        assert reason in reasons
    values = np.random.RandomState(3).uniform(-1, 1, [4, 4])
    with tf1.Session(graph=fresh_graph, config=exactness.session_config()) as session:
        session.run(tf1.global_variables_initializer())
        expected, found = session.run([made, result.fetch], {x: values})
    for one, split in zip(expected, found, strict=True):
        np.testing.assert_array_equal(split, one)


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
def test_what_branches_give_is_each_devices_own(fresh_graph, kind, function, takes):
    x, taken = tf1.placeholder(tf.float64, [None, 4]), tf1.placeholder(tf.bool, [])
    made = function(x, taken)
    ops = [op for op in fresh_graph.get_operations() if op.type == kind]
    result = splitter.split_graph([x], DEVICES, [made], home=DEVICES[0])
    assert [result.how(op) for op in ops] == ["split"] * len(ops) != []
    values = np.random.RandomState(3).uniform(-1, 1, [4, 4])
    with tf1.Session(graph=fresh_graph, config=exactness.session_config()) as session:
        one, split = session.run([made, result.fetch[0]], {x: values, taken: takes})
    np.testing.assert_allclose(split, one, 1e-12)


@pytest.mark.parametrize("width", [4, None])
def test_a_sparse_batch_of_an_unknown_rank_is_split(fresh_graph, width):
    given = tf1.sparse_placeholder(tf.float64, None if width is None else [None, width])
    sums, dense = tf.sparse.reduce_sum(given, 1), tf.sparse.to_dense(given)
    made = [
        op for op in fresh_graph.get_operations() if op.type in ("SparseReduceSum", "SparseToDense")
    ]
    result = splitter.split_graph([given], DEVICES, [sums, dense], home=DEVICES[0])
    assert [result.how(op) for op in made] == ["split", "split"]
    places = [[0, 1], [0, 3], [2, 0], [3, 2]]
    value = tf1.SparseTensorValue(places, [1.0, 2.0, 3.0, 4.0], [4, 4])
    with tf1.Session(graph=fresh_graph, config=exactness.session_config()) as session:
        found = session.run(result.fetch, {given: value})
    np.testing.assert_array_equal(found[0], [3.0, 0.0, 3.0, 4.0])
    assert found[1].shape == (4, 4)
    assert [found[1][place] for place in map(tuple, places)] == [1.0, 2.0, 3.0, 4.0]
