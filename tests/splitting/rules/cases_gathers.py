"""Cases of operations that pick entries, or put them into their places."""

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from tests.splitting.rules import harness
from tests.splitting.rules.harness import (
    apart,
    between,
    indices,
    listed,
    raw,
    shape,
    size,
    tensor,
)

FAMILY = harness.Family("gathers")
case = FAMILY.case
op = FAMILY.op

F64 = tf.float64

for table, places, axis, batched in (
    ((3, 2), ("B",), 0, 0),
    ((3, 2), ("B", 2), 0, 0),
    ((3, 2), (2, "B"), 0, 0),
    ((2, 3), ("B",), 1, 0),
    (("B", 3), (2,), 1, 0),
    (("B", 3), (2, 2), -1, 0),
    (("B", 3), (), 1, 0),
    ((3, "B"), (2,), 0, 0),
    ((3, "B"), (), 0, 0),
    ((2, 3, "B"), (2, 4), 1, 0),
    ((3, "B"), ("B",), 0, 0),
    (("B", 3), ("B", 2), 1, 1),
    (("B", 3, 2), ("B",), 1, 1),
    (("B", 3, 2), ("B", 4), 1, 1),
    ((2, "B", 3), (2, "B", 4), 2, 2),
    ((2, 3, "B"), (2, 4), 1, 1),
    ((3, 2), (4,), 0, 0),
):
    function = raw("GatherV2", axis=axis, batch_dims=batched)
    case("GatherV2", function, tensor(*table), indices(*places, below=2))
    if not axis and not batched:
        op("Gather", tensor(*table), indices(*places, below=2))
op("GatherV2", tensor("B", 3), indices("B", below=1), axis=0)
op("GatherV2", tensor("B", 3), indices(4, below=1), axis=0)
case("GatherV2", lambda x: tf.gather(x, tf.range(tf.shape(x)[0])[::-1]), tensor("B", 3))
op("GatherV2", tensor(3, 2), indices("B", dtype=tf.int64), dtypes=(tf.int32,), axis=0)
for table, places in (
    ((3, 2), ("B", 1)),
    ((3, 2), ("B", 2)),
    ((3, 2), (2, "B", 1)),
    (("B", 3), (2, 2)),
    (("B", 3), ("B", 2)),
    ((3, "B"), (2, 1)),
    ((3, 2), (4, 1)),
):
    below = 1 if "B" in table else 2
    op("GatherNd", tensor(*table), indices(*places, below=below))


def from_variable(kind, **options):
    """Reads rows of a variable."""

    def make(places):
        table = tf1.Variable(np.arange(12.0).reshape([4, 3]), use_resource=True)
        return getattr(tf.raw_ops, kind)(
            resource=table.handle, indices=places, dtype=F64, **options
        )

    return make


for dims in (("B",), ("B", 2), (2, "B"), (3,)):
    case("ResourceGather", from_variable("ResourceGather"), indices(*dims))
for dims in (("B", 1), ("B", 2), (2, "B", 1)):
    case("ResourceGatherNd", from_variable("ResourceGatherNd"), indices(*dims))

for axis in (-1, 0, 1):
    for dims in (("B",), ("B", 2), (2, "B"), (3,)):
        op("OneHot", indices(*dims), 3, tensor(), tensor(), axis=axis)
op("OneHot", indices("B"), size(), np.float64(1.0), np.float64(0.0))

for kind in (
    "UnsortedSegmentSum",
    "UnsortedSegmentProd",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
):
    for data, places in (
        (("B", 2), ("B",)),
        (("B",), ("B",)),
        (("2B", 2), ("2B",)),
        (("B", 2, 3), ("B", 2)),
        ((4, "B"), (4,)),
        ((4, 2), (4,)),
        ((2, "B", 3), (2, "B")),
    ):
        op(kind, tensor(*data), indices(*places), 3)
    op(kind, tensor("B", 2), indices("B", below=1), size())
    op(kind, tensor("B", 2), tensor("B", dtype=tf.int32, of=between(-1, 3)), 3)
op("UnsortedSegmentSum", tensor("B"), indices("B"), 3, dtypes=(tf.int32,))
ORDERED = lambda n, s: np.sort(n.randint(0, 2, s), 0)  # noqa: E731
for kind in ("SegmentSum", "SegmentProd", "SegmentMax", "SegmentMin", "SegmentMean"):
    op(kind, tensor("B", 2), tensor("B", dtype=tf.int32, of=ORDERED))
    op(kind, tensor(3, "B"), np.array([0, 0, 1], np.int32))
    op(kind, tensor(3, 2), np.array([0, 0, 1], np.int32))

