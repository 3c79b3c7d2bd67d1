"""Operations on each element by itself: of one operand, or several that are broadcast.

Rows stay where they are. What is linear keeps parts of a sum apart. An element may be a text.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from replicate.compat.tensorflow import tf
from replicate.splitting import states
from replicate.splitting.rules import registry, signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import Said, by_axes, names, signature
from replicate.splitting.states import (
    COPIED,
    FLOW,
    SIZE,
    SUM,
    WHOLE,
    ListOf,
    Split,
    WholeError,
)
from replicate.splitting.structure import kinds

SAME = "Identity StopGradient PreventGradient Snapshot DebugGradientIdentity"

LINEAR = "Neg Real Imag Conj"

UNARY = """
Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1
BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Bucketize Ceil CheckNumerics
CheckNumericsV2 ComplexAbs Cos Cosh Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 Floor
FresnelCos FresnelSin Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri
OnesLike PopulationCount Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh
Softplus Softsign Spence Sqrt Square Tan Tanh
"""

BROADCAST = """
ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex FloorDiv
FloorMod Greater GreaterEqual Igamma IgammaGradA Igammac LeftShift Less LessEqual LogicalAnd
LogicalOr Maximum Minimum Mod MulNoNan NextAfter Polygamma Pow RightShift SelectV2
SquaredDifference TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
"""

COMPARING = "Equal NotEqual"

ALIKE = """
EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad
SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
"""

# What makes one entry of each entry.
EACH = (
    *f"{SAME} {LINEAR} {UNARY} {BROADCAST} {COMPARING}".split(),
    *"Add AddN AddV2 BiasAdd Cast Div DivNoNan Mul RealDiv Select Sub".split(),
)

BROADCAST_SAID, ALIKE_SAID = "...|1+ -> ...", "...+ -> ..."

signature("... -> ...", UNARY)
signature("... -> ...", LINEAR, linear=[0])
signature(BROADCAST_SAID, BROADCAST)
signature(ALIKE_SAID, ALIKE)
signature(
    "... -> ...",  # texts; patterns, lengths and defaults are for all of them
    """AsString DecodeBase64 DecodeCSV DecodeCompressed DecodePaddedRaw EncodeBase64
    RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace StringLength
    StringLower StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper UnicodeScript UnicodeTranscode""",
)
signature("... -> ...N", "DecodeRaw", needs_rows=True)  # N is the texts' length, the same for all


@rule("ZerosLike")
def zeros(case: Case) -> Split:
    """Zeros of a shape, or a list of them."""
    state = case.inputs[0]
    if isinstance(state, ListOf):
        return Split([state], [state])
    return signatures.split(case, "... -> ...")


@rule("Cast")
def cast(case: Case) -> Split:
    """Parts of a sum are cast apart only to a dtype that holds all their values."""
    if case.inputs[0] != SUM:
        return signatures.split(case, "... -> ...")
    old, new = case.op.inputs[0].dtype, case.op.outputs[0].dtype
    is_one_kind = (old.is_floating and new.is_floating) or (old.is_complex and new.is_complex)
    if old != new and not (is_one_kind and old.size < new.size):
        raise WholeError("a sum is cast to a dtype that rounds")
    return case.in_parts([0])


@rule(*SAME.split(), "IdentityN")
def same(case: Case) -> Split:
    """The values themselves, whatever devices hold of them; of whole ones each has the same."""
    wants = [state if state == SUM or states.is_held(state) else WHOLE for state in case.inputs]
    if all(want is WHOLE for want in wants):
        raise WholeError("its operands are whole")
    handles = [tensor.dtype in kinds.HANDLES for tensor in case.op.inputs]
    if any(is_handle and want is WHOLE for is_handle, want in zip(handles, wants, strict=True)):
        raise WholeError("an operand is a handle")
    return Split(wants, [COPIED if want is WHOLE else want for want in wants])


@rule("EnsureShape", linear=[0])
def ensure_shape(case: Case) -> Split:
    """A check of a shape; copies leave the number of rows open."""
    rows = case.rows_of(0)
    if case.result_shape()[rows.axis].size is not None:
        raise WholeError("it fixes the number of rows")
    shape = registry.opened(case.attribute("shape"), [rows.axis])
    return Split([rows], [rows], attributes={"shape": shape})


@rule(*COMPARING.split())
def compared(case: Case) -> Split:
    """Operands that are broadcast to each other, or of shapes that do not fit.

    If these are no error, it is a single False, or True.
    """
    pairs = zip(reversed(case.shape(0)), reversed(case.shape(1)), strict=False)
    fits = all(a.is_one or b.is_one or (a == b and a.is_known) for a, b in pairs)
    if not fits and not case.attribute("incompatible_shape_error"):
        raise WholeError("it may compare shapes that do not fit")
    return signatures.split(case, BROADCAST_SAID)


@rule("Add", "AddN", "AddV2", "Sub")
def add(case: Case) -> Split:
    """Parts of sums are added apart, and so are flows and lists; a sum of many is of one shape."""
    first = case.inputs[0]
    if all(state == first for state in case.inputs) and (first == SUM or isinstance(first, ListOf)):
        return Split(case.inputs, [first])
    if case.type != "Sub" and FLOW in case.inputs:
        # A flow behind several operations of TensorArrays; its value has no meaning.
        if any(state not in (FLOW, WHOLE) for state in case.inputs):
            raise WholeError("an operand is no order")
        return Split(case.inputs, [FLOW])
    return signatures.split(case, ALIKE_SAID if case.type == "AddN" else BROADCAST_SAID)


@rule("Mul", "Div", "DivNoNan", "RealDiv")
def scale(case: Case) -> Split:
    """Parts of a sum are scaled apart, by a finite whole value; a scalar sum is joined first.

    NOTE: a device's part may be 0 where the sum is not, and 0 / 0 and 0 * inf are NaN.
    """
    if case.rows is not None:
        return signatures.split(case, BROADCAST_SAID)
    n = 1 if case.type == "Mul" and case.inputs[1] == SUM else 0
    if case.inputs[n] != SUM or case.inputs[1 - n] not in (WHOLE, SIZE):
        raise WholeError("no operand has rows")
    if not case.is_float() or not case.result_rank():
        raise WholeError("a scalar or an integer is scaled")
    value = check_finite(case, 1 - n)
    if case.type != "Mul" and not np.all(value):
        raise WholeError("a sum may be divided by zero")
    return case.in_parts((n,))


def check_finite(case: Case, n: int) -> npt.NDArray[Any]:
    """Returns input n, by which parts of a sum are multiplied; it must be constant and finite."""
    tensor = case.op.inputs[n]
    while tensor.op.type in ("Enter", "Identity"):
        tensor = tensor.op.inputs[0]
    value = tf.get_static_value(tensor)
    if value is None or not np.all(np.isfinite(value)):
        raise WholeError("a sum is multiplied by what may not be finite")
    return value


@by_axes("Select")
def select(case: Case) -> Said:
    """By a condition of the operands' shape, for each entry of the first dimension, or one."""
    x = names(case, 1)
    return Said([x[: case.rank(0)], x, x], [x])


@rule("StringJoin")
def _join(case: Case) -> Split:
    """Texts of one shape, and single texts."""
    ranks = [case.rank(n) for n in range(len(case.inputs))]
    return signatures.split(case, ", ".join("..." if rank else "*" for rank in ranks) + " -> ...")


@rule("Substr")
def _part(case: Case) -> Split:
    """Texts, positions and lengths, which are broadcast."""
    texts = signatures.split(case, BROADCAST_SAID)
    if states.is_rows(texts.wants[1]) != states.is_rows(texts.wants[2]):
        raise WholeError("positions and lengths differ")
    return texts


@by_axes("ReduceJoin")
def _reduce_join(case: Case) -> Said:
    """Joins texts along axes, or along all axes if none is named."""
    rank = case.rank(0)
    axes = case.axes(1, rank) or range(rank)
    x = signatures.whole(names(case), axes)
    return Said([x], [signatures.reduced(x, axes, case.attribute("keep_dims"))])
