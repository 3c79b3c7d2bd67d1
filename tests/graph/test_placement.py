"""Placement: variables on parameter devices, all else with the tower, the user's word first."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations, placement

CPU, GPU_0, GPU_1 = "/device:CPU:0", "/device:GPU:0", "/device:GPU:1"


def placed(chooser, build, worker=GPU_1):
    """Returns the devices of a graph's operations by their names."""
    with tf.Graph().as_default() as graph:
        with tf1.device(placement.device_function(chooser, worker)):
            build()
        return {op.name: op.device for op in graph.get_operations()}


@pytest.mark.parametrize("use_resource", [True, False])
def test_variables_go_to_the_parameter_device_and_all_else_to_the_worker(use_resource):
    def build():
        v = tf1.get_variable(
            "v", [2], initializer=tf1.zeros_initializer(), use_resource=use_resource
        )
        tf.multiply(tf.identity(v, name="read"), 2.0, name="doubled")

    found = placed(placement.round_robin([CPU]), build)
    assert found["v"] == CPU
    assert found["read"] == found["doubled"] == found["doubled/y"] == GPU_1


def test_a_lookup_table_that_changes_is_a_variable():
    def build():
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="words")
        tf.identity(table.lookup(tf.constant(["a"])), name="found")

    found = placed(placement.round_robin([CPU]), build)
    assert found["words/MutableHashTable" if "words/MutableHashTable" in found else "words"] == CPU
    assert found["found"] == GPU_1


def test_the_users_device_is_filled_in_never_overruled_and_takes_no_turn():
    def build():
        for n, device in enumerate(("/cpu:1", "/job:ps/task:1")):
            with tf.device(device):
                tf1.get_variable(f"v{n}", [2], use_resource=True)
                tf.constant(1.0, name=f"c{n}")
        tf1.get_variable("own", [2], use_resource=True)
        tf.constant(1.0, name="d")

    found = placed(placement.round_robin([GPU_0, GPU_1]), build)
    assert found["v0"] == found["c0"] == "/device:CPU:1"
    assert found["v1"] == "/job:ps/task:1/device:GPU:0"
    assert found["c1"] == "/job:ps/task:1/device:GPU:1"
    assert (found["own"], found["d"]) == (GPU_1, GPU_1)


def test_a_colocated_operation_stays_with_its_variable():
    def build():
        v = tf1.get_variable("v", [2], use_resource=True)
        with tf1.colocate_with(v.handle):
            tf1.get_variable("slot", [2], use_resource=True)

    found = placed(placement.round_robin([GPU_0, GPU_1]), build)
    assert found["v"] == found["slot"] == GPU_0


def test_round_robin_takes_turns_over_all_towers():
    chooser = placement.round_robin([GPU_0, GPU_1])
    with tf.Graph().as_default() as graph:
        for worker, names in ((GPU_0, "ab"), (GPU_1, "c")):
            with tf1.device(placement.device_function(chooser, worker)):
                for name in names:
                    tf1.get_variable(name, [2], use_resource=True)
        found = [graph.get_operation_by_name(name).device for name in "abc"]
    assert found == [GPU_0, GPU_1, GPU_0]


def test_balance_counts_bytes():
    # 40, then 8 + 16 on the other; 24 < 40, so the last goes there too.
    chooser = placement.balanced_by_bytes([GPU_0, GPU_1])
    requests = [([10], tf.float32), ([2], tf.int32), ([2], tf.float64), ([1], tf.int8)]
    assert [chooser(*request) for request in requests] == [GPU_0, GPU_1, GPU_1, GPU_1]


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ([2, 3], tf.float32, 24),
        ([], tf.float64, 8),
        ([2], tf.bool, 2),
        ([0, 3], tf.float32, 0),
        ([None, 2], tf.float32, 1024 * 2 * 4),
        (None, None, 1024 * 4),
        ([2], tf.string, 2 * 4),
    ],
)
def test_sizes_are_dimensions_times_item(shape, dtype, size):
    assert placement.size_in_bytes(shape, dtype) == size


def test_merging_fills_in_and_never_overrules():
    assert placement.merged(GPU_0, "") == GPU_0
    assert placement.merged(GPU_0, None) == GPU_0
    assert placement.merged(GPU_0, "/device:CPU:3") == "/device:CPU:3"
    assert placement.merged(GPU_0, "/job:worker") == "/job:worker/device:GPU:0"


def test_nothing_is_beside_what_is_elsewhere(fresh_graph):
    """A stack that a loop of version 1 fills may be put beside what is read, or beside the loop."""
    with tf.device(GPU_0):
        variable = tf1.get_variable("v", initializer=1.0, use_resource=True)
        away = tf.constant(1.0)
    with tf.device(CPU):
        here = tf.constant(1.0)
    stacks = []
    for other in (variable.value().op, variable.handle.op, away.op, here.op):
        with tf1.colocate_with(other, ignore_existing=True):
            stacks.append(tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32).op)
        stacks[-1]._set_device(CPU)
    placement.keep_beside_variables(fresh_graph)
    assert {stack.device for stack in stacks} == {CPU}
    beside = [operations.colocated_with(stack) for stack in stacks]
    assert beside == [[], [], [], [here.op.name]]
