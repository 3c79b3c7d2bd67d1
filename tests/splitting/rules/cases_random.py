"""Cases of random numbers, which are one device's, and of those of each device's own."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.splitting.rules import harness
from tests.splitting.rules.harness import raw, shape, tensor, unit

FAMILY = harness.Family("random")
case = FAMILY.case

SEEDS = {"seed": 5, "seed2": 7}
for dims in (("B",), ("B", 3), (3, "B"), ("2B", 2)):
    for kind in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
        for dtype in (tf.float64, tf.float32):
            case(kind, raw(kind, dtype=dtype, **SEEDS), shape(*dims), dtypes=(dtype,))
    case("RandomUniformInt", raw("RandomUniformInt", minval=0, maxval=9, **SEEDS), shape(*dims))
    for kind in ("RandomUniform", "RandomNormal", "TruncatedNormal"):
        kind = f"Stateless{kind}V2"
        options = {"key": np.array([1], np.uint64), "counter": np.array([2, 3], np.uint64)}
        case(kind, raw(kind, alg=1, dtype=tf.float64, **options), shape(*dims))
case("RandomGamma", raw("RandomGamma", **SEEDS), shape("B"), tensor(2, of=unit))
case("RandomGamma", raw("RandomGamma", **SEEDS), [2], tensor("B", of=unit))
case("RandomPoissonV2", raw("RandomPoissonV2", **SEEDS), shape("B"), tensor(2, of=unit))
case("RandomPoissonV2", raw("RandomPoissonV2", **SEEDS), [2], tensor("B", of=unit))
case("Multinomial", raw("Multinomial", num_samples=4, **SEEDS), tensor("B", 3))
case("RandomShuffle", raw("RandomShuffle", **SEEDS), tensor("B", 3))
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
