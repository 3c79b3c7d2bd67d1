"""Copies of operations: what they read, where they are, what they wait for."""

from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import copying


def test_nothing_to_copy_makes_nothing(fresh_graph):
    assert copying.copied([], {}, "tail") == {}
    assert not fresh_graph.get_operations()


def test_a_copy_reads_the_replacement(session):
    x = tf.constant(3.0)
    y = x * 2.0 + 1.0
    five = tf.constant(5.0)
    copies = copying.copied([y.op.inputs[0].op, y.op], {x.ref(): five}, "tail")
    assert session.run([y, copies[y.ref()]]) == [7.0, 11.0]  # 3 * 2 + 1, 5 * 2 + 1


def test_what_is_not_replaced_is_the_original(session):
    x, weight = tf.constant(3.0), tf.constant(10.0)
    y = x * weight
    copies = copying.copied([y.op], {x.ref(): tf.constant(5.0)}, "tail")
    copy = copies[y.ref()]
    assert copy.op.inputs[1] is weight
    assert session.run(copy) == 50.0


def test_what_is_copied_may_be_replaced_for_its_readers(session):
    doubled = tf.constant(3.0) * 2.0
    y = doubled + 1.0
    copies = copying.copied([doubled.op, y.op], {doubled.ref(): tf.constant(4.0)}, "tail")
    assert session.run(copies[y.ref()]) == 5.0


def test_one_tensor_read_twice_is_replaced_twice(session):
    x = tf.constant(3.0)
    y = x * x
    copies = copying.copied([y.op], {x.ref(): tf.constant(5.0)}, "tail")
    assert session.run(copies[y.ref()]) == 25.0


def test_the_order_of_operations_is_free(session):
    x = tf.constant(3.0)
    y = tf.exp(tf.sqrt(tf.square(x)) - 3.0)
    chain = [y.op, y.op.inputs[0].op]
    chain += [chain[1].inputs[0].op, chain[1].inputs[0].op.inputs[0].op]
    copies = copying.copied(chain, {x.ref(): tf.constant(-3.0)}, "tail")
    assert session.run(copies[y.ref()]) == 1.0  # exp(|-3| - 3)


def test_attributes_are_kept(session):
    x = tf.ones([2, 3])
    total = tf.reduce_sum(x, 0, keepdims=True)
    product = tf.matmul(x, x, transpose_b=True)
    copies = copying.copied([total.op, product.op], {}, "tail")
    assert copies[total.ref()].op.get_attr("keep_dims") is True
    assert copies[product.ref()].op.get_attr("transpose_b") is True
    assert copies[product.ref()].shape.as_list() == [2, 2]
    assert session.run(copies[total.ref()]).tolist() == [[2.0, 2.0, 2.0]]


def test_shapes_follow_the_replacement(fresh_graph):
    x = tf1.placeholder(tf.float32, [None, 3])
    y = tf.exp(x)
    copies = copying.copied([y.op], {x.ref(): tf.zeros([7, 3])}, "tail")
    assert copies[y.ref()].shape.as_list() == [7, 3]


def test_a_copy_is_on_the_current_device(fresh_graph):
    with tf.device("/device:CPU:3"):
        x = tf.constant(3.0)
        y = tf.exp(x)
    here = copying.copied([y.op], {}, "tail")[y.ref()]
    with tf.device("/device:CPU:1"):
        there = copying.copied([y.op], {}, "tail")[y.ref()]
    assert (y.device, here.device, there.device) == ("/device:CPU:3", "", "/device:CPU:1")


def test_colocation_is_dropped(fresh_graph):
    with tf.device("/device:CPU:3"):
        x = tf.constant(3.0)
    with tf1.colocate_with(x.op):
        y = tf.exp(x)
    assert y.op.colocation_groups() == [b"loc:@Const"]
    with tf.device("/device:CPU:1"):
        copy = copying.copied([y.op], {}, "tail")[y.ref()]
    assert copy.op.colocation_groups() == [b"loc:@tail/Exp"]  # with itself alone
    assert copy.device == "/device:CPU:1"


def test_a_copy_waits_for_copies_and_for_no_others(fresh_graph):
    outside, inside = tf1.no_op("outside"), tf.constant(1.0, name="inside")
    with tf1.control_dependencies([outside, inside]):
        y = tf.constant(2.0, name="y")
    copies = copying.copied([inside.op, y.op], {}, "tail")
    assert set(y.op.control_inputs) == {outside, inside.op}
    assert copies[y.ref()].op.control_inputs == [copies[inside.ref()].op]


