"""Variables matched by order of creation."""

import pytest

from replicate import errors
from replicate.compat.tensorflow import tf
from replicate.strategy.towers import sharing


def request(name="w", shape="(2,)", dtype="float32", trainable=True):
    return sharing.Request(name, shape, dtype, trainable)


def made(*names):
    """A log in which the first tower made variables of these names."""
    log = sharing.Creations(2)
    for name in names:
        log.make(request(name), lambda name=name: f"variable {name}")
    log.pause_first(True)
    return log


def test_other_tower_gets_what_the_first_made():
    log = made("a", "b")
    assert [log.find(1, request(name)) for name in "ab"] == ["variable a", "variable b"]
    assert log.untaken(1) == []
    assert log.all() == ["variable a", "variable b"]


def test_numbers_and_prefixes_that_tensorflow_adds_do_not_matter():
    log = made("dense/kernel", "loss/average")
    assert log.find(1, request("dense_7/kernel")) == "variable dense/kernel"
    assert log.find(1, request("tower_1/loss/average")) == "variable loss/average"


def test_unnamed_variables_go_by_order():
    log = made(None, None)
    first, second = (log.find(1, request(None)) for _ in range(2))
    assert first == second == "variable None"
    with pytest.raises(errors.TowerMismatchError, match="as its number 3, tower 1 created"):
        log.find(1, request(None))


@pytest.mark.parametrize(
    "other", [request("x"), request(shape="(3,)"), request(dtype="int32"), request(trainable=False)]
)
def test_first_difference_is_named(other):
    with pytest.raises(
        errors.TowerMismatchError, match=r"tower 1 created .* where tower 0 created w "
    ):
        made("w").find(1, other)


def test_shape_that_an_initializer_decides_matches_any():
    assert made("w").find(1, request(shape="?", dtype="?")) == "variable w"


def test_variables_that_an_initializer_makes_are_not_logged():
    log = sharing.Creations(2)

    def create():
        return [log.make(request("inner"), lambda: "inner"), "outer"]

    assert log.make(request("outer"), create) == ["inner", "outer"]
    assert len(log.all()) == 1


def test_variables_never_asked_for_are_told():
    log = made("a", "b")
    log.find(1, request("b"))
    assert [variable for _, variable in log.untaken(1)] == ["variable a"]


@pytest.mark.parametrize(
    ("value", "shape"),
    [(1.0, "()"), ([1, 2], "(2,)"), ([[1.0], [2.0]], "(2, 1)"), ([], "(0,)"), (lambda: 1, "?")],
)
def test_request_tells_the_shape_of_python_values(value, shape):
    assert sharing.request_of({"initial_value": value}).shape == shape


def test_request_tells_what_a_tensor_is():
    found = sharing.request_of({"initial_value": tf.zeros([2, 3], tf.int32), "name": "n"})
    assert (found.shape, found.dtype, found.name) == ("(2, 3)", "int32", "n")
