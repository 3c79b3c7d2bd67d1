"""Models whose steps write variables, of which each device may have a copy, in every way."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running

double = tf.float64


def _zeros(name, shape=(), dtype=double):
    return tf1.get_variable(name, shape, dtype, tf1.zeros_initializer(), trainable=False)


def _table(width):
    return tf1.get_variable("table", [3, width], double, exactness.start)


def _held(width):
    return tf1.get_variable("held", [width], double, tf1.ones_initializer(), trainable=False)


def _stepping(loss, optimizer=running.adam):
    return optimizer().minimize(loss, tf1.train.get_global_step())


def rows_of_a_table(f, y, v):
    loss = tf.reduce_mean((tf.nn.embedding_lookup(_table(3), y["class"]) - y["y"]) ** 2)
    return loss, _stepping(loss, running.descend)


def accumulated(f, y, v):
    """Gradients of two batches are applied in a branch."""
    loss, optimizer, count = losses.mean(f, y, v), running.adam(), tf1.train.get_global_step()
    found = running.trained(v)
    sums = [_zeros(f"{variable.op.name}/sum", variable.shape) for variable in found]
    added = [s.assign_add(g) for s, g in zip(sums, tf.gradients(loss, found), strict=True)]
    with tf1.control_dependencies([*added, count.assign_add(1)]):
        number, totals = count.read_value(), [s.read_value() for s in sums]

    def apply():
        pairs = [(total / 2.0, variable) for total, variable in zip(totals, found, strict=True)]
        with tf1.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.group([s.assign(tf.zeros_like(s)) for s in sums])

    return loss, tf1.cond(tf.equal(number % 2, 0), apply, tf.no_op)


def scaled(f, y, v):
    """A loss scale: what is no single row is applied; a branch in the branch doubles the scale."""
    loss, optimizer, count = losses.mean(f, y, v), running.adam(), tf1.train.get_global_step()
    scale, good = _zeros("scale"), _zeros("good", dtype=tf.int64)
    pairs = [(g / (scale + 1), w) for g, w in optimizer.compute_gradients(loss * (scale + 1))]
    norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
    is_good = tf.less(norm, 1e9) & (tf.shape(f["x"])[0] > 1)

    def apply():
        with tf1.control_dependencies([optimizer.apply_gradients(pairs)]):
            added = good.assign_add(1)
        with tf1.control_dependencies([added]):
            larger = tf1.cond(
                good.read_value() > 1, lambda: tf.group(scale.assign(scale * 2.0 + 1)), tf.no_op
            )
        return tf.group(added, larger)

    step = tf1.cond(is_good, apply, lambda: tf.group(scale.assign(1.0), good.assign(0)))
    return loss, tf.group(step, count.assign_add(1))


def value_of_branch(f, y, v):
    """A value, not an operation, comes out of the branch that writes."""
    loss, first, second = losses.mean(f, y, v), _zeros("first", [2]), _zeros("second", [2])
    with tf1.control_dependencies([_stepping(loss, running.momentum)]):
        found = tf1.cond(
            tf1.train.get_global_step().read_value() > 2,
            lambda: first.assign_add(tf.stack([loss, loss])).read_value(),
            lambda: first.assign_sub([1.0, loss]).read_value(),
        )
    return loss, second.assign_add(found).op


def read_back(f, y, v):
    """The model reads on its devices what it has just written."""
    number = tf1.assign_add(_zeros("number"), 1.0)
    loss = losses.mean({**f, "x": f["x"] * number}, y, v)
    return loss, _stepping(loss)


def written_in_loop(f, y, v):
    loss, sums = losses.mean(f, y, v), _zeros("sums", [3])

    def body(j):
        added = sums.assign_add(tf.cast(j, double) * loss * tf.ones([3], double))
        with tf1.control_dependencies([added]):
            return j + 1

    step = _stepping(loss)
    with tf1.control_dependencies([step]):
        end = tf1.while_loop(lambda j: j < 3, body, [tf.constant(0)])
    with tf1.control_dependencies([end]):
        doubled = sums.assign(sums.read_value() * 2.0)
    return loss, tf.group(step, doubled)


def written_in_a_loop_of_a_loop(f, y, v):
    """A loop whose inner one writes a variable, and another loop that comes later."""
    loss, sums = tf.reduce_mean(f["x"]), _zeros("sums", [2])

    def add(j):
        with tf1.control_dependencies([sums.assign_add(loss * tf.ones([2], double))]):
            return j + 1

    def repeat(j):
        with tf1.control_dependencies([tf1.while_loop(lambda n: n < 2, add, [j])]):
            return j + 1

    written = tf1.while_loop(lambda j: j < 2, repeat, [tf.constant(0)])
    with tf1.control_dependencies([written]):
        doubled = sums.assign(sums.read_value() * 2.0)
    with tf1.control_dependencies([doubled]):
        later = tf1.while_loop(lambda j: j < 3, lambda j: j + 1, [tf.constant(0)])
        return loss, tf.group(later)


def looked_up_in_loop(f, y, v):
    """A decoder: each turn looks up what it is given, and the weights have gradients."""
    table, w = _table(3), tf1.get_variable("w", [3, 3], double, exactness.start)

    def turn(j, h):
        found = tf.nn.embedding_lookup(table, y["words"][:, j])
        return j + 1, tf.tanh(tf.matmul(h, w) + found)

    _, h = tf1.while_loop(lambda j, h: j < 3, turn, [tf.constant(0), f["x"]])
    loss = tf.reduce_mean((h - y["y"]) ** 2)
    return loss, _stepping(loss, running.descend)


def noisy(f, y, v):
    """Random numbers are drawn once."""
    loss, found = losses.mean(f, y, v), running.trained(v)
    gradients = [
        g + 0.1 * tf.random.stateless_normal(g.shape, [1, 2], dtype=double)
        for g in tf.gradients(loss, found)
    ]
    noise = tf1.get_variable("noise", [5], double, tf1.random_normal_initializer(seed=1))
    step = running.apply(zip(gradients, found, strict=True))
    return loss, tf.group(step, noise.assign_add(tf1.random_normal([5], dtype=double, seed=2)))


def drawn_from_a_state(f, y, v):
    """A generator's state is a variable, which is written by each draw."""
    state = tf1.get_variable("state", [3], tf.int64, tf1.constant_initializer([7, 8, 9]))
    noise = tf.raw_ops.StatefulStandardNormalV2(
        resource=state.handle, algorithm=tf.constant(1, tf.int64), shape=[3, 3], dtype=tf.float32
    )
    with tf1.control_dependencies([noise]):
        skipped = tf.raw_ops.RngReadAndSkip(
            resource=state.handle, alg=1, delta=tf.constant(256, tf.uint64)
        )
    noise = tf.stop_gradient(tf.cast(noise, double))
    loss = losses.mean(f, y, v) + tf.reduce_mean(tf.matmul(f["x"], noise) ** 2)
    return loss, tf.group(_stepping(loss), skipped.op)


