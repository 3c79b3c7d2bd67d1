"""What goes from one device to another travels together; constants do not travel at all."""

import numpy as np
import pytest

import replicate
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import operations
from tests import exactness
from tests.splitting import alike

DEVICES = alike.DEVICES[:3]
X = np.arange(15.0).reshape(5, 3)  # rows that do not divide
ONES = tf1.ones_initializer()


def gathered_after_a_write(x):
    """TensorFlow orders the gather behind the write by the constant alone, its only new input."""
    table = tf1.get_variable("table", [4, 3], tf.float64, ONES, use_resource=True)
    ids = tf.cast(x[:, 0] > 5.0, tf.int32)
    with tf.control_dependencies([table.assign_add(tf.ones([4, 3], tf.float64))]):
        return tf.reduce_sum(tf.gather(table, ids + 1) * x)


def several_after_a_write(x):
    c = tf1.get_variable("c", [], tf.float64, ONES, use_resource=True)
    with tf.control_dependencies([c.assign_add(1.0)]):
        return tf.add_n([tf.reduce_sum(tf.tanh(x) * n) for n in (2.0, 3.0, 4.0)])


def in_a_branch(x):
    c = tf1.get_variable("c", [], tf.float64, ONES, use_resource=True)
    return tf1.cond(c > 0.0, lambda: tf.reduce_sum(x * 2.0 + 3.0), lambda: tf.reduce_sum(x * 4.0))


@pytest.mark.parametrize("make", [gathered_after_a_write, several_after_a_write, in_a_branch])
def test_constants_that_wait_are_not_sent_but_wait_on_each_device(make):
    results = []
    sessions = alike.optimizing_session
    alike.require_alike(lambda x: [make(x)], [X, X + 1], sessions=sessions, look=results.append)
    (ops,) = [next(iter(each.made.values())).graph.get_operations() for each in results]
    sent = [op for op in ops if op.type == "OptionalFromValue"]
    assert not [each.name for op in sent for each in op.inputs if each.op.type == "Const"]
    if make is not in_a_branch:  # of which nothing travels together
        copies = [op for op in ops if op.name.startswith("tower_1/")]
        read = [each.op for op in copies for each in op.inputs if each.op.type == "Const"]
        assert read
        assert {op.device for op in read} == {DEVICES[1]}
    if make is several_after_a_write:
        # Three constants for each of two other devices; they wait for one write by one operation.
        waits = [op for op in ops if op.type == "NoOp" and op.control_inputs]
        assert len([op for op in waits if op.device in DEVICES[1:]]) == 2


def moved(fetches):
    """Returns how many bytes of float32 leave and reach each device; a pack counts once."""
    found = dict.fromkeys(DEVICES, 0)
    executed = operations.executed_by(fetches)
    for source in executed:
        for tensor in source.outputs:
            packed = source.inputs if source.type == "OptionalFromValue" else [tensor]
            entries = [each.shape.num_elements() for each in packed if each.dtype == tf.float32]
            targets = {place(user) for user in tensor.consumers() if user in executed}
            for target in targets - {place(source)}:
                found[place(source)] += 4 * sum(entries)
                found[target] += 4 * sum(entries)
    return found


def place(op):
    """Returns where an operation runs: what uses a variable, where that is."""
    variable = operations.variable_of(op)
    return (op if variable is None else variable).device or DEVICES[0]


def minimized(optimizer):
    """Returns what makes a train_op of a loss by an optimizer."""
    return lambda loss: optimizer().minimize(loss, tf1.train.get_global_step())


def trained(train, strategy, number=6, width=32):
    """Returns the spec of a training of some layers over the devices, and what it is fed.

    Args:
        train: Returns the train_op of a loss.
        strategy: The strategy, or its name.
        number: How many layers there are.
        width: How many units each has.
    """

    def model(features, labels, mode):
        x = features
        for n in range(number):
            w = tf1.get_variable(f"w{n}", [width, width], initializer=exactness.start)
            x = tf.tanh(tf.matmul(x, w))
        loss = tf.reduce_mean(tf.square(x - labels))
        return exactness.spec_of(mode, loss, train_op=train(loss))

    tf1.train.create_global_step()
    devices = DEVICES if isinstance(strategy, str) else None
    replicated = replicate.replicate_model_fn(model, devices=devices, strategy=strategy)
    batch = [tf1.placeholder(tf.float32, [6, width]) for _ in range(2)]
    return replicated(*batch, "train"), batch


@pytest.mark.parametrize("strategy", ["balanced", "round_robin"])
def test_gradients_go_to_their_variables_and_weights_from_them(fresh_graph, strategy):
    """Each device sends (K - 1) / K of the weights, and as many gradients, and gets as many."""
    spec, _ = trained(minimized(tf1.train.AdamOptimizer), strategy)
    weights = 6 * 32 * 32 * 4
    bound = 4 * weights * 2 / 3
    # Beside them there are the batch, powers of Adam's averages, numbers of rows.
    of_batch = 2 * 6 * 32 * 4
    found = moved([spec.loss, spec.train_op])
    assert all(bound <= each <= bound + of_batch + 100 for each in found.values()), (bound, found)


