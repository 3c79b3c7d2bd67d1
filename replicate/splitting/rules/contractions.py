"""Products of matrices, and other products that are summed over axes.

The dimensions of each operand and of the result have labels, as in Einstein's notation. Rows along
a label that the result has stay rows; along one that is summed over, each device has a part of the
sum.
"""

from replicate.splitting import states
from replicate.splitting.rules import elementwise, items, reductions
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import SUM, WHOLE, Split, View, WholeError

MATRICES = ("MatMul", "SparseMatMul")
BATCHES = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


@rule(*MATRICES, *BATCHES, "Einsum")
def product(case: Case) -> Split:
    """Linear in each operand; if operands have several rows, those that the result has stay."""
    *terms, result = _einsum_labels(case) if case.type == "Einsum" else _matrix_labels(case)
    if any(len(set(labels)) < len(labels) for labels in (*terms, result)):
        raise WholeError("a diagonal")
    if case.rows is None:
        return _product_of_parts(case)
    found = [
        (terms[n][state.axis], state)
        for n, state in enumerate(case.inputs)
        if states.is_rows(state)
    ]
    label, rows = next((each for each in found if each[0] in result), found[0])
    fit = items.along_or_one if label.startswith("_") else items.along
    wants: list[View] = [WHOLE] * len(terms)
    for n, term in enumerate(terms):
        if label in term:
            wants[n] = fit(case, n, rows.at(term.index(label)))
    return Split(wants, [rows.at(result.index(label)) if label in result else SUM])


def _product_of_parts(case: Case) -> Split:
    """Splits a product of one partial sum with whole, finite values."""
    parts = [n for n, state in enumerate(case.inputs) if state == SUM]
    if len(parts) != 1 or any(state not in (SUM, WHOLE) for state in case.inputs):
        raise WholeError("no operand has rows")
    for n in range(len(case.inputs)):
        if n not in parts:
            elementwise.check_finite(case, n)
    return elementwise.linear(case, *parts)


def _matrix_labels(case: Case) -> list[list[str]]:
    """Returns labels of both operands and of the result; the last two are the matrices'."""
    names = ("adj_x", "adj_y") if case.type in BATCHES else ("transpose_a", "transpose_b")
    first, second = (case.attribute(name) for name in names)
    ranks = [case.rank(0), case.rank(1)]
    return [
        [*_outer(ranks[0] - 2), *("ji" if first else "ij")],
        [*_outer(ranks[1] - 2), *("kj" if second else "jk")],
        [*_outer(max(ranks) - 2), *"ik"],
    ]


def _einsum_labels(case: Case) -> list[list[str]]:
    """Returns labels of the operands and of the result, of an equation such as `...ij,jk->...ik`.

    An ellipsis stands for as many dimensions as are left; these are broadcast.
    """
    left, arrow, right = case.attribute("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(case.inputs):
        raise WholeError("an equation without a result")
    numbers = [
        case.rank(n) - len(term.replace("...", "")) if "..." in term else 0
        for n, term in enumerate(terms)
    ]
    labels = []
    for term, number in zip([*terms, right], [*numbers, max(numbers)], strict=True):
        before, _, after = term.partition("...")
        labels.append([*before, *(_outer(number) if "..." in term else ()), *after])
    return labels


def _outer(number: int) -> list[str]:
    """Returns labels of dimensions that are broadcast, counted from the last one."""
    return [f"_{place}" for place in range(-number, 0)]


@rule("Cross")
def cross(case: Case) -> Split:
    """Vectors along the last axis, which has three entries."""
    wants, rows = elementwise.operands(case)
    if rows.axis == case.rank(0) - 1:
        raise WholeError("rows in a vector")
    return Split(wants, [rows])


@rule("BiasAdd", "BiasAddV1")
def bias(case: Case) -> Split:
    """Adds a vector along the channels."""
    rows = elementwise.rows_of(case)
    is_along = rows.axis == reductions.channels(case)
    return Split(
        [rows, items.along(case, 1, rows.at(0)) if is_along else WHOLE],
        [rows],
    )