def test_a_copy_waits_for_what_is_in_force(fresh_graph):
    first = tf1.no_op("first")
    y = tf.exp(tf.constant(1.0))
    with tf1.control_dependencies([first]):
        copy = copying.copied([y.op], {}, "tail")[y.ref()]
    assert copy.op.control_inputs == [first]


def test_functions_are_called_by_copies(session):
    @tf.function(autograph=False)
    def inner(x):
        return x * x

    @tf.function(autograph=False)
    def outer(x):
        return inner(x) + 1.0

    x = tf1.placeholder(tf.float32, [])
    y = outer(x)
    call = y.op if "Call" in y.op.type else y.op.inputs[0].op
    assert call.type in ("PartitionedCall", "StatefulPartitionedCall")
    operations = list(dict.fromkeys([call, y.op]))
    copies = copying.copied(operations, {x.ref(): tf.constant(3.0)}, "tail")
    assert session.run(copies[y.ref()]) == 10.0


def test_a_branch_is_copied_with_its_functions(session):
    x = tf1.placeholder(tf.float32, [])
    is_large = tf1.placeholder(tf.bool, [])
    y = tf.cond(is_large, lambda: x * 2.0, lambda: x - 1.0)
    made = {op for op in y.graph.get_operations() if op not in (x.op, is_large.op)}
    given = {x.ref(): tf.constant(5.0)}
    large = copying.copied(list(made), {**given, is_large.ref(): tf.constant(True)}, "tail")
    small = copying.copied(list(made), {**given, is_large.ref(): tf.constant(False)}, "tail")
    assert session.run([large[y.ref()], small[y.ref()]]) == [10.0, 4.0]


def test_each_output_has_its_own_copy(session):
    x = tf.constant([[1.0, 2.0, 3.0]])
    first, second, third = tf.split(x, 3, axis=1)
    difference = third - second
    copies = copying.copied(
        [first.op, difference.op], {x.ref(): tf.constant([[10.0, 20.0, 70.0]])}, "tail"
    )
    found = [copies[tensor.ref()] for tensor in (first, second, third, difference)]
    assert [tensor.value_index for tensor in found] == [0, 1, 2, 0]
    assert [float(value[0, 0]) for value in session.run(found)] == [10.0, 20.0, 70.0, 50.0]


def test_one_of_several_outputs_may_be_replaced(session):
    _, second, third = tf.split(tf.constant([1.0, 2.0, 3.0]), 3)
    y = second + third
    copies = copying.copied([y.op], {third.ref(): tf.constant([30.0])}, "tail")
    assert session.run(copies[y.ref()]).tolist() == [32.0]


def test_an_operation_without_outputs_is_copied(fresh_graph):
    y = tf.constant(1.0)
    with tf1.control_dependencies([y]):
        nothing = tf1.no_op("nothing")
    copies = copying.copied([y.op, nothing], {}, "tail")
    assert list(copies) == [y.ref()]
    made = fresh_graph.get_operation_by_name("tail/nothing")
    assert made.control_inputs == [copies[y.ref()].op]


def test_names_are_in_the_scope_and_taken_once(fresh_graph):
    with tf.name_scope("model"):
        y = tf.constant(1.0, name="y")
    first = copying.copied([y.op], {}, "tail")
    second = copying.copied([y.op], {}, "tail")
    with tf1.name_scope("replicate_whole/"):
        third = copying.copied([y.op], {}, "tail")
    names = [copies[y.ref()].op.name for copies in (first, second, third)]
    assert names == ["tail/model/y", "tail_1/model/y", "replicate_whole/tail/model/y"]


def test_a_copy_of_a_read_reads_the_same_variable(session):
    variable = tf1.get_variable("v", initializer=2.0, use_resource=True)
    y = variable.read_value() * 3.0
    read = y.op.inputs[0].op
    operations = [read, *(tensor.op for tensor in read.inputs if tensor.dtype != tf.resource)]
    operations += [y.op] if read.type == "ReadVariableOp" else [read.inputs[0].op, y.op]
    copies = copying.copied(list(dict.fromkeys(operations)), {}, "tail")
    session.run(variable.initializer)
    session.run(variable.assign(7.0))
    assert session.run(copies[y.ref()]) == 21.0


def test_gradients_go_through_copies(session):
    x, w = tf.constant(3.0), tf.constant(2.0)
    y = tf.square(x * w)
    replaced = tf.constant(5.0)
    copies = copying.copied([y.op.inputs[0].op, y.op], {x.ref(): replaced}, "tail")
    # d/dx (x w)^2 = 2 x w^2 = 2 * 5 * 4, d/dw = 2 x^2 w = 2 * 25 * 2.
    assert session.run(tf1.gradients(copies[y.ref()], [replaced, w])) == [40.0, 100.0]
