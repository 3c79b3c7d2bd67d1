"""A signature says in a line which axes have rows, which are whole, and which are summed over."""

import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting.rules import signatures
from replicate.splitting.states import COPIED, SUM
from tests.splitting import alike
from tests.splitting.rules.harness import raw


class Ranks:
    """An operation of which only ranks are known."""

    def __init__(self, *ranks, result=0):
        self.inputs = ranks
        self._result = result

    def rank(self, n):
        return self.inputs[n]

    def result_rank(self, n=0):
        return self._result


@pytest.mark.parametrize(
    ("text", "ranks", "operands", "results"),
    [
        ("...MN -> ...K", (4,), [".-2 .-1 M N"], [".-2 .-1 K"]),
        ("n*, * -> n*", (3, 2), ["n * *", "*"], ["n *"]),
        ("2 nC -> n", (2, 2), ["n C", "n C"], ["n"]),
        ("...+ -> ...", (1, 1, 1), [".-1", ".-1", ".-1"], [".-1"]),
        # NumPy's rule: the last dimensions fit each other.
        ("...|1+ -> ...", (2, 1), [".-2|1 .-1|1", ".-1|1"], [".-2 .-1"]),
        ("...|1ij, ...|1jk -> ...ik", (2, 3), ["i j", ".-1|1 j k"], [".-1 i k"]),
        ("[n*], n* -> n*, =", (1, 2), ["[]", "n *"], ["n *", "="]),
        # What `*` stands for in one operand follows from what `...` does in another.
        ("...MN, ...* -> ...MN", (3, 3), [".-1 M N", ".-1 * *"], [".-1 M N"]),
        # An operand that the operation may lack is not there.
        ("nC, nC, n -> n", (2, 2), ["n C", "n C"], ["n"]),
    ],
)
def test_signs_stand_for_axes_of_the_ranks(text, ranks, operands, results):
    found = signatures.read(Ranks(*ranks), text)
    assert [" ".join(axes) for axes in found.operands] == operands
    assert [" ".join(axes) for axes in found.results] == results


def states_of(make, *shapes):
    """Returns the states of the results of an operation on operands that the batch has."""
    with tf.Graph().as_default() as graph:
        given = [tf1.placeholder(tf.float32, shape) for shape in shapes]
        op = tf.nest.flatten(make(*[tf.identity(each) for each in given]))[0].op
        result = alike.split(given, [op.outputs[0]], 2)
        op = graph.get_operation_by_name(op.name)
        return [result.state(tensor) for tensor in op.outputs], result.why(op)


def test_letter_that_no_result_has_is_summed_over():
    (made,), _ = states_of(tf.nn.l2_loss, [None, 3])
    assert made == SUM


def test_capital_is_whole():
    (made,), why = states_of(lambda x: tf.nn.softmax(tf.transpose(x)), [None, 3])
    assert why == "it works along rows"
    assert made.axis == 1  # the whole value, of which rows can be cut


def test_each_result_has_rows_where_its_letter_is():
    first, second = states_of(
        lambda x: raw("SoftmaxCrossEntropyWithLogits")(x, tf.ones([1, 3])), [None, 3]
    )[0]
    assert (first.axis, second.axis) == (0, 0)


def test_result_that_each_device_has_is_marked():
    no_vectors = raw("SelfAdjointEigV2", compute_v=False)
    values, vectors = states_of(no_vectors, [None, 3, 3])[0]
    assert values.axis == 0
    assert vectors is COPIED


def test_sums_over_rows_are_packed_apart_however_many():
    # A part of each sum is on each device; if one of 120 were whole, all would have to be.
    (made,), _ = states_of(
        lambda x: tf.stack([tf.reduce_sum(x * n, 0) for n in range(120)]), [None, 3]
    )
    assert made == SUM


def test_sum_and_rows_together_keep_the_rows():
    # `params` is a sum over rows; each device needs all of it for its own indices.
    def look_up(x, y):
        return tf.gather(tf.reduce_sum(x, 0), tf.cast(y, tf.int32))

    (made,), _ = states_of(look_up, [None, 3], [None])
    assert made.axis == 0


def test_capital_of_an_equation_is_a_letter_like_others():
    (made,), _ = states_of(lambda x: tf.einsum("Bn,Bm->nm", x, x), [None, 3])
    assert made == SUM
    (made,), _ = states_of(lambda x: tf.einsum("Bn,nb->bB", x, tf.ones([3, 2])), [None, 3])
    assert made.axis == 1
