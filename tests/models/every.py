"""All models of this folder that one call of a model_fn builds, with their batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from replicate import estimator
from replicate.compat.tensorflow import tf1
from tests.models import clicks, crf, gan, ported, ranking, resnet, wide_and_deep


class Model(NamedTuple):
    """A model.

    Attributes:
        model_fn: For one device.
        input_fn: Its batches, which do not divide.
        called: What the model_fn is called with besides features, labels and mode.
    """

    model_fn: Callable
    input_fn: Callable
    called: dict[str, Any]

    def build(self, model_fn: Callable, mode: str = "train") -> Any:
        """Builds a model_fn in the current graph, on the next batch of a new iterator."""
        tf1.train.create_global_step()
        features, labels = tf1.data.make_one_shot_iterator(self.input_fn()).get_next()
        return model_fn(features, labels, mode, **self.called)


def _canned(features, labels, mode, config):
    return wide_and_deep.classifier(config)._model_fn(features, labels, mode, config)


MODELS = {
    **{
        name: Model(
            each.model_fn, each.input_fn, {} if each.params is None else {"params": each.params}
        )
        for name, each in ported.MODELS.items()
    },
    "clicks": Model(clicks.model_fn, clicks.input_fn, {}),
    "crf": Model(crf.model_fn, crf.input_fn, {}),
    "gan": Model(gan.model_fn, gan.input_fn, {}),
    "ranking": Model(
        ranking.model_fn, ranking.input_fn, {"params": {"losses": ["pairwise", "listwise"]}}
    ),
    "resnet": Model(resnet.model_fn, resnet.input_fn, {}),
    "wide and deep": Model(_canned, wide_and_deep.input_fn, {"config": estimator.RunConfig()}),
}
# BERT's model_fn names `params`, and needs none.
MODELS["bert"] = MODELS["bert"]._replace(called={"params": {}})
