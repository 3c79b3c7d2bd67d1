"""All models of the corpus, by name."""

from tests.splitting.corpus import (  # noqa: F401 - each adds its models
    batchwise,
    effects,
    gradients,
    lookups,
    normalisation,
    picked,
    recurrent,
    static_widths,
)
from tests.splitting.corpus.model import MODELS

__all__ = ["MODELS"]
