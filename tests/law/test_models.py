"""What else a model_fn may be, and what it draws, with the numbers of one device."""

import functools
import threading

import numpy as np
import pytest

from replicate import model_fn
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.law import losses, running, table

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
(BATCH,) = running.batches(5)


def test_a_table_from_a_file_is_initialized_for_all_devices(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\nc\n")

    def model(features, labels, mode):
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(path),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            1,
        )
        ids = table.lookup(features)
        names = tf1.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([0, 1, 2], ["x", "y", "z"], tf.int64, tf.string),
            "none",
        )
        return exactness.spec_of(mode, predictions={"id": ids, "name": names.lookup(ids)})

    words = np.array(["b", "c", "a", "d", "b"])
    exactness.require_one_device(model, [(words, None)], "infer", devices=3)


class Scaled:
    """A model_fn that is an object, with one that is a method."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, features, labels, mode):
        return self.method(features, labels, mode)

    def method(self, features, labels, mode, power=1.0):
        loss = losses.mean(features, labels, losses.Weights())
        return exactness.spec_of(mode, (self.rate * loss) ** power)


@pytest.mark.parametrize(
    "model",
    [Scaled(2.0), Scaled(1.0).method, functools.partial(Scaled(1.0).method, power=2.0)],
    ids=["object", "method", "partial"],
)
def test_model_fns_may_be_partials_methods_and_objects(model):
    running.require_exact(model, running.SETTINGS[0], optimizer_fn=running.descend)


def test_params_that_cannot_be_copied_are_shared_by_towers():
    seen = []

    def model(features, labels, mode, params):
        seen.append(params)
        return table.model(losses.mean)(features, labels, mode)

    params = {"lock": threading.Lock()}
    towers = model_fn.replicate_model_fn(model, running.descend, 2, tower_building="call")
    exactness.run(towers, [BATCH], params=params)
    assert [item["lock"] is params["lock"] for item in seen] == [True, True]


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_model_is_called_once(mode, is_static):
    model = exactness.Counted(table.model(losses.mean))
    replicated = model_fn.replicate_model_fn(model, running.descend, 3)
    exactness.run(replicated, [BATCH], mode, is_static)
    assert model.calls == 1


# Random numbers.


def noisy(seed=None):
    def model(features, labels, mode):
        noise = tf.random.uniform([tf.shape(features["x"])[0]], seed=seed)
        return exactness.spec_of(mode, predictions=noise)

    return model


def dropping(features, labels, mode):
    """32 entries of a row, each of which is dropped or kept, by layers and by Keras."""
    ones = tf.ones([tf.shape(features["x"])[0], 16])
    dropped = [
        tf1.layers.dropout(ones, 0.5, training=True),
        tf.keras.layers.Dropout(0.5)(ones, training=True),
    ]
    return exactness.spec_of(mode, predictions=tf.concat(dropped, 1))


@pytest.mark.parametrize("model", [noisy(), noisy(7), dropping])
@pytest.mark.parametrize("numbers", ["one_device", "per_device"])
def test_what_is_drawn_is_one_devices_or_differs_between_rows_and_steps(model, numbers):
    def drawn(made):
        found = exactness.run(made, [(BATCH[0], None)] * 2, "infer").fetched
        return np.concatenate([item["predictions"] for item in found])

    found = drawn(model_fn.replicate_model_fn(model, None, 3, random_numbers=numbers))
    if numbers == "one_device":
        np.testing.assert_array_equal(found, drawn(model))
    assert len({row.tobytes() for row in found}) == 10
