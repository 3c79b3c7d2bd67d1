"""What else a model_fn may be made of, with the numbers of one device."""

import functools
import threading

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import running

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
STRATEGIES = [("parameter_server", 3), ("mirrored", 4), ("round_robin", 2), ("mirrored", 8)]
ON = [running.Setting(*on, (7, 2)) for on in STRATEGIES]


def batch(rows, seed=0):
    numbers = np.random.RandomState(seed)
    return (
        numbers.uniform(0.5, 1.5, [rows, 3]).astype(np.float32),
        numbers.uniform(-1, 1, [rows, 1]).astype(np.float32),
    )


BATCHES = [batch(7), batch(2)]


def require_exact(model, setting, mode="train", optimizer_fn=None):
    options = {"optimizer_fn": optimizer_fn, "tolerance": (2e-4, 2e-5)}  # in float32
    running.require_exact(model, setting, mode, BATCHES, **options)


def squared(mode, output, labels, **fields):
    return exactness.spec_of(mode, tf.reduce_mean(tf.square(output - labels)), output, **fields)


def dense(x, width=1):
    return tf1.layers.dense(x, width, kernel_initializer=exactness.start)


def conditional(features, labels, mode):
    hidden = dense(features, 2)
    mean = tf.reduce_mean(hidden, 1, keepdims=True)
    is_training = tf.constant(mode == "train")
    return squared(mode, tf.cond(is_training, lambda: mean * 2.0, lambda: mean), labels)


def placed(features, labels, mode):
    with tf.device("/cpu:5"):
        hidden = dense(features, 2)
    with tf1.colocate_with(features):
        hidden = tf.nn.tanh(hidden)
    return squared(mode, dense(hidden), labels)


def looking_up(features, labels, mode):
    keys = tf.strings.as_string(tf.cast(features[:, 0] * 3.0, tf.int64))
    initializer = tf.lookup.KeyValueTensorInitializer(["1", "2"], [1, 2], tf.string, tf.int64)
    named = tf.lookup.StaticVocabularyTable(initializer, 2).lookup(keys)
    plain = tf.lookup.StaticHashTable(initializer, 0).lookup(keys)
    one_hot = tf.one_hot(named, 5) + tf.one_hot(plain, 5)
    return squared(mode, dense(one_hot), labels)


def in_functions(features, labels, mode):
    w = tf1.get_variable("w", [3, 1], initializer=exactness.start)

    @tf.function
    def apply(x):
        return tf.matmul(x, w)

    return squared(mode, apply(features), labels)


def modules(features, labels, mode):
    class Linear(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(np.float32([[0.1], [0.2], [0.3]]))
            self.b = tf.Variable(np.float32([0.5]))

        def __call__(self, x):
            return tf.matmul(x, self.w) + self.b

    return squared(mode, Linear()(features) * Linear()(features), labels)


def reused(features, labels, mode):
    outputs = []
    for _ in range(2):
        with tf1.variable_scope("tied", reuse=tf1.AUTO_REUSE):
            outputs.append(
                tf1.layers.dense(features, 1, kernel_initializer=exactness.start, name="layer")
            )
    with tf1.variable_scope("template"):
        template = tf1.make_template("t", dense)
        outputs += [template(features), template(features * 2.0)]
    return squared(mode, tf.add_n(outputs), labels)


MODELS = [conditional, placed, looking_up, in_functions, modules, reused]


@pytest.mark.parametrize(("model", "setting"), running.in_turn(MODELS, ON))
def test_what_a_model_is_made_of_is_exact(model, setting):
    require_exact(model, setting, "train", running.descend)
    require_exact(model, setting, "eval")


def test_a_table_from_a_file_is_initialized_for_all_devices(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\nc\n")

    def model(features, labels, mode):
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(path),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            1,
        )
        ids = table.lookup(features)
        names = tf1.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([0, 1, 2], ["x", "y", "z"], tf.int64, tf.string),
            "none",
        )
        return exactness.spec_of(mode, predictions={"id": ids, "name": names.lookup(ids)})

    words = np.array(["b", "c", "a", "d", "b"])
    exactness.require_one_device(model, [(words, None)], "infer", devices=3)


