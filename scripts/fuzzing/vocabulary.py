"""The words that a random model_fn is written in; a program has the source of those it uses."""

import zlib

import numpy as np

from replicate.compat.tensorflow import tf, tf1


def start(shape, dtype=tf.float64, partition_info=None, **unused):
    """An initializer: numbers in [-0.5, 0.5) that follow from the shape."""
    random = np.random.RandomState(int(np.prod(shape)) + len(shape))
    return tf.constant(random.uniform(-0.5, 0.5, shape), dtype)


def from_shapes():
    """Lets variables of layers start from numbers that follow from their shapes."""
    tf1.get_variable_scope().set_initializer(start)


def var(name, *shape):
    """A new weight, whose numbers follow from its name."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return tf1.get_variable(name, initializer=random.uniform(-0.5, 0.5, shape)).read_value()


def attention(x, y, heads):
    """[N, T, D] looks at [N, S, D] with several heads."""

    def parted(h):
        shape = [-1, tf.shape(h)[1], heads, h.shape[-1] // heads]
        return tf.transpose(tf.reshape(h, shape), [0, 2, 1, 3])

    scores = tf.matmul(parted(x), parted(y), transpose_b=True)
    found = tf.transpose(tf.matmul(tf.nn.softmax(scores), parted(y)), [0, 2, 1, 3])
    return tf.reshape(found, [-1, tf.shape(x)[1], x.shape[-1]])


def recurrence(x, cell, lengths=None):
    """The outputs of a cell of version 1 over axis 1, and its last state."""
    outputs, state = tf1.nn.dynamic_rnn(cell, x, lengths, dtype=x.dtype)
    return tf.concat([outputs, tf.nest.flatten(state)[-1][:, None]], 1)


def both_ways(x, cell):
    """The outputs of a cell of version 1 over axis 1, from both ends."""
    outputs, _ = tf1.nn.bidirectional_dynamic_rnn(cell, cell, x, dtype=x.dtype)
    return tf.concat(outputs, -1)


def turned(x):
    """The same numbers, with a gradient of its own."""

    @tf.custom_gradient
    def same(h):
        return tf.identity(h), lambda gradient: -0.5 * gradient

    return same(x)


def checked(x):
    """The same numbers, after a check."""
    with tf.control_dependencies([tf1.assert_less(x, tf.constant(1e9, x.dtype))]):
        return tf.identity(x)


def outside(x):
    """What Python makes of numbers."""
    return tf.ensure_shape(tf.numpy_function(np.tanh, [x], x.dtype), x.shape)


def in_parts(name, inputs, outputs, x):
    """A dense layer whose weight is in parts."""
    parts = tf1.fixed_size_partitioner(2)
    weight = tf1.get_variable(name, [inputs, outputs], x.dtype, start, partitioner=parts)
    return tf.matmul(x, weight)


def turns(x, body):
    """A loop over axis 0 with a TensorArray: what is carried on is added to each turn."""
    items = tf.TensorArray(x.dtype, tf.shape(x)[0], element_shape=x.shape[1:]).unstack(x)
    results = tf.TensorArray(x.dtype, tf.shape(x)[0], element_shape=x.shape[1:])

    def turn(i, carried, results):
        carried = 0.5 * carried + body(items.read(i))
        return i + 1, carried, results.write(i, carried)

    count = tf.shape(x)[0]
    first = 0, tf.zeros_like(x[0]), results
    return tf.while_loop(lambda i, *_: i < count, turn, first)[2].stack()


def until(x, body):
    """A loop that ends when the numbers are small: its turns depend on all that it reads."""

    def goes_on(i, h):
        return (i < 5) & (tf.reduce_max(tf.abs(h)) > 0.1)

    shapes = (tf.TensorShape([]), x.shape)
    return tf.while_loop(goes_on, lambda i, h: (i + 1, 0.5 * body(h)), (0, x), shapes)[1]


def called(body, *inputs):
    """A function's result, which is a call in the graph."""
    return tf.function(body, autograph=False)(*inputs)


def moved(name, x, mode):
    """A mean that each training step moves, and that all modes read."""
    mean = tf1.get_variable(name, [], x.dtype, start, trainable=False)
    before = mean.read_value()
    if mode == "train":
        update = mean.assign(0.5 * before + 0.5 * tf.reduce_mean(x))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return before


def normed(x, axis, mode, name):
    """Fused batch normalisation of [N, H, W, C], in single precision."""
    h = tf.cast(x, tf.float32)
    options = {"axis": axis, "momentum": 0.5, "fused": True, "name": name}
    return tf.cast(tf1.layers.batch_normalization(h, training=mode == "train", **options), x.dtype)


