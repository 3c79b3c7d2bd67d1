"""All rules: whoever loads this module has them registered."""

from replicate.splitting.rules import registry


def load() -> dict:
    """Returns the rules by kinds of operations."""
    return registry.RULES
