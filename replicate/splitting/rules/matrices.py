"""Matrices and spectra: rows are in front of the last dimensions, each matrix is on one device."""

from replicate.splitting.rules import elementwise, items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import FIRST, SUM, Split, WholeError


def _linear(case: Case, number: int = 1) -> Split | None:
    """Keeps partial sums apart, if the first inputs, in which the operation is linear, are some."""
    if not all(state == SUM for state in case.inputs[:number]):
        return None
    others = [items.same(case, n) for n in range(number, len(case.inputs))]
    return Split([SUM] * number + others, [SUM])


def _pads_zeros(case: Case, n: int) -> bool:
    value = case.facts.value(case.op.inputs[n])
    return value is not None and not value.any()


@rule(
    *"""Cholesky LogMatrixDeterminant Lu MatrixDeterminant MatrixInverse MatrixLogarithm
    MatrixSquareRoot Qr""".split()
)
def _matrix(case: Case) -> Split:
    """[..., M, N] to one or more results for each matrix."""
    return items.split(case, 2)


@rule("Eig", "SelfAdjointEigV2", "Svd")
def _decomposition(case: Case) -> Split:
    """[..., M, N] to values, and vectors if asked for; else those outputs are empty."""
    has_vectors = case.attribute("compute_uv" if case.type == "Svd" else "compute_v")
    found = items.split(case, 2)
    rows = found.gives[0]
    number = len(case.op.outputs) - 1
    return Split(found.wants, [rows] + [rows if has_vectors else FIRST] * number)


@rule("CholeskyGrad", "MatrixSolve", "MatrixSolveLs", "TridiagonalSolve")
def _two_matrices(case: Case) -> Split:
    """[..., M, M] and [..., M, K], of the same dimensions in front."""
    return _equal_ranks(case, (0, 1))


@rule("TridiagonalMatMul")
def _diagonals_product(case: Case) -> Split:
    """[..., 1, M] three times and [..., M, K], of the same dimensions in front."""
    return _equal_ranks(case, (0, 1, 2, 3))


def _equal_ranks(case: Case, inputs: tuple[int, ...]) -> Split:
    if len({case.rank(n) for n in inputs}) > 1:
        raise WholeError("ranks differ")
    return items.split(case, 2, items=inputs)


@rule("MatrixTriangularSolve")
def _triangular_solve(case: Case) -> Split:
    """[..., M, M] and [..., M, K], whose dimensions in front are broadcast."""
    wants, rows = elementwise.stretched(case)
    if rows.axis >= max(case.rank(0), case.rank(1)) - 2:
        raise WholeError("rows are inside of the items")
    return Split(wants, [rows])


@rule("BandedTriangularSolve")
def _banded_solve(case: Case) -> Split:
    """See `_triangular_solve`; it fails on no rows."""
    return items.never_none(_triangular_solve(case))


@rule("MatrixBandPart")
def _band(case: Case) -> Split:
    """[..., M, N] and two numbers; entries outside of the band become zero."""
    return _linear(case) or items.split(case, 2)


@rule("MatrixDiag")
def _diagonal(case: Case) -> Split:
    """[..., M] to [..., M, M], with zeros."""
    return _linear(case) or items.split(case, 1)


@rule("MatrixDiagV2", "MatrixDiagV3")
def _diagonals(case: Case) -> Split:
    """[..., M], or [..., D, M] for several diagonals, to [..., R, C]; the last input fills."""
    if (linear := _linear(case)) is not None and _pads_zeros(case, 4):
        return linear
    _, rows = items.rows_of(case, (0,))
    if rows.axis >= case.result_rank() - 2:
        raise WholeError("rows are inside of the items")
    return items.in_front(case, rows, items=(0,))


@rule("MatrixDiagPart")
def _diagonal_of(case: Case) -> Split:
    """[..., M, N] to [..., min(M, N)]."""
    return _linear(case) or items.split(case, 2)


@rule("MatrixDiagPartV2", "MatrixDiagPartV3")
def _diagonals_of(case: Case) -> Split:
    """[..., M, N] to [..., L] or [..., D, L]; the last input fills."""
    if (linear := _linear(case)) is not None and _pads_zeros(case, 2):
        return linear
    return items.split(case, 2)


@rule("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diagonals(case: Case) -> Split:
    """[..., M, N] and [..., L] or [..., D, L], of the same dimensions in front."""
    linear = _linear(case, 2)
    if linear is not None:
        return linear
    _, rows = items.rows_of(case, (0, 1))
    if rows.axis >= case.rank(0) - 2:
        raise WholeError("rows are inside of the items")
    return items.in_front(case, rows, items=(0, 1))


_FFT_RANKS = {
    "FFT": 1,
    "IFFT": 1,
    "RFFT": 1,
    "IRFFT": 1,
    "FFT2D": 2,
    "IFFT2D": 2,
    "RFFT2D": 2,
    "IRFFT2D": 2,
    "FFT3D": 3,
    "IFFT3D": 3,
    "RFFT3D": 3,
    "IRFFT3D": 3,
}


@rule(*_FFT_RANKS)
def _fft(case: Case) -> Split:
    """Transforms the last dimensions; of real ones the second input gives the lengths."""
    return _linear(case) or items.split(case, _FFT_RANKS[case.type])


@rule("FFTND", "IFFTND", "RFFTND", "IRFFTND")
def _fft_along(case: Case) -> Split:
    """Transforms the dimensions that the third input names."""
    _, rows = items.rows_of(case, (0,))
    if rows.axis in case.axes(2, case.rank(0)):
        raise WholeError("it is along the rows")
    return Split([rows, items.same(case, 1), case.number(2)], [rows])
