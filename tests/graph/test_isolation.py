"""A later tower finds by one device's names what it made itself."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import isolation


def add_to(graph, prefix):
    for name in ("G/act", "loss"):
        value = tf.constant(1.0, name=prefix + name)
        tf1.add_to_collection(tf1.GraphKeys.LOSSES, value)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as made:
        for prefix in ("", "outer/"):
            add_to(made, prefix)
        tf.constant(2.0, name="shared")
        yield made


def shown(graph, prefix="tower_1/", plain=""):
    views = isolation.GraphViews(graph, [plain, prefix], True, lambda tower_id: [])
    views.show(1)
    add_to(graph, prefix)
    return views


def test_a_name_is_the_towers_own_a_whole_or_a_shared_one(graph):
    shown(graph)
    assert graph.get_tensor_by_name("G/act:0").name == "tower_1/G/act:0"
    assert graph.get_operation_by_name("loss").name == "tower_1/loss"
    assert graph.as_graph_element("loss:0").name == "tower_1/loss:0"
    assert graph.get_tensor_by_name("tower_1/loss:0").name == "tower_1/loss:0"
    assert graph.get_tensor_by_name("shared:0").name == "shared:0"
    with pytest.raises(KeyError, match="missing"):
        graph.get_tensor_by_name("missing:0")
    with pytest.raises(ValueError, match="not a Operation"):
        graph.get_operation_by_name("loss:0")


def test_a_tower_within_a_scope(graph):
    shown(graph, "outer/tower_1/", "outer/")
    assert graph.get_tensor_by_name("outer/loss:0").name == "outer/tower_1/loss:0"
    assert graph.get_tensor_by_name("loss:0").name == "loss:0"
    found = tf1.get_collection(tf1.GraphKeys.LOSSES, "outer/G")
    assert [item.name for item in found] == ["outer/G/act:0", "outer/tower_1/G/act:0"]


@pytest.mark.parametrize("scope", [None, "abs"])
def test_what_was_made_without_the_prefix_is_found_by_its_number(scope):
    with tf.Graph().as_default() as graph:
        start = tf.constant([1.0, 2.0], name="start")

        def make():
            with tf1.name_scope(None), tf1.name_scope(scope):
                return tf.split(start, 2, name="y")[1]

        first = make()
        isolation.GraphViews(graph, ["", "tower_1/"], True, lambda tower_id: []).show(1)
        second = make()
        assert first.name != second.name
        assert graph.get_tensor_by_name(first.name).name == second.name
        assert graph.get_operation_by_name(first.op.name) is second.op
        assert graph.get_tensor_by_name(second.name).name == second.name
        assert graph.get_tensor_by_name("start:0") is start


def test_a_collection_is_filtered_by_one_devices_names(graph):
    first = tf1.get_collection(tf1.GraphKeys.LOSSES, "G")
    assert [item.name for item in first] == ["G/act:0"]
    shown(graph)
    found = tf1.losses.get_losses("G")
    assert [item.name for item in found] == ["G/act:0", "tower_1/G/act:0"]
    given = tf1.losses.get_losses("tower_1/G/")
    assert [item.name for item in given] == ["tower_1/G/act:0"]
    assert len(tf1.get_collection(tf1.GraphKeys.LOSSES)) == 6


def test_the_graph_is_as_it_was_afterwards(graph):
    views = shown(graph)
    views.close()
    views.close()
    assert graph.get_tensor_by_name("G/act:0").name == "G/act:0"
    assert len(tf1.get_collection(tf1.GraphKeys.LOSSES, "G")) == 1


def test_a_variable_of_another_tower_does_not_exist_before_it_is_asked_for(graph):
    shown(graph)
    constant = tf.constant(3.0, name="later")
    keys = [tf1.GraphKeys.GLOBAL_VARIABLES]
    listed = tf1.get_variable("w", initializer=1.0, use_resource=True, collections=keys)
    tf1.get_variable("of_another", initializer=1.0, use_resource=True, collections=["no"])
    assert graph.get_tensor_by_name("later:0") is constant
    assert graph.get_operation_by_name("w") is listed.handle.op
    with pytest.raises(KeyError, match="'of_another' is that of a variable that does not exist"):
        graph.get_operation_by_name("of_another")


@pytest.mark.parametrize("every_collection", [True, False])
def test_what_a_session_needs_of_each_tower_is_kept(every_collection):
    with tf.Graph().as_default() as graph:
        views = isolation.GraphViews(graph, ["", "tower_1/"], every_collection, lambda i: [])
        for tower_id, item in enumerate(("first", "second")):
            views.show(tower_id)
            for key in (tf1.GraphKeys.RESOURCES, tf1.GraphKeys.LOSSES):
                graph.add_to_collection(key, item)
        views.close()
        assert graph.get_collection(tf1.GraphKeys.RESOURCES) == ["first", "second"]
        losses = ["first"] if every_collection else ["first", "second"]
        assert graph.get_collection(tf1.GraphKeys.LOSSES) == losses
