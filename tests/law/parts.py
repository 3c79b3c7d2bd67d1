"""Losses of what else a model may be made of: what TensorFlow finds by name, places or traces."""

from replicate.compat.tensorflow import tf, tf1
from tests import exactness

double = tf.float64


def _error(found, y):
    return tf.reduce_mean(tf.square(found - y["y"]))


def _dense(x, width=3, **options):
    return tf1.layers.dense(x, width, kernel_initializer=exactness.start, **options)


def _variable(name, *shape):
    return tf1.get_variable(name, shape, double, exactness.start)


def placed(f, y, v):
    with tf.device("/cpu:5"):
        hidden = _dense(f["x"], 2)
    with tf1.colocate_with(f["x"]):
        hidden = tf.nn.tanh(hidden)
    return _error(_dense(hidden), y)


def a_vocabulary(f, y, v):
    keys = tf.strings.as_string(y["class"])
    initializer = tf.lookup.KeyValueTensorInitializer(["1", "2"], [1, 2], tf.string, tf.int64)
    ids = tf.lookup.StaticVocabularyTable(initializer, 2).lookup(keys)
    return _error(_dense(tf.one_hot(ids, 4, dtype=double)), y)


def a_function_of_a_variable(f, y, v):
    w = _variable("w", 3, 3)
    return _error(tf.function(lambda x: tf.matmul(x, w))(f["x"]), y)


def modules(f, y, v):
    class Linear(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(exactness.start([3, 3], double))
            self.b = tf.Variable(exactness.start([3], double))

        def __call__(self, x):
            return tf.matmul(x, self.w) + self.b

    return _error(Linear()(f["x"]) * Linear()(f["x"]), y)


def reused(f, y, v):
    outputs = []
    for _ in range(2):
        with tf1.variable_scope("tied", reuse=tf1.AUTO_REUSE):
            outputs.append(_dense(f["x"], name="layer"))
    with tf1.variable_scope("template"):
        template = tf1.make_template("t", _dense)
        outputs += [template(f["x"]), template(f["x"] * 2.0)]
    return _error(tf.add_n(outputs), y)


def recomputed_rows(f, y, v):
    """Recomputes what reads rows of a table, and what makes its variables as it runs."""
    table = _variable("table", 3, 3)
    part = tf.recompute_grad(lambda x: tf.nn.embedding_lookup(table, y["class"]) * x)

    @tf.recompute_grad
    def layer(x):
        with tf1.variable_scope("layer", reuse=tf1.AUTO_REUSE):
            return tf.nn.tanh(tf.matmul(x, _variable("k", 3, 3)))

    return _error(layer(part(f["x"])), y)


def a_gradient_of_its_own(f, y, v):
    @tf.custom_gradient
    def doubled(x):
        w = _variable("w", 3, 4)

        def gradient(dy, variables=None):
            (variable,) = variables
            onto_x = tf.matmul(dy, variable, transpose_b=True)
            return onto_x, [tf.matmul(x, dy, transpose_a=True) * 2.0]

        return tf.matmul(x, w), gradient

    return _error(_dense(doubled(f["x"])), y)


def a_gradient_of_what_is_captured(f, y, v):
    """The function's result depends on two variables, one of them read outside of it."""
    outer, inner = _variable("outer", 3, 4), _variable("inner", 4)
    captured = tf.matmul(f["x"], outer)

    @tf.custom_gradient
    def added(x):
        def gradient(dy, variables=None):
            weights = {"inner": 3.0, "outer": 5.0}
            found = [weights[v.op.name] * tf.ones_like(v) * tf.reduce_sum(dy) for v in variables]
            return dy, found

        return tf.nn.tanh(x + inner + captured), gradient

    return _error(_dense(added(_dense(f["x"], 4))), y)


class MadeInFunctions(tf.Module):
    """Makes its variable in its function, which loops and branches."""

    def __init__(self):
        super().__init__()
        self.w = None

    @tf.function
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(tf.constant([[0.1], [0.2], [0.3]], double))
        y = tf.matmul(x, self.w)
        for _ in tf.range(2):
            y = y * 1.5
        if tf.reduce_sum(y) > 100.0:
            y = y * 0.0
        return y


def made_in_functions(f, y, v):
    """TensorFlow lists such a variable as global alone: the layer is all that is trained."""
    return _error(MadeInFunctions()(f["x"]) + _dense(f["x"]), y)


def made_in_functions_and_trained(f, y, v):
    module = MadeInFunctions()
    loss = _error(module(f["x"]) + _dense(f["x"]), y)
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    trained = [module.w, *tf1.trainable_variables()]
    return loss, optimizer.minimize(loss, tf1.train.get_global_step(), trained)
