"""What is read is data: it runs nothing, stays where it is, and ends; see SECURITY.md."""

import ast
import io
import json
import os
import pathlib
import pickle
import sys
import zipfile

import numpy as np
import pytest
import yaml

import replicate
from replicate import errors
from replicate.app.cluster import launcher
from replicate.app.command import cli, commands
from replicate.app.config import config, documents, files, input_config
from replicate.app.data import npz, reading
from replicate.app.inspect import samples, starter
from replicate.app.runs import atomic_files, folders, records
from replicate.app.training import predictions
from replicate.compat.tensorflow import tf
from replicate.console import messages
from replicate.strategy.cluster import cluster as clusters

PACKAGE = pathlib.Path(replicate.__file__).parent
HEAD = "# Written by `replicate train`: the config of a run\n"
START = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return sys.exit, ("unpickled",)


# What would run code.


MODULES = {"pickle", "marshal", "shelve", "dill", "code", "codeop", "runpy"}
CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "__import__",
    "yaml.unsafe_load",
    "yaml.full_load",
}
ARRAYS = ("np.load", "np.save", "np.lib.format.")


def running(node):
    """Tells whether a node of a module's tree may run what is read."""
    if isinstance(node, ast.Import):
        return any(one.name in MODULES for one in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in MODULES
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
    is_unsafe = called == "yaml.load" and ast.unparse(node.args[1]) != "_Loader"  # a safe one
    may_unpickle = called.startswith(ARRAYS) and given.get("allow_pickle") != "False"
    return called in CALLS or given.get("shell") == "True" or is_unsafe or may_unpickle


def test_no_module_runs_what_it_reads():
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        assert [ast.unparse(node) for node in nodes if running(node)] == [], path
    assert issubclass(records._Loader, yaml.SafeLoader)


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from marshal import loads", "eval(x)", "yaml.load(x, y)", "np.load(x)"],
)
def test_what_runs_is_noticed(line):
    assert any(map(running, ast.walk(ast.parse(line))))


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.array([Bomb()], object))
    assert npz.load(str(tmp_path / "d.npz"), "k")["x"].tolist() == []  # nothing of it
    (tmp_path / "d.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(errors.RunError, match=r"k: .*d\.npz: must be npz"):
        npz.load(str(tmp_path / "d.npz"), "k")


@pytest.mark.parametrize("name", ["numpy", "pyarrow", "model"])
def test_check_imports_nothing_from_the_config_s_folder(run_python, tmp_path, name):
    (tmp_path / f"{name}.py").write_text(START)
    (tmp_path / "d.csv").write_text("a,b\n1,2\n")
    source = "{kind: csv, file: d.csv, columns: {a: float32}}"
    text = f"model_fn: model:fn\ntrain: {{steps: 1, input: {source}}}\n"
    (tmp_path / "c.yaml").write_text(text)
    code = "from replicate.app.command import cli; cli.main"
    run_python(f"{code}(['check', {str(tmp_path / 'c.yaml')!r}])")
    assert not (tmp_path / "ran").exists()


def test_modules_of_a_config_are_found_as_long_as_its_functions_are_called(monkeypatch, tmp_path):
    found = []
    for one in (commands.check, commands.describe):
        monkeypatch.setattr(one, "callback", lambda request: found.append(list(sys.path)))
    (tmp_path / "c.yaml").write_text("model_fn: model:fn\ntrain: {steps: 1, input: model:rows}\n")
    before = list(sys.path)
    for command in ("check", "describe"):
        assert cli.main([command, str(tmp_path / "c.yaml")]) == 0
        assert sys.path == before
    assert [str(tmp_path) in places for places in found] == [False, True]


# What would not end.


def merges(depth, width=6):
    """Returns a mapping that merges another one several times, which does the same."""
    text = "&m0 {x: 1, y: 2}"
    for level in range(1, depth):
        others = ", ".join([f"*m{level - 1}"] * width)
        text = f"&m{level} {{<<: [{text}, {others}]}}"
    return text


def test_merges_of_merges_come_to_an_end():
    for depth in (3, 20):
        assert documents.Document(f"params: {merges(depth)}", "c").data == {
            "params": {"x": 1, "y": 2}
        }


@pytest.mark.parametrize(("times", "is_taken"), [(1000, True), (1050, False)])
def test_merges_bring_in_a_million_keys_at_most(times, is_taken):
    keys = ", ".join(f"k{i}: 0" for i in range(1000))
    text = f"params: {{a: &a {{{keys}}}, b: {{<<: [{', '.join(['*a'] * times)}]}}}}"
    if is_taken:
        assert len(documents.Document(text, "c").data["params"]["b"]) == 1000
        return
    with pytest.raises(
        errors.ConfigError, match=r"^c:1: params: must be at most 64 levels deep and 1,048,576"
    ):
        documents.Document(text, "c")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["a: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]),
        f"params: {merges(20)}",
        "a: " + "[" * 10_000,
        "a: 2020-99-99",
        "a: !!timestamp x",
        "a: !!int x",
        "a: !!python/object/apply:os.getcwd []",
    ],
    ids=["aliases", "merges", "depth", "date", "time", "number", "tag"],
)
def test_a_record_that_is_none_of_ours_counts_for_nothing(tmp_path, text):
    (tmp_path / records.CONFIG).write_text(HEAD + text)
    assert records.changes(str(tmp_path), "name: a\n") == []


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, '{"a": 1' + "0" * 400 + "}", "[1]", '"\\ud800'],
    ids=str,
)
def test_notes_of_a_run_that_are_none_count_for_nothing(tmp_path, text):
    (tmp_path / "epochs.json").write_text(text)
    assert atomic_files.read_json(str(tmp_path / "epochs.json")) == {}
    assert folders._described(str(tmp_path / "epochs.json")) == "another process"


