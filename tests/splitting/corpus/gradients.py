"""Models that take gradients by themselves, and step by themselves."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.splitting.corpus.model import F64, hidden, model, squares, weight


@model
def maml_of_each_row(f, y):
    """Each row is a task with weights of its own."""
    w = tf.tile(weight("w", 3, 3)[None], [tf.shape(f["x"])[0], 1, 1])
    for _ in range(2):
        losses = tf.reduce_sum(tf.square(tf.tanh(tf.einsum("bi,bij->bj", f["x"], w)) - y["y"]), 1)
        w -= 0.5 * tf.gradients(losses, w)[0]
    return squares(tf.tanh(tf.einsum("bi,bij->bj", f["other"], w)), y), {"adapted": w}


@model
def gradient_tape(f, y):
    """A tape in the model, with a tape in it."""
    v = tf1.get_variable("w", [3, 3], F64, exactness.start)
    x = f["x"]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            found = tf.tanh(tf.matmul(x, v))
        slopes = inner.gradient(found, x)
        loss = squares(found, y) + 0.1 * tf.reduce_mean(tf.square(slopes))
    gradient = outer.gradient(loss, v)
    step = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, v)])
    return loss, {"slopes": slopes, "gradient": gradient}, step


def attended(tokens, heads, more):
    """Attention of several heads; `more` dimensions of length 1 in front of the heads."""
    length = tf.shape(tokens)[1]
    shape = [tf.shape(tokens)[0], length, *[1] * more, heads, 4 // heads]
    order = [0, *range(2, 3 + more), 1, 3 + more]

    def parts(name):
        return tf.transpose(tf.reshape(hidden(tokens, 4, name), shape), order)

    weights = tf.nn.softmax(tf.matmul(parts("query"), parts("key"), transpose_b=True))
    return tf.matmul(weights, parts("value"))


@model
def attention_with_one_head(f, y):
    """The gradient of a product of [B, 1, L, D] sums over no axis, though one is of length 1."""
    found = attended(f["tokens"], 1, 0)
    return squares(tf.reduce_mean(found, [1, 2])[:, :3], y), {"found": found}


@model
def products_with_lengths_of_one(f, y):
    """Products of matrices that are stretched along one, both or none of two axes of length 1."""
    found = attended(f["tokens"], 1, 1)[:, 0, 0]
    rows = tf.reshape(f["tokens"], [tf.shape(found)[0], 1, 1, -1, 3])
    one, column = rows[:, :, :, :1], weight("column", 1, 1, 3, 4)
    products = [
        tf.matmul(column, found[:, None, None], transpose_b=True),
        tf.matmul(tf.matmul(one, column), found[:, None], transpose_b=True),
        tf.matmul(rows[:, 0], column, name="stretched"),
        tf.matmul(tf.reshape(one, [1, -1, 1, 3]), tf.tile(column[0], [count_of(one), 1, 1])),
    ]
    sums = [tf.reduce_sum(tf.reshape(p, [count_of(one), -1]), 1, keepdims=True) for p in products]
    return squares(tf.tanh(0.1 * tf.add_n(sums)), y), {f"{n}": p for n, p in enumerate(products)}


def count_of(x):
    return tf.shape(x)[0]


@model
def jacobians_of_rows(f, y):
    """A penalty on each row's Jacobian, column by column."""
    found = hidden(f["x"], 3)
    columns = [tf.gradients(found[:, i], f["x"])[0] for i in range(3)]
    jacobian = tf.stack(columns, 1)
    return squares(found, y) + 0.1 * tf.reduce_sum(tf.square(jacobian)), {"jacobian": jacobian}
