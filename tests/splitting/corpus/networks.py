"""Models of `tests/models`, with batches of placeholders in place of an input_fn."""

import numpy as np

from replicate.compat.tensorflow import tf
from tests.models import bert, crf, deepfm, gan, ranking, resnet
from tests.splitting.corpus.model import MODELS, SINGLE, Model


def of_model_fn(model_fn, examples, prepare=lambda features: features, **given):
    """Returns a model of a model_fn, in TRAIN.

    Args:
        model_fn: Of an Estimator.
        examples: From a number of rows to features and labels, dicts or arrays.
        prepare: Makes of features what the model_fn is given.
        **given: What else the model_fn is given.
    """

    def batch(rows, step, is_static):
        del is_static
        features, labels = examples(3 * rows)
        part = slice(step * rows, (step + 1) * rows)
        features = features if isinstance(features, dict) else {"": features}
        labels = labels if isinstance(labels, dict) else {"": labels}
        return tuple({key: x[part] for key, x in nest.items()} for nest in (features, labels))

    def build(f, y):
        if "" in f.arrays:
            features = f[""]
        else:
            features = prepare({key: f[key] for key in f.arrays})
        labels = y[""] if "" in y.arrays else {key: y[key] for key in y.arrays}
        spec = model_fn(features, labels, "train", **given)
        hooks = [hook for hook in spec.training_hooks if hasattr(hook, "_train_op")]
        inner = [hook._train_op for hook in hooks]
        return spec.loss, {}, [spec.train_op, *inner]

    return Model(build, batch, tolerance=SINGLE, statics=(False, True), sizes=(7, 2, 1))


def sentences(rows):
    found = crf.sentences(rows)
    words, tags = np.zeros([rows, 6], np.int64), np.zeros([rows, 6], np.int64)
    for row, (given, wanted) in enumerate(found):
        words[row, : len(given)], tags[row, : len(given)] = given, wanted
    lengths = np.array([len(given) for given, _ in found], np.int32)
    return {"words": words, "length": lengths}, tags


def clicks(rows):
    features, labels = deepfm.examples(rows)
    tags = features.pop("tags")
    dense = np.full(tags.dense_shape, -1, np.int64)
    dense[tuple(np.transpose(tags.indices))] = tags.values
    return {**features, "tags": dense, "site": features["site"].astype(object)}, labels


def queries(rows):
    """Always as many lists, so that every one is as long as any."""
    features, grades = ranking.examples(30)
    return {key: x[:rows] for key, x in features.items()}, grades[:rows]


def with_sparse_tags(features):
    tags = tf.sparse.from_dense(features["tags"] + 1)
    features["tags"] = tf.SparseTensor(tags.indices, tags.values - 1, tags.dense_shape)
    return features


def pictures(rows):
    numbers = np.random.RandomState(7)
    images = numbers.uniform(-1, 1, [rows, resnet.SIDE, resnet.SIDE, 2]).astype(np.float32)
    return images, numbers.randint(0, resnet.CLASSES, rows)


def points(rows):
    numbers = np.random.RandomState(6)
    noise = numbers.normal(size=[rows, gan.NOISE]).astype(np.float32)
    return noise, numbers.uniform(-1, 1, [rows, gan.POINTS]).astype(np.float32)


MODELS |= {
    "bert": of_model_fn(bert.model_fn, bert.examples, params={}),
    "crf tagger": of_model_fn(crf.model_fn, sentences),
    "deepfm": of_model_fn(deepfm.model_fn, clicks, with_sparse_tags, params={"l2": 0.01}),
    "gan": of_model_fn(gan.model_fn, points),
    "ranking": of_model_fn(ranking.model_fn, queries, params={"losses": ["pairwise", "listwise"]}),
    "resnet": of_model_fn(resnet.model_fn, pictures),
}