def test_numbers_in_notes_of_a_run_are_read(tmp_path):
    (tmp_path / "a.json").write_text(f'{{"a": {2**63 - 1}, "b": {-(2**63) + 1}, "c": 1.5}}')
    read = atomic_files.read_json(str(tmp_path / "a.json"))
    assert read == {"a": 2**63 - 1, "b": -(2**63) + 1, "c": 1.5}


@pytest.mark.parametrize(
    ("step", "expected"), [("120", 120), ("1" * 5000, None)], ids=["step", "digits"]
)
def test_a_checkpoint_s_name_has_a_step_or_none(tmp_path, step, expected):
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    assert launcher.saved_step(str(tmp_path)) == expected


def in_cluster(address, index=0):
    return json.dumps({"cluster": {"chief": [address]}, "task": {"type": "chief", "index": index}})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 100_000, "TF_CONFIG is JSON"),
        (in_cluster("a:" + "1" * 5000), "addresses are host:port"),
        (in_cluster("a:١"), "addresses are host:port"),
        (in_cluster("a\0:1"), "addresses are host:port"),
        (in_cluster("\ud800:1"), "addresses are host:port"),
        (in_cluster("a/b:1"), "addresses are host:port"),
        (in_cluster("a:1", "1" * 5000), "an index from 0"),
        (in_cluster("a:1", -1), "an index from 0"),
    ],
    ids=lambda text: text[:20],
)
def test_tf_config_is_refused_by_our_error(text, fault):
    with pytest.raises(errors.ConfigError, match=fault):
        clusters.of(text)


@pytest.mark.parametrize("address", ["a.b-c_d:1", "10.0.0.1:65535", "[::1]:9"])
def test_usual_addresses_are_taken(address):
    assert clusters.of(in_cluster(address, "0")).addresses == (address,)


def test_data_are_files_not_devices(tmp_path):
    (tmp_path / "b.csv").write_text("a\n1\n")
    (tmp_path / "c.csv").mkdir()
    for name in (os.devnull, str(tmp_path), str(tmp_path / "*.csv")):
        with pytest.raises(errors.RunError, match=r"k: .*: must be a file, but is none"):
            files.expanded([name], "k")
    assert files.expanded([str(tmp_path / "b*")], "k") == [str(tmp_path / "b.csv")]


# Where it would be written.


