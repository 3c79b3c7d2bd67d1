"""Estimators' own exports and exporters, fed in every way a server feeds a model."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export, saver
from replicate.exporting import predictor as predictors

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
]

WORDS = ["low", "middle", "high"]


def reading(vocabulary):
    """Returns a model that reads dense, sparse, ragged and text features.

    Its answer is x + (place of the word in the vocabulary) + (number of tags) + (sum of parts).
    """

    def model(features, labels, mode):
        w = tf1.get_variable("w", initializer=1.0)
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                vocabulary,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=1,
        )
        y = w * features["x"] + tf.cast(table.lookup(features["word"]), tf.float32)
        if "tags" in features:
            tags = features["tags"]
            ones = tf.SparseTensor(tags.indices, tf.ones_like(tags.indices[:, 0]), tags.dense_shape)
            y += tf.cast(tf.sparse.reduce_sum(ones, axis=1), tf.float32)
        if "parts" in features:
            y += tf.reduce_sum(features["parts"], axis=1)
        predictions = {"y": y}
        outputs = None
        if mode == "infer":
            is_high = tf.where(y > 2.0, tf.fill(tf.shape(y), "yes"), tf.fill(tf.shape(y), "no"))
            outputs = {
                "serving_default": estimator.export.PredictOutput(predictions),
                "regress": estimator.export.RegressionOutput(y[:, None]),
                "classify": estimator.export.ClassificationOutput(
                    scores=y[:, None], classes=is_high[:, None]
                ),
            }
        return estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs=outputs,
            loss=tf.reduce_sum(y),
            train_op=tf1.no_op(),
            eval_metric_ops={"y": tf1.metrics.mean(y)} if mode == "eval" else None,
        )

    return model


def standing_still():
    return tf1.train.GradientDescentOptimizer(0.0)


def rows():
    return tf.data.Dataset.from_tensors(({"x": [1.0, 2.0], "word": ["low", "high"]}, [0.0, 0.0]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An Estimator of three towers, whose vocabulary is gone by the time a server loads it."""
    home = tmp_path_factory.mktemp("words")
    vocabulary = home / "vocabulary.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    replicated = model_fn.replicate_model_fn(reading(str(vocabulary)), standing_still, 3)
    found = estimator.Estimator(replicated, model_dir=str(home / "model"), params={})
    found.train(rows, steps=1)
    return found


def exported(trained, receiver_fn, tmp_path, **options):
    """Exports, moves the result elsewhere, and takes the vocabulary away meanwhile."""
    made = os.fsdecode(trained.export_saved_model(str(tmp_path / "made"), receiver_fn, **options))
    moved = str(tmp_path / "moved")
    shutil.move(made, moved)
    vocabulary = pathlib.Path(trained.model_dir).parent / "vocabulary.txt"
    vocabulary.rename(vocabulary.with_suffix(".away"))
    return moved


@pytest.fixture(autouse=True)
def vocabulary_comes_back(trained):
    yield
    away = pathlib.Path(trained.model_dir).parent / "vocabulary.away"
    if away.exists():
        away.rename(away.with_suffix(".txt"))


def raw():
    features = {
        "x": tf1.placeholder(tf.float32, [None], name="x"),
        "word": tf1.placeholder(tf.string, [None], name="word"),
    }
    return estimator.export.ServingInputReceiver(features, features)


BATCH = {"x": np.float32([1, 2, 3, 4]), "word": np.array(["high", "low", "none", "middle"])}
ANSWER = [3.0, 2.0, 6.0, 5.0]  # x + 2, 0, 3 (out of the vocabulary), 1


def test_a_vocabulary_goes_with_the_model(trained, tmp_path):
    path = exported(trained, raw, tmp_path)
    assert os.listdir(os.path.join(path, "assets")) == ["vocabulary.txt"]
    with predictors.load_exported(path) as predictor:
        np.testing.assert_array_equal(predictor(BATCH)["y"], ANSWER)
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    found = loaded(x=tf.constant(BATCH["x"]), word=tf.constant(BATCH["word"]))
    np.testing.assert_array_equal(found["y"], ANSWER)


