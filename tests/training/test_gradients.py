"""The hook: towers meet, and each is given the whole batch's gradients."""

import numpy as np
import pytest

from replicate import errors, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy import tower as tower_context
from replicate.training import gradients as hook
from tests import exactness

ROWS = 5
X = np.random.RandomState(5).uniform(-1, 1, [ROWS, 3])
Y = np.random.RandomState(6).uniform(-1, 1, [ROWS])


class Model:
    """A model whose step keeps what each tower is given.

    Args:
        step: From features, labels and the variables w, [3], and b, [], to the loss and to
            what is kept: a nest of tensors.
    """

    def __init__(self, step):
        self.step = step
        self.kept = []
        self.graph = tf1.get_default_graph()

    def __call__(self, features, labels, mode):
        w = tf1.get_variable("w", [3], tf.float64, exactness.start)
        b = tf1.get_variable("b", [], tf.float64, exactness.start)
        loss, kept = self.step(features, labels, w, b)
        if tf1.get_default_graph() is self.graph:  # not that of the whole batch
            self.kept.append(kept)
        return exactness.spec_of(mode, loss, train_op=tf1.no_op())


def built(step, num_towers=3, is_static=False, **options):
    """Builds a model; returns what each tower kept, and the placeholders' feed."""
    model = Model(step)
    tf1.train.get_or_create_global_step()
    shape = [ROWS] if is_static else [None]
    x, y = tf1.placeholder(tf.float64, [*shape, 3]), tf1.placeholder(tf.float64, shape)
    if num_towers == 1:
        model(x, y, "train")
    else:
        options.setdefault("tower_building", "call")
        towers = model_fn.replicate_model_fn(model, None, num_towers, **options)
        towers(x, y, "train")
    return model.kept, {x: X, y: Y}


def run(step, num_towers=3, **options):
    """Runs what each tower kept."""
    config = exactness.session_config()
    config.allow_soft_placement = True  # as an Estimator has it where nothing is said
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        kept, feed = built(step, num_towers, **options)
        session.run(tf1.global_variables_initializer())
        return session.run(kept, feed)


def require_exact(step, num_towers=3, **options):
    """Requires every tower to be given what one device has."""
    (expected,) = run(step, 1)
    found = run(step, num_towers, **options)
    assert len(found) == num_towers
    for each in found:
        exactness.compare(each, expected, 1e-9, 1e-11)


def errors_of(x, y, w, b):
    return tf.square(tf.linalg.matvec(x, w) + b - y)


def mean(x, y, w, b):
    return tf.reduce_mean(errors_of(x, y, w, b))


def total(x, y, w, b):
    return tf.reduce_sum(errors_of(x, y, w, b))


STRATEGIES = pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])


# Each tower is given the whole.


@pytest.mark.parametrize("loss", [mean, total])
@pytest.mark.parametrize("num_towers", [2, 3, 7])
@pytest.mark.parametrize("is_static", [False, True])
@STRATEGIES
def test_every_tower_is_given_the_whole_gradients(loss, num_towers, is_static, strategy):
    def step(x, y, w, b):
        found = loss(x, y, w, b)
        return found, tf.gradients(found, [w, b])

    require_exact(step, num_towers, is_static=is_static, strategy=strategy)


def test_the_hook_is_gone_when_the_towers_are_built(fresh_graph):
    built(lambda x, y, w, b: (mean(x, y, w, b), []))
    x = tf.constant(3.0)
    (gradient,) = tf.gradients(tf.square(x), [x])
    assert not gradient.name.startswith("replicate_whole/")


# Meetings.


@pytest.fixture
def merges(monkeypatch):
    """The functions that towers called across towers for gradients, of each tower."""
    made = {}
    own = tower_context.TowerContext.merge_call

    def merge_call(self, fn, *args, **kwargs):
        if getattr(fn, "__self__", None).__class__ is hook.Gradients:
            made.setdefault(self.tower_id, []).append(fn.__name__)
        return own(self, fn, *args, **kwargs)

    monkeypatch.setattr(tower_context.TowerContext, "merge_call", merge_call)
    return made


@pytest.mark.parametrize(
    ("ys_of", "expected"),
    [
        (lambda x, y, w, b: mean(x, y, w, b), ["_begin", "_continue"]),
        (lambda x, y, w, b: errors_of(x, y, w, b), ["_begin", "_continue"]),
        (lambda x, y, w, b: [mean(x, y, w, b), total(x, y, w, b)], ["_begin", "_continue"]),
        (lambda x, y, w, b: tf.exp(mean(x, y, w, b)) + tf.nn.l2_loss(w), ["_begin", "_continue"]),
        (lambda x, y, w, b: tf.nn.l2_loss(w), ["_begin"]),  # no tower has a part in it
        (lambda x, y, w, b: tf.constant(7.0), ["_begin"]),
    ],
)
def test_towers_meet_before_and_after_they_derive(fresh_graph, merges, ys_of, expected):
    def step(x, y, w, b):
        return mean(x, y, w, b), tf.gradients(ys_of(x, y, w, b), [w, b])

    built(step, 2)
    assert merges == {0: expected, 1: expected}


