"""A config may extend another one; faults are found where the values stand."""

import os

import pytest

from replicate import errors
from replicate.app.config import config

BASE = """
model_fn: a.b:c
seed: 3
optimizer: {name: Momentum, momentum: 0.9, learning_rate: 0.1}
train:
  steps: 10
  input: {kind: npz, file: d.npz, rows: [0, 3]}
"""


def write(tmp_path, **texts):
    """Writes configs by name; below__c is below/c.yaml."""
    for name, text in texts.items():
        path = tmp_path / (name.replace("__", "/") + ".yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def faults_of(tmp_path, *assignments):
    """Returns the faults of c.yaml, a list of lines, without the folder."""
    with pytest.raises(errors.ConfigError) as caught:
        config.load(str(tmp_path / "c.yaml"), assignments)
    return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()


def test_mappings_are_merged_and_all_else_is_replaced(tmp_path):
    text = "extends: base.yaml\nseed: null\ntrain: {steps: 20, input: {rows: [3, 9]}}\n"
    write(tmp_path, base=BASE, c=text)
    read = config.load(str(tmp_path / "c.yaml"))
    assert (read.name, read.seed, read.model_fn) == ("c", None, "a.b:c")
    assert (read.train.steps, read.train.input.rows) == (20, (3, 9))
    assert read.train.input.file == str(tmp_path / "d.npz")


def test_what_extends_another_reads_back_equal(tmp_path):
    write(tmp_path, below__base=BASE, c="extends: below/base.yaml\nparams: {a: x}\n")
    read = config.load(str(tmp_path / "c.yaml"))
    write(tmp_path, again=config.to_yaml(read))
    assert config.load(str(tmp_path / "again.yaml")) == read


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path):
    text = "extends: below/base.yaml\neval: {input: {kind: npz, file: e.npz}}\n"
    base = BASE + "export: {assets_extra: {v.txt: v.txt}}\nparams: {file: d.npz}\n"
    write(tmp_path, below__base=base, c=text)
    read = config.load(str(tmp_path / "c.yaml"))
    assert read.train.input.file == str(tmp_path / "below" / "d.npz")
    assert read.export.assets_extra == {"v.txt": str(tmp_path / "below" / "v.txt")}
    assert read.eval.input.file == str(tmp_path / "e.npz")
    assert (read.params, type(read.params["file"])) == ({"file": "d.npz"}, str)


def test_a_base_may_extend_another(tmp_path):
    middle = "extends: ../base.yaml\nseed: 4\ntrain: {steps: 30}\n"
    write(tmp_path, base=BASE, below__middle=middle, c="extends: below/middle.yaml\nseed: 5\n")
    read = config.load(str(tmp_path / "c.yaml"), ["train.log_every_steps=7"])
    assert (read.seed, read.train.steps, read.train.log_every_steps) == (5, 30, 7)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("optimizer: {name: Adam}", "optimizer.name", "Adam"),
        ("train: {input: {kind: function, function: 'a:b'}}", "train.input.kind", "function"),
    ],
)
def test_another_kind_takes_no_keys_from_the_base(tmp_path, text, key, value):
    write(tmp_path, base=BASE, c=f"extends: base.yaml\n{text}\n")
    at = config.load(str(tmp_path / "c.yaml"))
    for part in key.split("."):
        at = getattr(at, part)
    assert at == value


def test_faults_stand_where_the_value_stands(tmp_path):
    base = BASE.replace("seed: 3", "seed: x").replace("rows: [0, 3]", "rows: [0, 3], shufle: true")
    write(tmp_path, base=base, c="extends: base.yaml\n\ntrain: {steps: -1}\neval: {steps: 3}\n")
    assert faults_of(tmp_path) == [
        "base.yaml:3: seed: must be a whole number, got 'x'.",
        "base.yaml:7: train.input.shufle: unknown key. Did you mean shuffle?",
        "c.yaml:3: train.steps: must be a whole number of at least 1, got -1.",
        "c.yaml:4: eval: the key input is required here. Add it.",
    ]


def test_a_fault_that_is_overridden_is_none(tmp_path):
    write(tmp_path, base=BASE.replace("seed: 3", "seed: x"), c="extends: base.yaml\nseed: 1\n")
    assert config.load(str(tmp_path / "c.yaml")).seed == 1


def test_a_circle_names_its_files(tmp_path):
    write(tmp_path, c="seed: 1\nextends: a.yaml\n", a="extends: b.yaml\n", b="extends: c.yaml\n")
    assert faults_of(tmp_path) == [
        "b.yaml:1: extends: must not lead back to a file: c.yaml -> a.yaml -> b.yaml -> c.yaml. "
        "Remove one."
    ]
    write(tmp_path, c="extends: ./c.yaml\n")
    assert "c.yaml -> c.yaml" in faults_of(tmp_path)[0]


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("none.yaml", "c.yaml:1: extends: must be a config file, but there is none by the name n"),
        ("3", "c.yaml:1: extends: must be the path of a config, got 3."),
        ("[base.yaml]", "c.yaml:1: extends: must be the path of a config, got ['base.yaml']."),
        ("", "got None"),
        ('"a\\0b"', "must be the path of a config, got 'a\\x00b'"),
        ("/dev/zero", "must be a config file, but there is none by the name /dev/zero"),
        (".", "must be a config file, but there is none by the name ."),
        ("~nobody/x.yaml", "must be a config file, but there is none by the name ~nobody"),
        ("x" * 5000, "must be a config file, but there is none by the name xxx"),
        ("bad.yaml", "bad.yaml:2: must be valid YAML"),
        ("list.yaml", "list.yaml:1: a config is a mapping of keys to values, got a list"),
        ("tag.yaml", "tag.yaml:1: a: a config holds plain data"),
        ("${REPLICATE_NOT_SET}", "c.yaml:1: extends: needs the environment variable"),
    ],
)
def test_what_cannot_be_extended_is_a_fault(tmp_path, written, fault):
    write(tmp_path, bad="a: [1\n", list="[1]\n", tag="a: !!python/name:os.system x\n")
    write(tmp_path, c=f"extends: {written}\nmodel_fn: a:b\n")
    assert fault in faults_of(tmp_path)[0]


def test_a_chain_of_files_is_read_to_its_end(tmp_path):
    write(tmp_path, c="extends: c1.yaml\n", c40=BASE)
    write(tmp_path, **{f"c{i}": f"extends: c{i + 1}.yaml\n" for i in range(1, 40)})
    assert config.load(str(tmp_path / "c.yaml")).train.steps == 10


def test_a_file_has_an_end():
    with pytest.raises(errors.ConfigError, match="has at most 16777216 bytes"):
        config.load("/dev/zero")


def test_what_is_extended_stands_in_a_file(tmp_path):
    write(tmp_path, c=BASE)
    assert faults_of(tmp_path, "extends=base.yaml") == [
        "--set extends=base.yaml: extends: must stand in a config. Write it there."
    ]
    write(tmp_path, c=BASE + "extend: base.yaml\n")
    assert "Did you mean extends?" in faults_of(tmp_path)[0]
