"""What is entered with the graphs of a thread."""

import contextlib
import threading

import pytest

from replicate.compat import graphs
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1


def noting(seen, name):
    @contextlib.contextmanager
    def around(graph):
        assert tf1.get_default_graph() is graph
        seen.append(name)
        yield
        seen.append(f"/{name}")

    return graphs.entered_with(around)


def test_each_graph_entered_inside_brings_what_is_around():
    seen = []
    with noting(seen, "a"), noting(seen, "b"):
        with tf.Graph().as_default():
            assert seen == ["a", "b"]
    with tf.Graph().as_default():
        assert seen == ["a", "b", "/b", "/a"]


def test_the_current_graph_entered_again_brings_nothing():
    seen, graph = [], tf.Graph()
    with noting(seen, "a"), graph.as_default():
        with graph.as_default(), tf1.name_scope("x"):
            assert seen == ["a"]
        with tf.Graph().as_default(), graph.as_default():
            assert seen == ["a", "a", "a"]  # it is no longer the current one
    assert seen == ["a", "a", "a", "/a", "/a", "/a"]


def test_a_functions_graph_entered_again_brings_what_is_around():
    seen = []
    with tf.Graph().as_default(), noting(seen, "a"):

        @tf.function
        def double(x):
            seen.append("made")
            with tf1.get_default_graph().as_default():
                seen.append("inside")
                return 2 * x

        double.get_concrete_function(tf.TensorSpec([]))
    assert seen[seen.index("made") - 1] == "a"
    assert seen[seen.index("inside") - 1] == "a"


def test_other_threads_never_notice():
    seen = []

    def other():
        with tf.Graph().as_default():
            pass

    with noting(seen, "a"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == []


def test_what_stood_there_is_put_back_after_an_exception():
    with pytest.raises(KeyError), noting([], "a"):
        raise KeyError("x")
    assert "get_controller" not in vars(tfc.ops._default_graph_stack)
