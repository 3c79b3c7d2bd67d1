"""Cases of random numbers, which are one device's, and of those of each device's own."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import shape, tensor, unit

FAMILY = harness.Family("random")
case = FAMILY.case
op = FAMILY.op

SEEDS = {"seed": 5, "seed2": 7}
for dims in (("B",), ("B", 3), (3, "B"), ("2B", 2)):
    for kind in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
        for dtype in (tf.float64, tf.float32):
            op(kind, shape(*dims), dtypes=(dtype,), dtype=dtype, **SEEDS)
    op("RandomUniformInt", shape(*dims), minval=0, maxval=9, **SEEDS)
    for kind in ("RandomUniform", "RandomNormal", "TruncatedNormal"):
        kind = f"Stateless{kind}V2"
        options = {"key": np.array([1], np.uint64), "counter": np.array([2, 3], np.uint64)}
        op(kind, shape(*dims), alg=1, dtype=tf.float64, **options)
op("RandomGamma", shape("B"), tensor(2, of=unit), **SEEDS)
op("RandomGamma", [2], tensor("B", of=unit), **SEEDS)
op("RandomPoissonV2", shape("B"), tensor(2, of=unit), **SEEDS)
op("RandomPoissonV2", [2], tensor("B", of=unit), **SEEDS)
op("Multinomial", tensor("B", 3), num_samples=4, **SEEDS)
op("RandomShuffle", tensor("B", 3), **SEEDS)
case("RandomUniform", lambda x: tf.nn.dropout(x, 0.4, seed=5), tensor("B", 3))


def of_its_shape(draw):
    """Numbers of a shape that a static batch tells as literals."""

    def make(x):
        shape = x.shape if x.shape.is_fully_defined() else tf.shape(x)
        return x + draw(shape, dtype=tf.float64, seed=5)

    return make


for dims in (("B", 3), (3, "B")):
    case("RandomStandardNormal", of_its_shape(tf.random.normal), tensor(*dims))
    case("TruncatedNormal", of_its_shape(tf.random.truncated_normal), tensor(*dims))

OWN = harness.Family("random, each device its own", random_numbers="per_device")
OWN.cases = [case for case in FAMILY.cases if not case.kind.startswith("Stateless")]
