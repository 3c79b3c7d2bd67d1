"""What is taken out of a MetaGraphDef, on graphs small enough to read."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import portable


def exported(graph):
    with graph.as_default():
        return tf1.train.export_meta_graph()


def names(meta_graph):
    return {node.name for node in meta_graph.graph_def.node}


def node(meta_graph, name):
    (found,) = [one for one in meta_graph.graph_def.node if one.name == name]
    return found


def test_devices_go_and_towers_stay_marked(fresh_graph):
    with tf1.device("/cpu:0"):
        tf.constant(1.0, name="shared")
    with tf1.device("/job:localhost/replica:0/task:0/device:CPU:1"):
        tf.constant(1.0, name="first")
    with tf1.device("/device:CPU:2"):
        tf.constant(1.0, name="second")
    tf.constant(1.0, name="anywhere")
    meta_graph = exported(fresh_graph)
    portable.strip_devices(meta_graph, ["/device:CPU:1", "/device:CPU:2"])
    assert {one.device for one in meta_graph.graph_def.node} == {""}
    assert portable.towers(meta_graph) == {"first": 0, "second": 1}


def test_devices_go_from_functions(fresh_graph):
    @tf.function
    def doubled(x):
        with tf.device("/cpu:1"):
            return 2.0 * x

    doubled(tf.constant(1.0))
    meta_graph = exported(fresh_graph)
    functions = meta_graph.graph_def.library.function
    assert {one.device for function in functions for one in function.node_def} != {""}
    portable.strip_devices(meta_graph)
    assert {one.device for function in functions for one in function.node_def} == {""}


def test_a_marked_graph_can_be_imported(fresh_graph):
    with tf1.device("/device:CPU:2"):
        tf.constant(7.0, name="seven")
    meta_graph = exported(fresh_graph)
    portable.strip_devices(meta_graph, ["/device:CPU:2"])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(meta_graph.graph_def, name="")
        assert session.run("seven:0") == 7.0


def test_what_nothing_needs_is_pruned(fresh_graph):
    kept = tf.constant(1.0, name="kept")
    tf.negative(kept, name="answer")
    tf.identity(kept, name="summary")
    tf.constant(3.0, name="outside")
    fresh_graph.add_to_collection("summaries", "summary")
    fresh_graph.add_to_collection("others", fresh_graph.get_tensor_by_name("answer:0"))
    fresh_graph.add_to_collection("losses", fresh_graph.get_tensor_by_name("summary:0"))
    meta_graph = exported(fresh_graph)
    portable.prune(meta_graph, {"kept", "answer", "summary"}, {"answer"})
    assert names(meta_graph) == {"kept", "answer", "outside"}
    assert "losses" not in meta_graph.collection_def
    assert list(meta_graph.collection_def["others"].node_list.value) == ["answer:0"]


def test_a_control_dependency_is_a_need(fresh_graph):
    check = tf1.no_op(name="check")
    with tf1.control_dependencies([check]):
        tf.constant(1.0, name="answer")
    meta_graph = exported(fresh_graph)
    portable.prune(meta_graph, {"check", "answer"}, {"answer"})
    assert names(meta_graph) == {"check", "answer"}


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
def test_a_colocation_with_what_went_goes_too(fresh_graph):
    anchor = tf.constant(1.0, name="anchor")
    with tf1.colocate_with(anchor):
        tf.constant(2.0, name="answer")
    meta_graph = exported(fresh_graph)
    assert "_class" in node(meta_graph, "answer").attr
    portable.prune(meta_graph, {"anchor", "answer"}, {"answer"})
    assert "_class" not in node(meta_graph, "answer").attr