for kind in ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"):
    places, ids = np.array([0, 2, 1, 0], np.int32), np.array([0, 0, 1, 3], np.int32)
    numbered, graded = f"{kind}WithNumSegments", f"{kind}Grad"
    for data in ((3, 2), (3, "B"), ("B", 2), (3, 2, "B")):
        few = places if data[0] == 3 else places * 0
        op(kind, tensor(*data), few, ids, dtypes=(F64, tf.float32))
        op(numbered, tensor(*data), few, ids, 5)
    for grad in ((4, 2), (4, "B"), (4, 2, "B")):
        op(graded, tensor(*grad), places, ids, 3, dtypes=(F64, tf.float32))
    op(graded, tensor("B", 2), places, ids * 0, 3)
    entries = indices("B"), tensor("B", dtype=tf.int32, of=ORDERED)
    op(kind, tensor(3, 2), *entries)
    op(numbered, tensor(3, 2), *entries, 3)
    op(graded, tensor(2, 2), *entries, 4)
    op(numbered, tensor(3, 2), *entries, size())

scatter = raw("ScatterNd")
case("ScatterNd", scatter, indices("B", 1), tensor("B", 2), [3, 2])
case("ScatterNd", scatter, indices("B", 2, below=2), tensor("B"), [3, 2])
case("ScatterNd", scatter, indices("B", 1), tensor("B"), [3], dtypes=(tf.int32,))
case("ScatterNd", scatter, indices(2, 1), tensor(2, "B"), shape(3, "B"))
case("ScatterNd", scatter, indices(2, 1), tensor(2, 3), [3, 3])
case("ScatterNd", scatter, indices("B", 1, below=1), tensor("B", 2), shape("B", 2))
for kind in ("Add", "Sub", "Max", "Min", "Update"):
    kind = f"TensorScatter{kind}"
    places = np.array([[0], [2]], np.int32)
    op(kind, tensor(3, "B"), places, tensor(2, "B"))
    op(kind, tensor("B", 3), indices(2, 1, below=1), tensor(2, 3))
    op(kind, tensor(3, 2), indices("B", 1, below=1), tensor("B", 2)) if kind in (
        "TensorScatterAdd",
        "TensorScatterSub",
    ) else None
    op(kind, tensor(3, 2), places, tensor(2, 2))

for kind, options in (("TopKV2", {"k": 2}),):
    op(kind, tensor("B", 3, of=apart), dtypes=(F64, tf.float32, tf.int32), **options)
    op(kind, tensor(2, "2B", of=apart), **options)
    op(kind, tensor(2, "B", 3, of=apart), **options)
    op(kind, tensor(2, 3, of=apart), **options)
op("NthElement", tensor("B", 3, of=apart), n=1)
op("NthElement", tensor(2, "2B", of=apart), n=1)
op("NthElement", tensor(2, 3, of=apart), n=1, reverse=True)
for dtype in (tf.int32, tf.int64):
    op("InTopK", tensor("B", 3, dtype=tf.float32), indices("B", dtype=dtype), k=2)
    op(
        "InTopKV2",
        tensor("B", 3, dtype=tf.float32),
        indices("B", dtype=dtype),
        k=np.array(2, dtype.as_numpy_dtype),
    )
op("InTopK", tensor(2, 3, dtype=tf.float32), indices(2), k=2)


def from_table(keys):
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.constant([3, 4], tf.int64)
    )
    return tf.lookup.StaticHashTable(initializer, -1).lookup(keys)


WORDS = {"dtype": tf.string, "of": harness.among("a", "b", "c")}
for dims in (("B",), ("B", 2), (2, "B")):
    case("LookupTableFindV2", from_table, tensor(*dims, **WORDS))
case("IdentityN", listed("IdentityN", "input"), indices("B"), indices(3))

# Rows that are picked.

for dims in (("B",), ("B", 3), (2, "B"), ("2B", 2)):
    case("Where", lambda x: tf.where(x > 0.0), tensor(*dims))
    case("Where", lambda x: tf.gather_nd(x, tf.where(x > 0.0)) * 2.0, tensor(*dims))
    case("Where", lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0.0)), tensor(*dims))
case("Where", lambda x: tf.boolean_mask(x, x[:, 0] > 0.0), tensor("B", 3))
case("Where", lambda x: tf.where(x > 0.0), tensor(2, 3))
for dims in (("B",), ("2B",), (4,)):
    case("Unique", lambda x: list(tf.unique(x)), indices(*dims))
    case("Unique", lambda x: tf.unique(x).idx + tf.unique(x).y[0], indices(*dims))
    op("UniqueV2", indices(*dims), axis=[0])
