"""From measures to verdicts."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from replicate.verification import measures, tracing, verdicts

_SHOWN = 3  # names in one line


def judge(
    found: Sequence[measures.Measure],
    failed: Mapping[str, Exception],
    explain: Callable[[measures.Measure], Sequence[str]],
) -> tuple[verdicts.Row, ...]:
    """Returns one row for each kind of value.

    Args:
        found: All measures.
        failed: For a mode that one device cannot run, what it raised.
        explain: Of a measure, what is known to make such a difference.
    """
    noises = measures.noises(found)
    return tuple(
        _judge(what, [one for one in found if one.key.what == what], noises, failed, explain)
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


def _judge(what: str, found: Sequence, noises: measures.Noises, failed, explain) -> verdicts.Row:
    if not found:
        return verdicts.Row(what, verdicts.NOT_COMPARED, detail=_why_none(what, failed))
    compared = [one for one in found if not one.is_random]
    if not compared:
        return verdicts.Row(what, verdicts.RANDOM, detail="all of it depends on random numbers")
    wrong = [one for one in compared if _counts(one, noises)]
    if wrong:
        worst = max(wrong, key=lambda one: _excess(one, noises))
        row = _row(verdicts.DIFFERS, worst, noises, _where(wrong, compared, worst))
        texts = verdicts.once(text for one in wrong for text in explain(one))
        return dataclasses.replace(row, explanations=tuple(texts))
    rounded = [one for one in compared if one.is_by_rounding and noises.depends_on_rounding(one)]
    if rounded:
        worst = max(rounded, key=lambda one: one.difference)
        detail = f"weights that are rounded otherwise change as much in {_listed(rounded)}"
        return _row(verdicts.ROUNDING, worst, noises, detail)
    by_order = [one for one in compared if not one.is_by_rounding and one.difference]
    by_order = [one for one in by_order if noises.depends_on_order(one)]
    if by_order:
        worst = max(by_order, key=lambda one: one.difference)
        detail = f"another order of the rows changes as much in {_listed(by_order)}"
        return _row(verdicts.ORDER, worst, noises, detail)
    worst = max(compared, key=lambda one: _excess(one, noises))
    return _row(verdicts.EQUAL, worst, noises, _told(found))


def _row(
    verdict: str, worst: measures.Measure, noises: measures.Noises, detail: str
) -> verdicts.Row:
    return verdicts.Row(
        worst.key.what,
        verdict,
        worst.difference,
        noises.of(worst),
        worst.key.name,
        worst.place,
        detail,
    )


def _why_none(what: str, failed: Mapping[str, Exception]) -> str:
    """Says why nothing of a kind was compared."""
    modes = [mode for mode in failed if what in tracing.OF_MODE[mode]]
    if not modes:
        return "the model_fn has none"
    raised = ", ".join(verdicts.once(type(failed[mode]).__name__ for mode in modes))
    return f"one device raises {raised}"


def _excess(one: measures.Measure, noises: measures.Noises) -> float:
    if one.fault:
        return math.inf
    allowed = noises.allowed(one)
    return one.difference / allowed if allowed else one.difference


def _told(found: Sequence[measures.Measure]) -> str:
    """Says what is left out, or what the order of rows matters to."""
    count = sum(one.is_random for one in found)
    if count:
        return f"{count} of {len(found)} values depend on random numbers"
    count = sum(one.is_ordered for one in found)
    return f"another order of the rows changes {count} of {len(found)} values" if count else ""


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
