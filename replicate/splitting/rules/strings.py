"""Operations on texts, on each by itself."""

from replicate.splitting import states
from replicate.splitting.rules import elementwise, items
from replicate.splitting.rules.registry import Case, rule
from replicate.splitting.states import WHOLE, Split, WholeError


@rule(
    *"""AsString DecodeBase64 DecodeCSV DecodeCompressed DecodePaddedRaw EncodeBase64
    RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace StringLength
    StringLower StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper UnicodeScript UnicodeTranscode""".split()
)
def _texts(case: Case) -> Split:
    """One or more results for each text; patterns, lengths and defaults are for all texts."""
    return items.split(case, 0)


@rule("DecodeRaw")
def _bytes(case: Case) -> Split:
    """A new last dimension, of the texts' length, which is the same for all."""
    return items.never_none(items.split(case, 0))


@rule("StringJoin")
def _join(case: Case) -> Split:
    """Texts of one shape, and single texts."""
    _, rows = items.rows_of(case, range(len(case.inputs)))
    wants = [items.along(case, n, rows) if case.rank(n) else WHOLE for n in range(len(case.inputs))]
    return Split(wants, [rows])


@rule("Substr")
def _part(case: Case) -> Split:
    """Texts, positions and lengths, which are broadcast."""
    wants, rows = elementwise.stretched(case)
    if wants[1] != wants[2]:
        raise WholeError("positions and lengths differ")
    return Split(wants, [rows])


@rule("ReduceJoin")
def _reduce_join(case: Case) -> Split:
    """Joins texts along axes, or along all axes if none is named."""
    rows = case.inputs[0]
    if not states.is_rows(rows):
        raise WholeError("its texts have no rows")
    axes = case.axes(1, case.rank(0))
    if not axes or rows.axis in axes:
        raise WholeError("it is along the rows")
    gone = 0 if case.attribute("keep_dims") else sum(axis < rows.axis for axis in axes)
    return Split([rows, case.number(1)], [rows.at(rows.axis - gone)])
