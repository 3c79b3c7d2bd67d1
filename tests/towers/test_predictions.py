"""K towers' predictions, export outputs and scalars become one."""

import collections

import numpy as np
import pytest

from replicate import errors, estimator
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import batches
from replicate.strategy import context
from replicate.towers import predictions
from replicate.training import step
from tests import exactness
from tests.towers import models

Pair = collections.namedtuple("Pair", "a b")


def predicted(nest_of, given, num_towers=3, is_static=False):
    """Returns what towers predict, and one device."""

    def model(features, labels, mode):
        del labels
        return exactness.spec_of(mode, predictions=nest_of(features))

    towers = models.called(model, None, num_towers)
    return [
        exactness.run(m, [given], "infer", is_static).fetched[0]["predictions"]
        for m in (towers, model)
    ]


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize(("rows", "num_towers"), [(7, 3), (2, 4), (1, 8)])
def test_rows_are_in_the_order_of_the_batch(rows, num_towers, is_static):
    nest_of = lambda x: {"twice": 2 * x, "text": tf.strings.as_string(x)[:, 0]}  # noqa: E731
    given = models.batch(rows)
    found, expected = predicted(nest_of, given, num_towers, is_static)
    exactness.compare(found, expected)


@pytest.mark.parametrize("has_rows", [True, False])
def test_nests_and_sparse_and_ragged_rows_are_joined(session, has_rows):
    x = models.batch(7)[0]
    strategy = core.LocalParameterServerStrategy(3)
    share = context.Share(
        batches.Parts((4 / 7, 3 / 7, 0.0), (True, True, has_rows)), step.GradientStep()
    )

    def nest(rows):
        rows = tf.constant(rows)
        lengths = tf.reduce_sum(tf.cast(rows > 0, tf.int32), 1)
        return [Pair(rows, tf.sparse.from_dense(rows)), tf.RaggedTensor.from_tensor(rows, lengths)]

    with strategy.scope(), context.entered(context.current()._replace(share=share)):
        found = predictions.merge(strategy, [nest(x[:4]), nest(x[4:]), nest(x[:1])], "here")
    expected = nest(np.concatenate([x, x[:1]]) if has_rows else x)
    dense = [[p[0].a, tf.sparse.to_dense(p[0].b), p[1].to_tensor()] for p in (found, expected)]
    exactness.compare(*session.run(dense))


def test_a_scalar_is_the_mean_over_rows_and_whole_numbers_are_the_first_towers():
    given = models.batch(7)
    found, _ = predicted(lambda x: {"top": tf.reduce_max(x), "n": tf.shape(x)[0]}, given)
    tops = [x.max() for x, _ in models.shards(given, 3)]
    np.testing.assert_allclose(found["top"], np.average(tops, weights=[3, 2, 2]), 1e-12)
    assert found["n"] == 3


def test_rows_of_several_widths_are_refused_in_a_run():
    def wide(x):
        return tf.fill([tf.shape(x)[0], tf.shape(x)[0]], 1.0)

    with pytest.raises(tf.errors.InvalidArgumentError, match="of one shape in all"):
        predicted(wide, models.batch(7))


KINDS = {
    "scores": lambda x: estimator.export.ClassificationOutput(scores=x),
    "classes": lambda x: estimator.export.ClassificationOutput(
        scores=x, classes=tf.strings.as_string(x)
    ),
    "classes without rows": lambda x: estimator.export.ClassificationOutput(
        scores=x, classes=tf.constant("label")
    ),
    "value": lambda x: estimator.export.RegressionOutput(x[:, 0]),
    "outputs": lambda x: estimator.export.PredictOutput({"x": x, "y": 2 * x}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_export_outputs_are_joined_field_by_field(kind):
    def model(features, labels, mode):
        del labels
        outputs = {"serving_default": KINDS[kind](features)}
        return exactness.spec_of(mode, predictions=features, export_outputs=outputs)

    def fetched(spec):
        (output,) = spec.export_outputs.values()
        return {k: v for k, v in vars(output).items() if v is not None}

    given = models.batch(7)
    towers = models.called(model, None, 3)
    found = exactness.run(towers, [given], "infer", fetch=fetched).fetched[0]
    expected = exactness.run(model, [given], "infer", fetch=fetched).fetched[0]
    if kind == "classes without rows":
        assert found.pop("_classes").tolist() == [b"label"] * 3
        del expected["_classes"]
    exactness.compare(found, expected)


@pytest.mark.parametrize(
    ("outputs_of", "text"),
    [
        (lambda i, x: {"a" if i else "b": KINDS["scores"](x)}, "export_outputs: tower 1"),
        (lambda i, x: {"a": KINDS["value" if i else "scores"](x)}, "over the towers"),
        (lambda i, x: {"a": KINDS["outputs"](x) if not i else _other(x)}, "tower 1 returned"),
    ],
)
def test_towers_that_export_otherwise_are_refused(outputs_of, text):
    def model(features, labels, mode):
        i = core.get_tower_context().tower_id
        return exactness.spec_of(mode, predictions=features, export_outputs=outputs_of(i, features))

    with pytest.raises(errors.TowerMismatchError, match=text):
        exactness.run(models.called(model, None, 2), [models.batch(7)], "infer")


def _other(x):
    return estimator.export.PredictOutput({"x": x, "z": x})


def test_an_evaluation_has_all_rows_and_the_loss_of_all():
    given = models.batch(7)
    found = exactness.run(models.called(models.linear), [given], "eval").fetched[0]
    expected = exactness.run(models.linear, [given], "eval").fetched[0]
    exactness.compare(found, expected)  # a mean of rows is one device's


def test_other_fields_are_the_first_towers():
    made = []

    class Hook(tf1.train.SessionRunHook):
        pass

    def model(features, labels, mode):
        spec = models.linear(features, labels, mode)
        tf1.summary.scalar("shown", spec.loss)
        made.append(Hook())
        return spec._replace(training_hooks=[made[-1]])

    with tf.Graph().as_default():
        tf1.train.create_global_step()
        x, y = map(tf.constant, models.batch(7))
        spec = models.called(model)(x, y, "train")
        assert spec.training_hooks[0] is made[0]
        summaries = tf1.get_collection(tf1.GraphKeys.SUMMARIES)
    assert len(made) == 3
    assert [summary.op.name for summary in summaries] == ["shown"]
