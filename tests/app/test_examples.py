"""Each config in `configs` checks and trains; models and made-up data are what they say."""

import csv
import gzip
import importlib.util
import json
import pathlib

import numpy as np
import pytest

from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf, tf1
from replicate.examples import recommender, tagger, wide_and_deep

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in ROOT.glob("configs/*.yaml"))
EXAMPLES = ROOT / "replicate" / "examples"
METRICS = {  # of an evaluation, besides loss and global_step
    "canned.yaml": {"accuracy", "average_loss"},
    "digits-mirrored.yaml": {"accuracy"},
    "digits.yaml": {"accuracy"},
    "recommender.yaml": {"auc"},
    "tagger-micro-batches.yaml": {"word_accuracy"},
    "tagger.yaml": {"word_accuracy"},
    "wide-and-deep.yaml": {"accuracy", "auc"},
}


@pytest.fixture(name="script", scope="module")
def load_script():
    """Returns the script that makes data up, as a module."""
    spec = importlib.util.spec_from_file_location("made", ROOT / "scripts" / "example_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_config_is_tried():
    assert sorted(METRICS) == CONFIGS


def test_every_config_checks_and_its_data_are_there(capsys):
    paths = [f"configs/{name}" for name in CONFIGS]
    assert cli.main(["check", *paths]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == [f"{path}: ok" for path in paths]


def test_every_config_says_what_to_expect():
    for name in CONFIGS:
        text = (ROOT / "configs" / name).read_text(encoding="utf-8")
        head = text.partition("\nname:")[0].replace("\n# ", " ")
        assert f"`replicate train configs/{name}` takes about" in head, name
        assert "at least" in head, name


@pytest.mark.thorough("canned.yaml")
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning")
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "digits.yaml"])
def test_some_steps_of_every_example(name, tmp_path, capsys):
    # digits.yaml is trained to its end in test_digits.py.
    options = ["train.steps=3", "eval.steps=1", "eval.every_steps=null", "devices=[/cpu:0, /cpu:1]"]
    where = [f"configs/{name}", "--model-dir", str(tmp_path), "--quiet"]
    where += [part for option in options for part in ("--set", option)]
    assert cli.main(["train", *where, "--set", "export=null"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == METRICS[name] | {"loss", "global_step"}
    assert found["global_step"] == 3


def test_the_orders_are_as_the_script_makes_them(script):
    made, _ = script.orders()
    kept = []
    for part in ("train", "test"):
        with gzip.open(EXAMPLES / f"orders-{part}.csv.gz", "rt", encoding="utf-8") as file:
            kept += csv.DictReader(file)
    assert kept == [{name: str(cell) for name, cell in row.items()} for row in made]


def test_the_sentences_are_as_the_script_makes_them(script):
    made = script.sentences()
    kept = []
    for part in ("train", "test"):
        path = str(EXAMPLES / f"sentences-{part}.tfrecord.gz")
        for record in tf1.io.tf_record_iterator(path, tf.io.TFRecordOptions("GZIP")):
            values = tf.train.Example.FromString(record).features.feature
            length = values["length"].int64_list.value[0]
            words, tags = (values[name].int64_list.value for name in ("words", "tags"))
            assert not any(words[length:])
            assert not any(tags[length:])
            kept.append((list(words[:length]), list(tags[:length])))
    assert kept == made


def test_what_examples_are_trained_on_is_not_tested_on():
    for name in CONFIGS:
        settings = config.load(f"configs/{name}")
        trained, tested = settings.train.input, settings.eval.input
        if trained.kind == "function":
            continue
        rows = (getattr(trained, "rows", None), getattr(tested, "rows", None))
        assert trained.file != tested.file or rows[0][1] <= rows[1][0]


def test_clicks_are_others_in_each_mode_and_the_same_ones_in_each_run(fresh_graph):
    def clicks(mode):
        rows = recommender.input_fn(mode, {"examples": 50}).batch(50)
        return tf1.data.make_one_shot_iterator(rows).get_next()

    made = [clicks(mode) for mode in ("train", "train", "eval", "infer")]
    with tf1.Session() as session:
        first, again, *others = [features["user"].tolist() for features, _ in session.run(made)]
    assert first == again
    assert len({tuple(users) for users in (first, *others)}) == 3


def test_the_package_brings_the_data_and_all_are_small():
    brought = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix not in (".py", "") and path.name != "__pycache__":
            assert path.stat().st_size < 300_000
            assert f"*{path.suffix}" in brought.partition("package_data")[2].partition("\n[")[0]


def at_work(model_fn, mode, params, *batches):
    """Returns what a spec has for each batch: predictions, loss, metrics.

    A batch is features, labels, and values of variables by the ends of their names; the others
    have some values.
    """
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        holders = [
            {key: tf1.placeholder(value.dtype, value.shape) for key, value in part.items()}
            for part in batches[0][:2]
        ]
        spec = model_fn(holders[0], holders[1].get("label"), mode, params)
        session.run(tf1.global_variables_initializer())
        updates = {key: update for key, (_, update) in (spec.eval_metric_ops or {}).items()}
        fetched = [spec.predictions, [] if spec.loss is None else spec.loss, updates]
        for *parts, values in batches:
            session.run(tf1.local_variables_initializer())
            for variable in tf1.trainable_variables():
                some = np.sin(1 + np.arange(variable.shape.num_elements()))
                named = [one for key, one in values.items() if variable.op.name.endswith(key)]
                value = np.float32(named[0] if named else some)
                variable.load(value.reshape(variable.shape), session)
            pairs = zip(holders, parts, strict=True)
            feeds = {held[key]: part[key] for held, part in pairs for key in held}
            found.append(session.run(fetched, feeds))
    return found


ORDERS = {
    # The second word of two, and one that is not known.
    "channel": np.array([b"shop", b"fax"], object),
    "day": np.array([b"monday", b"sunday"], object),  # the only word, and one that is not known
    "product": np.int32([2, 99]),  # the last but one of four numbers, and one beyond them
    "price": np.float32([np.exp(4), 0]),  # the second is not known
    "items": np.int32([4, 2]),
}
OF_ORDERS = {
    "vocabularies": {"channel": ["web", "shop"], "day": ["monday"]},
    "products": 3,
    "crosses": [["channel", "day"]],
    "embedding": 1,
    "hidden_units": [],
}
WEIGHTS_OF_ORDERS = {
    "wide/bias": -4,
    "wide/channel": [0, 0.25, 0.5],
    "wide/day": [0.125, 1],
    "wide/product": [0, 0, 2, -1],
    "wide/channel_day": [0, 0, 0.5, 0, 0, -0.5],  # of the pairs (0, 0), (0, 1), (1, 0), ...
    "channel_embedding": [0, 1, 2],
    "day_embedding": [0, 0],
    "product_embedding": [0, 0, 0, 0],
    # Of: the price is known, log price - 3, items / 4, and the three embeddings.
    "logit/kernel": [1, 1, 1, 0.5, 0, 0],
    "logit/bias": 0,
}
# -4 + 0.25 + 0.125 + 2 + 0.5, and 1 + 1 + 1 + 0.5; -4 + 0.5 + 1 - 1 - 0.5, and 0.5 + 1.
LOGITS = np.array([-1.125 + 3.5, -4 + 1.5])


def test_an_order_has_the_weights_of_its_values_and_their_pairs():
    batch = ORDERS, {"label": np.int32([1, 1])}, WEIGHTS_OF_ORDERS
    ((found, loss, metrics),) = at_work(wide_and_deep.model_fn, "eval", OF_ORDERS, batch)
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-LOGITS)), rtol=1e-5)
    assert found["returned"].tolist() == [1, 0]
    assert loss == pytest.approx(np.mean(np.log1p(np.exp(-LOGITS))), rel=1e-5)
    assert metrics["accuracy"] == 0.5
    batch = ORDERS, {}, WEIGHTS_OF_ORDERS
    ((predicted, _, _),) = at_work(wide_and_deep.model_fn, "infer", OF_ORDERS, batch)
    np.testing.assert_array_equal(predicted["probability"], found["probability"])


