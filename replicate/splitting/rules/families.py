"""All families of rules: importing this module registers every rule."""

from replicate.splitting.rules import (
    contractions,
    control_flow,
    different,
    elementwise,
    gathers,
    images,
    lists,
    matrices,
    normalisation,
    ragged,
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
    different,
    elementwise,
    gathers,
    images,
    lists,
    matrices,
    normalisation,
    ragged,
    random,
    reductions,
    shapes,
    spaces,
    sparse,
    strings,
)


def load() -> registry.Rules:
    """Returns the rules of all families, by kinds of operations."""
    return registry.RULES
