"""Every loss of the law, by name."""

from tests.law import libraries, losses, penalties

GROUPS = (
    losses.PLAIN,
    losses.MASKS,
    losses.TAILS,
    losses.STATISTICS,
    penalties.PENALTIES,
    penalties.GRADIENTS,
    penalties.REDUCED,
)
CASES = libraries.LIBRARIES | libraries.COUNTS
CASES |= {name: losses.Case(loss) for group in GROUPS for name, loss in group.items()}
