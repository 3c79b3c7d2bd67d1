"""Differences, and what of them is noise."""

import numpy as np
import pytest

from replicate.verification import measures, runs

EPSILON = 2.0**-23  # of float32
WEIGHT = runs.Key(runs.WEIGHTS, "w")
OUTPUT = runs.Key(runs.PREDICTIONS, "y")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([1.0], [np.nan], np.inf),
        ([1.0, 2.0], [1.0], np.inf),
        ([3, 4], [3, 6], 2.0),
        ([True, False], [True, True], 0.5),
        ([b"a", b"b", b"c", b"d"], [b"a", b"b", b"c", b"x"], 0.25),
        ([3 + 4j], [0j], 5.0),
        ([], [], 0.0),
    ],
)
def test_the_largest_difference_counts(one, other, expected):
    assert measures.difference(np.array(one), np.array(other)) == expected


def measure(key, one, towers, reordered=(), rounded=(), magnitude=0.0, computed=0.0):
    def quantity(*copies):
        return runs.Quantity(tuple(np.float32(copy) for copy in copies), magnitude)

    repeated = measures.Repeated(
        [([{key: quantity(value)}], [np.array(order)]) for value, order in reordered],
        [[{key: quantity(value)}] for value in rounded],
        computed,
    )
    return measures.measure(key, "a batch", 0, quantity(one), quantity(*towers), repeated)


def test_any_copy_of_a_variable_may_differ():
    assert measure(WEIGHT, [1.0], ([1.0], [1.25])).difference == 0.25


def test_rows_of_outputs_are_put_back_before_they_are_compared():
    # y of rows 0, 1, 2; reversed they come out as 3, 2, 1.
    assert measure(OUTPUT, [1, 2, 3], ([1, 2, 3],), [([3, 2, 1], [2, 1, 0])]).order == 0.0
    # What has no rows may be as long as the batch: it stays where it is.
    assert measure(OUTPUT, [1, 2, 3], ([1, 2, 3],), [([1, 2, 3], [2, 1, 0])]).order == 0.0
    # A weight has no rows.
    assert measure(WEIGHT, [1, 2, 3], ([1, 2, 3],), [([3, 2, 1], [2, 1, 0])]).order == 2.0


def test_what_rounding_makes_does_not_count():
    one = measure(WEIGHT, [1.0], ([1.0],))
    # 256 for the value itself, 16 for the largest of its kind, which it is.
    assert measures.Noises([one]).allowed(one) == pytest.approx(272 * EPSILON)


def test_a_change_is_as_exact_as_the_numbers_it_is_a_difference_of():
    one = measure(WEIGHT, [0.0], ([0.0],), magnitude=100.0)
    assert measures.Noises([one]).allowed(one) == pytest.approx(8 * 100 * EPSILON)


def test_noise_of_one_batch_holds_for_all_batches_in_proportion():
    full = measure(WEIGHT, [10.0], ([10.0],), rounded=[[10.5]])  # one part in twenty
    single_row = measure(WEIGHT, [2.0], ([3.0],))
    noises = measures.Noises([full, single_row])
    assert noises.of(single_row) == pytest.approx(0.1)
    assert not noises.counts(single_row)
    assert measures.Noises([single_row]).counts(single_row)


def test_what_the_order_of_rows_makes_holds_for_all_batches_in_proportion():
    full = measure(WEIGHT, [10.0], ([10.0],), [([10.5], [0])])
    single_row = measure(WEIGHT, [2.0], ([3.0],))
    for found, depends in [([full, single_row], True), ([single_row], False)]:
        noises = measures.Noises(found)
        assert noises.counts(single_row)  # it is no noise
        assert noises.depends_on_order(single_row) is depends


def test_whole_numbers_have_no_noise():
    value = np.int64([2, 7])
    assert measures.epsilon(value) == 0.0
    assert measures.scale(value) == 7.0
    assert measures.scale(np.array([b"a"])) == 1.0


def test_what_the_order_of_rows_changes_is_told_apart_from_noise():
    # One part in two by order, three parts in 2^23 by rounding.
    one = measure(WEIGHT, [1.0], ([1.0],), [([1.5], [0])], [[1 + 3 * EPSILON]])
    assert (one.noise, one.order) == (3 * EPSILON, 0.5)
    # Eight parts in 2^23 are what additions in another order make.
    one = measure(WEIGHT, [1.0], ([1.0],), [([1 + 8 * EPSILON], [0])], [[1 + 3 * EPSILON]])
    assert (one.noise, one.order) == (8 * EPSILON, 0.0)


def test_what_is_all_rounding_cannot_be_told_unless_it_is_within_the_floor():
    shaken = {"rounded": [[0.5]]}
    one = measure(WEIGHT, [1.0], ([1.25],), **shaken)
    assert measures.Noises([one]).depends_on_rounding(one)
    one = measure(WEIGHT, [1.0], ([1.0 + EPSILON],), **shaken)
    assert not measures.Noises([one]).depends_on_rounding(one)


def test_what_is_computed_in_less_precision_is_as_noisy():
    # Another order of additions in bfloat16 changes one part in 2^7, which float32 never would.
    one = measure(WEIGHT, [1.0], ([1.0],), [([1 + 2**-7], [0])], computed=2.0**-7)
    assert (one.noise, one.order) == (2.0**-7, 0.0)
    # Half of a value is more than that.
    one = measure(WEIGHT, [1.0], ([1.0],), [([1.5], [0])], computed=2.0**-7)
    assert (one.noise, one.order) == (0.0, 0.5)


def test_weights_are_rounded_in_the_precision_in_which_they_are_used():
    start = {"w": np.float32([1.0]), "fine": np.float64([1.0]), "half": np.float16([1.0])}
    made = measures.rounded_otherwise(start, 0, computed=2.0**-23)
    apart = {name: float(abs(made[name] - start[name])[0]) for name in start}
    # A step down from 1 is half as long as one up, where values are rounded to what is there.
    assert apart["fine"] == pytest.approx(2.0**-23)
    assert apart["w"] in (2.0**-23, 2.0**-24)
    assert apart["half"] in (2.0**-10, 2.0**-11)


def test_weights_are_rounded_otherwise_by_one_rounding():
    start = {"w": np.float32([1.0, -2.0, 0.0]), "step": np.int64(7), "name": np.array(b"a")}
    made = measures.rounded_otherwise(start, 0)
    assert (made["step"], made["name"]) == (7, b"a")
    assert made["w"].dtype == np.float32
    np.testing.assert_allclose(np.abs(made["w"] - start["w"]), [EPSILON, 2 * EPSILON, 0], rtol=0.5)
    others = [measures.rounded_otherwise(start, seed)["w"].tolist() for seed in range(8)]
    assert len(set(map(tuple, others))) > 1