def test_gradients_of_gradients_go_across_once_more(fresh_graph, merges):
    def step(x, y, w, b):
        loss = tf.exp(mean(x, y, w, b))
        (first,) = tf.gradients(loss, [w])
        second = tf.gradients(tf.reduce_sum(tf.square(first)), [w, b])
        return loss, [first, *second]

    built(step, 2)
    assert merges[0] == merges[1]
    assert merges[0][:4] == ["_begin", "_continue", "_begin", "_continue"]
    assert set(merges[0][4:]) == {"_continue"}


def test_one_device_meets_nobody(fresh_graph, merges):
    def step(x, y, w, b):
        loss = mean(x, y, w, b)
        return loss, tf.gradients(loss, [w, b])

    model = Model(step)
    tf1.train.create_global_step()
    x, y = tf1.placeholder(tf.float64, [None, 3]), tf1.placeholder(tf.float64, [None])
    model_fn.replicate_model_fn(model, None, 1)(x, y, "train")
    assert merges == {}
    assert not [op for op in fresh_graph.get_operations() if "replicate_whole" in op.name]


# Towers that ask for different gradients.


class Differing:
    """Calls another step in one tower."""

    def __init__(self, usual, other, at):
        self.steps = [usual] * at + [other] + [usual] * (3 - at)
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1
        return self.steps[self.calls - 1](*args)


def asking(ys, xs):
    """A step that asks for so many ys and xs."""

    def step(x, y, w, b):
        losses = [mean(x, y, w, b), total(x, y, w, b)][:ys]
        return losses[0], tf.gradients(losses, [w, b][:xs])

    return step


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (asking(2, 2), r"tower {} has 2 ys, tower 0 has 1 \(tower_{}/Mean:0, tower_{}/Sum:0; Mean"),
        (asking(1, 1), r"tower {} has 1 xs, tower 0 has 2 \(w:0; w:0, b:0\)"),
    ],
)
def test_a_tower_that_asks_for_other_gradients_is_named(fresh_graph, other, at, shown):
    step = Differing(asking(1, 2), other, at)
    with pytest.raises(errors.TowerMismatchError, match=shown.replace("{}", str(at))):
        built(step, 3)


@STRATEGIES
def test_a_tower_that_asks_in_another_order_is_named(fresh_graph, strategy):
    def turned(x, y, w, b):
        loss = mean(x, y, w, b)
        return loss, tf.gradients(loss, [b, w])[::-1]

    step = Differing(asking(1, 2), turned, 1)
    shown = "number 0 is b:0 in tower 1, w:0 in tower 0"
    with pytest.raises(errors.TowerMismatchError, match=shown):
        built(step, 3, strategy=strategy)


def test_a_tower_that_asks_for_none_is_named(fresh_graph):
    step = Differing(asking(1, 2), lambda x, y, w, b: (mean(x, y, w, b), []), 1)
    with pytest.raises(errors.TowerMismatchError, match="tower 1"):
        built(step, 2)


# Options.


@STRATEGIES
@pytest.mark.parametrize("connected", ["w", "b", "both", "none"])
@pytest.mark.parametrize(
    ("loss", "unconnected"),
    [
        ("rows", "none"),
        ("rows", "zero"),
        ("rows and weights", "none"),
        ("rows and weights", "zero"),
        ("weights", "none"),
    ],
)
def test_what_is_not_connected_is_none_or_zero(loss, connected, unconnected, strategy):
    """On one device, and so in towers, whatever the loss is made of."""
    require_connected(loss, connected, unconnected, strategy)


@STRATEGIES
@pytest.mark.parametrize("connected", ["w", "b", "none"])
def test_what_is_not_connected_to_weights_alone_is_zero(connected, strategy):
    require_connected("weights", connected, "zero", strategy)


def require_connected(loss, connected, unconnected, strategy):
    missing = []

    def step(x, y, w, b):
        w, b = w.read_value(), b.read_value()
        in_w = w if connected in ("w", "both") else tf.ones_like(w)
        in_b = b if connected in ("b", "both") else tf.zeros_like(b)
        found = {
            "rows": mean(x, y, in_w, in_b),
            "rows and weights": total(x, y, in_w, in_b) + tf.exp(tf.reduce_sum(in_w) * in_b),
            "weights": tf.nn.l2_loss(in_w) + tf.nn.l2_loss(in_b),
        }[loss]
        gradients = tf.gradients(found, [w, b], unconnected_gradients=unconnected)
        missing.append([gradient is None for gradient in gradients])
        return found, [gradient for gradient in gradients if gradient is not None]

    require_exact(step, 2, strategy=strategy)
    assert len(missing) == 3
    assert missing[0] == missing[1] == missing[2]


