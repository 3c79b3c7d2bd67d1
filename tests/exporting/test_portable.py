"""What is taken out of a MetaGraphDef, on graphs small enough to read."""

from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import portable


def exported(graph):
    with graph.as_default():
        return tf1.train.export_meta_graph()


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
