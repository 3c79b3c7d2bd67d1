"""From measures to verdicts."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from replicate.verification import measures, tracing, verdicts

_SHOWN = 3  # names in one line


def judge(
    found: Sequence[measures.Measure],
    failed: Mapping[str, Exception],
    explain: Callable[[measures.Measure], Iterable[str]],
    is_split: bool,
) -> tuple[verdicts.Row, ...]:
    """Returns one row for each kind of value.

    Args:
        found: All measures.
        failed: For a mode that one device cannot run, what it raised.
        explain: Of a measure, what is known to make such a difference.
        is_split: Whether a graph was split, which keeps the order of rows; the calls of a model
            know no order but that of their own rows.
    """
    noises = measures.noises(found)
    rows = []
    for what in tracing.WHATS:
        of_kind = [one for one in found if one.key.what == what]
        compared = [one for one in of_kind if not one.is_random]
        if not of_kind:
            rows.append(verdicts.Row(what, verdicts.NOT_COMPARED, detail=_why_none(what, failed)))
        elif not compared:
            told = "all of it depends on random numbers"
            rows.append(verdicts.Row(what, verdicts.RANDOM, detail=told))
        else:
            rows.append(_judge(of_kind, compared, noises, explain, is_split))
    return tuple(rows)


def _judge(
    found: Sequence, compared: Sequence, noises: measures.Noises, explain: Callable, is_split: bool
) -> verdicts.Row:
    """Returns the row of a kind of which something was compared."""
    differing = [one for one in compared if noises.counts(one)]
    wrong = [one for one in differing if is_split or not noises.depends_on_order(one)]
    if wrong:
        worst = max(wrong, key=lambda one: _excess(one, noises))
        row = _row(verdicts.DIFFERS, worst, noises, _where(wrong, compared, worst))
        texts = verdicts.once(text for one in wrong for text in explain(one))
        return dataclasses.replace(row, explanations=tuple(texts))
    rounded = list(filter(noises.depends_on_rounding, compared))
    for verdict, changed, what in (
        (verdicts.ORDER, differing, "another order of the rows changes"),
        (verdicts.ROUNDING, rounded, "weights that are rounded otherwise change"),
    ):
        if changed:
            worst = max(changed, key=lambda one: one.difference)
            return _row(verdict, worst, noises, f"{what} as much in {_listed(changed)}")
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
    count = sum(one.order > 0 for one in found)
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