TENSOR = "{dtype: int64, shape: %s}"
FILE = "predict: {input: {kind: tfrecord, file: a, features: {x: %s}}}"
SERVED = "export: {inputs: {x: %s}}"
HUGE = ("[9223372036854775807, 9223372036854775807]", f"{[1] * 300}")
REFUSED = {
    "name: must not lead out of runs": [
        f"name: {name}" for name in ("../x", "/tmp/x", "a/../../x", ".", "a/..")
    ],
    r"x\.shape: must be a shape of at most 253 sizes": [
        section % TENSOR % size for section in (FILE, SERVED) for size in HUGE
    ],
}


@pytest.mark.parametrize(
    ("text", "fault"), [(one, fault) for fault, texts in REFUSED.items() for one in texts]
)
def test_what_leads_elsewhere_or_has_no_end_is_refused(tmp_path, text, fault):
    (tmp_path / "c.yaml").write_text(f"model_fn: a:b\n{text}\n")
    with pytest.raises(errors.ConfigError, match=rf"c\.yaml:2: (.*)?{fault}"):
        config.load(str(tmp_path / "c.yaml"))


def test_usual_names_of_runs_are_taken(tmp_path):
    (tmp_path / "c.yaml").write_text("name: ../x\nmodel_fn: a:b\n")
    path = str(tmp_path / "c.yaml")
    assert config.load(path, ["model_dir=out"]).model_dir == "out"
    assert config.load(path, ["name=a/b..c"]).model_dir == "runs/a/b..c"


def test_a_link_in_the_way_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f".p.csv.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    predictions.write([{"p": 1}], str(tmp_path / "p.csv"))
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "p.csv").read_text() == "p\n1\n"


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "a/b", "é"])
def test_predictions_of_any_name_are_written(tmp_path, name):
    predictions.write([{name: np.float32(1)}, {name: np.float32(2)}], str(tmp_path / "p.npz"))
    with np.load(tmp_path / "p.npz", allow_pickle=False) as read:
        assert {key: read[key].tolist() for key in read} == {name: [1, 2]}


def test_what_is_no_text_is_never_pickled_into_predictions(tmp_path):
    predictions.write([{"p": {"a": 1}}, {"p": {"a": 2}}], str(tmp_path / "p.npz"))
    with np.load(tmp_path / "p.npz", allow_pickle=False) as read:
        assert read["p"].tolist() == [b"{'a': 1}", b"{'a': 2}"]


# What it would tell.


LEAKY = """
import os
from replicate import estimator
from replicate.compat.tensorflow import tf, tf1

def words(features, labels, mode):
    source = tf1.lookup.TextFileInitializer(
        os.environ["VOCABULARY"], tf.string, tf1.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64, tf1.lookup.TextFileIndex.LINE_NUMBER)
    table = tf1.lookup.StaticHashTable(source, -1)
    w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
    y = w * tf.cast(table.lookup(features["x"]), tf.float32)
    output = {"serving_default": estimator.export.PredictOutput({"y": y})}
    loss = None if labels is None else tf1.reduce_mean(tf1.square(y - labels))
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf1.no_op(), export_outputs=output)
"""
LEAKY_CONFIG = """
model_fn: leaky:words
model_dir: out
optimizer: {name: GradientDescent, learning_rate: 0.1}
train: {steps: 2, input: &rows {kind: tfrecord, file: ../data/*.tfrecord, label: y, batch_size: 2,
  cache: true, features: {x: {dtype: string}, y: {dtype: float32}}}}
eval: {input: *rows}
export: {inputs: {x: {dtype: string}}}
"""


