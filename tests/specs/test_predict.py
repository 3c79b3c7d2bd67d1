"""Prediction specs: rows in order, whatever they are packed in."""

import collections

import numpy as np
import pytest

from replicate import errors, estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches, whole
from replicate.specs import predict
from replicate.strategy import default
from replicate.strategy.policies import one_device
from replicate.training import whole_batch
from tests import exactness

Pair = collections.namedtuple("Pair", ["first", "second"])


def rows(count):
    return np.arange(count * 2, dtype=np.float32).reshape(count, 2)


def sparse(x):
    """Row i holds i at a column that depends on i; every third row is empty."""
    ids = tf.cast(x[:, 0], tf.int64)
    kept = tf.where(tf.not_equal(ids % 3, 0))
    columns = tf.gather(ids, kept[:, 0]) % 2
    indices = tf.stack([kept[:, 0], columns], 1)
    shape = tf.stack([tf.shape(x, out_type=tf.int64)[0], 2])
    return tf.SparseTensor(indices, tf.gather(ids, kept[:, 0]), shape)


def ragged(x):
    lengths = tf.cast(x[:, 0], tf.int32) % 3
    return tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(lengths)) * 0 + 7, lengths)


NESTS = {
    "bare": lambda x: x,
    "one dimension": lambda x: x[:, 0],
    "dict": lambda x: {"a": x, "b": x[:, :1], "text": tf.strings.as_string(x)},
    "nested": lambda x: {"a": {"b": x, "c": x > 3}, "d": x[:, None]},
    "sparse": lambda x: {"s": sparse(x)},
    "ragged": lambda x: {"r": ragged(x)},
    "rows of no numbers": lambda x: x[:, :0],
}


LET_THROUGH = ("bare", "dict", "one dimension", "rows of no numbers")  # by EstimatorSpec


@pytest.mark.parametrize("nest", LET_THROUGH)
@pytest.mark.parametrize("count", [1, 5])
def test_predictions_are_one_devices(nest, count):
    def model(features, labels, mode):
        return exactness.spec_of(mode, predictions=NESTS[nest](features * 2.0))

    for is_static in (True, False):
        for strategy in ("parameter_server", "mirrored"):
            exactness.require_one_device(
                model,
                [(rows(count), None)],
                "infer",
                is_static=is_static,
                devices=3,
                strategy=strategy,
            )


@pytest.mark.parametrize("nest", sorted(NESTS))
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("is_static", [True, False])
def test_rows_are_joined_whatever_they_are_packed_in(session, nest, count, is_static):
    x = tf1.placeholder_with_default(rows(count), [count if is_static else None, 2])
    batch = batches.split_batch(x, None, 3)
    partner = on_the_whole_batch(NESTS[nest], x, batch) if is_static and count > 1 else None
    nests = [NESTS[nest](shard) for shard in batch.features]
    given = [[shard] for shard in batch.features]
    counts, weights, has_rows = batch.row_counts, batch.weights, batch.has_rows
    of_towers = whole.Rows(given, counts, weights, has_rows, ["/device:CPU:0"] * 3, "/device:CPU:0")
    joining = whole.Whole(of_towers, partner, lambda tensor, reason: pytest.fail(reason))
    merged = predict.merge_predictions(nests, joining, "predictions")
    found, expected = session.run([dense(merged), dense(NESTS[nest](x))])
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def on_the_whole_batch(call, x, batch):
    return whole_batch.WholeBatch(
        lambda features, labels: call(features),
        x,
        None,
        lambda: one_device.OneDeviceStrategy("/device:CPU:0"),
        3,
        batch.total,
        tf1.get_default_graph()._names_in_use,
        (batch.features[0], None),
    )


def dense(nest):
    def densified(leaf):
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.to_dense(leaf)
        return leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf

    return tf.nest.map_structure(densified, nest)


def exporting(outputs_of):
    def model(features, labels, mode):
        outputs = outputs_of(features * 2.0)
        return exactness.spec_of(mode, predictions={"x": features}, export_outputs=outputs)

    return model


EXPORTS = {
    "predict": lambda x: estimator.export.PredictOutput({"a": x, "b": x[:, 0]}),
    "regression": lambda x: estimator.export.RegressionOutput(x[:, 0]),
    "scores": lambda x: estimator.export.ClassificationOutput(scores=x),
    "classes": lambda x: estimator.export.ClassificationOutput(classes=tf.strings.as_string(x)),
    "both": lambda x: estimator.export.ClassificationOutput(x, tf.strings.as_string(x)),
}


