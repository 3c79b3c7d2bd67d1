"""Uses of a variable in no order: what is found, what is not, and what is given an order."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.verification import races
from tests import control_flow


def variable(name="v"):
    return tf1.get_variable(name, [], use_resource=True, initializer=tf1.ones_initializer())


def told(graph, fetches):
    """Returns which operations race: the one that reads, or writes first, and the other."""
    found = races.find(graph, fetches)
    return {tuple(sorted((race.first.op.name, race.second.op.name))) for race in found}


def test_a_read_and_a_write_in_no_order_race(fresh_graph):
    v = variable()
    read, write = tf.square(v.read_value()), v.assign(5.0)
    (race,) = races.find(fresh_graph, [read, write])
    assert race.variable.name == "v"
    assert (race.first.is_write, race.second.is_write) == (False, True)
    assert race.second.op is write.op
    assert races.find(fresh_graph, [read]) == races.find(fresh_graph, [write]) == []


def test_what_is_made_from_a_read_or_waits_for_it_comes_after_it(fresh_graph):
    v = variable()
    by_value = v.assign(2.0 * v.read_value())
    with tf.control_dependencies([by_value]):
        waiting = v.read_value() + 1.0
    with tf.control_dependencies([waiting]):
        by_control = v.assign(3.0)
    with tf.control_dependencies([by_control]):
        last = v.read_value()
    assert told(fresh_graph, [by_value, by_control, last]) == set()


def test_writes_race_unless_both_add(fresh_graph):
    v = variable()
    added, subtracted, replaced = v.assign_add(1.0), v.assign_sub(2.0), v.assign(3.0)
    assert told(fresh_graph, [added.op, subtracted.op]) == set()
    assert told(fresh_graph, [added.op, replaced.op]) == {
        ("AssignAddVariableOp", "AssignVariableOp")
    }


@pytest.mark.parametrize("version", [1, 2])
def test_branches_of_which_one_runs_do_not_race(fresh_graph, version):
    v, predicate = variable(), tf1.placeholder(tf.bool, [])
    with control_flow.of_version(version):
        made = tf1.cond(predicate, lambda: v.read_value() + 1.0, lambda: v.assign(5.0) + 0.0)
    assert told(fresh_graph, [made]) == set()
    read = v.read_value()
    assert len(races.find(fresh_graph, [made, read])) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_what_follows_a_loop_comes_after_all_its_turns(fresh_graph, version):
    v = variable()

    def turn(i):
        with tf.control_dependencies([v.assign_add(1.0)]):
            return i + 1

    with control_flow.of_version(version):
        turns = tf.while_loop(lambda i: i < 3, turn, [tf.constant(0)])
    with tf.control_dependencies(turns):
        after = v.read_value()
    assert told(fresh_graph, [*turns, after]) == set()
    assert len(races.find(fresh_graph, [*turns, v.read_value()])) == 1


def test_a_turn_of_a_loop_may_read_and_write_in_no_order(fresh_graph):
    v = variable()

    def turn(i, total):
        with tf.control_dependencies([v.assign(5.0)]):
            return i + 1, total + v.read_value()

    def open_turn(i, total):
        read, write = v.read_value(), v.assign(5.0)
        with tf.control_dependencies([write]):
            return i + 1, total + read

    for body, count in ((turn, 0), (open_turn, 1)):
        with control_flow.of_version(1):
            made = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.constant(0.0)])
        assert len(races.find(fresh_graph, made)) == count


def test_a_function_is_one_use(fresh_graph):
    v, other = variable(), variable("other")

    @tf.function
    def reading(x):
        other.assign(x)
        return x + v

    @tf.function
    def writing(x):
        v.assign(x)
        return x

    read, write = reading(tf.constant(1.0)), writing(tf.constant(2.0))
    assert told(fresh_graph, [read, v.read_value()]) == set()
    (race,) = races.find(fresh_graph, [read, write])
    assert (race.first.op, race.second.op) == (read.op, write.op)


def test_reads_come_first_where_they_are_in_no_order(fresh_graph, session):
    v = variable()
    with tf.control_dependencies([variable("own").assign(1.0)]):
        behind_a_write = v.read_value()
    read = v.read_value()
    write = v.assign(5.0)
    found = races.settle(fresh_graph, [read, behind_a_write, write])
    settled = {race.first.op: race.is_settled for race in found}
    assert settled == {read.op.inputs[0].op: True, behind_a_write.op.inputs[0].op: False}
    left = races.find(fresh_graph, [read, behind_a_write, write])
    assert [race.first.op for race in left] == [behind_a_write.op.inputs[0].op]
    session.run(v.initializer)
    assert session.run([read, write])[0] == 1.0
