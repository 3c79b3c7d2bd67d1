"""How each kind of operation is split: one rule a kind, by families.

What has no rule is whole: it runs once, on whole values. Importing this package registers all
rules, in `registry.RULES`.
"""

from replicate.splitting.rules import (
    contractions,
    control_flow,
    elementwise,
    gathers,
    images,
    lists,
    matrices,
    normalisation,
    random,
    reductions,
    registry,
    shapes,
    spaces,
    sparse,
    strings,
)

FAMILIES = (
    contractions,
    control_flow,
    elementwise,
    gathers,
    images,
    lists,
    matrices,
    normalisation,
    random,
    reductions,
    shapes,
    spaces,
    sparse,
    strings,
)
RULES = registry.RULES
