"""Each config in `configs` checks, trains, evaluates and predicts; made-up data are as made."""

import csv
import gzip
import importlib.util
import json
import pathlib

import pytest

from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf, tf1

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in ROOT.glob("configs/*.yaml"))
EXAMPLES = ROOT / "replicate" / "examples"
METRICS = {  # of an evaluation, besides loss and global_step
    "canned.yaml": {"accuracy", "average_loss"},
    "digits-mirrored.yaml": {"accuracy"},
    "digits.yaml": {"accuracy"},
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
        rows = (getattr(trained, "rows", None), getattr(tested, "rows", None))
        assert trained.file != tested.file or rows[0][1] <= rows[1][0]


def test_the_package_brings_the_data_and_all_are_small():
    brought = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix not in (".py", "") and path.name != "__pycache__":
            assert path.stat().st_size < 300_000
            assert f"*{path.suffix}" in brought.partition("package_data")[2].partition("\n[")[0]
