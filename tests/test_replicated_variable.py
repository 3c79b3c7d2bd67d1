"""SPEC section 4: the TPU-style variable, its scope, and the scope for optimizers."""

import contextlib
import os

import numpy as np
import pytest
from tensorflow.python.ops import resource_variable_ops

from replicate import errors, replicated_variable
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import default
from replicate.strategy.policies import mirrored, parameter_server

K = 2
CPUS = "/device:CPU:{}"
DEVICES = [CPUS.format(i) for i in range(K)]
GLOBAL = tf1.GraphKeys.GLOBAL_VARIABLES
TRAINABLE = tf1.GraphKeys.TRAINABLE_VARIABLES
STRATEGIES = [
    pytest.param(lambda: mirrored.MirroredStrategy(DEVICES), id="mirrored"),
    pytest.param(
        lambda: parameter_server.LocalParameterServerStrategy(DEVICES), id="parameter_server"
    ),
]


def make(values=(1.0, 2.0), name="v", trainable=True):
    """Makes a replicated variable whose copies start with different values."""
    members = []
    for i, value in enumerate(values):
        with tf.device(CPUS.format(i)):
            members.append(
                tf1.Variable(
                    tf.constant(value),
                    name=f"{name}/{i}",
                    use_resource=True,
                    collections=[],
                    trainable=trainable,
                )
            )
    return replicated_variable.ReplicatedVariable(name, members)


def session():
    """Returns a session that places only what it runs, and what it initializes."""
    config = tf1.ConfigProto(allow_soft_placement=False, device_count={"CPU": 8})
    config.graph_options.place_pruned_graph = True
    return tf1.Session(config=config)


def copies(v):
    """Returns the values of the copies of an eager variable."""
    return [member.numpy().tolist() for member in v.members]


@contextlib.contextmanager
def graph_session(*variables):
    """Yields a session in which `variables` are initialized."""
    with session() as sess:
        sess.run([v.initializer for v in variables] or tf1.global_variables_initializer())
        yield sess


# One variable, eager.


def test_outside_reads_the_first_copy():
    v = make((1.0, 2.0))
    assert v.handle is v.members[0].handle
    assert v.get() is v.members[0]
    assert v.read_value().numpy() == v.value().numpy() == v.numpy() == 1.0
    assert tf.convert_to_tensor(v).numpy() == 1.0


@pytest.mark.parametrize(
    ("method", "expected"),
    # From copies of 1 and 2, with 3: set, 1 + 3 and 2 + 3, 1 - 3 and 2 - 3.
    [("assign", [3.0, 3.0]), ("assign_add", [4.0, 5.0]), ("assign_sub", [-2.0, -1.0])],
)
def test_assignment_outside_writes_every_copy(method, expected):
    v = make((1.0, 2.0))
    getattr(v, method)(3.0)
    assert copies(v) == expected


def test_arithmetic_and_slices_work_as_on_a_tensor():
    v = make(([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]))
    assert (v + 1.0).numpy().tolist() == [2.0, 3.0, 4.0]
    assert (2.0 * v).numpy().tolist() == [2.0, 4.0, 6.0]
    assert v[1:].numpy().tolist() == [2.0, 3.0]
    assert tf.gather(v, [2, 0]).numpy().tolist() == [3.0, 1.0]


def test_sparse_updates_outside_write_every_copy():
    v = make(([1.0, 2.0], [3.0, 4.0]))
    v.scatter_add(tf.IndexedSlices(tf.constant([10.0]), tf.constant([1])))
    assert copies(v) == [[1.0, 12.0], [3.0, 14.0]]


def test_says_what_a_variable_says():
    v = make(([1.0, 2.0], [1.0, 2.0]), name="layer/w")
    assert v.name == "layer/w"
    assert v.dtype == tf.float32
    assert v.shape == v.get_shape() == tf.TensorShape([2])
    assert v.trainable
    assert v.constraint is None
    assert bool(v.is_initialized())
    assert isinstance(v, tf.Variable)
    assert tf.is_tensor(v)