def keras_normed(x, layer, mode):
    """A Keras layer that knows whether it trains, and its updates."""
    found = layer(x, training=mode == "train")
    if mode == "train":
        for update in layer.updates:
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return found


def columns(features, *wanted):
    """A dense layer of feature columns."""
    return tf.cast(tf1.feature_column.input_layer(features, wanted), tf.float64)


def dense_of(ids, width):
    """Sparse ids as a dense matrix of so many columns."""
    return tf.reshape(tf.sparse.to_dense(ids), [-1, width])


def pairs(ids):
    """Sparse ids, which the graph knows to be of a matrix."""
    indices, shape = tf.reshape(ids.indices, [-1, 2]), tf.reshape(ids.dense_shape, [2])
    return tf.SparseTensor(indices, ids.values, shape)


def bags(ids):
    """Ragged ids, whose ids the graph knows to be numbers."""
    return ids.with_flat_values(tf.reshape(ids.flat_values, [-1]))


def filled(x, indices):
    """[N, ...] at its places in a tensor of at least six rows."""
    shape = tf.concat([[6], tf.shape(x)[1:]], 0)
    return tf.scatter_nd(tf.reshape(indices, [-1, 1])[: tf.shape(x)[0]], x, shape)


def standard(x, axes):
    """Zero mean and a variance of one over axes."""
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 0.1)


def positive(x):
    """A positive definite [..., N, N] of [..., N, M]."""
    return tf.matmul(x, x, transpose_b=True) + tf.eye(tf.shape(x)[-2], dtype=x.dtype)


def flat(x):
    """[N, ...] as [N, M]."""
    return tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])


def contrast(x, temperature=1.0):
    """A loss in which each row is to be like itself, among all rows."""
    rows = tf.math.l2_normalize(flat(x), 1, 1e-2)
    scores = tf.matmul(rows, 2.0 * rows + 0.1, transpose_b=True) / temperature
    right = tf.range(tf.shape(scores)[0])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=right, logits=scores)
    )


def pairwise(scores, labels):
    """A loss of all pairs of rows."""
    wanted = tf.cast(labels[:, None] > labels[None, :], scores.dtype)
    lost = tf.nn.softplus(scores[None, :] - scores[:, None]) * wanted
    return tf.reduce_sum(lost) / (tf.reduce_sum(wanted) + 1.0)


def masked_mean(x, mask):
    """The mean where a mask of its first axis is true."""
    weights = tf.cast(mask, x.dtype)
    sums = tf.reduce_sum(flat(x), 1)
    return tf.reduce_sum(sums * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def sampled(name, x, labels):
    """A loss of some classes that are drawn."""
    weights, biases = var(f"{name}w", 6, x.shape[-1]), var(f"{name}b", 6)
    return tf.reduce_mean(
        tf.nn.sampled_softmax_loss(weights, biases, labels[:, None], x, 2, 6, seed=1)
    )


def slope(loss, x):
    """A penalty on a gradient, so the step takes second derivatives."""
    (gradient,) = tf.gradients(loss, [x])
    return tf.reduce_mean(tf.square(gradient))


def penalty():
    """A penalty on all weights so far."""
    return 0.01 * tf.add_n([tf.nn.l2_loss(w) for w in tf1.trainable_variables()])


def clipped(optimizer, loss, read):
    """A step with gradients that are clipped by their global norm."""
    weights = tf1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, weights), 0.1)
    return applied(optimizer, zip(gradients, weights, strict=True), [loss, *read])


def minimized(optimizer, loss, read):
    """A step."""
    return applied(optimizer, optimizer.compute_gradients(loss), [loss, *read])


def applied(optimizer, pairs, read):
    """A step with gradients, after all that reads weights and after updates."""
    pairs = [(gradient, weight) for gradient, weight in pairs if gradient is not None]
    with tf.control_dependencies([*read, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]):
        return optimizer.apply_gradients(pairs, tf1.train.get_global_step())


def afterwards(optimizer, loss, read):
    """A step whose gradients, too, are taken after updates."""
    with tf.control_dependencies([loss, *read, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]):
        return optimizer.minimize(loss, tf1.train.get_global_step())


# What a batch is made of.


def sparse(random, rows, width, limit):
    """A SparseTensorValue of ids, with rows that have none."""
    there = random.uniform(size=[rows, width]) < 0.6
    ids = random.randint(0, limit, [rows, width])
    return tf1.SparseTensorValue(
        np.argwhere(there).reshape([-1, 2]), ids[there], np.array([rows, width], np.int64)
    )


def ragged(random, rows, limit):
    """A RaggedTensorValue of ids, with rows that have none."""
    splits = np.concatenate([[0], np.cumsum(random.randint(0, 4, rows))]).astype(np.int64)
    return tf1.ragged.RaggedTensorValue(random.randint(0, limit, splits[-1]), splits)
