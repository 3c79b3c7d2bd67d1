"""One function through which a graph's gradients go, for one thread and for a while."""

import threading

import pytest

from replicate.compat import gradients
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def helper():
    return tfc.gradients_util.target()._GradientsHelper  # the door would keep what it found


@pytest.fixture(autouse=True)
def nothing_stays():
    """TensorFlow's function is its own before and after each test."""
    own = helper()
    assert not hasattr(own, "__wrapped__")
    yield
    assert helper() is own


class Asked(list):
    """Takes gradients as TensorFlow does, and remembers of what."""

    def __call__(self, own, ys, xs, *args, **kwargs):
        self.append(ys)
        return own(ys, xs, *args, **kwargs)


def tens(own, ys, xs, *args, **kwargs):
    """Finds every gradient to be 10."""
    return [tf.fill(tf.shape(x), 10.0) for x in xs]


@pytest.fixture
def xy(fresh_graph):
    """A number, and its square."""
    x = tf.constant(3.0)
    return x, tf.square(x)


def take(xy):
    x, y = xy
    return tf.gradients(y, [x])[0]


def test_a_taker_is_asked(xy, session):
    with gradients.taken_by(tens):
        taken = take(xy)
    assert session.run([taken, take(xy)]) == [10.0, 6.0]


def test_a_taker_is_given_all_that_was_asked(fresh_graph, xy):
    x, y = xy
    given = []

    def remember(own, *args, **kwargs):
        given.append((own, args, kwargs))
        return own(*args, **kwargs)

    own = helper()
    with gradients.taken_by(remember):
        tf.gradients(y, [x], grad_ys=[y], name="mine", stop_gradients=[y])
    ((function, args, kwargs),) = given
    assert function.__wrapped__ is own
    assert args[0] is y
    assert args[1] == [x]
    assert args[2] == [y]
    assert "mine" in (*args[3:], *kwargs.values())


def test_the_innermost_taker_is_asked(xy):
    outer, inner = Asked(), Asked()
    with gradients.taken_by(outer):
        take(xy)
        with gradients.taken_by(inner):
            take(xy)
        take(xy)
    take(xy)
    assert (len(outer), len(inner)) == (2, 1)


def test_no_taker_is_tensorflow_itself(xy, session):
    own = helper()
    with gradients.taken_by(tens):
        with gradients.taken_by(None):
            inner = take(xy)
        outer = take(xy)
    with gradients.taken_by(None):
        assert helper() is not own  # yet nobody notices
        alone = take(xy)
    assert session.run([inner, outer, alone]) == [6.0, 10.0, 6.0]


def test_a_taker_that_asks_tensorflow_is_not_asked_again(xy):
    asked = Asked()

    def again(own, ys, xs, *args, **kwargs):
        asked.append(ys)
        with gradients.taken_by(None):
            return tf.gradients(ys, xs)

    with gradients.taken_by(again):
        take(xy)
    assert len(asked) == 1


def test_all_is_put_back_after_an_exception(xy, session):
    def fail(own, *args, **kwargs):
        raise ValueError("not today")

    own = helper()
    with pytest.raises(ValueError, match="not today"), gradients.taken_by(fail):
        take(xy)
    assert helper() is own
    with pytest.raises(KeyError), gradients.taken_by(tens), gradients.taken_by(fail):
        raise KeyError
    assert helper() is own
    assert session.run(take(xy)) == 6.0


# Threads.


def in_thread(fn):
    """Runs a function in another thread; returns what it returned, or raises."""
    found = []

    def run():
        try:
            found.append((fn(), None))
        except BaseException as reason:  # noqa: BLE001 - raised below
            found.append((None, reason))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((value, reason),) = found
    if reason is not None:
        raise reason
    return value


def in_a_graph_of_its_own():
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(3.0)
        return float(session.run(tf.gradients(tf.square(x), [x])[0]))


