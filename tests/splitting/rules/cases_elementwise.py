"""Cases of operations that work on each entry by itself."""

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import (
    above_one,
    among,
    apart,
    between,
    indices,
    listed,
    positive,
    raw,
    real,
    some_zero,
    tensor,
    truths,
    unit,
)

FAMILY = harness.Family("elementwise")
case = FAMILY.case
op = FAMILY.op

F32, F64 = tf.float32, tf.float64


def unary(kinds, values=real, dtypes=(F64,), **attributes):
    """Each kind of one operand: rows first, rows last, and a sum."""
    for kind in kinds.split():
        op(kind, tensor("B", 3, of=values), dtypes=dtypes, **attributes)
        op(kind, tensor(2, "2B", of=values), dtypes=dtypes[:1], **attributes)
        op(kind, tensor(2, 3, of=values), dtypes=dtypes[:1], **attributes)


unary(
    "Abs Neg Sign Square Tanh Sin Cos Exp Expm1 Atan Sinh Cosh Erf Erfc Sigmoid", dtypes=(F64, F32)
)
unary("Identity StopGradient PreventGradient Snapshot OnesLike ZerosLike", dtypes=(F64, F32))
unary("Asin Acos Atanh Tan Ceil Floor Rint Round IsFinite IsInf IsNan Asinh Digamma Lgamma")
unary("Relu Relu6 Elu Selu Softplus Softsign", dtypes=(F64, F32))
unary("LeakyRelu", alpha=0.3)
unary("BesselI0e BesselI1e BesselI0 BesselI1 BesselJ0 BesselJ1 Dawsn FresnelCos FresnelSin")
unary("BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Expint Spence", positive)
unary("Log Sqrt Rsqrt Reciprocal Inv", positive, dtypes=(F64, F32))
unary("Log1p", positive)
unary("Erfinv Ndtri", unit)
unary("Acosh", above_one)
unary("CheckNumerics CheckNumericsV2", message="a number")
unary("DebugGradientIdentity")

for kind in ("Conj", "Real", "Imag", "Angle", "ComplexAbs"):
    out = {} if kind == "Conj" else {"Tout": F64}
    op(kind, tensor("B", 3), dtypes=(tf.complex128,), **out)
    op(kind, tensor(2, 3), dtypes=(tf.complex128,), **out)
op("Complex", tensor("B", 3), tensor(3), Tout=tf.complex128)
op("Neg", tensor("B", 3), dtypes=(tf.complex128, tf.int32))

INTEGERS = tensor("B", 3, dtype=tf.int32, of=between(-9, 9))
for kind in ("Invert", "Neg", "Abs", "Sign", "Square", "ZerosLike", "OnesLike", "Identity"):
    op(kind, INTEGERS)
op("Identity", tensor("B", 2, dtype=tf.string, of=among("a", "bc")))
op("Identity", tensor("B", 2, dtype=tf.bool, of=truths))
op("LogicalNot", tensor("B", 3, dtype=tf.bool, of=truths))
op("LogicalNot", tensor(3, dtype=tf.bool, of=truths))
op("PopulationCount", tensor("B", 3, dtype=tf.int32, of=between(0, 99)))

for source, target in ((F64, F32), (F32, F64), (F64, tf.int32), (F64, tf.half), (F32, tf.bfloat16)):
    op("Cast", tensor("B", 3, dtype=source), DstT=target)
    op("Cast", tensor(2, 3, dtype=source, of=positive), DstT=target)
for target in (F64, tf.int64, tf.bool):
    op("Cast", INTEGERS, DstT=target)
    op("Cast", tensor(3, dtype=tf.int32, of=between(0, 4)), DstT=target)
op("Cast", tensor("B", dtype=tf.bool, of=truths), DstT=F64)
op("Cast", tensor(3, dtype=tf.bool, of=truths), DstT=F64)

op("Bucketize", tensor("B", 3), boundaries=[-0.5, 0.0, 0.5])
op("EnsureShape", tensor("B", 3), shape=[None, 3])
op("Bitcast", tensor("B", 3), type=tf.int64)


