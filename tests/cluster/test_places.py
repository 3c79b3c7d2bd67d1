"""How many workers there are after a loss, and when lost ones return: by a clock set by hand."""

import pytest

from replicate.app.cluster import places


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def of(least, most, restarts=99):
    """Returns places, and their clock."""
    clock = Clock()
    return places.Places(places.Size(least, most), restarts, None, clock), clock


def absence(found, clock):
    """Lets time pass until a place is due; returns how long that took."""
    begun = clock.now
    while not found.is_one_due:
        clock.now += 1
        assert clock.now < begun + 10_000
    return clock.now - begun


def test_delays_double_until_there_is_progress():
    found, _ = of(1, 1)
    delays = [found.lose([0], step) for step in (None, None, None, 5, 5, 6)]
    assert delays == [1, 2, 4, 1, 2, 1]
    assert [found.lose([0], 6) for _ in range(6)] == [2, 4, 8, 16, 30, 30]
    assert found.restarts == 12


def test_a_fixed_number_stays_and_nobody_is_due():
    found, clock = of(2, 2)
    for lost in ([0], [1], [0, 1], []):
        assert found.lose(lost, None) > 0
        clock.now += 10_000
        assert (len(found), found.is_one_due) == (2, False)


def test_those_that_are_left_go_on_at_once_down_to_the_least():
    found, _ = of(2, 4)
    assert (found.lose([0], None), len(found)) == (0, 3)
    assert (found.lose([2], None), len(found)) == (0, 2)
    assert (found.lose([1], None), len(found)) == (1, 2)  # a lost one is tried again, after 1 s
    assert (found.lose([0, 1], None), len(found)) == (2, 2)
    assert found.restarts == 4


def test_several_may_be_lost_at_once():
    found, _ = of(1, 4)
    assert (found.lose([3, 0], None), len(found)) == (0, 2)
    assert found.restarts == 1


def test_what_is_no_worker_takes_no_place_but_a_delay():
    found, clock = of(1, 2)
    assert (found.lose([], None), len(found)) == (1, 2)
    clock.now += 10_000
    assert not found.is_one_due


@pytest.mark.parametrize("restarts", [0, 2])
def test_restarts_are_counted_and_those_who_return_are_not(restarts):
    found, clock = of(1, 3, restarts)
    for number in range(restarts):
        assert found.may_restart
        found.lose([0], number)
        clock.now += 10_000
        found.take_in()
        assert len(found) == 3
    assert not found.may_restart


def test_a_place_that_is_lost_again_soon_stays_out_for_longer():
    found, clock = of(1, 2)
    absences = []
    for _ in range(6):
        found.lose([1], None)  # who returns is behind the others
        absences.append(absence(found, clock))
        found.take_in()
        clock.now += 599
    assert absences == [30, 60, 120, 240, 480, 600]
    clock.now += 1
    found.lose([1], None)
    assert absence(found, clock) == 30


def test_another_place_has_an_absence_of_its_own():
    found, clock = of(1, 2)
    for _ in range(3):
        found.lose([1], None)
        absence(found, clock)
        found.take_in()
    found.lose([0], None)
    assert absence(found, clock) == 30


def test_what_has_just_begun_is_left_alone():
    found, clock = of(1, 4)
    found.lose([0], None)
    clock.now += 25
    found.lose([0], None)  # 5 s before the first one is due
    assert absence(found, clock) == 30
    found.take_in()
    assert len(found) == 4  # both are due then


def test_what_has_just_taken_one_in_is_left_alone_too():
    found, clock = of(1, 3)
    found.lose([2], None)
    absence(found, clock)
    found.take_in()
    found.lose([2], None)  # for 60 s
    clock.now += 25
    found.lose([1], None)  # for 30 s, which are over 5 s before the others
    assert absence(found, clock) == 30
    found.take_in()
    assert (len(found), absence(found, clock)) == (2, 30)


def test_those_return_whose_time_has_come():
    found, clock = of(1, 3)
    found.lose([2], None)
    clock.now += absence(found, clock)
    found.take_in()
    found.lose([2], None)  # for 60 s
    found.lose([1], None)  # for 30 s
    assert absence(found, clock) == 30
    found.take_in()
    assert (len(found), found.is_one_due) == (2, False)
    assert absence(found, clock) == 30


def test_where_too_few_are_left_the_one_that_was_due_first_is_tried():
    found, clock = of(1, 3)
    found.lose([2], None)
    clock.now += 10
    found.lose([1], None)
    assert found.lose([0], None) == 1
    # The first one is up again, so the two others are due: 30 s after the start, which is in 1 s.
    assert (len(found), absence(found, clock)) == (1, 31)
    found.take_in()
    assert len(found) == 3


def test_restarts_that_are_not_said_are_those_that_users_expect():
    assert places.Size(2, 2).restarts == 0
    assert places.Size(1, 2).restarts == 10
