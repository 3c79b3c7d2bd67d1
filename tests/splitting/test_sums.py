"""A split graph's sums are the strategy's `batch_reduce`: where, by what and in how many bits."""

import numpy as np
import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

DEVICES = [f"/device:CPU:{k}" for k in range(3)]
GPUS = [f"/device:GPU:{k}" for k in range(11)]  # more than are sorted by name
X = np.arange(15.0).reshape(5, 3)  # rows that do not divide
ONES = tf1.ones_initializer()


class Noting(replicate.RingAllReduce):
    """Notes how many columns go where, in each call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def batch_sum(self, columns, places, workers, has_rows=None):
        self.calls.append(places)
        return super().batch_sum(columns, places, workers, has_rows)


class NotingStrategy(replicate.LocalParameterServerStrategy):
    """Notes the pairs of `batch_reduce`."""

    calls = ()

    def batch_reduce(self, aggregation, value_destination_pairs):
        self.calls = [*self.calls, list(value_destination_pairs)]
        return super().batch_reduce(aggregation, value_destination_pairs)


def model(features, labels, mode):
    w = tf1.get_variable("w", [3, 2], tf.float64, ONES)
    b = tf1.get_variable("b", [2], tf.float64, ONES)
    loss = tf.reduce_sum(tf.square(tf.matmul(features, w) + b))
    optimizer = tf1.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return exactness.spec_of(mode, loss, train_op=train_op)


def build(devices=DEVICES, rows=None, **options):
    """Returns the spec of the model, built in the current graph, and what it is fed."""
    tf1.train.create_global_step()
    x = tf1.placeholder(tf.float64, [rows, 3])
    replicated = replicate.replicate_model_fn(model, devices=devices, **options)
    return replicated(x, None, "train"), x


def stepped(spec, x, rows=5):
    """Returns the loss of a step, and the weights after it."""
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(tf1.global_variables_initializer())
        loss, _ = session.run([spec.loss, spec.train_op], {x: X[:rows]})
        return [loss, *session.run(tf1.trainable_variables())]


@pytest.mark.parametrize("rows", [5, 2])  # one device has no row
@pytest.mark.parametrize(
    "ops",
    [
        *(replicate.RingAllReduce(), replicate.RingAllReduce(pack_bytes=1000)),
        replicate.HierarchicalCopyAllReduce(group_size=2),
        *(replicate.ReductionToOneDevice(), replicate.ReductionToOneDevice(pack_bytes=1000)),
    ],
    ids=repr,
)
def test_cross_device_ops_give_one_devices_step(ops, rows):
    strategy = replicate.MirroredStrategy(DEVICES, cross_device_ops=ops)
    with tf.Graph().as_default():
        found = stepped(*build(None, strategy=strategy), rows)
    with tf.Graph().as_default():
        expected = stepped(*build(DEVICES[:1]), rows)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradients_go_to_all_devices_in_one_call_of_cross_device_ops(fresh_graph):
    ops = Noting()
    build(None, strategy=replicate.MirroredStrategy(DEVICES, cross_device_ops=ops))
    calls = [list(map(tuple, places)) for places in ops.calls]
    assert 2 in [places.count(tuple(DEVICES)) for places in calls]  # both gradients


def test_nccl_sums_gradients_between_gpus(fresh_graph):
    ops = replicate.NcclAllReduce(pack_bytes=1000)
    build(None, strategy=replicate.MirroredStrategy(GPUS, cross_device_ops=ops))
    summed = [op for op in fresh_graph.get_operations() if op.type == "NcclAllReduce"]
    assert sorted(op.device for op in summed) == sorted(GPUS)  # both gradients are one


def test_who_wants_one_devices_copy_of_what_nccl_sums_runs_all_devices(fresh_graph):
    def shifted(features, labels, mode):
        differences = features - tf.reduce_sum(features, 0)  # on each device
        return exactness.spec_of(mode, tf.reduce_sum(differences))

    x = tf1.placeholder(tf.float64, [None, 3])
    strategy = replicate.MirroredStrategy(GPUS, cross_device_ops=replicate.NcclAllReduce())
    replicate.replicate_model_fn(shifted, strategy=strategy)(x, None, "eval")
    run = tf1.graph_util.extract_sub_graph(fresh_graph.as_graph_def(), ["tower_1/sub"])
    summed = [node.device for node in run.node if node.op == "NcclAllReduce"]
    assert sorted(summed) == sorted(GPUS)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.complex64, tf.complex128, tf.uint8, tf.uint64])
def test_nccl_sums_what_it_has_no_kernel_for_as_what_it_has(fresh_graph, dtype):
    def shifted(features, labels, mode):
        total = tf.reduce_sum(tf.cast(features, dtype), 0)
        differences = tf.cast(features, dtype) - total  # on each device
        return exactness.spec_of(mode, tf.reduce_sum(tf.cast(differences, tf.float64)))

    x = tf1.placeholder(tf.float64, [None, 3])
    strategy = replicate.MirroredStrategy(GPUS, cross_device_ops=replicate.NcclAllReduce())
    replicate.replicate_model_fn(shifted, strategy=strategy)(x, None, "eval")
    summed = [op for op in fresh_graph.get_operations() if op.type == "NcclAllReduce"]
    assert sorted(op.device for op in summed) == sorted(GPUS)
    for k, place in enumerate(GPUS):
        read = fresh_graph.get_operation_by_name(f"tower_{k}/sub").inputs[1]
        assert (read.dtype, read.device) == (dtype, place)


def test_gradients_travel_in_few_bits_if_that_is_asked_for(fresh_graph):
    ops = replicate.RingAllReduce(transfer_dtype=tf.float16)
    strategy = replicate.MirroredStrategy(DEVICES, cross_device_ops=ops)
    build(None, strategy=strategy)
    casts = [op for op in fresh_graph.get_operations() if op.type == "Cast"]
    assert {op.device for op in casts if op.outputs[0].dtype == tf.float16} == set(DEVICES)


def test_a_strategy_reduces_what_is_wanted_at_one_time_in_one_call(fresh_graph):
    strategy = NotingStrategy(DEVICES, placement="round_robin")
    build(None, strategy=strategy)
    gradients = {str(v.shape) for v in tf1.trainable_variables()}
    calls = [{str(value.values[0].shape) for value, _ in pairs} for pairs in strategy.calls]
    assert [call for call in calls if gradients <= call]
    places = {str(v.values[0].shape): place for pairs in strategy.calls for v, place in pairs}
    assert all(places[str(v.shape)] == [v.device] for v in tf1.trainable_variables())


def test_a_worker_beside_servers_brings_sums_to_each_of_its_devices(fresh_graph):
    jobs = {"chief": ["a:1"], "ps": ["b:1"]}
    cluster = {"cluster": jobs, "task": {"type": "chief", "index": 0}}
    strategy = replicate.ParameterServerStrategy(DEVICES, cluster)

    def centered(features, labels, mode):
        return model(features - tf.reduce_sum(features, 0, name="total"), labels, mode)

    tf1.train.create_global_step()
    x = tf1.placeholder(tf.float64, [None, 3])
    replicate.replicate_model_fn(centered, strategy=strategy)(x, None, "train")
    subtracted = [fresh_graph.get_operation_by_name(f"tower_{k}/sub") for k in range(3)]
    assert [op.inputs[1].device for op in subtracted] == list(strategy.worker_devices)