def test_function_reads_and_assigns():
    v = make((1.0, 2.0))

    @tf.function
    def step(x):
        v.assign_add(x)
        return v * 2.0

    # The first copy is 1 + 3 = 4, doubled 8.
    assert step(3.0).numpy() == 8.0
    assert copies(v) == [4.0, 5.0]


def test_checkpoint_holds_one_value_and_restores_every_copy(tmp_path):
    v = make((1.0, 2.0))
    path = tf.train.Checkpoint(v=v).write(str(tmp_path / "eager"))
    v.assign(9.0)
    tf.train.Checkpoint(v=v).read(path).assert_consumed()
    assert copies(v) == [1.0, 1.0]
    plain = tf.Variable(0.0)
    tf.train.Checkpoint(v=plain).read(path).assert_consumed()
    assert plain.numpy() == 1.0


# One variable, in a graph.


def test_graph_fetches_assigns_and_initializes_every_copy(fresh_graph):
    v = make((1.0, 2.0))
    initialized = v.is_initialized()
    assigned = v.assign(5.0)
    added = v.assign_add(1.0, read_value=False)
    with session() as sess:
        assert not sess.run(initialized)
        sess.run(v.initializer)
        assert sess.run(initialized)
        assert sess.run([v, *v.members]) == [1.0, 1.0, 2.0]
        assert sess.run(assigned) == 5.0
        assert sess.run(list(v.members)) == [5.0, 5.0]
        assert sess.run(added) is None
        assert sess.run(list(v.members)) == [6.0, 6.0]


def test_graph_gradient_and_resource_variable_facts(fresh_graph):
    v = make((3.0, 4.0))
    assert v.graph is fresh_graph
    assert v.op.type == "VarHandleOp"
    assert resource_variable_ops.is_resource_variable(v)
    (gradient,) = tf.gradients(v * v, v)
    with graph_session(v) as sess:
        assert sess.run(gradient) == 6.0


def test_proto_initializes_every_copy_of_an_imported_graph():
    with tf.Graph().as_default():
        v = make((1.0, 2.0))
        tf1.add_to_collection(GLOBAL, v)
        assert v.to_proto().variable_name == "v/0:0"
        meta_graph = tf1.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(meta_graph)
        with session() as sess:
            sess.run(tf1.global_variables_initializer())
            second = graph.get_tensor_by_name("v/1/Read/ReadVariableOp:0")
            assert sess.run(second) == 2.0


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (list, "at least one copy: v got none"),
        (lambda: [make()], "copy 0 of v is a ReplicatedVariable"),
        (lambda: [tf.Variable(1.0), tf.Variable([1.0])], r"copy 1 of v is float32 \(1,\)"),
        (lambda: [tf.Variable(1.0), tf.Variable(1)], "copy 1 of v is int32"),
    ],
)
def test_what_is_not_one_variable_is_refused(build, text):
    with pytest.raises(ValueError, match=text):
        replicated_variable.ReplicatedVariable("v", build())


# In tpu.replicate.


def replicated_inputs(graph):
    return [op for op in graph.get_operations() if op.type == "TPUReplicatedInput"]


def test_tpu_handle_is_a_replicated_input_over_the_copies(fresh_graph):
    v = make((1.0, 2.0))
    seen = {}

    def body():
        seen["handle"] = v.handle
        seen["again"] = v.handle
        seen["op"] = v.op
        return v + 1.0

    tf1.tpu.replicate(body, [[] for _ in range(K)])
    (made,) = replicated_inputs(fresh_graph)
    assert list(made.inputs) == [member.handle for member in v.members]
    assert seen["handle"] is seen["again"]
    assert seen["handle"].op is made
    assert seen["op"].type == "VarHandleOp"
    assert v.handle is v.members[0].handle


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda v: v.assign([1.0, 1.0]), "AssignVariableOp"),
        (lambda v: v.assign_add([1.0, 1.0]), "AssignAddVariableOp"),
        (lambda v: v.assign_sub([1.0, 1.0], read_value=False), "AssignSubVariableOp"),
        (
            lambda v: v.scatter_add(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))),
            "ResourceScatterAdd",
        ),
        (lambda v: tf.gather(v, [0]), "ResourceGather"),
        (lambda v: v.read_value(), "ReadVariableOp"),
    ],
)
def test_tpu_code_works_on_the_replica_alone(write, kind, fresh_graph):
    v = make(([1.0, 2.0], [3.0, 4.0]))

    def body():
        made = write(v)
        with tf1.control_dependencies([made]):
            return tf.identity(1.0)

    tf1.tpu.replicate(body, [[] for _ in range(K)])
    (handle,) = replicated_inputs(fresh_graph)
    users = [op.type for op in handle.outputs[0].consumers()]
    assert kind in users
    # Members are used by their own initializers and reads, and by the replicated input.
    writers = {op.type for m in v.members for op in m.handle.consumers()}
    assert writers <= {
        "AssignVariableOp",
        "ReadVariableOp",
        "VarIsInitializedOp",
        "TPUReplicatedInput",
    }


