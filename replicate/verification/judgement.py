"""From measures to verdicts."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from replicate.verification import measures, tracing, verdicts

_SHOWN = 3  # names in one line


def judge(
    found: Sequence[measures.Measure],
    missing: Mapping[str, Mapping[str, Sequence[str]]],
    explain: Callable[[measures.Measure], Sequence[str]],
) -> tuple[verdicts.Row, ...]:
    """Returns one row for each kind of value.

    Args:
        found: All measures.
        missing: For a mode, for a kind, why values of it could not be compared.
        explain: Of a measure, what is known to make such a difference.
    """
    noises = measures.noises(found)
    return tuple(
        _judge(what, [one for one in found if one.key.what == what], noises, missing, explain)
        for what in tracing.WHATS
    )


def differing(found: Sequence[measures.Measure]) -> list[measures.Measure]:
    """Returns the measures whose difference counts."""
    noises = measures.noises(found)
    return [one for one in found if _counts(one, noises)]


def _counts(one: measures.Measure, noises: measures.Noises) -> bool:
    if one.fault:
        return True
    return not one.is_random and one.difference > noises.allowed(one)


def _judge(what: str, found: Sequence, noises: measures.Noises, missing, explain) -> verdicts.Row:
    if not found:
        reasons = [text for of in missing.values() for text in of.get(what, ())] or [
            "the model_fn has none"
        ]
        return verdicts.Row(what, verdicts.NOT_COMPARED, detail="; ".join(verdicts.once(reasons)))
    compared = [one for one in found if not one.is_random]
    if not compared:
        return verdicts.Row(what, verdicts.RANDOM, detail="all of it depends on random numbers")
    wrong = [one for one in compared if _counts(one, noises)]
    worst = max(wrong or compared, key=lambda one: _excess(one, noises))
    row = verdicts.Row(
        what,
        verdicts.EQUAL,
        worst.difference,
        noises.of(worst),
        worst.key.name,
        worst.place,
        _left_out(found),
    )
    if wrong:
        texts = verdicts.once(text for one in wrong for text in explain(one))
        detail = _where(wrong, compared, worst)
        return dataclasses.replace(
            row, verdict=verdicts.DIFFERS, detail=detail, explanations=tuple(texts)
        )
    by_order = [one for one in compared if noises.depends_on_order(one) and one.difference]
    if by_order:
        worst = max(by_order, key=lambda one: one.difference)
        return dataclasses.replace(
            row,
            verdict=verdicts.ORDER,
            difference=worst.difference,
            noise=noises.of(worst),
            name=worst.key.name,
            place=worst.place,
            detail=f"{_listed(by_order)} changes as much with the order of the rows",
        )
    return row


def _excess(one: measures.Measure, noises: measures.Noises) -> float:
    if one.fault:
        return math.inf
    allowed = noises.allowed(one)
    return one.difference / allowed if allowed else one.difference


def _left_out(found: Sequence[measures.Measure]) -> str:
    names = {one.key.name for one in found}
    random = {one.key.name for one in found if one.is_random}
    return f"{len(random)} of {len(names)} depend on random numbers" if random else ""


def _where(wrong: Sequence, compared: Sequence, worst: measures.Measure) -> str:
    """Says which values differ, and where the most."""
    if worst.fault:
        return worst.fault
    count = len({one.key.name for one in wrong})
    of = len({one.key.name for one in compared})
    most = f"{worst.key.name} ({worst.place})"
    return most if of == 1 else f"{count} of {of}, most in {most}"


def _listed(found: Sequence[measures.Measure]) -> str:
    names = verdicts.once(one.key.name for one in found)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
