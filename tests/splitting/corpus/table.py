"""All models of the corpus, by name."""

from tests.splitting.corpus import batchwise, law, normalisation, recurrent  # noqa: F401 - each adds its models
from tests.splitting.corpus.model import MODELS

__all__ = ["MODELS"]
