"""Softmax, cross entropies, batch normalisation by given statistics, and recurrent cells."""

from replicate.splitting.rules import signatures
from replicate.splitting.rules.registry import Case
from replicate.splitting.rules.signatures import Said, by_axes, signature
from replicate.splitting.states import WholeError

signature("...C -> ...C", "LogSoftmax Softmax")
signature("nC, n -> n, nC", "SparseSoftmaxCrossEntropyWithLogits")
signature("...|1C, ...|1C -> ..., ...C", "SoftmaxCrossEntropyWithLogits")


@by_axes("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", needs_rows=True)
def _batch_norm(case: Case) -> Said:
    """Its other outputs are the mean and variance that it is given, but not of no rows."""
    return _of_given_statistics(case, "n*, C, C, C, C -> n*, =")


@by_axes("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3")
def _batch_norm_gradient(case: Case) -> Said:
    """Gradients by `x`, and by scale and offset, which are sums over rows; the rest is empty."""
    return _of_given_statistics(case, "n*, n*, C, C, C -> n*, C, C, =")


def _of_given_statistics(case: Case, said: str) -> Said:
    if case.attribute("is_training"):
        raise WholeError("its statistics are of the whole batch")
    return signatures.read(case, said)


# Recurrent cells: steps [T, n, D], states [n, C], weights and biases; T is the number of steps.
# Gradients by weights are sums over rows.
signature("T, TnD, 2 nC -> TnC", "BlockLSTM BlockLSTMV2", needs_rows=True)
signature(
    "T, TnD, 2 nC, 5 *, 9 TnC -> TnD, 2 nC, 5 *", "BlockLSTMGrad BlockLSTMGradV2", needs_rows=True
)
signature("nD, 2 nC -> nC", "LSTMBlockCell", needs_rows=True)
signature("nD, nC -> nC", "GRUBlockCell", needs_rows=True)
signature("nD, nC, 4 *, 4 nC -> nC", "GRUBlockCellGrad", needs_rows=True)


@by_axes("LSTMBlockCellGrad", needs_rows=True)
def _lstm_cell_gradient(case: Case) -> Said:
    """The gradients by the state and the gates; the products with the weights are not its own.

    NOTE: with peepholes the kernel may write gradients into the buffer of weights that it still
    reads, if nothing else reads them: so it might on devices, to which they were sent.
    """
    if case.attribute("use_peephole"):
        raise WholeError("its kernel may overwrite what was sent to devices")
    return signatures.read(case, "nD, 2 nC, 5 *, 8 nC -> 2 nC, 3 C")