def test_files_of_a_run_and_its_exports_name_no_folder_and_no_environment(tmp_path, monkeypatch):
    for name in ("configs", "data", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "configs" / "leaky.py").write_text(LEAKY)
    (tmp_path / "configs" / "leaky.yaml").write_text(LEAKY_CONFIG)
    (tmp_path / "configs" / "a.txt").write_text("a")
    (tmp_path / "elsewhere" / "words.txt").write_text("a\nb\n")
    with tf.io.TFRecordWriter(str(tmp_path / "data" / "d.tfrecord")) as writer:
        for word, y in ((b"a", 0.0), (b"b", 1.0)):
            row = tf.train.Example()
            row.features.feature["x"].bytes_list.value.append(word)
            row.features.feature["y"].float_list.value.append(y)
            writer.write(row.SerializeToString())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOCABULARY", os.path.join("elsewhere", "words.txt"))
    monkeypatch.setenv("REPLICATE_SECRET", "hush-hush")
    train = ["train", "configs/leaky.yaml", "--quiet", "--devices=[/cpu:0, /cpu:1]"]
    assert cli.main(train) == 0
    monkeypatch.setenv("VOCABULARY", str(tmp_path / "elsewhere" / "words.txt"))
    assert cli.main(["export", "configs/leaky.yaml", "--quiet", "--export.directory=served"]) == 0
    written = [file for folder in ("out", "served") for file in pathlib.Path(folder).rglob("*")]
    kinds = {
        "saved_model.pb",
        "config.yaml",
        "metrics.json",
        "graph.pbtxt",
        "checkpoint",
        "words.txt",
    }
    assert kinds <= {file.name for file in written}
    assert any("tfevents" in file.name for file in written)
    told = (str(tmp_path), str(PACKAGE.parent), sys.prefix, "hush-hush")
    for file in written:
        data = file.read_bytes() if file.is_file() else b""
        assert [text for text in told if text.encode() in data] == [], file
    used = config.load("configs/leaky.yaml")
    assert config.load(os.path.join("out", "config.yaml")).train == used.train


class Terminal(io.StringIO):
    """A text that is a terminal."""

    def isatty(self):
        return True


def test_what_a_file_has_does_not_steer_the_terminal():
    text = "k: d.csv:1: got a\x1b[2J\x07b\r\n\tnext\x9b\n"
    assert messages.for_stream(text, io.StringIO()) == text
    shown = messages.for_stream(text, Terminal())
    assert shown == "k: d.csv:1: got a\\x1b[2J\\x07b\n        next\\x9b"


# What cannot be read.


def test_a_member_that_is_no_array_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
    with pytest.raises(errors.RunError, match="must be a readable npz file: x is no array"):
        npz.read(input_config.Npz(file=str(tmp_path / "d.npz")), "k")


@pytest.mark.parametrize("number", [0xD800, 0x110000, 2**32 - 1])
def test_text_of_what_is_no_character_is_told(tmp_path, number):
    np.savez(tmp_path / "d.npz", x=np.array([number], np.uint32).view("<U1"))
    with pytest.raises(errors.RunError, match=r"k: .*d\.npz: x cannot become a tensor"):
        npz.read(input_config.Npz(file=str(tmp_path / "d.npz")), "k")


@pytest.mark.parametrize("has_label", [True, False])
def test_an_archive_without_features_is_refused(tmp_path, has_label):
    for arrays in ({}, {"y": np.zeros(3)}):
        np.savez(tmp_path / "d.npz", **arrays)
        source = input_config.Npz(file=str(tmp_path / "d.npz"), label="y")
        with pytest.raises(errors.RunError, match="must have an array besides the label"):
            npz.read(source, "k", has_label)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x85", "\u2028", " " + "word " * 40, " #", ": "])
def test_a_config_of_init_keeps_names_in_their_lines(tmp_path, end):
    (tmp_path / "d.csv").write_text(f'"a{end}b",c,label\n,,1\n1,2,3\n', encoding="utf-8")
    output = str(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text(
        starter.text("a.b:c", samples.look(str(tmp_path / "d.csv")), output), encoding="utf-8"
    )
    assert f"a{end}b" in config.load(output).train.input.columns


def test_init_leaves_out_arrays_without_a_name(tmp_path):
    np.savez(tmp_path / "d.npz", **{"": np.zeros(3), " ": np.zeros(3), "x": np.zeros(3)})
    assert samples.look(str(tmp_path / "d.npz")).names == ["x"]


def test_a_record_whose_text_ends_early_is_still_one_of_the_input():
    text = "Graph execution error:\n\nCould not parse example input, value: '\n"  # of 2.15
    assert reading._is_reading(tf.errors.InvalidArgumentError(None, None, text))
    assert not reading._is_reading(tf.errors.InvalidArgumentError(None, None, "Nan in summary"))
