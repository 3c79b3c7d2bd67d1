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