def test_mirrored_weights_are_summed_by_all_devices_alike(fresh_graph):
    """Small gradients are made end to end, but not so many that one device adds up all."""
    spec, _ = trained(minimized(tf1.train.AdamOptimizer), "mirrored", number=30, width=64)
    weights = 30 * 64 * 64 * 4
    bound = 4 * weights * 2 / 3
    of_batch = 2 * 6 * 64 * 4
    found = moved([spec.loss, spec.train_op])
    assert all(each <= bound + of_batch + 100 for each in found.values()), (bound, found)
    assert sum(found.values()) >= 3 * bound


def clipped(gradients, step):
    return tf.clip_by_global_norm([gradient for gradient, _ in gradients], 1.0)[0]


def beside_what_nobody_runs(gradients, step):
    found = [tf.tanh(gradient) for gradient, _ in gradients]
    for gradient in found:
        with tf1.colocate_with(gradient.op):
            tf.identity(gradient, "fetched_by_nobody")
    return found


def decayed(gradients, step):
    """Adds a part of each weight, and an average of gradients, that is kept in a variable."""
    found = []
    for n, (gradient, weight) in enumerate(gradients):
        average = tf1.get_variable(f"m{n}", [32, 32], initializer=exactness.start, trainable=False)
        with tf.control_dependencies([average.assign(0.9 * average + 0.1 * gradient)]):
            found.append(average / (tf.sqrt(tf.cast(step, tf.float32)) + 1.0) + 0.01 * weight)
    return found


@pytest.mark.parametrize("of_gradients", [clipped, beside_what_nobody_runs, decayed])
def test_what_is_made_of_gradients_lies_beside_their_variables(fresh_graph, of_gradients):
    """Norms, clipped gradients and decayed weights move no more bytes than the gradients do."""

    def train(loss):
        step = tf1.train.get_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        found = optimizer.compute_gradients(loss)
        new = of_gradients(found, step)
        pairs = [(gradient, weight) for gradient, (_, weight) in zip(new, found, strict=True)]
        return optimizer.apply_gradients(pairs, step)

    strategy = replicate.LocalParameterServerStrategy(DEVICES, placement="round_robin")
    spec, batch = trained(train, strategy)
    bound = 4 * 6 * 32 * 32 * 4 * 2 / 3
    of_batch = 2 * 6 * 32 * 4
    found = moved([spec.loss, spec.train_op])
    assert all(bound <= each <= bound + of_batch + 400 for each in found.values()), (bound, found)
    with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 3})) as session:
        session.run(tf1.global_variables_initializer())
        session.run(spec.train_op, dict.fromkeys(batch, np.ones([6, 32])))


def test_rows_of_a_tables_gradient_are_gathered_beside_the_table(fresh_graph):
    """The second table is on the second device: no row of its gradient goes by the first one."""

    def model(features, labels, mode):
        tables = [
            tf1.get_variable(f"t{n}", [1000, 16], initializer=exactness.start) for n in range(2)
        ]
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(tables[1], features)))
        loss += 0.0 * tf.reduce_sum(tables[0])
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(
            loss, tf1.train.get_global_step(), var_list=tables[1:]
        )
        return exactness.spec_of(mode, loss, train_op=train_op)

    tf1.train.create_global_step()
    strategy = replicate.LocalParameterServerStrategy(DEVICES[:2], placement="round_robin")
    replicated = replicate.replicate_model_fn(model, strategy=strategy)
    spec = replicated(tf1.placeholder(tf.int32, [6]), None, "train")
    update = [op for op in fresh_graph.get_operations() if op.type == "ResourceScatterSub"]
    update += [op for op in fresh_graph.get_operations() if "ScatterAdd" in op.type]
    executed = operations.executed_by([spec.train_op])
    (update,) = [op for op in update if op in executed]
    gathered = [op for op in operations.executed_by([update]) if op.type == "ConcatV2"]
    assert gathered
    assert {op.device for op in gathered} == {DEVICES[1]}


@pytest.mark.parametrize(
    "spread",
    [
        lambda: tf.fill([6, 4], 2.0),
        lambda: tf.tile([[1.0, 2.0, 3.0, 4.0]], [6, 1]),
        lambda: tf.broadcast_to(3.0, [6, 4]),
    ],
    ids=["Fill", "Tile", "BroadcastTo"],
)
def test_rows_of_a_static_batch_that_are_alike_are_made_where_they_are_read(fresh_graph, spread):
    x = tf1.placeholder(tf.float32, [6, 4])
    made = spread()
    result = alike.split([x], [x * made, tf.identity(made)], static_rows=6)
    assert result.how(made.op) == "split"
    own = [op.device for op in fresh_graph.get_operations() if op.type == made.op.type]
    assert set(DEVICES) <= set(own)
    values = np.arange(24.0).reshape(6, 4)
    with alike.session() as session:
        product, whole = session.run(result.fetch, {x: values})
    np.testing.assert_array_equal(product, values * whole)
    assert whole.shape == (6, 4)


def test_what_devices_have_copies_of_is_not_fed_in_vain(fresh_graph):
    x, rate = tf1.placeholder(tf.float64, [None, 3]), tf.constant(2.0, tf.float64)
    scaled = x * rate
    result = alike.split([x], [tf.reduce_sum(tf.tanh(scaled))])
    values = np.ones([5, 3])
    with alike.session() as session:
        for fed, value in ((rate, 3.0), (scaled, values)):
            with pytest.raises(ValueError, match="may not be fed"):
                session.run(result.fetch[0], {x: values, fed: value})
        session.run(result.fetch[0], {x: values})