@pytest.mark.parametrize("count", [1, 5])
def test_export_outputs_are_one_devices(count):
    def fetch(spec):
        outputs = spec.export_outputs
        assert {name: type(output) for name, output in outputs.items()} == {
            "predict": estimator.export.PredictOutput,
            "regression": estimator.export.RegressionOutput,
            "serving_default": estimator.export.PredictOutput,
            **dict.fromkeys(("scores", "classes", "both"), estimator.export.ClassificationOutput),
        }
        found = {}
        for name, output in outputs.items():
            fields = {key.strip("_"): value for key, value in vars(output).items()}
            found[name] = {key: value for key, value in fields.items() if value is not None}
        return found

    def outputs_of(x):
        found = {name: output(x) for name, output in EXPORTS.items()}
        return {**found, "serving_default": EXPORTS["predict"](x)}

    exactness.require_one_device(
        exporting(outputs_of), [(rows(count), None)], "infer", fetch=fetch, devices=3
    )


def test_what_is_made_of_weights_alone_comes_out_once():
    def model(features, labels, mode):
        table = tf1.get_variable("table", [5, 3], initializer=exactness.start).value()
        wholes = {"table": table, "norm": tf.norm(table), "names": tf.constant(["a", "b"])}
        outputs = {"c": estimator.export.PredictOutput({"x": features, **wholes})}
        return exactness.spec_of(
            mode, predictions={"x": features, **wholes}, export_outputs=outputs
        )

    def fetch(spec):
        return spec.predictions, spec.export_outputs["c"].outputs

    for strategy in ("parameter_server", "mirrored"):
        for count, is_static in ((4, False), (4, True), (2, False)):
            exactness.require_one_device(
                model,
                [(rows(count), None)],
                "infer",
                is_static=is_static,
                fetch=fetch,
                devices=3,
                strategy=strategy,
            )


def test_rows_made_of_constants_are_rows():
    def model(features, labels, mode):
        predictions = {"x": features, "ones": tf.ones([features.shape.as_list()[0]])}
        return exactness.spec_of(mode, predictions=predictions)

    for count in (6, 7):
        exactness.require_one_device(
            model, [(rows(count), None)], "infer", is_static=True, devices=3
        )


def test_rows_of_different_widths_are_refused_when_run():
    def model(features, labels, mode):  # as wide as the tower's largest number
        width = tf.cast(tf.reduce_max(features), tf.int32)
        return exactness.spec_of(mode, predictions=tf.zeros([tf.shape(features)[0], width]))

    towers = model_fn.replicate_model_fn(model, None, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"predictions are not\. Pad them"):
        exactness.run(towers, [(rows(5), None)], "infer")


def test_classes_without_rows_are_stacked():
    def outputs_of(x):
        classes = tf.strings.as_string(default.get_tower_context().tower_id)
        return {"c": estimator.export.ClassificationOutput(scores=x, classes=classes)}

    model = exporting(outputs_of)
    towers = model_fn.replicate_model_fn(model, None, 3)
    found = exactness.run(
        towers, [(rows(5), None)], "infer", fetch=lambda spec: spec.export_outputs["c"].classes
    )
    assert [item.decode() for item in found.fetched[0]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("outputs_of", "text"),
    [
        (lambda tower: {f"head_{tower}": EXPORTS["predict"]}, "tower 1 returned the keys"),
        (lambda tower: {"a": EXPORTS["scores" if tower else "predict"]}, "'a' is"),
    ],
)
def test_export_outputs_that_differ_are_refused(outputs_of, text):
    def model(features, labels, mode):
        outputs = outputs_of(default.get_tower_context().tower_id)
        return exporting(lambda x: {name: make(x) for name, make in outputs.items()})(
            features, labels, mode
        )

    towers = model_fn.replicate_model_fn(model, None, 2)
    with pytest.raises(errors.TowerMismatchError, match=text):
        exactness.run(towers, [(rows(4), None)], "infer")


@pytest.mark.parametrize("is_static", [True, False])
def test_a_prediction_that_has_no_rows_is_the_whole_batchs(is_static):
    def model(features, labels, mode):
        return exactness.spec_of(mode, predictions=tf.reduce_sum(features))

    towers = model_fn.replicate_model_fn(model, None, 2)
    found = exactness.run(towers, [(rows(4), None)], "infer", is_static)
    assert found.fetched[0]["predictions"] == 28.0  # 0 + 1 + ... + 7


@pytest.mark.parametrize("is_bare", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_an_estimator_yields_examples_or_batches(tmp_path, is_bare, single):
    def model(features, labels, mode):
        tf1.train.get_or_create_global_step()
        doubled = features["x"] * 2.0
        return exactness.spec_of(mode, predictions=doubled if is_bare else {"y": doubled})

    def input_fn():
        return tf.data.Dataset.from_tensor_slices({"x": rows(7)}).batch(5)

    made = estimator.Estimator(model_fn.replicate_model_fn(model, None, 3), str(tmp_path))
    found = list(made.predict(input_fn, yield_single_examples=single))
    found = found if is_bare else [item["y"] for item in found]
    assert [len(item) for item in found] == ([2] * 7 if single else [5, 2])
    np.testing.assert_array_equal(np.reshape(np.concatenate(found), [7, 2]), rows(7) * 2)
