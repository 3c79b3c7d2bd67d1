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

F32, F64 = tf.float32, tf.float64


def unary(kinds, values=real, dtypes=(F64,), **attributes):
    """Each kind of one operand: rows first, rows last, and a sum."""
    for kind in kinds.split():
        case(kind, raw(kind, **attributes), tensor("B", 3, of=values), dtypes=dtypes)
        case(kind, raw(kind, **attributes), tensor(2, "2B", of=values), dtypes=dtypes[:1])
        case(kind, raw(kind, **attributes), tensor(2, 3, of=values), dtypes=dtypes[:1])


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
    case(kind, raw(kind, **out), tensor("B", 3), dtypes=(tf.complex128,))
    case(kind, raw(kind, **out), tensor(2, 3), dtypes=(tf.complex128,))
case("Complex", raw("Complex", Tout=tf.complex128), tensor("B", 3), tensor(3))
case("Neg", raw("Neg"), tensor("B", 3), dtypes=(tf.complex128, tf.int32))

INTEGERS = tensor("B", 3, dtype=tf.int32, of=between(-9, 9))
for kind in ("Invert", "Neg", "Abs", "Sign", "Square", "ZerosLike", "OnesLike", "Identity"):
    case(kind, raw(kind), INTEGERS)
case("Identity", raw("Identity"), tensor("B", 2, dtype=tf.string, of=among("a", "bc")))
case("Identity", raw("Identity"), tensor("B", 2, dtype=tf.bool, of=truths))
case("LogicalNot", raw("LogicalNot"), tensor("B", 3, dtype=tf.bool, of=truths))
case("LogicalNot", raw("LogicalNot"), tensor(3, dtype=tf.bool, of=truths))
case("PopulationCount", raw("PopulationCount"), tensor("B", 3, dtype=tf.int32, of=between(0, 99)))

for source, target in ((F64, F32), (F32, F64), (F64, tf.int32), (F64, tf.half), (F32, tf.bfloat16)):
    case("Cast", raw("Cast", DstT=target), tensor("B", 3, dtype=source))
    case("Cast", raw("Cast", DstT=target), tensor(2, 3, dtype=source, of=positive))
for target in (F64, tf.int64, tf.bool):
    case("Cast", raw("Cast", DstT=target), INTEGERS)
    case("Cast", raw("Cast", DstT=target), tensor(3, dtype=tf.int32, of=between(0, 4)))
case("Cast", raw("Cast", DstT=F64), tensor("B", dtype=tf.bool, of=truths))
case("Cast", raw("Cast", DstT=F64), tensor(3, dtype=tf.bool, of=truths))

case("Bucketize", raw("Bucketize", boundaries=[-0.5, 0.0, 0.5]), tensor("B", 3))
case("EnsureShape", raw("EnsureShape", shape=[None, 3]), tensor("B", 3))
case("Bitcast", raw("Bitcast", type=tf.int64), tensor("B", 3))


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
case("ApproximateEqual", raw("ApproximateEqual", tolerance=0.5), tensor("B", 3), tensor("B", 3))
case("IgammaGradA", raw("IgammaGradA"), tensor("B", of=positive), tensor("B", of=positive))
case(
    "Polygamma",
    raw("Polygamma"),
    tensor("B", 3, of=lambda n, s: n.randint(1, 4, s).astype(float)),
    tensor(3, of=positive),
)
case("Betainc", raw("Betainc"), *(tensor("B", 3, of=unit) for _ in range(3)))
for first, second in ((("B", 3), ("B", 3)), (("B", 3), (3,)), ((3,), (3,)), (("B", 1), (1, 3))):
    for kind in ("LogicalAnd", "LogicalOr"):
        case(
            kind,
            raw(kind),
            tensor(*first, dtype=tf.bool, of=truths),
            tensor(*second, dtype=tf.bool, of=truths),
        )
for kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"):
    bits = {"dtype": tf.int32, "of": between(0, 8)}
    case(kind, raw(kind), tensor("B", 3, **bits), tensor("B", 3, **bits))
    case(kind, raw(kind), tensor("B", 3, **bits), tensor(3, **bits))
for kind in ("FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod", "AddV2", "Mul", "Sub"):
    divisor = {"dtype": tf.int32, "of": between(1, 5)}
    case(kind, raw(kind), INTEGERS, tensor("B", 3, **divisor))
    case(kind, raw(kind), INTEGERS, tensor(3, **divisor))
    case(kind, raw(kind), tensor(3, **divisor), tensor(3, **divisor))
for kind in ("Equal", "NotEqual"):
    text = {"dtype": tf.string, "of": among("a", "b")}
    case(kind, raw(kind), tensor("B", 3, **text), tensor(3, **text))
    case(kind, raw(kind, incompatible_shape_error=False), tensor("B", 3), tensor("B", 3))
case("Add", raw("Add"), *(tensor("B", 2, dtype=tf.string, of=among("a", "b")) for _ in range(2)))

