"""Cases of what loops, branches and lists are made of, of version 1 and of version 2."""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests import control_flow
from tests.splitting.rules import harness
from tests.splitting.rules.harness import raw, size, tensor

# A loop that must be whole has its graph analysed again.
FAMILY = harness.Family("loops and lists", most=3, together=8)

F64 = tf.float64


def case(kinds, function, *operands):
    """Adds a case of version 1, which has operations of kinds, and some of version 2."""

    def of(number):
        def make(*given):
            with control_flow.of_version(number):
                return function(*given)

        return make

    FAMILY.case(kinds, of(1), *operands)
    if operands[0].dims[0] == "B":
        FAMILY.case("StatelessWhile" if "Enter" in kinds else "StatelessIf", of(2), *operands)


def repeated(x, w):
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h * w) + x), (0, x))[1]


def accumulated(x, w):
    """A gradient that a loop sums."""
    return tf.gradients(tf.reduce_sum(tf.square(repeated(x, w))), [x, w])


def written(x, w):
    """A TensorArray, written and stacked."""
    array = tf.TensorArray(F64, 3, element_shape=x.shape)

    def step(i, h, array):
        h = tf.tanh(h * w)
        return i + 1, h, array.write(i, h)

    return tf.while_loop(lambda i, *_: i < 3, step, (0, x, array))[2].stack()


def read(x, w):
    """A TensorArray of slices, read one by one."""
    array = tf.TensorArray(F64, 2, element_shape=x.shape).unstack(tf.stack([x, 2.0 * x]))
    step = lambda i, h: (i + 1, tf.tanh(h * w) + array.read(i))  # noqa: E731
    return tf.while_loop(lambda i, h: i < array.size(), step, (0, x))[1]


def of_both(function):
    def make(x, w):
        found = function(x, w)
        return [found, *tf.gradients(tf.reduce_sum(tf.square(found)), [x, w])]

    return make


LOOP = "Enter Exit NextIteration Merge Switch LoopCond"
for dims, other in ((("B", 3), (3,)), ((2, "B"), (2, 1)), (("2B", 3), (1, 3))):
    case(LOOP, repeated, tensor(*dims), tensor(*other))
    case("Enter StackPushV2 StackPopV2", accumulated, tensor(*dims), tensor(*other))
    case(
        "Enter TensorArrayV3 TensorArrayWriteV3 TensorArrayGatherV3",
        written,
        tensor(*dims),
        tensor(*other),
    )
    case("Enter TensorArrayReadV3 TensorArrayScatterV3", read, tensor(*dims), tensor(*other))
    case("Enter TensorArrayGradV3", of_both(read), tensor(*dims), tensor(*other))
    case("Enter TensorArrayGradV3", of_both(written), tensor(*dims), tensor(*other))


def chosen(x, w):
    return tf.cond(tf.reduce_sum(w) > 0.0, lambda: tf.tanh(x * w), lambda: x + w)


def chosen_by_rows(x, w):
    return tf.cond(tf.reduce_mean(x) > 0.0, lambda: tf.tanh(x * w), lambda: x + w)


def layers(x, w):
    return tf.cond(tf.reduce_sum(w) > 0.0, lambda: tf.sin(tf.tanh(x * w)) * w, lambda: tf.cos(x))


def layers_by_rows(x, w):
    return tf.cond(
        tf.reduce_mean(x) > 0.0, lambda: tf.exp(tf.sin(x) * tf.tanh(w)), lambda: tf.cos(x * w) * w
    )


def chosen_by_size(x, n):
    return tf.cond(n > 3, lambda: tf.tanh(x), lambda: x * 2.0)


def with_gradients(function):
    """The same with loops and branches of version 2, whose branches keep what gradients need."""

    def make(x, w):
        with control_flow.of_version(2):
            return of_both(function)(x, w)

    return make


OPTIONAL = "OptionalFromValue OptionalGetValue"


def checked(x):
    """A check that tells what has failed it."""
    with control_flow.of_version(2):
        return tf1.Assert(tf.reduce_all(x < 99.0), [x * 2.0, tf.shape(x)]).outputs[0]


def checked_twice(x):
    """A branch that does more than to check."""

    def fails():
        with tf.control_dependencies([tf1.Assert(tf.reduce_all(x < 99.0), [x])]):
            return tf.tanh(x)

    with control_flow.of_version(2):
        return tf.cond(tf.reduce_sum(x) < 99.0, fails, lambda: x)


for dims in (("B", 3), (2, "B"), (2, 3)):
    for function in (checked, checked_twice):
        FAMILY.case("If", function, tensor(*dims))

for dims, other in ((("B", 3), (3,)), ((2, "B"), (2, 1)), ((2, 3), (3,))):
    for function in (chosen, chosen_by_rows, of_both(chosen), of_both(chosen_by_rows)):
        case("Switch Merge", function, tensor(*dims), tensor(*other))
    if "B" in dims:
        # Of one branch with layers the other has none; of two each has its own.
        one, two = with_gradients(layers), with_gradients(layers_by_rows)
        FAMILY.case(f"{OPTIONAL} OptionalNone", one, tensor(*dims), tensor(*other))
        FAMILY.case(OPTIONAL, two, tensor(*dims), tensor(*other))
case("Switch Merge", chosen_by_size, tensor("B", 3), size())


