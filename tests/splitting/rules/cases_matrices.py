"""Cases of operations on the last dimensions, batched over the others."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import raw, tensor

FAMILY = harness.Family("matrices")
case = FAMILY.case
op = FAMILY.op

F64 = tf.float64
BATCHES = (("B",), (2, "B"), ())


def definite(numbers, shape):
    x = numbers.uniform(-1.0, 1.0, shape)
    return x @ np.swapaxes(x, -1, -2) + 2.0 * np.eye(shape[-1])


def regular(numbers, shape):
    return numbers.uniform(-1.0, 1.0, shape) * 0.3 + np.eye(shape[-1])


def lower(numbers, shape):
    return np.tril(regular(numbers, shape)) + np.eye(shape[-1])


def of_matrices(kind, values=regular, dtype=F64, outputs=None, **attributes):
    """Each kind of one operand; what comes behind the outputs named is not computed."""

    def make(x):
        return tf.nest.flatten(raw(kind, **attributes)(x))[:outputs]

    for batch in BATCHES:
        case(kind, make, tensor(*batch, 3, 3, of=values), dtypes=(dtype,))


for kind in ("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant"):
    of_matrices(kind)
of_matrices("Cholesky", definite)
of_matrices("MatrixSquareRoot", definite, tf.complex128)
of_matrices("MatrixLogarithm", definite, tf.complex128)
of_matrices("SelfAdjointEigV2", definite, outputs=1, compute_v=False)
of_matrices("Lu", definite)
of_matrices("Qr")
of_matrices("Svd", outputs=1, compute_uv=False)
for batch in BATCHES:  # in no order
    values = raw("Eig", compute_v=False, Tout=tf.complex128)
    case(
        "Eig", lambda x, f=values: tf.sort(tf.math.real(f(x)[0])), tensor(*batch, 3, 3, of=definite)
    )
for batch in BATCHES:
    square, right = tensor(*batch, 3, 3, of=regular), tensor(*batch, 3, 2)
    op("MatrixSolve", square, right)
    op("MatrixTriangularSolve", tensor(*batch, 3, 3, of=lower), right)
    op("CholeskyGrad", tensor(*batch, 3, 3, of=lower), tensor(*batch, 3, 3))
    op("BandedTriangularSolve", tensor(*batch, 1, 3, of=harness.positive), right)
    op("MatrixSolveLs", square, right, l2_regularizer=0.1)
    op("TridiagonalSolve", tensor(*batch, 3, 3, of=harness.above_one), right)
    op("TridiagonalMatMul", *(tensor(*batch, 1, 3) for _ in range(3)), right)
    op("MatrixBandPart", square, num_lower=0, num_upper=-1)
    for kind in ("MatrixDiag", "MatrixDiagPart"):
        op(kind, tensor(*batch, 3) if kind == "MatrixDiag" else square)
    whole = {"num_rows": -1, "num_cols": -1, "padding_value": np.float64(0.0)}
    for version in ("V2", "V3"):
        op(f"MatrixDiag{version}", tensor(*batch, 3), k=0, **whole)
        part = raw(f"MatrixDiagPart{version}", k=0, padding_value=np.float64(0.0))
        case(f"MatrixDiagPart{version}", part, square)
        op(f"MatrixSetDiag{version}", square, tensor(*batch, 3), k=0)
    op("MatrixSetDiag", square, tensor(*batch, 3))
op("MatrixTriangularSolve", tensor(3, 3, of=lower), tensor(3, "B"))
op("MatrixTriangularSolve", tensor(3, 3, of=lower), tensor("B", 3, 2))
op("MatrixSolve", tensor(3, 3, of=regular), tensor(3, "B"))
op("MatrixBandPart", tensor("B", 3), num_lower=0, num_upper=-1)
op("MatrixBandPart", tensor("B", "B"), num_lower=1, num_upper=1)
op("MatrixDiagV3", tensor("B"), k=0, **whole)
op("MatrixDiagV3", tensor(2, "B"), k=0, **whole)
op("MatrixDiagPartV3", tensor("B", "B"), k=0, padding_value=np.float64(0.0))
op("MatrixSetDiagV3", tensor("B", "B"), tensor("B"), k=0)
for rank in (1, 2, 3):
    name = {1: "FFT", 2: "FFT2D", 3: "FFT3D"}[rank]
    inner, few = (4,) * rank, np.full([rank], 4, np.int32)
    half = (*inner[:-1], 3)
    for batch in (("B",), ()):
        for kind in (name, f"I{name}"):
            op(kind, tensor(*batch, *inner), dtypes=(tf.complex128,))
        op(f"R{name}", tensor(*batch, *inner), fft_length=few, Tcomplex=tf.complex128)
        back = raw(f"IR{name}", fft_length=few, Treal=F64)
        case(f"IR{name}", back, tensor(*batch, *half), dtypes=(tf.complex128,))
op("FFT", tensor(2, "B"), dtypes=(tf.complex128,))
