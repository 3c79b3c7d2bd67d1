"""All rules: whoever loads this module has them registered."""

from replicate.splitting.rules import (  # noqa: F401 - each registers its rules
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


def load() -> dict:
    """Returns the rules by kinds of operations."""
    return registry.RULES