def test_tpu_control_flow_reads_the_replica_copy(fresh_graph):
    v = make((1.0, 2.0))

    def body(x):
        return tf.cond(x > 0.0, lambda: v + x, lambda: v - x)

    tf1.tpu.replicate(body, [[tf.constant(1.0)] for _ in range(K)])
    handles = [op for op in replicated_inputs(fresh_graph) if op.inputs[0].dtype == tf.resource]
    assert [list(op.inputs) for op in handles] == [[m.handle for m in v.members]]


def test_tpu_scope_and_optimizer_train_on_the_replica_copies():
    with tf.Graph().as_default() as graph, replicated_variable.replicated_scope(K, CPUS):

        def body():
            w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
            optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
            return optimizer.minimize((w - 1.0) ** 2)

        tf1.tpu.replicate(body, [[] for _ in range(K)])
        (apply,) = [op for op in graph.get_operations() if op.type == "ResourceApplyMomentum"]
        assert [tensor.op.type for tensor in apply.inputs[:2]] == ["TPUReplicatedInput"] * 2
        assert [v.name for v in tf1.global_variables()] == ["w", "w/Momentum"]
        # A graph with TPUReplicatedInput runs on a CPU where only what runs is placed.
        with graph_session() as sess:
            w, slot = tf1.global_variables()
            assert sess.run([*w.members, *slot.members]) == [0.0, 0.0, 0.0, 0.0]
            sess.run(w.assign(3.0))
            assert sess.run(list(w.members)) == [3.0, 3.0]


# In our towers.


@pytest.mark.parametrize("make_strategy", STRATEGIES)
def test_tower_has_its_own_copy_eager(make_strategy):
    v = make((1.0, 2.0))
    strategy = make_strategy()

    def tower_fn():
        own = v.handle is v.members[tower_id()].handle
        v.assign_add(10.0 * (tower_id() + 1))
        return own, v + 0.0

    with strategy.scope():
        own, read = strategy.call_for_each_tower(tower_fn)
        # 1 + 10 and 2 + 20
        assert strategy.unwrap(own) in ([True], [True, True])
        assert [r.numpy() for r in strategy.unwrap(read)] == [11.0, 22.0]
        assert v.numpy() == 11.0
        v.assign(5.0)
    assert copies(v) == [5.0, 5.0]


def tower_id():
    return default.get_tower_context().tower_id


@pytest.mark.parametrize("make_strategy", STRATEGIES)
def test_tower_has_its_own_copy_in_a_graph(make_strategy, fresh_graph):
    v = make((1.0, 2.0))
    strategy = make_strategy()
    with strategy.scope():
        written = strategy.call_for_each_tower(lambda: v.assign(v * 10.0, read_value=False))
        read = strategy.call_for_each_tower(lambda: v + 0.5)
        written, read = strategy.group(written), strategy.unwrap(read)
    with graph_session(v) as sess:
        assert sess.run(read) == [1.5, 2.5]
        sess.run(written)
        assert sess.run(read) == [10.5, 20.5]


