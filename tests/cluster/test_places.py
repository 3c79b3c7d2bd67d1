"""How many workers there are after a loss, and when lost ones return: by a clock set by hand."""

import types

import pytest

from replicate.app.cluster import places


@pytest.fixture(name="clock", autouse=True)
def make_clock(monkeypatch):
    """Returns what tells the time, which passes when a test says so."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(places, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def of(least, most):
    return places.Places(places.Size(least, most))


def absence(found, clock):
    """Lets time pass until lost workers are due; returns how long that took."""
    begun = clock.now
    while not found.is_one_due:
        clock.now += 1
        assert clock.now < begun + 10_000
    return clock.now - begun


def test_delays_double_with_each_restart():
    found = of(1, 1)
    assert [found.lose(1) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert found.restarts == 8


def test_a_fixed_number_stays_and_nobody_is_due(clock):
    found = of(2, 2)
    for lost in (1, 1, 2, 0):
        assert found.lose(lost) > 0
        clock.now += 10_000
        assert (found.up, found.is_one_due) == (2, False)


def test_those_that_are_left_go_on_at_once_down_to_the_least():
    found = of(2, 4)
    assert (found.lose(1), found.up) == (0, 3)
    assert (found.lose(1), found.up) == (0, 2)
    assert (found.lose(1), found.up) == (4, 2)  # a lost one is tried again, after 4 s
    assert (found.lose(2), found.up) == (8, 2)
    assert found.restarts == 4


def test_several_may_be_lost_at_once():
    found = of(1, 4)
    assert (found.lose(2), found.up, found.restarts) == (0, 2, 1)


def test_what_is_no_worker_takes_no_place_but_a_delay(clock):
    found = of(1, 2)
    assert (found.lose(0), found.up) == (1, 2)
    clock.now += 10_000
    assert not found.is_one_due


def test_lost_ones_stay_out_twice_as_long_with_each_restart(clock):
    found = of(1, 2)
    absences = []
    for _ in range(7):
        found.lose(1)
        absences.append(absence(found, clock))
        found.take_in()
        assert (found.up, found.is_one_due) == (2, False)
    assert absences == [30, 60, 120, 240, 480, 600, 600]


def test_all_return_together_and_what_has_just_begun_is_left_alone(clock):
    found = of(1, 4)
    found.lose(1)
    clock.now += 25
    found.lose(1)  # 5 s before the first one was due
    assert absence(found, clock) == 60
    found.take_in()
    assert found.up == 4


@pytest.mark.parametrize(("size", "restarts"), [((2, 2), 0), ((1, 2), 10)])
def test_restarts_that_are_not_said_are_those_that_users_expect(size, restarts):
    assert places.Size(*size).restarts == restarts
