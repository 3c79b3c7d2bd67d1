"""The table of all models of this folder that one call of a model_fn builds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import replicate
from replicate import estimator
from replicate.compat.tensorflow import tf1
from tests.models import (
    bert,
    clicks,
    crf,
    deepfm,
    deepspeech,
    electra,
    gan,
    inception,
    mind,
    mmoe,
    ranking,
    resnet,
    simclr,
    speech,
    vae,
    wide_and_deep,
    xlnet,
)


class Model(NamedTuple):
    """A model.

    Attributes:
        model_fn: For one device.
        input_fn: Its batches, which do not divide.
        strategy: Over which it is verified.
        devices: On how many devices that is.
        params: For the model_fn; None: it takes none.
    """

    model_fn: Callable
    input_fn: Callable
    strategy: str
    devices: int
    params: dict[str, Any] | None = None

    def build(self, model_fn: Callable, mode: str = "train") -> Any:
        """Builds a model_fn in the current graph, on the next batch of a new iterator."""
        tf1.train.create_global_step()
        features, labels = tf1.data.make_one_shot_iterator(self.input_fn()).get_next()
        params = {} if self.params is None else {"params": self.params}
        return model_fn(features, labels, mode, **params)

    def verified(self) -> Any:
        """Returns what `replicate.verify` finds on logical CPU devices."""
        return replicate.verify(
            self.model_fn,
            self.input_fn,
            params=self.params,
            strategy=self.strategy,
            devices=[f"/cpu:{i}" for i in range(self.devices)],
        )


def _canned(features, labels, mode):
    made = wide_and_deep.classifier(estimator.RunConfig())
    return made.model_fn(features, labels, mode, made.config)


MODELS = {
    "bert": Model(bert.model_fn, bert.input_fn, "mirrored", 2, {}),
    "clicks": Model(clicks.model_fn, clicks.input_fn, "parameter_server", 2),
    "crf": Model(crf.model_fn, crf.input_fn, "mirrored", 2),
    "deepfm": Model(deepfm.model_fn, deepfm.input_fn, "parameter_server", 3, {"l2": 0.01}),
    "deepspeech": Model(deepspeech.model_fn, deepspeech.input_fn, "parameter_server", 2),
    "electra": Model(electra.model_fn, electra.input_fn, "parameter_server", 2),
    "gan": Model(gan.model_fn, gan.input_fn, "mirrored", 3),
    "inception": Model(inception.model_fn, inception.input_fn, "mirrored", 3),
    "mind": Model(mind.model_fn, mind.input_fn, "parameter_server", 2),
    "mmoe": Model(mmoe.model_fn, mmoe.input_fn, "parameter_server", 3),
    "ranking": Model(
        ranking.model_fn, ranking.input_fn, "balanced", 4, {"losses": ["pairwise", "listwise"]}
    ),
    "resnet": Model(resnet.model_fn, resnet.input_fn, "parameter_server", 2),
    "simclr": Model(simclr.model_fn, simclr.input_fn, "mirrored", 4),
    "speech": Model(speech.model_fn, speech.input_fn, "parameter_server", 2),
    "vae": Model(vae.model_fn, vae.input_fn, "mirrored", 2),
    "wide and deep": Model(_canned, wide_and_deep.input_fn, "round_robin", 2),
    "xlnet": Model(xlnet.model_fn, xlnet.input_fn, "parameter_server", 3),
}