def broadcasts(kind, first=real, second=real, dtypes=(F64,), **attributes):
    """Two operands, broadcast in every way that there is."""
    function = raw(kind, **attributes)

    def both(one, other, dtypes=dtypes[:1]):
        case(kind, function, tensor(*one, of=first), tensor(*other, of=second), dtypes=dtypes)

    both(("B", 3), ("B", 3), dtypes)
    both(("B", 3), (3,))
    both((2, 3), (3,))
    both(("B", 1), (1, 3))
    if kind in BROADCAST_MORE:
        both((3,), ("B", 3))
        both(("B", 3), ("B", 1))
        both(("B",), ("B",))
        both(("B", 3), ())
        both((), ("B",))
        both((2, "B"), ("B",))
        both((3, "B"), (3, 1))
        both((1, "B"), ("B", 1))
        both(("B", "B"), ("B",))
        both(("B", 2, 3), ("B", 1, 3))
        both((2, "2B"), (2, "2B"))
        both((1, 3), ("B", 1))
        both((), ())
        both((2, 1), (1, 3))


BROADCAST_MORE = ("AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Less", "SquaredDifference")
for kind in ("Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference"):
    broadcasts(kind, dtypes=(F64, F32, tf.int32) if kind != "Add" else (F64, F32))
for kind in ("Div", "RealDiv", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod"):
    if kind not in ("TruncateDiv",):
        broadcasts(kind, second=positive)
for kind in ("DivNoNan", "MulNoNan", "Xdivy", "Xlog1py"):
    broadcasts(kind, first=unit, second=some_zero if kind != "Xlog1py" else positive)
broadcasts("Xlogy", some_zero, positive)
broadcasts("Pow", positive)
broadcasts("Atan2")
for kind in ("Igamma", "Igammac"):
    broadcasts(kind, positive, positive)
broadcasts("Zeta", above_one, positive)
broadcasts("NextAfter")
for kind in ("Equal", "NotEqual"):
    broadcasts(kind, some_zero, some_zero)
for kind in ("Less", "LessEqual", "Greater", "GreaterEqual"):
    broadcasts(kind)
op("ApproximateEqual", tensor("B", 3), tensor("B", 3), tolerance=0.5)
op("IgammaGradA", tensor("B", of=positive), tensor("B", of=positive))
op(
    "Polygamma",
    tensor("B", 3, of=lambda n, s: n.randint(1, 4, s).astype(float)),
    tensor(3, of=positive),
)
op("Betainc", *(tensor("B", 3, of=unit) for _ in range(3)))
for first, second in ((("B", 3), ("B", 3)), (("B", 3), (3,)), ((3,), (3,)), (("B", 1), (1, 3))):
    for kind in ("LogicalAnd", "LogicalOr"):
        op(
            kind,
            tensor(*first, dtype=tf.bool, of=truths),
            tensor(*second, dtype=tf.bool, of=truths),
        )
for kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"):
    bits = {"dtype": tf.int32, "of": between(0, 8)}
    op(kind, tensor("B", 3, **bits), tensor("B", 3, **bits))
    op(kind, tensor("B", 3, **bits), tensor(3, **bits))
for kind in ("FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod", "AddV2", "Mul", "Sub"):
    divisor = {"dtype": tf.int32, "of": between(1, 5)}
    op(kind, INTEGERS, tensor("B", 3, **divisor))
    op(kind, INTEGERS, tensor(3, **divisor))
    op(kind, tensor(3, **divisor), tensor(3, **divisor))
for kind in ("Equal", "NotEqual"):
    text = {"dtype": tf.string, "of": among("a", "b")}
    op(kind, tensor("B", 3, **text), tensor(3, **text))
    op(kind, tensor("B", 3), tensor("B", 3), incompatible_shape_error=False)
op("Add", *(tensor("B", 2, dtype=tf.string, of=among("a", "b")) for _ in range(2)))

for condition, one, other in (
    (("B", 3), ("B", 3), ("B", 3)),
    (("B", 1), ("B", 3), (3,)),
    ((3,), ("B", 3), (1, 3)),
    ((), ("B", 3), ("B", 3)),
    (("B",), (3, "B"), ()),
    ((3,), (3,), (3,)),
    ((), (2, 3), (3,)),
):
    op("SelectV2", tensor(*condition, dtype=tf.bool, of=truths), tensor(*one), tensor(*other))
for condition, one in (
    (("B", 3), ("B", 3)),
    (("B",), ("B", 3)),
    (("B",), ("B",)),
    ((3,), (3, "B")),
    ((), ("B", 3)),
    ((3,), (3,)),
):
    op("Select", tensor(*condition, dtype=tf.bool, of=truths), tensor(*one), tensor(*one))
for dims in (("B", 3), (3, "B"), (2, 3)):
    op("ClipByValue", tensor(*dims), -0.5, tensor(of=unit))
op("ClipByValue", tensor("B", 3), tensor("B", 3), tensor("B", 3))
for dims in (("B", 3), (3, "B"), (2, 3), ()):
    case("AddN", listed("AddN", "inputs"), tensor(*dims), tensor(*dims))
    case("AddN", listed("AddN", "inputs"), tensor(*dims), tensor(*dims), tensor(*dims))
    case("IdentityN", listed("IdentityN", "input"), tensor(*dims), tensor(3))

for dims, options in ((("B", 3), {}), (("B", 2, 2, 3), {}), ((2, "B", 3), {}), ((2, 3), {})):
    op("BiasAdd", tensor(*dims), tensor(3), **options)
op("BiasAdd", tensor("B", 3, 2, 2), tensor(3), data_format="NCHW")
op("BiasAdd", tensor(2, "B"), tensor("B"))
op("BiasAdd", tensor(2, "B", 2, 2), tensor("B"), data_format="NCHW")
op("BiasAddV1", tensor("B", 3), tensor(3))

GRADIENTS = """ReluGrad Relu6Grad EluGrad SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad
SqrtGrad RsqrtGrad ReciprocalGrad InvGrad LeakyReluGrad"""
for kind in GRADIENTS.split():
    for dims in (("B", 3), (2, "B"), (2, 3)):
        op(kind, tensor(*dims, of=unit), tensor(*dims, of=unit))
for kind in ("ReluGrad", "TanhGrad", "SigmoidGrad"):
    op(kind, tensor("B", 3, of=unit), tensor("B", 3, of=unit), dtypes=(F32,))
case("Sum", lambda x: tf.reduce_sum(raw("Rint")(x)), tensor("B", 3, of=apart))

# Texts.


def on_text(kind, *values, dims=(("B",), ("B", 2), (2, "B")), **attributes):
    for each in dims:
        op(kind, tensor(*each, dtype=tf.string, of=among(*values)), **attributes)


on_text("StringLower", "Ab", "cD")
on_text("StringUpper", "Ab", "cD")
on_text("StringStrip", " a ", "b ")
on_text("StringLength", "a", "bcd")
on_text("StringToHashBucketFast", "a", "b", "c", num_buckets=7)
on_text("StringToHashBucket", "a", "b", "c", num_buckets=7)
on_text("StringToHashBucketStrong", "a", "b", "c", num_buckets=7, key=[1, 2])
on_text("StringToNumber", "1.5", "-2", out_type=tf.float64)
on_text("EncodeBase64", "a", "bcd")
on_text("DecodeBase64", "YQ", "YmNk")
on_text("DecodeRaw", "ab", "cd", out_type=tf.uint8)
on_text("DecodeCompressed", "ab", "c")
on_text("StaticRegexReplace", "abc", "b", pattern="b", rewrite="x")
on_text("StaticRegexFullMatch", "abc", "b", pattern="b")
on_text("UnicodeTranscode", "a", "b", input_encoding="UTF-8", output_encoding="UTF-16-BE")
for dims in (("B",), ("B", 2)):
    words = tensor(*dims, dtype=tf.string, of=among("ab", "cbd"))
    op("RegexReplace", words, pattern="b", rewrite="x")
    op("RegexFullMatch", words, pattern="ab")
    op("Substr", words, pos=0, len=1)
    op("Substr", words, indices(*dims, below=2), indices(*dims, below=2))
    case("StringJoin", listed("StringJoin", "inputs", separator="-"), words, words)
    case(
        "StringJoin", listed("StringJoin", "inputs"), words, tensor(dtype=tf.string, of=among("z"))
    )
    op("DecodePaddedRaw", words, fixed_length=4, out_type=tf.uint8)
    op("DecodeCSV", words, record_defaults=[[""]])
    op("UnicodeScript", tensor(*dims, dtype=tf.int32, of=between(65, 90)))
for axis in ([0], [1], [0, 1]):
    words = tensor("B", 2, dtype=tf.string, of=among("ab", "cbd"))
    op("ReduceJoin", words, reduction_indices=axis, separator="+")
for keeps in (False, True):
    words = tensor(2, "B", dtype=tf.string, of=among("ab", "cbd"))
    op("ReduceJoin", words, reduction_indices=[0], keep_dims=keeps)
for dtype in (tf.int32, tf.float64):
    op("AsString", tensor("B", 2, dtype=dtype, of=between(-9, 9)))
