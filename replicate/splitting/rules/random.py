"""Random numbers: drawn once for all devices, or by each device for its own rows.

Numbers that are drawn once are those that one device draws. Stateless draws, as of
`StatelessRandomUniformV2`, have no rule: they are whole.
"""

from replicate.splitting import states
from replicate.splitting.rules import shapes
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import by_axes
from replicate.splitting.states import Split, WholeError

# Kinds whose attributes `seed` and `seed2` determine what is drawn. So that copies draw different
# numbers, the writer gives each its own by `seed_of_copy`.
SEEDED = frozenset(
    """Multinomial RandomGamma RandomPoisson RandomPoissonV2 RandomStandardNormal RandomUniform
    RandomUniformInt TruncatedNormal""".split()
)

# NOTE: neighbouring operations have neighbouring seeds. With a small step a device would draw for
# one operation what another device draws for the next.
_SEED_STEP = 1_000_003


def seed_of_copy(seed2: int, k: int) -> int:
    """Returns the attribute `seed2` of copy k, of an operation of `SEEDED` that has a seed."""
    seed = seed2 + k * _SEED_STEP
    return seed if seed < 2**63 else seed - 2**63


@rule("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", always=True)
def _draw(case: Case) -> Split:
    """A shape, and perhaps bounds, which are numbers."""
    _drawn_by_devices(case)
    rows = shapes.rows_of_shape(case, 0)
    others = [case.same(n) for n in range(1, len(case.inputs))]
    return Split([case.shape_view(0, rows), *others], [rows])


@rule("RandomGamma", "RandomPoisson", "RandomPoissonV2", always=True)
def _draw_for_each(case: Case) -> Split:
    """A shape, and parameters: for each of these it draws numbers of that shape."""
    _drawn_by_devices(case)
    parameters = case.inputs[1]
    if not states.is_rows(parameters):
        rows = shapes.rows_of_shape(case, 0)
        return Split([case.shape_view(0, rows), case.same(1)], [rows])
    front = case.shape(0)[0].size
    if front is None:
        raise WholeError("a shape is not known")
    return Split([case.same(0), parameters], [parameters.at(parameters.axis + front)])


@by_axes("Multinomial")
def _draw_classes(case: Case) -> str:
    """`logits` of shape [n, C], and how many numbers to draw for each row."""
    _drawn_by_devices(case)
    return "nC -> nK"


def _drawn_by_devices(case: Case) -> None:
    if case.random_numbers != "per_device":
        raise WholeError("draws random numbers")
