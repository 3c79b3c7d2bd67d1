"""Operations come after what they read, and lists just before they are used."""

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.structure import order
from tests import control_flow


def test_a_list_comes_just_before_what_is_written_and_leaves_its_loop_after_that():
    with control_flow.of_version(1), tf.Graph().as_default() as graph:
        shape = tf.constant([], tf.int32)
        held = tf.raw_ops.EmptyTensorList(
            element_shape=shape, max_num_elements=-1, element_dtype=tf.float32
        )
        x = tf1.placeholder(tf.float32, [])
        for _ in range(20):
            x = tf.tanh(x)

        def turn(n, x, held):
            for _ in range(20):
                x = tf.sin(x)
            return n + 1, x, tf.raw_ops.TensorListPushBack(input_handle=held, tensor=x)

        tf.while_loop(lambda n, *_: n < 3, turn, [0, x, held])
        ops = order.ordered(set(graph.get_operations()), {})
    types = [op.type for op in ops]
    written = types.index("TensorListPushBack")
    # Between them: what enters the loop, begins its turn, and is passed on.
    assert types[types.index("EmptyTensorList") : written] == [
        *("EmptyTensorList", "Enter", "Merge", "Switch", "Identity"),
    ]
    leaves = next(op for op in ops if op.type == "Exit" and op.outputs[0].dtype == tf.variant)
    assert ops.index(leaves) > written


def test_a_list_may_be_passed_on_through_any_number_of_operations():
    with tf.Graph().as_default() as graph:
        held = tf.raw_ops.EmptyTensorList(
            element_shape=tf.constant([], tf.int32), max_num_elements=-1, element_dtype=tf.float32
        )
        for _ in range(1200):  # more than Python lets functions call each other
            held = tf.identity(held)
        x = tf.tanh(tf.constant(1.0))
        tf.raw_ops.TensorListPushBack(input_handle=held, tensor=x)
        ops = order.ordered(set(graph.get_operations()), {})
    assert ops.index(x.op) < [op.type for op in ops].index("EmptyTensorList")


def test_a_change_is_waited_for_even_behind_a_value_that_comes_after_it(fresh_graph):
    # Sessions may leave out the way through the value, where it does nothing to another one.
    effect = tf.no_op("effect")
    with tf.control_dependencies([effect]):
        value = tf.constant(1.0)
        use = tf.tanh(value).op
    assert order.Behind({effect, value.op, use}, {}).asks_for(use, effect)
    # A check is made for the value: that has waited for it.
    assert not order.Behind(set(), {effect: 1, value.op: 1, use: 1}).asks_for(use, effect)
    assert order.Behind(set(), {effect: 1, use: 1}).asks_for(use, effect)