@pytest.mark.parametrize("loss", [mean, total])
def test_gradients_stop_where_they_are_told_to(loss):
    def step(x, y, w, b):
        hidden = tf.sigmoid(x * w)
        found = loss(hidden, y, w, b) + tf.nn.l2_loss(w)
        return found, tf.gradients(found, [w, b], stop_gradients=[hidden])

    require_exact(step)


def test_gradients_stop_in_the_tail_and_at_weights():
    def step(x, y, w, b):
        penalty = tf.nn.l2_loss(w)
        found = tf.exp(mean(x, y, w, b)) * penalty + tf.square(b)
        kept = [tf.gradients(found, [w, b], stop_gradients=[penalty])]
        kept += tf.gradients(found, [penalty])
        return found, kept

    require_exact(step)


def test_derivatives_by_ys_are_given():
    def step(x, y, w, b):
        ys = [mean(x, y, w, b), errors_of(x, y, w, b), tf.nn.l2_loss(w)]
        given = [tf.constant(2.0, tf.float64), y, tf.exp(b)]
        return ys[0], tf.gradients(ys, [w, b], grad_ys=given)

    require_exact(step)


@pytest.mark.parametrize("method", list(range(3)))
def test_an_aggregation_method_is_passed_on(monkeypatch, method):
    """Each of TensorFlow's calls, across towers and in them, is given it."""
    given = []
    own = hook._derived

    def derived(function, xs, request, options):
        given.append(options["aggregation_method"])
        return own(function, xs, request, options)

    monkeypatch.setattr(hook, "_derived", derived)

    def step(x, y, w, b):
        found = tf.square(mean(x, y, w, b)) + tf.nn.l2_loss(w)
        return found, tf.gradients(found, [w, b], aggregation_method=method)

    require_exact(step)
    assert given == [method] * 3


def test_one_x_and_one_y_need_no_list():
    def step(x, y, w, b):
        found = mean(x, y, w, b)
        return found, [tf.gradients(found, w), tf1.gradients(ys=found, xs=b)]

    require_exact(step)


# Values of several tensors.


def test_gradients_of_slices_and_by_ragged_rows(fresh_graph, session):
    """TensorFlow asks again for the parts. The tower's rows are 3 and 2 of five."""
    kept = []

    def model(features, labels, mode):
        w = tf1.get_variable("w", [], tf.float64, exactness.start)
        loss = tf.reduce_sum(tf.square(features.flat_values * w)) + tf.reduce_mean(labels)
        kept.append(tf.gradients(loss, [features, w]))
        return exactness.spec_of(mode, loss, train_op=tf1.no_op())

    tf1.train.create_global_step()
    ragged = tf.ragged.constant([[1.0], [], [2.0, 3.0], [4.0], []], dtype=tf.float64)
    spread = tf1.placeholder_with_default(ragged.row_splits, [None])
    ragged = tf.RaggedTensor.from_row_splits(ragged.values, spread, validate=False)
    towers = model_fn.replicate_model_fn(model, None, 2, tower_building="call")
    towers(ragged, tf1.placeholder_with_default(Y, [None]), "train")
    w = tf1.global_variables()[1]
    session.run(tf1.global_variables_initializer())
    first, second, value = session.run([*kept, w.read_value()])
    # d/dx (x w)^2 = 2 x w^2; d/dw = 2 w (1 + 4 + 9 + 16).
    np.testing.assert_allclose(first[0].flat_values, 2 * value**2 * np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(second[0].flat_values, 2 * value**2 * np.array([4.0]))
    assert first[0].to_list()[1] == []
    np.testing.assert_allclose([first[1], second[1]], [60 * value] * 2)


# Graphs inside the tower's.


def own_mean(x, y, w, b):
    """What one tower finds by itself: the gradient of its rows' mean."""
    error = x @ w + b - y
    return (2 * error[:, None] * x).mean(0)


@pytest.mark.parametrize("kind", ["cond", "function"])
def test_in_graphs_of_their_own_towers_ask_by_themselves(kind):
    def step(x, y, w, b):
        read = [w.read_value(), b.read_value()]

        def inside():
            return tf.gradients(mean(x, y, *read), read)[0]

        if kind == "cond":
            found = tf.cond(tf.reduce_sum(y) > -100.0, inside, lambda: tf.zeros_like(read[0]))
        else:
            found = tf.function(inside, autograph=False)()
        return mean(x, y, w, b), [found, *read]

    found = run(step, 2)
    for (gradient, w, b), rows in zip(found, (slice(0, 3), slice(3, 5)), strict=True):
        np.testing.assert_allclose(gradient, own_mean(X[rows], Y[rows], w, b))


def test_gradients_go_through_branches_and_loops_of_a_tower():
    """TensorFlow derives these in graphs of their own, where towers do not meet."""

    def step(x, y, w, b):
        rows = errors_of(x, y, w, b)
        rows = tf.cond(tf.reduce_sum(w) > 0.0, lambda: rows * 2.0, lambda: tf.square(rows))
        _, rows = tf.while_loop(
            lambda i, _: i < 2, lambda i, each: (i + 1, each * tf.exp(b)), [tf.constant(0), rows]
        )
        found = tf.reduce_mean(tf.function(tf.sqrt, autograph=False)(rows + 1.0))
        return found, tf.gradients(found, [w, b])

    require_exact(step)


# Sparse gradients.


def of_a_table(kind):
    """The gradient of a table's gradient; the table is looked up as it is, or a product is."""

    def step(x, y, w, b):
        table = w if kind == "sparse" else w * 1.0
        by = table if kind == "by the product" else w
        ids = tf.cast(tf.abs(x[:, 0]) * 3.0, tf.int32)
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids) - y))
        (gradient,) = tf.gradients(loss, [by])
        assert isinstance(gradient, tf.IndexedSlices) is (kind != "dense")
        (second,) = tf.gradients(tf.reduce_sum(tf.square(tf.convert_to_tensor(gradient))), [by])
        return loss, tf.convert_to_tensor(second)

    return step