@pytest.mark.parametrize("make_strategy", STRATEGIES)
@pytest.mark.parametrize("momentum", [False, True])
def test_optimizer_in_towers_updates_every_copy(make_strategy, momentum, fresh_graph):
    v = make((10.0, 10.0))
    strategy = make_strategy()

    def tower_fn(x):
        make_optimizer = tf1.train.GradientDescentOptimizer
        optimizer = tf1.train.MomentumOptimizer(1.0, 0.9) if momentum else make_optimizer(1.0)
        return optimizer.minimize(v * x, var_list=[v])

    with strategy.scope():
        x = strategy.broadcast(tf.constant(3.0))
        train = strategy.group(strategy.call_for_each_tower(tower_fn, x))
    others = [w for w in tf1.global_variables() if w is not v]
    with graph_session(v, *others) as sess:
        sess.run(train)
        # The gradient is x = 3 in both towers, their mean 3: 10 - 1 * 3.
        assert sess.run(list(v.members)) == [7.0, 7.0]


def test_tower_number_must_match_the_copies():
    v = make((1.0, 2.0))
    strategy = mirrored.MirroredStrategy([CPUS.format(i) for i in range(3)])
    text = "v has 2 copies, tower 0 is one of 3. Make it with num_replicas=3"
    with strategy.scope(), pytest.raises(errors.TowerMismatchError, match=text):
        strategy.call_for_each_tower(lambda: v + 1.0)


@pytest.mark.parametrize("make_strategy", STRATEGIES)
@pytest.mark.parametrize("in_towers", [False, True])
def test_scope_under_a_strategy_makes_the_copies_once(make_strategy, in_towers, fresh_graph):
    strategy = make_strategy()

    def build():
        with replicated_variable.replicated_scope(K, CPUS):
            first = tf1.get_variable("w", initializer=1.0)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True):
            assert tf1.get_variable("w") is first
        return first

    with strategy.scope():
        w = strategy.call_for_each_tower(build) if in_towers else build()
    assert isinstance(w, replicated_variable.ReplicatedVariable)
    assert [m.name for m in w.members] == ["w/0:0", "w/1:0"]
    assert [tf.DeviceSpec.from_string(m.device).device_index for m in w.members] == [0, 1]
    assert tf1.get_collection(GLOBAL) == tf1.get_collection(TRAINABLE) == [w]


# The scope.


def test_scope_makes_replicated_variables_and_lists_them_once(fresh_graph):
    with replicated_variable.replicated_scope(K, CPUS), tf1.variable_scope("layer"):
        w = tf1.get_variable("w", [3])
        b = tf1.get_variable("b", [3], trainable=False, collections=[GLOBAL, "mine"])
    plain = tf1.get_variable("plain", [])
    assert isinstance(w, replicated_variable.ReplicatedVariable)
    assert not isinstance(plain, replicated_variable.ReplicatedVariable)
    assert (w.name, b.name) == ("layer/w", "layer/b")
    assert [m.name for m in w.members] == ["layer/w/0:0", "layer/w/1:0"]
    assert [m.device for m in w.members] == DEVICES
    assert (w.trainable, b.trainable) == (True, False)
    assert [id(v) for v in fresh_graph.get_collection(GLOBAL)] == [id(w), id(b), id(plain)]
    assert [id(v) for v in fresh_graph.get_collection(TRAINABLE)] == [id(w), id(plain)]
    assert [id(v) for v in fresh_graph.get_collection("mine")] == [id(b)]


def test_scope_names_tpu_devices_by_default():
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K):
        w = tf1.get_variable("w", [])
    assert [m.device for m in w.members] == ["/device:TPU:0", "/device:TPU:1"]


def test_scope_starts_all_copies_alike():
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", [4], initializer=tf1.random_normal_initializer())
        with graph_session() as sess:
            first, second = sess.run(list(w.members))
        np.testing.assert_array_equal(first, second)
        assert np.abs(first).sum() > 0


def test_scope_works_eagerly():
    with replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", [4], initializer=tf1.random_normal_initializer())
    assert isinstance(w, replicated_variable.ReplicatedVariable)
    assert w.name == "w"
    assert copies(w)[0] == copies(w)[1]
    assert [tf.DeviceSpec.from_string(m.device).device_index for m in w.members] == [0, 1]


def test_scope_reuses_the_same_variable(fresh_graph):
    with replicated_variable.replicated_scope(K, CPUS) as scope:
        w = tf1.get_variable("w", [3])
        scope.reuse_variables()
        assert tf1.get_variable("w", [3]) is w
    assert not tf1.get_variable_scope().reuse
    assert len(tf1.global_variables()) == 1


