"""Products that are summed over axes, and matrices and spectra, each of which is on one device."""

import string

from replicate.splitting.rules import elementwise, reductions, signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import Said, along, by_axes, names, signature
from replicate.splitting.states import SUM, WHOLE, Split, WholeError

signature("...C, ...C -> ...C", "Cross")


@rule("MatMul", "SparseMatMul")
def _matrices(case: Case) -> Split:
    """[i, j] and [j, k], or transposed."""
    first, second = case.attribute("transpose_a"), case.attribute("transpose_b")
    return _product(case, f"{'ji' if first else 'ij'}, {'kj' if second else 'jk'} -> ik")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batches_of_matrices(case: Case) -> Split:
    """The same for each pair of matrices, whose dimensions in front are broadcast."""
    first, second = case.attribute("adj_x"), case.attribute("adj_y")
    left, right = "ji" if first else "ij", "kj" if second else "jk"
    return _product(case, f"...|1{left}, ...|1{right} -> ...ik")


@rule("Einsum")
def _einsum(case: Case) -> Split:
    """An equation such as `...ij,jk->...ik`; what an ellipsis stands for is broadcast."""
    equation = case.attribute("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if not arrow or len(terms.split(",")) != len(case.inputs):
        raise WholeError("an equation without a result")
    small = (each for each in string.ascii_lowercase if each not in equation)
    capitals = sorted({each for each in equation if each.isupper()})
    equation = equation.translate(str.maketrans(dict(zip(capitals, small, strict=False))))
    terms, _, result = equation.partition("->")
    return _product(case, f"{terms.replace('...', '...|1')} -> {result}")


def _product(case: Case, said: str) -> Split:
    """Splits a product, which is linear in each operand."""
    if case.rows is not None:
        return signatures.split(case, said)
    parts = [n for n, state in enumerate(case.inputs) if state == SUM]
    if len(parts) != 1 or any(state not in (SUM, WHOLE) for state in case.inputs):
        raise WholeError("no operand has rows")
    for n in range(len(case.inputs)):
        if n not in parts:
            elementwise.check_finite(case, n)
    return case.in_parts(parts)


@by_axes("BiasAdd BiasAddV1")
def bias(case: Case) -> Said:
    """Adds a vector along the channels."""
    x = names(case)
    return Said([x, [x[reductions.channels(case)]]], [x])


# Rows are in front of the last dimensions.

signature("...MN -> ...*", "Cholesky Lu LogMatrixDeterminant MatrixDeterminant MatrixInverse")
signature("...MN -> ...*", "MatrixLogarithm MatrixSquareRoot Qr")
signature("...MM, ...MK -> ...MK", "CholeskyGrad MatrixSolve MatrixSolveLs TridiagonalSolve")
signature("3 ...LM, ...MK -> ...MK", "TridiagonalMatMul")
signature("...|1MM, ...|1MK -> ...MK", "MatrixTriangularSolve")
signature("...|1LM, ...|1MK -> ...MK", "BandedTriangularSolve", needs_rows=True)
signature("...MN -> ...MN", "MatrixBandPart", linear=[0])
signature("...M -> ...MM", "MatrixDiag", linear=[0])
signature("...MN -> ...K", "MatrixDiagPart", linear=[0])
signature("...MN, ...* -> ...MN", "MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3", linear=[0, 1])
signature("...N -> ...N", "FFT IFFT RFFT IRFFT", linear=[0])
signature("...MN -> ...MN", "FFT2D IFFT2D RFFT2D IRFFT2D", linear=[0])
signature("...LMN -> ...LMN", "FFT3D IFFT3D RFFT3D IRFFT3D", linear=[0])
along("FFTND IFFTND RFFTND IRFFTND", 2)


@by_axes("Eig SelfAdjointEigV2 Svd")
def _decomposition(case: Case) -> str:
    """Values, and vectors if asked for; else those outputs are empty."""
    has_vectors = case.attribute("compute_uv" if case.type == "Svd" else "compute_v")
    return "...MN -> ...K, ...MN" if has_vectors else "...MN -> ...K, ="


@rule("MatrixDiagPartV2", "MatrixDiagPartV3", "MatrixDiagV2", "MatrixDiagV3")
def _diagonals(case: Case) -> Split:
    """One diagonal or several, [..., D, M], to a matrix, or of one; the last input fills.

    It is linear if it fills with zeros.
    """
    filling = case.facts.value(case.op.inputs[-1])
    if case.inputs[0] == SUM and filling is not None and not filling.any():
        return case.in_parts([0])
    is_part = case.type.startswith("MatrixDiagPart")
    return signatures.split(case, "...MN -> ...*" if is_part else "...* -> ...MN")
