"""Cases of operations on text."""

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import among, between, indices, listed, raw, tensor

FAMILY = harness.Family("strings")
case = FAMILY.case


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