def test_model_fns_may_be_partials_methods_and_objects():
    class Model:
        def __init__(self, rate):
            self.rate = rate

        def __call__(self, features, labels, mode):
            return squared(mode, dense(features) * self.rate, labels)

        def method(self, features, labels, mode, power=1.0):
            return squared(mode, dense(features) ** power, labels)

    for model in (Model(2.0), Model(1.0).method, functools.partial(Model(1.0).method, power=2.0)):
        exactness.require_one_device(model, [batch(7)], "train", running.descend, devices=3)


# Towers.


def test_params_that_cannot_be_copied_are_shared():
    seen = []

    def model(features, labels, mode, params):
        seen.append(params)
        return squared(mode, dense(features), labels)

    params = {"lock": threading.Lock()}
    towers = model_fn.replicate_model_fn(model, running.descend, 2, tower_building="call")
    exactness.run(towers, [batch(4)], params=params)
    assert all(item["lock"] is params["lock"] for item in seen)
    assert len(seen) == 2


# Random numbers.


def noisy(seed=None):
    def model(features, labels, mode):
        noise = tf.random.uniform([tf.shape(features)[0]], seed=seed)
        return exactness.spec_of(mode, predictions=noise)

    return model


def dropping(features, labels, mode):
    """32 entries of a row, each of which is dropped or kept, by layers and by Keras."""
    ones = tf.ones([tf.shape(features)[0], 16])
    dropped = [
        tf1.layers.dropout(ones, 0.5, training=True),
        tf.keras.layers.Dropout(0.5)(ones, training=True),
    ]
    return exactness.spec_of(mode, predictions=tf.concat(dropped, 1))


def drawn(model, num_devices, numbers="per_device", rows=5, steps=2):
    """Returns what a model draws, row by row, step by step."""
    replicated = model_fn.replicate_model_fn(model, None, num_devices, random_numbers=numbers)
    found = exactness.run(replicated, [(batch(rows)[0], None)] * steps, "infer").fetched
    return np.concatenate([item["predictions"] for item in found])


@pytest.mark.parametrize("model", [noisy(), noisy(7), dropping])
def test_what_is_drawn_may_be_what_one_device_draws(model):
    given = [(batch(5)[0], None)] * 2
    found = exactness.run(model, given, "infer").fetched
    expected = np.concatenate([item["predictions"] for item in found])
    np.testing.assert_array_equal(drawn(model, 3, "one_device"), expected)


@pytest.mark.parametrize("model", [noisy(), noisy(7), dropping])
def test_what_devices_draw_by_themselves_differs_between_rows_and_steps(model):
    found = drawn(model, 2, rows=4)
    assert len({row.tobytes() for row in found}) == 8


def random_dense(x, width):
    # Keras' own default initializer draws its seed past the graph's.
    return tf1.layers.dense(x, width, kernel_initializer=tf1.glorot_uniform_initializer())


@pytest.mark.parametrize("numbers", ["one_device", "per_device"])
def test_seeded_training_repeats_exactly(numbers):
    def model(features, labels, mode):
        hidden = tf1.layers.dropout(random_dense(features, 8), 0.5, training=True)
        return squared(mode, random_dense(hidden, 1), labels)

    def trained():
        replicated = model_fn.replicate_model_fn(model, running.descend, 3, random_numbers=numbers)
        return exactness.run(replicated, [batch(7)] * 3).variables

    exactness.compare(trained(), trained(), rtol=1e-6)