def test_vocabularies_of_one_name_stay_apart(tmp_path):
    for folder, words in (("a", WORDS), ("b", WORDS[::-1])):
        tmp_path.joinpath(folder).mkdir()
        tmp_path.joinpath(folder, "vocabulary.txt").write_text("\n".join(words) + "\n")

    def model(features, labels, mode):
        first = reading(str(tmp_path / "a" / "vocabulary.txt"))(features, labels, mode)
        with tf1.variable_scope("second"):
            second = reading(str(tmp_path / "b" / "vocabulary.txt"))(features, labels, mode)
        y = {"a": first.predictions["y"], "b": second.predictions["y"]}
        outputs = {"serving_default": estimator.export.PredictOutput(y)}
        return first._replace(predictions=y, export_outputs=outputs if mode == "infer" else None)

    replicated = model_fn.replicate_model_fn(model, standing_still, 2)
    made = estimator.Estimator(replicated, model_dir=str(tmp_path / "model"), params={})
    made.train(rows, steps=1)
    path = made.export_saved_model(str(tmp_path / "made"), raw)
    with predictors.load_exported(path) as predictor:
        found = predictor(BATCH)
    np.testing.assert_array_equal(found["a"], ANSWER)
    np.testing.assert_array_equal(found["b"], [1.0, 4.0, 6.0, 5.0])  # x + 0, 2, 3, 1


def examples(count):
    def feature(**kinds):
        return tf.train.Feature(**kinds)

    def example(i):
        features = {
            "x": feature(float_list=tf.train.FloatList(value=[float(i)])),
            "word": feature(bytes_list=tf.train.BytesList(value=[b"high"])),
            "tags": feature(bytes_list=tf.train.BytesList(value=[b"t"] * i)),
            "parts": feature(float_list=tf.train.FloatList(value=[0.5] * i)),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    # NOTE: as an array of bytes, not of objects, each would lose the zeros at its end.
    return np.array([example(i) for i in range(count)], dtype=object)


SPEC = {
    "x": tf.io.FixedLenFeature([], tf.float32),
    "word": tf.io.FixedLenFeature([], tf.string),
    "tags": tf.io.VarLenFeature(tf.string),
    "parts": tf.io.RaggedFeature(tf.float32),
}


@pytest.mark.thorough("1", "3")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_examples_are_parsed_and_every_signature_answers(count, trained, tmp_path):
    receiver_fn = estimator.export.build_parsing_serving_input_receiver_fn(SPEC)
    path = exported(trained, receiver_fn, tmp_path)
    # Row i: x = i, the word's place 2, i tags, i parts of 0.5.
    answer = np.array([i + 2 + i + i / 2 for i in range(count)])
    with predictors.load_exported(path) as predictor:
        fed = {"examples": examples(count)}
        np.testing.assert_array_equal(predictor(fed)["y"], answer)
        fed = {"inputs": examples(count)}
        found = predictor(fed, "regress")["outputs"]
        np.testing.assert_array_equal(found[:, 0], answer)
        found = predictor(fed, "classify")
        np.testing.assert_array_equal(found["scores"][:, 0], answer)
        assert [name == b"yes" for name in found["classes"][:, 0]] == list(answer > 2)


def composite():
    features = {
        **raw().features,
        "tags": tf1.sparse_placeholder(tf.string, [None, None], name="tags"),
        "parts": tf1.ragged.placeholder(tf.float32, 1, name="parts"),
    }
    return estimator.export.ServingInputReceiver(features, features)


def test_sparse_and_ragged_inputs_are_fed(trained, tmp_path):
    tags = tf.sparse.from_dense(np.array([["t", ""], ["t", "t"], ["", ""], ["", "t"]]))
    parts = tf.ragged.constant([[0.5], [], [0.5, 0.5], [1.0]])
    # Row by row, ANSWER + (1, 2, 0, 1 tags) + (parts 0.5, 0, 1, 1).
    with predictors.load_exported(exported(trained, composite, tmp_path)) as predictor:
        found = predictor({**BATCH, "tags": tags, "parts": parts})
    np.testing.assert_array_equal(found["y"], [4.5, 4.0, 7.0, 7.0])


def test_a_saver_of_the_model_fn_stays(tmp_path):
    def model(features, labels, mode):
        w = tf1.get_variable("w", initializer=1.0)
        tf1.get_variable("unsaved", initializer=5.0)
        scaffold = None
        if mode == "infer":
            saved = {"w": w, "global_step": tf1.train.get_global_step()}
            scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(saved))
        y = features["x"] * w
        outputs = {"serving_default": estimator.export.PredictOutput(y)}
        return estimator.EstimatorSpec(
            mode,
            loss=tf.reduce_sum(y),
            train_op=tf1.no_op(),
            predictions=y,
            scaffold=scaffold,
            export_outputs=outputs if mode == "infer" else None,
        )

    replicated = model_fn.replicate_model_fn(model, standing_still, 1)
    made = estimator.Estimator(replicated, model_dir=str(tmp_path / "model"), params={})
    made.train(rows, steps=1)
    path = os.fsdecode(made.export_saved_model(str(tmp_path / "made"), raw))
    names = [name for name, _ in tf.train.list_variables(f"{path}/variables/variables")]
    assert names == ["global_step", "w"]