TAGS = {"words": 5, "tags": 3, "embedding": 2, "units": 2}
LENGTHS = np.int64([3, 1])
ALIKE = {"dense/kernel": np.zeros([4, 3]), "dense/bias": [0, 1, 0]}  # the logits of each word


def sentences(words, tags, values):
    """Returns a batch of two sentences: all of the first row, one word of the second."""
    tags = {} if tags is None else {"label": np.int64(tags)}
    return {"words": np.int64(words), "length": LENGTHS}, tags, values


def test_what_stands_behind_the_end_of_a_sentence_counts_nowhere():
    words, tags = [[1, 2, 3], [4, 0, 0]], [[1, 1, 2], [1, 0, 0]]
    (found, loss, metrics), first, behind, within = at_work(
        tagger.model_fn,
        "eval",
        TAGS,
        sentences(words, [[1, 1, 2], [1, 2, 2]], ALIKE),
        sentences(words, tags, {}),
        sentences([[1, 2, 3], [4, 1, 2]], tags, {}),
        sentences([[1, 2, 4], [4, 0, 0]], tags, {}),
    )
    # -log softmax is ln(2 + e) - 1 for tag 1, which three of four words have, else ln(2 + e).
    assert loss == pytest.approx(np.log(2 + np.e) - 3 / 4, rel=1e-5)
    assert found["tags"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert metrics["word_accuracy"] == 3 / 4
    assert behind[1] == pytest.approx(first[1], rel=1e-6)
    assert within[1] != pytest.approx(first[1], rel=1e-3)
    ((predicted, _, _),) = at_work(tagger.model_fn, "infer", TAGS, sentences(words, None, ALIKE))
    np.testing.assert_array_equal(predicted["tags"], found["tags"])