def test_scope_counts_a_regularization_loss_once():
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        tf1.get_variable("w", initializer=3.0, regularizer=lambda w: w * w)
        assert len(tf1.losses.get_regularization_losses()) == 1
        with graph_session() as sess:
            assert sess.run(tf1.losses.get_regularization_loss()) == 9.0


def test_scope_makes_partitioned_variables_whole(caplog):
    split = tf1.fixed_size_partitioner(2)
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", [4], partitioner=split)
    assert w.shape == [4]
    assert "w is made whole" in caplog.text


def test_scope_goes_on_numbering_unnamed_scopes(fresh_graph):
    for _ in range(2):
        with replicated_variable.replicated_scope(K, CPUS), tf1.variable_scope(None, "dense"):
            tf1.get_variable("w", [1])
    assert [v.name for v in tf1.global_variables()] == ["dense/w", "dense_1/w"]


def test_scope_needs_a_replica():
    with pytest.raises(ValueError, match="got num_replicas=0"):
        with replicated_variable.replicated_scope(0):
            pass


def test_global_step_counts_in_every_copy():
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", initializer=10.0)
        train = tf1.train.GradientDescentOptimizer(1.0).minimize(w * 3.0, global_step=step)
        assert tf1.train.get_global_step() is step
        with graph_session() as sess:
            sess.run(train)
            assert sess.run(list(step.members)) == [1, 1]


def test_saver_writes_one_copy_that_one_device_reads_and_back(tmp_path):
    path = os.path.join(tmp_path, "model")
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", initializer=[1.0, 2.0])
        saver = tf1.train.Saver()
        with graph_session() as sess:
            sess.run(w.assign([3.0, 4.0]))
            saver.save(sess, path)
            sess.run(w.assign([0.0, 0.0]))
            saver.restore(sess, path)
            assert [m.tolist() for m in sess.run(list(w.members))] == [[3.0, 4.0]] * 2
    assert tf.train.list_variables(path) == [("w", [2])]
    with tf.Graph().as_default(), session() as sess:
        plain = tf1.get_variable("w", [2])
        saver = tf1.train.Saver()
        saver.restore(sess, path)
        assert sess.run(plain).tolist() == [3.0, 4.0]
        plain.load([5.0, 6.0], sess)
        saver.save(sess, path)
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", [2])
        with session() as sess:
            tf1.train.Saver().restore(sess, path)
            assert [m.tolist() for m in sess.run(list(w.members))] == [[5.0, 6.0]] * 2


def test_optimizer_outside_takes_it_and_its_slots_have_plain_names():
    with tf.Graph().as_default(), replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", initializer=10.0)
        optimizer = tf1.train.AdamOptimizer(0.1)
        train = optimizer.minimize(w * 3.0)
        assert optimizer.get_slot(w, "m").name == "w/Adam"
        with graph_session() as sess:
            sess.run(train)
            # Adam's first step is the learning rate, whatever the gradient: 10 - 0.1.
            assert sess.run(w) == pytest.approx(9.9, abs=1e-5)


# The scope for optimizers.


def keras():
    """Returns tf_keras, or the Keras of version 2 that came with TensorFlow 2.15."""
    return tf.keras if tf.__version__.startswith("2.15") else pytest.importorskip("tf_keras")


def optimizer_class_state():
    legacy, later = keras().optimizers.legacy.Optimizer, keras().optimizers.Optimizer
    return dict(vars(legacy)), dict(vars(later))


def is_replicated(v):
    return isinstance(v, replicated_variable.ReplicatedVariable)


