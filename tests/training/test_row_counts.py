"""Where only a run finds that a batch's tensors disagree on rows, one line tells it."""

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1

X, ONE_ROW = np.ones([6, 2], np.float32), np.ones([1, 4], np.float32)


def linear(features, labels, mode):
    y = tf1.layers.dense(features["x"], 1)
    loss = None if labels is None else tf.reduce_mean(tf.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf.no_op())


def input_of(x, beside):
    """Returns the input_fn of one batch whose numbers of rows are not known before a run."""

    def input_fn():
        batch = ({"x": x, "beside": beside}, x[:, :1])
        specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, leaf.shape[1]]), batch)
        return tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=specs)

    return input_fn


@pytest.mark.thorough("predict-call", "evaluate-split", "train-split")
@pytest.mark.parametrize("tower_building", ["split", "call"])
@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_one_row_beside_a_batch_of_others_is_told_in_one_line(tower_building, mode, tmp_path):
    replicated = model_fn.replicate_model_fn(
        linear, devices=["/cpu:0", "/cpu:1"], tower_building=tower_building
    )
    made = estimator.Estimator(replicated, str(tmp_path))
    if mode != "train":
        made.train(input_of(X, X))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(getattr(made, mode)(input_of(X, ONE_ROW)) or ())
    labels, numbers = ("", "[1 6]") if mode == "predict" else (", labels", "[1 6 6]")
    assert str(caught.value) == (
        f'The numbers of rows differ between features["beside"], features["x"]{labels}: {numbers}. '
        "All of a batch's tensors need the same first dimension; a scalar goes whole. For "
        "others see docs/gpus.md#data-without-rows in replicate's repository."
    )
    assert caught.value.__suppress_context__


def test_a_batch_without_rows_is_told_in_one_line(tmp_path):
    made = estimator.Estimator(
        model_fn.replicate_model_fn(linear, devices=["/cpu:0", "/cpu:1"]), str(tmp_path)
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        made.train(input_of(X[:0], ONE_ROW[:0]))
    assert str(caught.value) == (
        'A batch has one row or more; features["beside"] came without rows. Check the input_fn.'
    )
