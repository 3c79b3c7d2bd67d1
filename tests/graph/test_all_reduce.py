"""Every all-reduce: right sums, equal copies, on their devices, in few transfers."""

import numpy as np
import pytest

from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import all_reduce
from replicate.strategy import cross_device

ALGORITHMS = {
    "to_one_device": all_reduce.to_one_device,
    "hierarchical_copy": lambda rows, devices, wire: all_reduce.hierarchical_copy(
        rows, devices, 2, wire
    ),
    "ring": all_reduce.ring,
}
SHAPES = [(), (3,), (2, 5), (0,), (7,)]


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request):
    return ALGORITHMS[request.param]


def cpus(count):
    return [f"/device:CPU:{k}" for k in range(count)]


def values(num_devices, shapes=SHAPES, dtype=np.float32):
    """Small whole numbers: their sums are exact in every order."""
    random = np.random.RandomState(0)
    return [
        [random.randint(-8, 8, shape).astype(dtype) for shape in shapes] for _ in range(num_devices)
    ]


def placed(rows, devices):
    made = []
    for row, device in zip(rows, devices, strict=True):
        with tf.device(device):
            made.append([tf.identity(tf.constant(value)) for value in row])
    return made


def transferred(rows, devices, algorithm, pack_bytes=0, dtype=None):
    """The K x N copies that an algorithm makes for a strategy."""
    own = {"_algorithm": staticmethod(algorithm)}
    ops = type("Own", (cross_device.CrossDeviceOps,), own)(pack_bytes, dtype)
    columns = list(zip(*rows, strict=True))
    found = ops.batch_sum(columns, [devices] * len(columns), devices)
    return list(map(list, zip(*found, strict=True)))


def require_sums(found, rows):
    for n, column in enumerate(zip(*rows, strict=True)):
        for copies in found:
            np.testing.assert_array_equal(copies[n], np.sum(column, axis=0))


@pytest.mark.parametrize("pack_bytes", [0, 20, 1000])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
def test_each_device_gets_each_sum(algorithm, num_devices, pack_bytes, session):
    rows, devices = values(num_devices), cpus(num_devices)
    summed = transferred(placed(rows, devices), devices, algorithm, pack_bytes)
    for copies, device in zip(summed, devices, strict=True):
        assert [copy.shape for copy in copies] == SHAPES
        assert {copy.device for copy in copies} == {device}
    require_sums(session.run(summed), rows)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("pack_bytes", [0, 1000])