def drawn_by_a_function(f, y, v):
    """The step itself is a call that is not repeated: it draws, between 3.0 and 3.0."""
    held = _zeros("held", [2])

    @tf.function
    def draw():
        held.assign_add(tf.random.uniform([2], 3.0, 3.0, double))
        return tf.constant(1.0)

    loss = tf.reduce_mean(f["x"] * held.read_value()[0])
    with tf1.control_dependencies([loss]):
        return loss, draw().op


# A variable that the model reads, and the step writes by itself.


def _beside(write):
    def step(f, y, v):
        held = _held(2)
        loss = losses.mean(f, y, v) + tf.reduce_mean(tf.ones_like(f["x"]) * held.read_value()[0])
        trained = _stepping(loss, running.descend)
        with tf1.control_dependencies([loss]):
            written = write(held)
        return loss, tf.group(trained, getattr(written, "op", written))

    return step


def _a_slice(held):
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=held.handle, begin=[0], end=[1], strides=[1], value=tf.constant([5.0], double)
    )


def _a_branch(held):
    is_odd = tf1.placeholder_with_default(True, [])
    return tf.cond(is_odd, lambda: tf.identity(held.assign_add([1.0, 1.0])), held.read_value)


def _a_call(held):
    @tf.function
    def add():
        held.assign_add([1.0, 1.0])
        return tf.constant(1.0)

    return add()


# A step that reads rows of what writes, and nothing else of it.


def _rows_of(write):
    def step(f, y, v):
        hidden = write(_held(3), losses.logits(f, v))
        loss = tf.reduce_mean((hidden - y["y"]) ** 2)
        return loss, _stepping(loss, running.descend)

    return step


def _a_first_batch(held, x):
    """A layer that its first batch sets, as a weight normalisation or an ActNorm is."""
    is_set = _zeros("is_set", dtype=tf.bool)

    def first():
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(x), 0))
        with tf1.control_dependencies([held.assign(scale), is_set.assign(True)]):
            return x * scale

    return tf.cond(is_set, lambda: x * held, first)


def _a_case(held, x):
    def add():
        with tf1.control_dependencies([held.assign_add(tf.reduce_mean(x, 0))]):
            return x + 1.0

    number = tf.cast(tf1.train.get_global_step().read_value() % 2, tf.int32)
    return tf.switch_case(number, [add, lambda: x * held]) * 1.0


def _a_loop(held, x):
    def turn(n, h):
        with tf1.control_dependencies([held.assign_add(tf.reduce_mean(h, 0))]):
            return n + 1, tf.tanh(h)

    return tf.while_loop(lambda n, _: n < 2, turn, [0, x], parallel_iterations=1)[1]


def _a_function(held, x):
    @tf.function
    def scaled(x):
        held.assign_add(tf.reduce_mean(x, 0))
        return 2.0 * x

    return scaled(x)


# Each with its variables that have no copies: what a loop writes, or draws, cannot be repeated.
MODELS = {
    **dict.fromkeys((rows_of_a_table, accumulated, scaled, value_of_branch, read_back), ()),
    **dict.fromkeys((looked_up_in_loop, noisy, drawn_from_a_state), ()),
    **dict.fromkeys((written_in_loop, written_in_a_loop_of_a_loop), ("sums",)),
    drawn_by_a_function: ("held",),
}
MODELS = {model.__name__: (model, without) for model, without in MODELS.items()}
MODELS |= {
    f"beside{write.__name__}": (_beside(write), ()) for write in (_a_slice, _a_branch, _a_call)
}
MODELS |= {
    f"rows_of{write.__name__}": (_rows_of(write), ("held",) if write is _a_loop else ())
    for write in (_a_first_batch, _a_case, _a_loop, _a_function)
}
WITH_CONTROL_FLOW = (
    *("accumulated", "scaled", "value_of_branch", "written_in_loop", "looked_up_in_loop"),
    *("beside_a_branch", "rows_of_a_first_batch", "rows_of_a_case", "rows_of_a_loop"),
)
