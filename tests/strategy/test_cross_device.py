"""Which tensors an algorithm of several devices sums."""

import pytest

from replicate import strategy as core
from replicate.compat.tensorflow import tf

TWO = ("/device:CPU:0", "/device:CPU:1")


class Counting(core.ReductionToOneDevice):
    """Notes how many tensors of each device the algorithm sums."""

    def _algorithm(self, rows, devices, wire):
        self.summed = [len(row) for row in rows]
        return super()._algorithm(rows, devices, wire)


def test_an_algorithm_sums_what_is_dense_and_goes_to_all_devices(fresh_graph):
    dense = [tf.ones([2]), tf.ones([2])]
    slices = [tf.IndexedSlices(tf.ones([1]), tf.constant([i]), tf.constant([2])) for i in (0, 1)]
    counting = Counting()
    columns, places = [dense, slices, dense, dense], [TWO, TWO, TWO, TWO[:1]]
    found = counting.batch_sum(columns, places, TWO)
    assert counting.summed == [2, 2]  # the first and the third column of each device
    assert [len(copies) for copies in found] == [2, 2, 2, 1]
    assert isinstance(found[1][0], tf.IndexedSlices)


@pytest.mark.parametrize(
    "ops", [core.NcclAllReduce(), core.RingAllReduce(), core.ReductionToOneDevice()], ids=repr
)
def test_no_algorithm_sums_bools(fresh_graph, ops):
    with pytest.raises(TypeError, match="bool tensors have no sum"):
        ops.batch_sum([[tf.constant([True])] * 2], [TWO], TWO)
