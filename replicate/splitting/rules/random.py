"""Random numbers: drawn once for all devices, or by each device for its own rows.

Numbers that are drawn once are those that one device draws. What is drawn from a given seed alone
(`StatelessRandomUniformV2` and the like) has no rule: it is whole, and the same everywhere.
"""

from replicate.splitting import states
from replicate.splitting.rules import items
from replicate.splitting.rules.registry import Case, Extent, rule
from replicate.splitting.states import SIZE, WHOLE, Rows, Space, Split, WholeError

# Kinds whose attributes `seed` and `seed2` say what is drawn: with equal ones copies draw the
# same numbers. The writer gives each copy its own by `seed_of_copy`.
SEEDED = frozenset(
    {
        "Multinomial",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)

# NOTE: neighbouring operations have neighbouring seeds, so that a small step would let a device
# draw for one operation what another device draws for the next.
_SEED_STEP = 1_000_003

_LEAVES = ("Shape", "ShapeN", "Size")


def seed_of_copy(seed2: int, k: int) -> int:
    """Returns the attribute `seed2` of copy k, of an operation of `SEEDED` that has a seed."""
    found = seed2 + k * _SEED_STEP
    return found if found < 2**63 else found - 2**63


@rule("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", always=True)
def _draw(case: Case) -> Split:
    """A shape; and bounds, which are numbers."""
    _drawn_by_devices(case)
    rows = _rows_of_shape(case)
    others = [items.same(case, n) for n in range(1, len(case.inputs))]
    return Split([case.shape_view(0, rows), *others], [rows])


@rule("RandomGamma", "RandomPoisson", "RandomPoissonV2", always=True)
def _draw_for_each(case: Case) -> Split:
    """A shape, and parameters; for each of these numbers of that shape are drawn."""
    _drawn_by_devices(case)
    parameters = case.inputs[1]
    if not states.is_rows(parameters):
        rows = _rows_of_shape(case)
        return Split([case.shape_view(0, rows), items.same(case, 1)], [rows])
    front = case.shape(0)[0].size
    if front is None:
        raise WholeError("a shape is not known")
    return Split([items.same(case, 0), parameters], [parameters.at(parameters.axis + front)])


@rule("Multinomial")
def _draw_classes(case: Case) -> Split:
    """`logits` of shape [n, C], and how many numbers are drawn for each."""
    _drawn_by_devices(case)
    return items.split_first(case)


def _drawn_by_devices(case: Case) -> None:
    if case.random_numbers != "per_device":
        raise WholeError("draws random numbers")


def _rows_of_shape(case: Case) -> Rows:
    """Returns the rows of a result whose shape is input 0."""
    for axis, extent in enumerate(case.entries(0)):
        if extent.has_rows():
            return Rows(axis, _space(case, extent))
    raise WholeError("it draws no rows")


def _space(case: Case, extent: Extent) -> Space:
    """Returns whose rows a shape counts: those of the tensors whose sizes it is made from.

    A shape that the graph of a static batch has as numbers counts the batch's.
    """
    if case.inputs[0] is WHOLE and case.facts.literal(case.op.inputs[0]) is not None:
        return case.batch
    found, seen, waiting = set(), set(), [case.op.inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen or case.state_of(tensor) is not SIZE:
            continue
        seen.add(tensor.ref())
        op = tensor.op
        if op.type in _LEAVES:
            measured = op.inputs[tensor.value_index if op.type == "ShapeN" else 0]
            state = case.state_of(measured)
            if states.is_rows(state) and state.space.is_picked == extent.is_picked:
                found.add(state.space)
        waiting.extend(op.inputs)
    if len(found) != 1:
        raise WholeError("whose rows it draws is not known")
    return found.pop()
