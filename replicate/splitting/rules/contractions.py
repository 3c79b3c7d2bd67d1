"""Products of matrices, and other products that are summed over axes."""

import string

from replicate.splitting.rules import elementwise, reductions, signatures
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.rules.signatures import Said, by_axes, names, signature
from replicate.splitting.states import SUM, WHOLE, Split, WholeError

signature("...C, ...C -> ...C", "Cross")


@rule("MatMul", "SparseMatMul")
def _matrices(case: Case) -> Split:
    """[i, j] and [j, k], or transposed."""
    first, second = case.attribute("transpose_a"), case.attribute("transpose_b")
    return _product(case, f"{'ji' if first else 'ij'}, {'kj' if second else 'jk'} -> ik")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batches_of_matrices(case: Case) -> Split:
    """The same for each pair of matrices, whose dimensions in front are broadcast."""
    first, second = case.attribute("adj_x"), case.attribute("adj_y")
    left, right = "ji" if first else "ij", "kj" if second else "jk"
    return _product(case, f"...|1{left}, ...|1{right} -> ...ik")


@rule("Einsum")
def _einsum(case: Case) -> Split:
    """An equation such as `...ij,jk->...ik`; what an ellipsis stands for is broadcast."""
    equation = case.attribute("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if not arrow or len(terms.split(",")) != len(case.inputs):
        raise WholeError("an equation without a result")
    small = (each for each in string.ascii_lowercase if each not in equation)
    capitals = sorted({each for each in equation if each.isupper()})
    equation = equation.translate(str.maketrans(dict(zip(capitals, small, strict=False))))
    terms, _, result = equation.partition("->")
    return _product(case, f"{terms.replace('...', '...|1')} -> {result}")


def _product(case: Case, said: str) -> Split:
    """Splits a product, which is linear in each operand."""
    if case.rows is not None:
        return signatures.split(case, signatures.read(case, said))
    parts = [n for n, state in enumerate(case.inputs) if state == SUM]
    if len(parts) != 1 or any(state not in (SUM, WHOLE) for state in case.inputs):
        raise WholeError("no operand has rows")
    for n in range(len(case.inputs)):
        if n not in parts:
            elementwise.check_finite(case, n)
    return signatures.in_parts(case, parts)


@by_axes("BiasAdd BiasAddV1")
def bias(case: Case) -> Said:
    """Adds a vector along the channels."""
    x = names(case)
    return Said([x, [x[reductions.channels(case)]]], [x])