def once(kind, function, *operands):
    FAMILY.case(kind, function, *operands)


def of_list(use):
    """A list of two elements, used."""

    def make(x, y):
        handle = tf.raw_ops.TensorListReserve(
            element_shape=np.array(-1, np.int32), num_elements=2, element_dtype=F64
        )
        for n, value in enumerate((x, y)):
            handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=n, item=value)
        return use(handle)

    return make


def pushed(x, y):
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=np.array(-1, np.int32), max_num_elements=5, element_dtype=F64
    )
    for value in (x, y):
        handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=value)
    rest, last = tf.raw_ops.TensorListPopBack(
        input_handle=handle, element_shape=np.array(-1, np.int32), element_dtype=F64
    )
    first = tf.raw_ops.TensorListPopBack(
        input_handle=rest, element_shape=np.array(-1, np.int32), element_dtype=F64
    )
    return last, first[1]


def stacked(handle):
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=np.array(-1, np.int32), element_dtype=F64
    )


def item(handle):
    return tf.raw_ops.TensorListGetItem(
        input_handle=handle, index=1, element_shape=np.array(-1, np.int32), element_dtype=F64
    )


def from_tensor(x):
    handle = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=np.array(-1, np.int32))
    return item(handle), stacked(handle)


for dims in (("B", 3), (2, "B"), (2, 3)):
    pair = tensor(*dims), tensor(*dims)
    for kind in ("EmptyTensorList", "TensorListPushBack", "TensorListPopBack"):
        once(kind, pushed, *pair)
    for kind in ("TensorListReserve", "TensorListSetItem", "TensorListStack"):
        once(kind, of_list(stacked), *pair)
    once("TensorListGetItem", of_list(item), *pair)
    once("TensorListLength", of_list(lambda x: tf.raw_ops.TensorListLength(input_handle=x)), *pair)
    once(
        "TensorListElementShape",
        of_list(lambda x: tf.raw_ops.TensorListElementShape(input_handle=x, shape_type=tf.int32)),
        *pair,
    )
once("TensorListFromTensor", from_tensor, tensor(2, "B"))
once("TensorListFromTensor", from_tensor, tensor(3, "B", 2))
once("TensorListFromTensor", from_tensor, tensor(3, 2))


def arrays(use, **options):
    def make(x, y):
        array = tf.raw_ops.TensorArrayV3(size=2, dtype=F64, **options)
        flow = array.flow
        for n, value in enumerate((x, y)):
            flow = tf.raw_ops.TensorArrayWriteV3(
                handle=array.handle, index=n, value=value, flow_in=flow
            )
        return use(array.handle, flow)

    return make


def joined(handle, flow):
    return tf.raw_ops.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype=F64)


def cut(x):
    array = tf.raw_ops.TensorArrayV3(size=2, dtype=F64)
    flow = tf.raw_ops.TensorArraySplitV3(
        handle=array.handle, value=x, lengths=np.array([1, 1], np.int64), flow_in=array.flow
    )
    return tf.raw_ops.TensorArrayReadV3(handle=array.handle, index=1, flow_in=flow, dtype=F64)


def counted(handle, flow):
    return tf.raw_ops.TensorArraySizeV3(handle=handle, flow_in=flow)


def graded(handle, flow):
    made = tf.raw_ops.TensorArrayGradWithShape(
        handle=handle, flow_in=flow, shape_to_prepend=np.zeros([0], np.int32), source="g"
    )
    flow = made.flow_out
    for n in range(2):
        value = tf.raw_ops.TensorArrayReadV3(handle=handle, index=n, flow_in=flow, dtype=F64)
        flow = tf.raw_ops.TensorArrayWriteV3(
            handle=made.grad_handle, index=n, value=2.0 * value, flow_in=flow
        )
    return tf.raw_ops.TensorArrayReadV3(handle=made.grad_handle, index=1, flow_in=flow, dtype=F64)


for dims in ((2, "B"), ("B", 3), (2, 3)):
    once("TensorArraySizeV3", arrays(counted, clear_after_read=False), tensor(*dims), tensor(*dims))
    kept = arrays(graded, clear_after_read=False)
    once("TensorArrayGradWithShape", kept, tensor(*dims), tensor(*dims))
    once("TensorArrayConcatV3", arrays(joined), tensor(*dims), tensor(*dims))
once("TensorArraySplitV3", cut, tensor(2, "B"))
once("TensorArraySplitV3", cut, tensor(2, 3))


def optional(x):
    made = tf.raw_ops.OptionalFromValue(components=[x])
    return tf.raw_ops.OptionalGetValue(optional=made, output_types=[F64], output_shapes=[x.shape])


def optional_pair(x, y):
    """Of two values nothing is assumed: it is whole."""
    made = tf.raw_ops.OptionalFromValue(components=[x, y])
    shapes = [x.shape, y.shape]
    return tf.raw_ops.OptionalGetValue(optional=made, output_types=[F64, F64], output_shapes=shapes)


for dims in (("B", 3), (2, "B"), (2, 3)):
    once("OptionalFromValue OptionalGetValue", optional, tensor(*dims))
    once("OptionalFromValue OptionalGetValue", optional_pair, tensor(*dims), tensor(*dims))
once("Identity", raw("Identity"), tensor("B", 3))