def test_other_threads_never_notice():
    with gradients.taken_by(tens):
        assert in_a_graph_of_its_own() == 10.0
        assert in_thread(in_a_graph_of_its_own) == 6.0


def test_threads_have_takers_of_their_own():
    """The one that came first leaves first, while the other is still in charge."""
    entered, left = threading.Event(), threading.Event()
    found = {}

    def twenties(own, ys, xs, *args, **kwargs):
        return [tf.fill(tf.shape(x), 20.0) for x in xs]

    def first():
        with gradients.taken_by(tens):
            entered.wait(30)
            found["first"] = in_a_graph_of_its_own()
        found["afterwards"] = in_a_graph_of_its_own()
        left.set()

    def second():
        with gradients.taken_by(twenties):
            entered.set()
            left.wait(30)
            found["second"] = in_a_graph_of_its_own()

    threads = [threading.Thread(target=fn) for fn in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": 10.0, "afterwards": 6.0, "second": 20.0}


def test_many_threads_leave_nothing_behind():
    failures = []

    def enter_and_leave():
        for _ in range(200):
            with gradients.taken_by(tens), gradients.taken_by(None):
                if not hasattr(helper(), "__wrapped__"):
                    failures.append("put back while in charge")

    threads = [threading.Thread(target=enter_and_leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Who asks.


def variable():
    return tf1.get_variable("v", initializer=3.0, use_resource=True)


def by_gradients(v):
    return tf.gradients(tf.square(v), [v])


def by_old_gradients(v):
    return tf1.gradients(tf.square(v), [v])


def by_an_optimizer(v):
    return tf1.train.MomentumOptimizer(0.1, 0.9).compute_gradients(tf.square(v), [v])


def by_keras(v):
    return tf.keras.optimizers.legacy.SGD(0.1).get_gradients(tf.square(v), [v])


def by_keras_updates(v):
    return tf.keras.optimizers.legacy.Adam(0.1).get_updates(tf.square(v), [v])


def by_hessians(v):
    return tf.hessians(tf.square(tf.identity(v)), [v])


@pytest.mark.parametrize(
    "ask",
    [by_gradients, by_old_gradients, by_an_optimizer, by_keras, by_keras_updates, by_hessians],
)
def test_all_ways_to_a_graphs_gradients_lead_here(fresh_graph, ask):
    asked = Asked()
    with gradients.taken_by(asked):
        ask(variable())
    assert asked


def test_a_tape_goes_another_way(fresh_graph):
    asked = Asked()
    v = variable()
    with gradients.taken_by(asked), tf.GradientTape() as tape:
        y = tf.square(v)
    with gradients.taken_by(asked):
        assert tape.gradient(y, v) is not None
    assert asked == []


def by_branch(x):
    return tf.cond(x > 0.0, lambda: tf.square(x), lambda: x)


def by_loop(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * x), [0, tf.constant(1.0)])[1]


def by_function(x):
    return tf.function(tf.square, autograph=False)(x)


@pytest.mark.parametrize("make", [by_branch, by_loop, by_function])
def test_control_flow_asks_in_graphs_of_its_own(session, make):
    """Those calls are passed on, and the gradient is what it is."""
    x = tf.constant(3.0)
    asked = Asked()
    with gradients.taken_by(asked):
        (taken,) = tf.gradients(make(x), [x])
    ys = [tf.nest.flatten(each)[0] for each in asked]
    assert ys[0].graph is session.graph
    assert all(y.graph is not session.graph for y in ys[1:])
    assert session.run(taken) == 6.0


def test_sessions_run_while_a_taker_waits(xy, session):
    # TensorFlow forbids sessions while it takes gradients; a tower that waits takes none.
    three = tf.constant(3.0)

    def waiting(own, ys, xs, *args, **kwargs):
        assert in_thread(lambda: session.run(three)) == 3.0
        return own(ys, xs, *args, **kwargs)

    with gradients.taken_by(waiting):
        found = take(xy)
    assert session.run(found) == 6.0