def test_narrow_copies_are_equal_to_the_last_bit(algorithm, dtype, pack_bytes, session):
    random = np.random.RandomState(1)
    rows = [[random.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in range(4)]
    summed = transferred(placed(rows, cpus(4)), cpus(4), algorithm, pack_bytes, dtype)
    found = session.run(summed)
    for n, column in enumerate(zip(*rows, strict=True)):
        for copies in found:
            assert copies[n].dtype == np.float32
            np.testing.assert_array_equal(copies[n], found[0][n])
            # bfloat16 keeps 8 bits: each of at most 4 roundings errs by 2**-8 of |x| <= 8.
            np.testing.assert_allclose(copies[n], np.sum(column, axis=0), atol=4 * 8 * 2**-8)


def test_sums_are_made_in_full_precision(session):
    # Of 11 bits float16 keeps no 2048 + 1, which stays 2048; it keeps 2048 + 1 + 1.
    rows = [[np.float32(2048.0)], [np.float32(1.0)], [np.float32(1.0)]]
    devices = cpus(3)
    summed = transferred(placed(rows, devices), devices, all_reduce.to_one_device, 0, tf.float16)
    assert session.run(summed) == [[2050.0]] * 3


def test_unknown_shapes_are_reduced_unpacked(algorithm, session):
    rows = values(3, [(5,), (2, 2)])
    tensors = [
        [tf1.placeholder_with_default(tensor, [None] * tensor.shape.rank) for tensor in row]
        for row in placed(rows, cpus(3))
    ]
    summed = transferred(tensors, cpus(3), algorithm, 1000)
    assert [copy.shape.as_list() for copy in summed[0]] == [[None], [None, None]]
    require_sums(session.run(summed), rows)


def test_a_shape_that_differs_is_refused(algorithm):
    rows = [[tf.zeros([2])], [tf.zeros([3])]]
    with pytest.raises(errors.TowerMismatchError, match="tower 1 has the shape"):
        transferred(rows, cpus(2), algorithm, 1000)


def crossings(graph):
    """Counts the tensors that each device takes from others."""
    found = set()
    for op in graph.get_operations():
        found |= {(t.name, op.device) for t in op.inputs if t.device and op.device != t.device}
    return len(found)


def test_what_one_device_sends_to_another_shares_a_transfer(fresh_graph):
    gpus = [f"/device:GPU:{k}" for k in range(4)]
    columns = list(zip(*placed(values(2, [(4,), (3, 2)] * 5), gpus[:2]), strict=True))
    all_reduce.batch_sum_onto(columns, gpus[:2], [gpus[2:]] * 10)
    assert crossings(fresh_graph) == 3  # two devices' parts, and the sums


def test_hierarchy_crosses_between_groups_once_each_way():
    gpus = [f"/device:GPU:{k}" for k in range(4)]
    with tf.Graph().as_default() as graph:
        all_reduce.hierarchical_copy(placed(values(4, [(4,)]), gpus), gpus, 2)
        near = {gpus[0]: 0, gpus[1]: 0, gpus[2]: 1, gpus[3]: 1}
        far = {
            (t.name, op.device)
            for op in graph.get_operations()
            for t in op.inputs
            if near[t.device] != near[op.device]
        }
    assert len(far) == 2


def test_each_sum_goes_to_its_own_place(session):
    rows = values(3, [(2,), (2,), (3,)])
    places = ["/device:CPU:4", "/device:CPU:5", "/device:CPU:4"]
    columns = list(zip(*placed(rows, cpus(3)), strict=True))
    found = all_reduce.batch_sum_onto(columns, cpus(3), [[place] for place in places])
    sums = [total for (total,) in found]
    assert [total.device for total in sums] == places
    require_sums([session.run(sums)], rows)


def test_what_does_not_count_is_left_out_and_copies_go_to_all_places(session):
    rows = values(3, [(2,), (2, 2)])
    columns = list(zip(*placed(rows, cpus(3)), strict=True))
    counts = [True, False, tf.constant(True)]
    places = ["/device:CPU:1", "/device:CPU:4"]
    found = all_reduce.batch_sum_onto(columns, cpus(3), [places] * 2, counts)
    assert [[copy.device for copy in copies] for copies in found] == [places] * 2
    for copies in zip(*session.run(found), strict=True):
        require_sums([copies], [rows[0], rows[2]])


def test_slices_stay_slices_in_a_batch(session):
    def row(x):
        dense = tf.constant([x])
        return [dense, tf.IndexedSlices(tf.constant([[x]]), tf.constant([1])), dense]

    columns, places = list(zip(row(1.0), row(2.0), strict=True)), [["/device:CPU:2"]] * 3
    found = all_reduce.batch_sum_onto(columns, cpus(2), places)
    first, sliced, last = (total for (total,) in found)
    assert isinstance(sliced, tf.IndexedSlices)
    found = session.run([first, sliced.values, last])
    assert [part.tolist() for part in found] == [[3.0], [[1.0], [2.0]], [3.0]]


def test_nccl_is_one_operation_per_gpu(fresh_graph):
    gpus = ["/device:GPU:0", "/device:GPU:1"]
    rows = placed(values(2, [(2,), (3,)]), gpus)
    summed = transferred(rows, gpus, all_reduce.nccl, 0, tf.float16)
    reduced = [op for op in fresh_graph.get_operations() if op.type == "NcclAllReduce"]
    assert sorted(op.device for op in reduced) == [gpus[0]] * 2 + [gpus[1]] * 2
    assert len({op.get_attr("shared_name") for op in reduced}) == 2
    assert {copy.dtype for copies in summed for copy in copies} == {tf.float32}
