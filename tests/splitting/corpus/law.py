"""The losses of the law of exactness, each of them a model."""

import numpy as np

from tests.law import losses, table
from tests.splitting.corpus.model import EXACT, MODELS, Model, adam

SINGLE = (1e-5, 1e-6)


def of_loss(loss):
    def build(features, labels):
        return loss(features, labels, losses.Weights()), {}

    return build


LOSSES = {f"law: {name}": case for name, case in table.CASES.items()}
MODELS |= {
    name: Model(
        of_loss(case.loss),
        optimizer=adam if n % 3 == 0 else Model._field_defaults["optimizer"],
        tolerance=SINGLE if case.dtype == np.float32 else EXACT,
        statics=tuple(reversed(case.statics)),
    )
    for n, (name, case) in enumerate(LOSSES.items())
}
