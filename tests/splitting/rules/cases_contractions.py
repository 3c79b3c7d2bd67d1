"""Cases of products, contracted over rows or not."""

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import raw, tensor

FAMILY = harness.Family("contractions")
case = FAMILY.case
op = FAMILY.op

F64, F32 = tf.float64, tf.float32

for transposes, first, second in (
    ((False, False), ("B", 3), (3, 4)),
    ((False, False), ("B", 3), (3, "B")),
    ((True, False), ("B", 3), ("B", 4)),
    ((True, False), (3, "B"), (3, 4)),
    ((False, True), ("B", 3), ("B", 3)),
    ((False, True), ("B", 3), (4, 3)),
    ((True, True), ("B", 3), (4, "B")),
    ((False, False), (2, "B"), ("B", 4)),
    ((False, False), ("2B", 3), (3, 2)),
    ((True, False), ("2B", 3), ("2B", 4)),
    ((False, False), ("B", "B"), ("B", 3)),
    ((True, False), ("B", "B"), ("B", 3)),
    ((False, False), (2, 3), (3, 4)),
    ((False, False), ("B", 1), (1, 3)),
):
    function = raw("MatMul", transpose_a=transposes[0], transpose_b=transposes[1])
    case("MatMul", function, tensor(*first), tensor(*second), dtypes=(F64, F32))
    function = raw("SparseMatMul", transpose_a=transposes[0], transpose_b=transposes[1])
    case("SparseMatMul", function, tensor(*first), tensor(*second), dtypes=(F32,))
op("MatMul", tensor("B", 3), tensor(3, 4), dtypes=(tf.complex128, tf.int32))
op("MatMul", tensor("B", 3), tensor("B", 4), dtypes=(tf.int32, tf.half), transpose_a=True)

for kind in ("BatchMatMul", "BatchMatMulV2"):
    for adjoints, first, second in (
        ((False, False), ("B", 2, 3), ("B", 3, 4)),
        ((False, True), ("B", 2, 3), ("B", 4, 3)),
        ((False, False), (2, "B", 3), (2, 3, 4)),
        ((False, True), (2, "B", 3), (2, "B", 3)),
        ((True, False), (2, "B", 3), (2, "B", 4)),
        ((False, False), (2, 3, "B"), (2, "B", 4)),
        ((False, False), ("B", 2, 3, 2), ("B", 2, 2, 3)),
        ((False, False), (2, "B", 3, 2), (2, "B", 2, 3)),
        ((False, False), (2, 3, 4), (2, 4, 3)),
    ):
        function = raw(kind, adj_x=adjoints[0], adj_y=adjoints[1])
        case(kind, function, tensor(*first), tensor(*second))
for first, second in (
    (("B", 2, 3), (3, 4)),
    (("B", 2, 3), (1, 3, 4)),
    ((2, 3), ("B", 3, 4)),
    (("B", 1, 2, 3), (2, 3, 4)),
    ((3, 4), (2, 4, "B")),
):
    op("BatchMatMulV2", tensor(*first), tensor(*second), dtypes=(F64, F32))
    op("BatchMatMulV3", tensor(*first), tensor(*second), Tout=F64)
op("BatchMatMulV2", tensor("B", 3, 2), tensor("B", 3, 2), dtypes=(tf.complex128,), adj_x=True)
for equation, *operands in (
    ("bi,ij->bj", ("B", 3), (3, 4)),
    ("bi,bj->ij", ("B", 3), ("B", 4)),
    ("bi,ci->bc", ("B", 3), ("B", 3)),
    ("bti,bsi->bts", ("B", 2, 3), ("B", 4, 3)),
    ("b...i,ij->b...j", ("B", 2, 3), (3, 4)),
    ("...i,...i->...", ("B", 2, 3), (2, 3)),
    ("...i,ij->...j", ("B", 3), (3, 4)),
    ("tbi,ij->tbj", (2, "B", 3), (3, 4)),
    ("bij->bji", ("B", 2, 3)),
    ("bij->b", ("B", 2, 3)),
    ("bij->ij", ("B", 2, 3)),
    ("bij->", ("B", 2, 3)),
    ("bi,bi->", ("B", 3), ("B", 3)),
    ("b,i->bi", ("B",), (3,)),
    ("b,c->bc", ("B",), ("B",)),
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bii->bi", ("B", 3, 3)),
    ("bb->b", ("B", "B")),
    ("bi,bij,bj->b", ("B", 3), ("B", 3, 2), ("B", 2)),
):
    if len(operands) < 3:
        function = lambda *x, e=equation: tf.raw_ops.Einsum(inputs=x, equation=e)  # noqa: E731
        case("Einsum", function, *(tensor(*dims) for dims in operands))
op("Cross", tensor("B", 3), tensor("B", 3))
op("Cross", tensor(2, "B", 3), tensor(2, "B", 3))
op("Cross", tensor(2, 3), tensor(2, 3))