for condition, one, other in (
    (("B", 3), ("B", 3), ("B", 3)),
    (("B", 1), ("B", 3), (3,)),
    ((3,), ("B", 3), (1, 3)),
    ((), ("B", 3), ("B", 3)),
    (("B",), (3, "B"), ()),
    ((3,), (3,), (3,)),
    ((), (2, 3), (3,)),
):
    case(
        "SelectV2",
        raw("SelectV2"),
        tensor(*condition, dtype=tf.bool, of=truths),
        tensor(*one),
        tensor(*other),
    )
for condition, one in (
    (("B", 3), ("B", 3)),
    (("B",), ("B", 3)),
    (("B",), ("B",)),
    ((3,), (3, "B")),
    ((), ("B", 3)),
    ((3,), (3,)),
):
    case(
        "Select",
        raw("Select"),
        tensor(*condition, dtype=tf.bool, of=truths),
        tensor(*one),
        tensor(*one),
    )
for dims in (("B", 3), (3, "B"), (2, 3)):
    case("ClipByValue", raw("ClipByValue"), tensor(*dims), -0.5, tensor(of=unit))
case("ClipByValue", raw("ClipByValue"), tensor("B", 3), tensor("B", 3), tensor("B", 3))
for dims in (("B", 3), (3, "B"), (2, 3), ()):
    case("AddN", listed("AddN", "inputs"), tensor(*dims), tensor(*dims))
    case("AddN", listed("AddN", "inputs"), tensor(*dims), tensor(*dims), tensor(*dims))
    case("IdentityN", listed("IdentityN", "input"), tensor(*dims), tensor(3))

for dims, options in ((("B", 3), {}), (("B", 2, 2, 3), {}), ((2, "B", 3), {}), ((2, 3), {})):
    case("BiasAdd", raw("BiasAdd", **options), tensor(*dims), tensor(3))
case("BiasAdd", raw("BiasAdd", data_format="NCHW"), tensor("B", 3, 2, 2), tensor(3))
case("BiasAdd", raw("BiasAdd"), tensor(2, "B"), tensor("B"))
case("BiasAdd", raw("BiasAdd", data_format="NCHW"), tensor(2, "B", 2, 2), tensor("B"))
case("BiasAddV1", raw("BiasAddV1"), tensor("B", 3), tensor(3))

GRADIENTS = """ReluGrad Relu6Grad EluGrad SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad
SqrtGrad RsqrtGrad ReciprocalGrad InvGrad LeakyReluGrad"""
for kind in GRADIENTS.split():
    for dims in (("B", 3), (2, "B"), (2, 3)):
        case(kind, raw(kind), tensor(*dims, of=unit), tensor(*dims, of=unit))
for kind in ("ReluGrad", "TanhGrad", "SigmoidGrad"):
    case(kind, raw(kind), tensor("B", 3, of=unit), tensor("B", 3, of=unit), dtypes=(F32,))
case("Sum", lambda x: tf.reduce_sum(raw("Rint")(x)), tensor("B", 3, of=apart))

# Texts.


def on_text(kind, *values, dims=(("B",), ("B", 2), (2, "B")), **attributes):
    for each in dims:
        case(kind, raw(kind, **attributes), tensor(*each, dtype=tf.string, of=among(*values)))


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
on_text("UnicodeScript", dims=()) if False else None
on_text("UnicodeTranscode", "a", "b", input_encoding="UTF-8", output_encoding="UTF-16-BE")
for dims in (("B",), ("B", 2)):
    words = tensor(*dims, dtype=tf.string, of=among("ab", "cbd"))
    case("RegexReplace", raw("RegexReplace", pattern="b", rewrite="x"), words)
    case("RegexFullMatch", raw("RegexFullMatch", pattern="ab"), words)
    case("Substr", raw("Substr", pos=0, len=1), words)
    case("Substr", raw("Substr"), words, indices(*dims, below=2), indices(*dims, below=2))
    case("StringJoin", listed("StringJoin", "inputs", separator="-"), words, words)
    case(
        "StringJoin", listed("StringJoin", "inputs"), words, tensor(dtype=tf.string, of=among("z"))
    )
    case("DecodePaddedRaw", raw("DecodePaddedRaw", fixed_length=4, out_type=tf.uint8), words)
    case("DecodeCSV", raw("DecodeCSV", record_defaults=[[""]]), words)
    case("UnicodeScript", raw("UnicodeScript"), tensor(*dims, dtype=tf.int32, of=between(65, 90)))
for axis in ([0], [1], [0, 1]):
    words = tensor("B", 2, dtype=tf.string, of=among("ab", "cbd"))
    case("ReduceJoin", raw("ReduceJoin", reduction_indices=axis, separator="+"), words)
for keeps in (False, True):
    words = tensor(2, "B", dtype=tf.string, of=among("ab", "cbd"))
    case("ReduceJoin", raw("ReduceJoin", reduction_indices=[0], keep_dims=keeps), words)
for dtype in (tf.int32, tf.float64):
    case("AsString", raw("AsString"), tensor("B", 2, dtype=dtype, of=between(-9, 9)))