def moving_model_fn(features, labels, mode):
    """Adds 1 to w in each step; the loss is the distance of w from 3."""
    w = tf1.get_variable("w", initializer=0.0)
    loss = tf.abs(w - 3.0) + 0.0 * tf.reduce_sum(features["x"])
    y = features["x"] * w
    outputs = {"serving_default": estimator.export.PredictOutput({"w": y})}
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=tf1.no_op(),
        predictions=y,
        export_outputs=outputs if mode == "infer" else None,
    )


class Adding(tf1.train.GradientDescentOptimizer):
    """Moves each variable by 1, whatever the gradient."""

    def __init__(self):
        super().__init__(1.0)

    def _resource_apply_dense(self, grad, handle):
        return handle.assign_add(1.0 + 0.0 * grad)


@pytest.mark.thorough
def test_exporters_keep_the_best_the_latest_and_the_last(tmp_path):
    made = estimator.Estimator(
        model_fn.replicate_model_fn(moving_model_fn, Adding, 2),
        config=estimator.RunConfig(
            model_dir=str(tmp_path), save_checkpoints_steps=1, keep_checkpoint_max=1
        ),
        params={},
    )
    exporters = [
        estimator.BestExporter("best", raw, exports_to_keep=1),
        estimator.LatestExporter("latest", raw, exports_to_keep=1),
        estimator.FinalExporter("final", raw),
    ]
    estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(lambda: rows().repeat(), max_steps=5),
        estimator.EvalSpec(rows, steps=1, exporters=exporters, start_delay_secs=0, throttle_secs=0),
    )
    found = {}
    for name in ("best", "latest", "final"):
        folder = tmp_path / "export" / name
        (path,) = [folder / item for item in os.listdir(folder) if item.isdigit()]
        nodes = export.read(str(path)).meta_graphs[0].graph_def.node
        assert {node.device for node in nodes} == {""}
        with predictors.load_exported(path) as predictor:
            found[name] = predictor({"x": [1.0], "word": ["low"]})["w"].tolist()
    assert found == {"best": [3.0], "latest": [5.0], "final": [5.0]}


def test_devices_go_from_the_graph_and_its_functions(fresh_graph):
    @tf.function
    def doubled(x):
        with tf.device("/cpu:1"):
            return 2.0 * x

    with tf1.device("/job:localhost/replica:0/task:0/device:CPU:1"):
        doubled(tf1.get_variable("w", initializer=1.0))
    own = tf1.train.Saver()
    for each, is_named in ((own, True), (saver.PortableSaver(lambda: own), False)):
        graph_def = each.export_meta_graph().graph_def
        nodes = [graph_def.node, *(one.node_def for one in graph_def.library.function)]
        assert [{node.device for node in of_one} != {""} for of_one in nodes] == [is_named] * 2


def test_what_a_server_feeds_is_told_from_what_an_input_fn_feeds(tmp_path):
    seen = []

    def input_fn():
        return {"x": tf1.placeholder(tf.float32, [None]) + 1.0}

    def model(features, labels, mode):
        seen.append(saver.is_served((features, labels)))
        raise ValueError("seen")

    made = estimator.Estimator(model, str(tmp_path))
    with pytest.raises(ValueError, match="seen"):
        next(made.predict(input_fn))
    with pytest.raises(ValueError, match="seen"):
        made.evaluate(input_fn)
    with tf.Graph().as_default():
        seen.append(saver.is_served(input_fn()))  # as a serving_input_receiver_fn is called
    assert seen == [False, False, True]
