"""K values, of which the later ones are made when somebody asks for them, once."""

import pytest

from replicate.graph import columns


class Made:
    """Makes two later values, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return ["b", "c"]


@pytest.fixture
def made():
    return Made()


@pytest.fixture
def column(made):
    return columns.Column("a", 3, made)


def test_the_first_value_and_the_number_make_nothing(column, made):
    assert column[0] == "a"
    assert column[:1] == ("a",)
    assert len(column) == 3
    assert columns.made(column) == ("a",)
    assert next(iter(column)) == "a"
    assert "is_made=False" in repr(column)
    assert made.times == 0


def test_later_values_are_made_once(column, made):
    assert column[2] == "c"
    assert list(column) == ["a", "b", "c"]
    assert column[1:] == ("b", "c")
    assert column[-1] == "c"
    assert made.times == 1
    assert "is_made=True" in repr(column)


def test_a_mapped_column_makes_nothing_until_asked(column, made):
    upper = columns.map_all(str.upper, column)
    assert upper[0] == "A"
    assert made.times == 0
    assert list(upper) == ["A", "B", "C"]
    assert list(upper) == ["A", "B", "C"]
    assert made.times == 1


def test_other_sequences_are_there_already():
    assert columns.of(["a", "b"]) == ("a", "b")
    assert columns.made(["a", "b"]) == ["a", "b"]
    assert columns.map_all(str.upper, ["a", "b"]) == ["A", "B"]


def test_a_column_stays_the_column_it_is(column):
    assert columns.of(column) is column
