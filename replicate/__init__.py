"""`replicate_model_fn` takes a model_fn written for one device to many.

Names are loaded on first use: `import replicate` alone does not import TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
