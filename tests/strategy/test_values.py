"""Values of several devices: regroup, select, and their type in functions."""

import collections
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.strategy import context
from replicate.strategy.variables import values

Pair = collections.namedtuple("Pair", ["a", "b"])
DEVICES = ("/device:CPU:0", "/device:CPU:1")


def nests(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.builds(Pair, inner, inner),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        ),
        max_leaves=8,
    )


def numbered(nest, tower_id):
    return values.map_nest(lambda leaf: None if leaf is None else f"{leaf}-{tower_id}", nest)


@given(nests(st.one_of(st.none(), st.integers())), st.integers(1, 4))
def test_select_is_the_inverse_of_regroup(nest, num_towers):
    towers = [numbered(nest, i) for i in range(num_towers)]
    joined = values.regroup(towers)
    assert [values.select_tower(i, joined) for i in range(num_towers)] == towers


def test_same_object_is_kept_and_different_ones_are_wrapped():
    one = object()
    joined = values.regroup([{"a": one, "b": 1.5}, {"a": one, "b": 2.5}], devices=DEVICES)
    assert joined["a"] is one
    assert joined["b"].values == (1.5, 2.5)
    assert joined["b"].devices == DEVICES


def test_containers_keep_their_type():
    ordered = collections.OrderedDict(x=1)
    joined = values.regroup([[Pair(ordered, (1,))], [Pair(ordered, (1,))]])
    assert isinstance(joined, list)
    assert isinstance(joined[0], Pair)
    assert isinstance(joined[0].a, collections.OrderedDict)
    assert isinstance(joined[0].b, tuple)


def test_mapping_that_takes_other_arguments_becomes_a_dict():
    first = collections.defaultdict(list, x=1)
    assert values.regroup([first, first]) == {"x": 1}


@pytest.mark.parametrize(
    ("second", "said"),
    [({"b": 1}, r"tower 1 gave \['b'\]"), ([1], "tower 1 gave list"), (3, "tower 1 gave int")],
)
def test_different_structures_are_refused(second, said):
    with pytest.raises(errors.TowerMismatchError, match=said):
        values.regroup([{"a": 1}, second])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: values.regroup([[1], [1], [1, 2]]), ValueError, "tower 2 gave 2 where tower 0"),
        (lambda: values.PerDevice([1, 2]).get(), ValueError, r"one value per device.*\.unwrap"),
        (lambda: values.PerDevice([]), ValueError, "needs at least one value, got none"),
        (lambda: values.Mirrored([1, 2], ["/cpu:0"]), ValueError, "2 values and 1 devices"),
        (lambda: values.Mirrored({"/cpu:0": 1, "CPU:0": 2}), ValueError, "Name each device once"),
        (lambda: pickle.dumps(values.PerDevice([1, 2])), TypeError, "cannot be pickled.*unwrap"),
    ],
)
def test_what_is_no_value_of_devices_is_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def test_value_of_a_device():
    value = values.PerDevice({DEVICES[0]: 1, DEVICES[1]: 2})
    assert value.get(DEVICES[1]) == 2
    with pytest.raises(ValueError, match=r"No value for device '/device:CPU:7'.*Name one"):
        value.get("/device:CPU:7")


def test_value_of_the_running_update():
    value = values.Mirrored([1, 2], DEVICES)
    with context.entered(context.Mode("s", update_device=DEVICES[1])):
        assert value.get() == 2


def test_single_value_serves_every_tower_and_copy():
    single = values.Mirrored([5])
    assert values.select_tower(3, single) == 5
    assert values.select_device("/device:CPU:1", 1, [single]) == [5]


def test_copy_of_a_device_goes_by_device_before_position():
    value = values.Mirrored([1, 2], DEVICES)
    assert values.select_device(DEVICES[0], 1, value) == 1
    assert values.select_device("/device:CPU:5", 1, value) == 2


@pytest.mark.parametrize("kind", [values.PerDevice, values.Mirrored])
def test_values_go_in_and_out_of_a_function(kind):
    double = tf.function(lambda x: x)
    found = double(kind([tf.constant(1.0), tf.constant([2.0])], DEVICES))
    assert type(found) is kind
    assert found.devices == DEVICES
    assert [x.numpy().tolist() for x in found.values] == [1.0, [2.0]]


def test_kinds_and_devices_are_different_types_to_a_function():
    x = tf.constant(1.0)
    specs = [
        values.PerDevice([x])._type_spec,
        values.Mirrored([x])._type_spec,
        values.PerDevice([x], ["/device:CPU:0"])._type_spec,
        values.PerDevice([x, x])._type_spec,
    ]
    assert len(set(specs)) == 4
    assert values.PerDevice([x + 1.0])._type_spec == specs[0]


SPELLINGS = ["/cpu:1", "CPU:1", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"]


@pytest.mark.parametrize("kind", [values.PerDevice, values.Mirrored])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_devices_are_the_same_in_every_spelling(kind, spelling):
    held = kind({spelling: "one", "/cpu:0": "zero"})
    assert held.devices == ("/device:CPU:1", "/device:CPU:0")
    assert [held.get(device) for device in SPELLINGS] == ["one"] * 4
    # Copy 0 of an update, and tower 0, are on CPU 0.
    assert values.select_device("/device:CPU:0", 0, held) == "zero"
    assert values.select_tower(0, held, DEVICES) == "zero"
    assert kind(["zero", "one"], ["/cpu:0", spelling]).get("/CPU:1") == "one"


def test_sequences_of_other_classes_become_plain_ones():
    class Row(list):
        """Some list."""

    class Pairs(tuple):
        """Some tuple, whose constructor may want something else."""

    joined = values.regroup([Row([1]), Row([2])])
    assert type(joined) is list
    assert joined[0].values == (1, 2)
    joined = values.regroup([Pairs([1]), Pairs([2])])
    assert type(joined) is tuple
    assert joined[0].values == (1, 2)


ONE, OTHER = object(), object()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (values.PerDevice([ONE, ONE]), False),
        (values.PerDevice([ONE, OTHER]), True),
        (values.PerDevice([300.5, float("300.5")]), False),
        (values.PerDevice([1, 2]), True),
        (values.Mirrored([ONE, OTHER]), False),
        (ONE, False),
    ],
)
def test_different_objects_and_unequal_numbers_differ(value, expected):
    assert values.differs(value) is expected