def recomputing_rows(features, labels, mode):
    """Recomputes what reads rows of a table, and what makes its variables as it runs."""
    table = tf1.get_variable("table", [4, 3], initializer=exactness.start)
    ids = tf.cast(features[:, 0] * 2.0, tf.int32)
    part = tf.recompute_grad(lambda x: tf.nn.embedding_lookup(table, ids) * x)

    @tf.recompute_grad
    def layer(x):
        with tf1.variable_scope("layer", reuse=tf1.AUTO_REUSE):
            return tf.nn.tanh(tf.matmul(x, tf1.get_variable("k", [3, 1], tf.float32)))

    with tf1.variable_scope("made", initializer=exactness.start):
        return squared(mode, layer(part(features)), labels)


def with_its_own_gradient(features, labels, mode):
    @tf.custom_gradient
    def doubled(x):
        w = tf1.get_variable("w", [3, 4], initializer=exactness.start)

        def gradient(dy, variables=None):
            (variable,) = variables
            onto_x = tf.matmul(dy, variable, transpose_b=True)
            return onto_x, [tf.matmul(x, dy, transpose_a=True) * 2.0]

        return tf.matmul(x, w), gradient

    return squared(mode, dense(doubled(features)), labels)


def with_the_gradient_of_what_it_captures(features, labels, mode):
    """The function's result depends on two variables, one of them read outside of it."""
    outer = tf1.get_variable("outer", [3, 4], initializer=exactness.start)
    inner = tf1.get_variable("inner", [4], initializer=exactness.start)
    captured = tf.matmul(features, outer)

    @tf.custom_gradient
    def added(x):
        def gradient(dy, variables=None):
            weights = {"inner": 3.0, "outer": 5.0}
            found = [weights[v.op.name] * tf.ones_like(v) * tf.reduce_sum(dy) for v in variables]
            return dy, found

        return tf.nn.tanh(x + inner + captured), gradient

    return squared(mode, dense(added(dense(features, 4))), labels)


class MadeInFunctions(tf.Module):
    """Makes its variable in its function, which loops and branches."""

    def __init__(self):
        super().__init__()
        self.w = None

    @tf.function
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable([[0.1], [0.2], [0.3]])
        y = tf.matmul(x, self.w)
        for _ in tf.range(2):
            y = y * 1.5
        if tf.reduce_sum(y) > 100.0:
            y = y * 0.0
        return y


def made_in_functions(features, labels, mode):
    """TensorFlow lists such a variable as global alone: the layer is all that is trained."""
    metrics = {"mean": tf1.metrics.mean(features)}
    output = MadeInFunctions()(features) + dense(features)
    return squared(mode, output, labels, eval_metric_ops=metrics)


def training_what_functions_made(features, labels, mode):
    module = MadeInFunctions()
    spec = squared(mode, module(features) + dense(features), labels)
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    trained = [module.w, *tf1.trainable_variables()]
    step = optimizer.minimize(spec.loss, tf1.train.get_global_step(), trained)
    return spec._replace(train_op=step)


TRACED = [
    recomputing_rows,
    with_its_own_gradient,
    with_the_gradient_of_what_it_captures,
    made_in_functions,
]


@pytest.mark.parametrize(("model", "setting"), running.in_turn(TRACED, ON))
def test_what_tensorflow_finds_by_name_or_traces_is_exact(model, setting):
    require_exact(model, setting, "train", running.descend)
    require_exact(exactness.stepping(model, running.descend), setting)
    require_exact(model, setting, "eval")


@pytest.mark.thorough("mirrored-*")
@pytest.mark.parametrize("setting", ON[:3], ids=str)
def test_variables_that_functions_made_are_trained_as_on_one_device(setting):
    require_exact(training_what_functions_made, setting)


# What happens once.


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_model_is_called_once(mode, is_static):
    model = exactness.Counted(looking_up)
    replicated = model_fn.replicate_model_fn(model, running.descend, 3)
    exactness.run(replicated, [batch(7)], mode, is_static)
    assert model.calls == 1
