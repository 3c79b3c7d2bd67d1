"""Matrices and spectra: rows are in front of the last dimensions, each matrix is on one device."""

from replicate.splitting.rules import signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import Said, by_axes, names, signature, whole
from replicate.splitting.states import SUM, Split

signature("...MN -> ...*", "Cholesky Lu LogMatrixDeterminant MatrixDeterminant MatrixInverse")
signature("...MN -> ...*", "MatrixLogarithm MatrixSquareRoot Qr")
signature("...MM, ...MK -> ...MK", "CholeskyGrad MatrixSolve MatrixSolveLs TridiagonalSolve")
signature("3 ...LM, ...MK -> ...MK", "TridiagonalMatMul")
signature("...|1MM, ...|1MK -> ...MK", "MatrixTriangularSolve")
signature("...|1LM, ...|1MK -> ...MK", "BandedTriangularSolve", needs_rows=True)
signature("...MN -> ...MN", "MatrixBandPart", linear=1)
signature("...M -> ...MM", "MatrixDiag", linear=1)
signature("...MN -> ...K", "MatrixDiagPart", linear=1)
signature("...MN, ...* -> ...MN", "MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3", linear=2)
signature("...N -> ...N", "FFT IFFT RFFT IRFFT", linear=1)
signature("...MN -> ...MN", "FFT2D IFFT2D RFFT2D IRFFT2D", linear=1)
signature("...LMN -> ...LMN", "FFT3D IFFT3D RFFT3D IRFFT3D", linear=1)


@by_axes("Eig SelfAdjointEigV2 Svd")
def _decomposition(case: Case) -> Said:
    """Values, and vectors if asked for; else those outputs are empty."""
    has_vectors = case.attribute("compute_uv" if case.type == "Svd" else "compute_v")
    return signatures.read(case, "...MN -> ...K, ...MN" if has_vectors else "...MN -> ...K, =")


@rule("MatrixDiagV2", "MatrixDiagV3")
def _diagonals(case: Case) -> Split:
    """One diagonal or several, [..., D, M], to a matrix; the last input fills."""
    return _filled(case, 4, "...* -> ...MN")


@rule("MatrixDiagPartV2", "MatrixDiagPartV3")
def _diagonals_of(case: Case) -> Split:
    """A matrix to [..., L] or [..., D, L]; the last input fills."""
    return _filled(case, 2, "...MN -> ...*")


def _filled(case: Case, filling: int, said: str) -> Split:
    """Splits an operation that is linear if it fills with zeros."""
    value = case.facts.value(case.op.inputs[filling])
    if case.inputs[0] == SUM and value is not None and not value.any():
        return signatures.in_parts(case)
    return signatures.split(case, signatures.read(case, said))


@by_axes("FFTND IFFTND RFFTND IRFFTND")
def _fft_along(case: Case) -> Said:
    """Transforms the dimensions that the third input names."""
    x = whole(names(case), case.axes(2, case.rank(0)))
    return Said([x], [x])