def test_legacy_optimizer_variables_are_replicated_in_a_graph(fresh_graph):
    w = tf.Variable(10.0, name="w")
    optimizer = keras().optimizers.legacy.SGD(1.0, momentum=0.5)
    with replicated_variable.replicated_variable_for_optimizer(K, CPUS):
        train = optimizer.apply_gradients([(tf.constant(3.0), w)])
        other = tf.Variable(0.0, name="other")
    assert not is_replicated(other)
    made = optimizer.weights + list(optimizer._hyper.values())
    made = [v for v in made if isinstance(v, tf.Variable)]
    # iterations, the slot of w, learning rate, momentum, decay
    assert len(made) >= 4
    assert all(is_replicated(v) for v in made)
    slot = optimizer.get_slot(w, "momentum")
    assert slot.name == "SGD/w/momentum"  # as tf_keras names it without replicas
    assert [m.device for m in slot.members] == DEVICES
    assert [v.name for v in fresh_graph.get_collection(GLOBAL) if not is_replicated(v)] == [
        "w:0",
        "other:0",
    ]
    with graph_session() as sess:
        sess.run(train)
        # The momentum of 0 and the gradient of 3 give -3, which is added to 10.
        assert sess.run([w, slot]) == [7.0, -3.0]


def test_later_optimizer_variables_are_replicated_eagerly():
    w = tf.Variable(10.0)
    with replicated_variable.replicated_variable_for_optimizer(K, CPUS):
        optimizer = keras().optimizers.SGD(1.0, momentum=0.5, jit_compile=False)
        optimizer.build([w])
    # At least iteration and momentum of w; newer ones list the learning rate, too.
    assert len(optimizer.variables) >= 2
    assert all(is_replicated(v) for v in [*optimizer.variables, optimizer._learning_rate])
    optimizer.apply_gradients([(tf.constant(3.0), w)])
    assert w.numpy() == 7.0


@pytest.mark.parametrize("make_strategy", STRATEGIES)
def test_legacy_optimizer_in_towers_updates_every_copy(make_strategy):
    before = optimizer_class_state()
    with tf.Graph().as_default():
        v = make((10.0, 10.0))
        optimizer = keras().optimizers.legacy.SGD(1.0, momentum=0.5)
        strategy = make_strategy()

        def tower_fn():
            with replicated_variable.replicated_variable_for_optimizer(K, CPUS):
                return optimizer.apply_gradients([(tf.constant(1.5), v)])

        with strategy.scope():
            train = strategy.group(strategy.call_for_each_tower(tower_fn))
        assert optimizer_class_state() == before
        slot = optimizer.get_slot(v, "momentum")
        assert is_replicated(slot)
        assert is_replicated(optimizer.iterations)
        with graph_session(v, *tf1.global_variables()) as sess:
            sess.run(train)
            # tf_keras sums over towers: 1.5 + 1.5 = 3; the momentum is -3, 10 - 3 = 7.
            assert sess.run([*v.members, *slot.members]) == [7.0, 7.0, -3.0, -3.0]


def test_legacy_optimizer_in_tpu_replicate_uses_the_replica_copies():
    with tf.Graph().as_default() as graph, replicated_variable.replicated_scope(K, CPUS):
        w = tf1.get_variable("w", initializer=10.0)
        optimizer = keras().optimizers.legacy.SGD(1.0, momentum=0.5)

        def body():
            with replicated_variable.replicated_variable_for_optimizer(K, CPUS):
                return optimizer.apply_gradients([(tf.constant(3.0), w)])

        tf1.tpu.replicate(body, [[] for _ in range(K)])
        applied = [op for op in graph.get_operations() if op.type == "ResourceApplyKerasMomentum"]
        assert [t.op.type for t in applied[0].inputs[:2]] == ["TPUReplicatedInput"] * 2


def test_entered_twice_the_inner_number_counts_and_all_is_restored():
    before = optimizer_class_state()
    with replicated_variable.replicated_variable_for_optimizer(K, CPUS):
        with replicated_variable.replicated_variable_for_optimizer(3, CPUS):
            assert len(keras().optimizers.legacy.SGD(1.0).iterations.members) == 3
        assert len(keras().optimizers.legacy.SGD(1.0).iterations.members) == K
        assert optimizer_class_state() != before
    assert optimizer_class_state() == before


def test_one_replica_does_nothing():
    before = optimizer_class_state()
    with replicated_variable.replicated_variable_for_optimizer(1, CPUS):
        assert optimizer_class_state() == before
        assert not is_replicated(keras().optimizers.legacy.SGD(1.0).iterations)
