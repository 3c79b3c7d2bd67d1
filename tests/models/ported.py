"""The models that docs/ported.md tells of, and how they are verified."""

from collections.abc import Callable
from typing import Any, NamedTuple

import replicate
from tests.models import (
    bert,
    deepfm,
    deepspeech,
    electra,
    inception,
    mind,
    mmoe,
    simclr,
    speech,
    vae,
    xlnet,
)


class Ported(NamedTuple):
    """A model in the style of some code base.

    Attributes:
        model_fn: For one device.
        input_fn: Its batches, which do not divide.
        strategy: Over which it is split.
        devices: How many devices that are.
        params: For the model_fn.
    """

    model_fn: Callable
    input_fn: Callable
    strategy: str
    devices: int
    params: dict[str, Any] | None = None

    def verified(self) -> Any:
        """Returns what `replicate.verify` finds on logical CPU devices."""
        return replicate.verify(
            self.model_fn,
            self.input_fn,
            params=self.params,
            strategy=self.strategy,
            devices=[f"/cpu:{i}" for i in range(self.devices)],
        )


MODELS = {
    "bert": Ported(bert.model_fn, bert.input_fn, "mirrored", 2),
    "deepfm": Ported(deepfm.model_fn, deepfm.input_fn, "parameter_server", 3, {"l2": 0.01}),
    "deepspeech": Ported(deepspeech.model_fn, deepspeech.input_fn, "parameter_server", 2),
    "electra": Ported(electra.model_fn, electra.input_fn, "parameter_server", 2),
    "inception": Ported(inception.model_fn, inception.input_fn, "mirrored", 3),
    "mind": Ported(mind.model_fn, mind.input_fn, "parameter_server", 2),
    "mmoe": Ported(mmoe.model_fn, mmoe.input_fn, "parameter_server", 3),
    "simclr": Ported(simclr.model_fn, simclr.input_fn, "mirrored", 4),
    "speech": Ported(speech.model_fn, speech.input_fn, "parameter_server", 2),
    "vae": Ported(vae.model_fn, vae.input_fn, "mirrored", 2),
    "xlnet": Ported(xlnet.model_fn, xlnet.input_fn, "parameter_server", 3),
}
