"""All rules: whoever loads this module has them registered."""

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
    strings,
)

MODULES = (
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
    strings,
)


def load() -> dict:
    """Returns the rules by kinds of operations."""
    return registry.RULES