def test_gradients_of_the_gradient_of_one_copy_of_a_table_are_exact():
    require_exact(of_a_table("sparse"), strategy="parameter_server")


@STRATEGIES
def test_gradients_of_a_dense_gradient_of_a_table_are_exact(strategy):
    require_exact(of_a_table("dense"), strategy=strategy)


def test_gradients_of_the_gradient_of_a_mirrored_table_are_refused(fresh_graph):
    with pytest.raises(ValueError, match=r"Gradients of the gradient of a table, which is sparse"):
        built(of_a_table("sparse"), strategy="mirrored")


@pytest.mark.parametrize(
    "strategy",
    [
        "mirrored",
        "parameter_server",
    ],
)
def test_gradients_of_the_sparse_gradient_by_towers_own_tensors_are_refused(fresh_graph, strategy):
    """By what each tower has made of the table, nobody gets to the other towers' rows."""
    with pytest.raises(ValueError, match=r"Gradients of the gradient of a table, which is sparse"):
        built(of_a_table("by the product"), strategy=strategy)


# Sums and means.


@pytest.fixture
def takers(monkeypatch):
    """Those who take gradients, as they are made."""
    made = []
    own = hook.Gradients.__init__

    def init(self, *args, **kwargs):
        own(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(hook.Gradients, "__init__", init)
    return made


@pytest.mark.parametrize(
    ("loss", "is_sum"),
    [
        (total, True),
        (lambda *args: 0.5 * total(*args), True),
        (lambda *args: total(*args) / 7.0, True),
        (lambda *args: total(*args) - tf.nn.l2_loss(args[3]), True),
        (lambda *args: total(*args) + tf.nn.l2_loss(args[2]), True),
        (lambda *args: errors_of(*args), True),
        (mean, False),
        (lambda *args: total(*args) + mean(*args), False),
        (lambda *args: tf.exp(total(*args)), False),
        (lambda *args: total(*args) / tf.reduce_sum(args[1]), False),
        (lambda *args: tf.reduce_max(errors_of(*args)), False),
    ],
)
@pytest.mark.parametrize("num_towers", [1, 3])
def test_sums_are_told_from_all_else(fresh_graph, takers, loss, is_sum, num_towers):
    def step(x, y, w, b):
        found = loss(x, y, w, b)
        return tf.reduce_mean(found), tf.gradients(found, [w, b])

    model = Model(step)
    tf1.train.create_global_step()
    x, y = tf1.placeholder(tf.float64, [None, 3]), tf1.placeholder(tf.float64, [None])
    model_fn.replicate_model_fn(model, None, num_towers, accumulate_steps=2)(x, y, "train")
    (taker,) = takers
    for gradient in model.kept[0]:
        assert taker.is_sum(gradient) is is_sum
    assert taker.is_sum(model.kept[0][0] * 2.0) is is_sum
    assert taker.is_sum(tf.constant(1.0)) is False
