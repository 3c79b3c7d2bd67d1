"""YAML is read as plain data, with the place of every key: variables, overrides, configs on top."""

import os
import re

import pytest

from replicate import errors
from replicate.app.config import config, documents

BASE = """
model_fn: a.b:c
seed: 3
optimizer: {name: Momentum, momentum: 0.9, learning_rate: 0.1}
train:
  steps: 10
  input: {kind: npz, file: d.npz, rows: [0, 3]}
"""
VARIABLES = {
    "STEPS": "1e3",
    "TRUE": "true",
    "EMPTY": "",
    "NAME": "train",
    "TEXT": "[1, 2]",
    "TAG": "!!python/name:os.system x",
    "AGAIN": "${R_NAME}",
    "MERGE": "<<",
    "LONG": "9" * 5000,
}


@pytest.fixture(autouse=True)
def _set_variables(monkeypatch):
    for name, text in VARIABLES.items():
        monkeypatch.setenv(f"R_{name}", text)


def parse(text, assignments=()):
    """Returns the document of a text."""
    document = documents.Document(text, "c.yaml")
    for assignment in assignments:
        document.assign(assignment)
    return document


def fault_of(text, *assignments):
    """Returns what reading a text complains about."""
    try:
        return "\n".join(parse(text, assignments).faults)
    except errors.ConfigError as e:
        return str(e)


def write(tmp_path, **texts):
    """Writes configs by name; below__c is below/c.yaml."""
    for name, text in texts.items():
        path = tmp_path / (name.replace("__", "/") + ".yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def load(tmp_path, *assignments):
    """Loads c.yaml."""
    return config.load(str(tmp_path / "c.yaml"), assignments)


def faults_of(tmp_path, *assignments):
    """Returns the faults of c.yaml, a list of lines, without the folder."""
    with pytest.raises(errors.ConfigError) as caught:
        load(tmp_path, *assignments)
    return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2e+3", -2000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("12", 12),
        ("0x10", 16),
        ("~", None),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'1e-3'", "1e-3"),
        ("e3", "e3"),
        ("[1, 2e0]", [1, 2.0]),
        ("{a: {b: x}}", {"a": {"b": "x"}}),
        ("${R_STEPS}", 1000.0),
        ("'${R_STEPS}'", "1e3"),
        ("${R_NONE:12}", 12),
        ("${R_NONE:}", None),
        ("${R_NONE:a b}", "a b"),
        ("${R_TRUE}", True),
        ("${R_EMPTY:3}", None),
        ("1${R_NONE:0}0", 100),
        ("data/${R_NAME}-${R_NONE:1}.csv", "data/train-1.csv"),
        ("$${R_NAME}", "${R_NAME}"),
        ("$R_NAME", "$R_NAME"),
        ("${R_TEXT}", "[1, 2]"),
        ("${R_TAG}", "!!python/name:os.system x"),
        ("${R_AGAIN}", "${R_NAME}"),
        ("${R_MERGE}", "<<"),
        ("[x, '${R_NAME}']", ["x", "train"]),
    ],
)
def test_values_have_the_type_they_look_like_variables_filled_in(written, value):
    read = parse(f"key: {written}", ["other=${R_NAME}"]).data
    assert read == {"key": value, "other": "train"}
    assert type(read["key"]) is type(value) or (str(read["key"]), type(value)) == (value, str)


def test_every_key_has_its_place():
    document = parse("a: 1\nb:\n  c: [x,\n    y]\n")
    assert document.place(("a",)).text == "c.yaml:1"
    assert document.place(("b", "c")).text == "c.yaml:3"
    assert document.place(("b", "c", 1)).text == "c.yaml:4"
    assert document.place(("b", "missing")).text == "c.yaml:2"
    assert document.place(("missing",)).text == "c.yaml:1"


@pytest.mark.parametrize(
    ("merges", "expected"),
    [
        ("<<: [*x, *y]", {"rate": 1, "size": 2, "depth": 4}),
        ("<<: [*y, *x]", {"rate": 3, "depth": 4, "size": 2}),
        ("<<: *x, <<: *y", {"rate": 1, "size": 2, "depth": 4}),
        ("<<: [*x, *y], rate: 5", {"rate": 5, "size": 2, "depth": 4}),
        ("rate: 5, <<: [*x, *y]", {"rate": 5, "size": 2, "depth": 4}),
        ("<<: {<<: *y, rate: 6}", {"rate": 6, "depth": 4}),
    ],
)
def test_of_merged_mappings_the_first_that_has_a_key_wins(merges, expected):
    # The rule of YAML 1.1's merge key, whichever PyYAML is installed.
    text = f"x: &x {{rate: 1, size: 2}}\ny: &y {{rate: 3, depth: 4}}\nz: &z {{{merges}}}\nw: *z\n"
    document = parse(text)
    assert document.faults == []
    assert document.data["z"] == document.data["w"] == expected


ENDLESS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30))]
)
MERGED = "\n".join(
    [
        "a0: &a0 {k0: 0}",
        *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 0}}" for n in range(1, 2000)),
    ]
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "a: 1\nb: {c: 1}\na: 2\n",
            "c.yaml:3: a: a key is given once; it already stands in line 1",
        ),
        ("a: [1\n", "c.yaml:2: must be valid YAML"),
        ("a: &x [*x]\n", "c.yaml:1: a: must be at most 64 levels deep and 1,048,576 characters"),
        (ENDLESS, "must be at most 64 levels deep and 1,048,576 characters in all"),
        (MERGED, "must be at most 64 levels deep and 1,048,576 characters in all"),
        (
            "a: &a ["
            + "'${R_LONG}', " * 20
            + "]\nb: "
            + "[*a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a]",
            "must be at most 64 levels deep and 1,048,576 characters in all",
        ),
        ("a: 1\n---\nb: 2\n", "must be valid YAML"),
        ("? [1]\n: 2\n", "keys are plain words"),
        ("a: {<<: {? [1] : 2}}\n", "keys are plain words"),
        (
            "a: {<<: [{b: 1, <<: {c: 1}}, {<<: {b: 1, b: 2}}]}\n",
            "c.yaml:1: a.b: a key is given onc",
        ),
        ("a: {<<: 3}\n", "merges (<<) take a mapping, or a list of mappings"),
        ("a: {<<: [1]}\n", "merges (<<) take a mapping, or a list of mappings"),
    ],
)
def test_what_is_no_plain_mapping_is_a_fault(text, fault):
    assert fault in fault_of(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("seed: ${R_NONE}", "c.yaml:2: seed: needs the environment variable R_NONE, which is not"),
        ("params:\n  a: x${R_NONE}", "c.yaml:3: params.a: needs the environment variable R_NONE"),
        (
            "seed: ${R_TAG}",
            "c.yaml:2: seed: must be a whole number, got '!!python/name:os.system x",
        ),
        ("seed: ${}", "c.yaml:2: seed: must name a variable as ${NAME} or ${NAME:default}, got "),
        ("seed: ${1A}", "must name a variable as"),
        ("seed: ${A", "Write $${ for the text ${."),
        ("seed: ${A:${B}}", "must name a variable as"),
        ("devices: {cpu: ${R_NONE:2}}", "c.yaml:2: must be valid YAML"),
        ("devices: {cpu: ${R_NONE:2}}", "Write ${...} in a line of its own"),
        ("seed: ${R_LONG}", "c.yaml:2: seed: must be a value of the type int, got '999"),
        ("seed: !!int x", "c.yaml:2: seed: must be a value of the type int, got 'x'"),
        ("params: {a: !!python/object/apply:os.getcwd []}", "params.a: a config holds plain data"),
        ('params: {a: "a\\0b"}', "c.yaml:2: params.a: must be a text without the character 0"),
    ],
)
def test_a_value_that_cannot_be_read_is_one_fault(tmp_path, text, fault):
    write(tmp_path, c=f"model_fn: a:b\n{text}\n")
    (found,) = faults_of(tmp_path)
    assert fault in found


def test_a_file_must_exist_and_be_utf8_and_have_an_end(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"none.yaml: a config file must exist"):
        documents.read(tmp_path / "none.yaml")
    with pytest.raises(errors.ConfigError, match="must exist and be readable"):
        documents.read(tmp_path)
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert documents.read(tmp_path / "empty.yaml").data == {}
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"a: \xff")
    with pytest.raises(errors.ConfigError, match="UTF-8"):
        documents.read(bad)
    with pytest.raises(errors.ConfigError, match="has at most 1,048,576 bytes"):
        config.load("/dev/zero")


def test_override_is_typed_and_makes_mappings_on_the_way():
    given = ["a.b=1e-3", "d.e.f=[x, 2]", "a.c=null", "g=p=q"]
    document = parse("a: {b: 1, c: [1]}\n", given)
    assert document.data == {
        "a": {"b": 0.001, "c": None},
        "d": {"e": {"f": ["x", 2]}},
        "g": "p=q",
    }
    assert document.place(("a", "b")).text == "--set a.b=1e-3"
    assert document.place(("a", "c", 0)).text == "--set a.c=null"


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ("a", "--set a: must be key=value"),
        ("=1", "must be key=value"),
        ("a..b=1", "must be key=value"),
        ("a.b=1", "a is 3 in c.yaml and has no keys. Set all of it: --set a='{b: 1}'"),
        ("--a.b.c=1", "Set all of it: --set a='{b: {c: 1}}'"),
        ("a=[1", "--set a=.1: must be valid YAML"),
        ("a={x: 1, x: 2}", "--set a=.*: a key is given once"),
        ("extends=b.yaml", "--set extends=b.yaml: extends: must stand in a config. Write it there"),
    ],
)
def test_a_bad_override_is_refused(assignment, fault):
    assert re.search(fault, fault_of("a: 3\n", assignment))


def test_what_an_alias_shares_is_overridden_in_one_place_alone():
    text = "a: &a {x: 1, y: {z: 1}}\nb: *a\nc: {<<: *a}\n"
    document = parse(text, ["b.x=2", "c.y.z=3"])
    assert document.data == {
        "a": {"x": 1, "y": {"z": 1}},
        "b": {"x": 2, "y": {"z": 1}},
        "c": {"x": 1, "y": {"z": 3}},
    }


def test_what_is_dumped_reads_back():
    data = {"a": "1e-3", "b": "1:30", "c": "2024-01-01", "d": "yes", "e": 1e-5, "f": [], "g": {}}
    texts = ["${A}", "$${A}", "$$${A", "a${", "$", "{${x}}", "a\nb", "\x85"]
    data |= {"texts": texts, "${A}": 1}
    assert parse(documents.dump(data)).data == data


def test_mappings_are_merged_and_all_else_is_replaced(tmp_path):
    text = "extends: below/base.yaml\nseed: null\ntrain: {steps: 20, input: {rows: [3, 9]}}\n"
    write(tmp_path, below__base=BASE, c=text + "params: {a: x}\n")
    read = load(tmp_path)
    assert (read.name, read.seed, read.model_fn) == ("c", None, "a.b:c")
    assert (read.train.steps, read.train.input.rows) == (20, (3, 9))
    assert read.train.input.file == str(tmp_path / "below" / "d.npz")
    write(tmp_path, c=config.to_yaml(read))
    assert load(tmp_path) == read


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path):
    text = "extends: below/base.yaml\neval: {input: {kind: npz, file: e.npz}}\n"
    base = BASE + "export: {directory: out}\nparams: {file: d.npz}\n"
    write(tmp_path, below__base=base, c=text)
    read = load(tmp_path)
    assert read.train.input.file == str(tmp_path / "below" / "d.npz")
    assert read.export.directory == str(tmp_path / "below" / "out")
    assert read.eval.input.file == str(tmp_path / "e.npz")
    assert (read.params, type(read.params["file"])) == ({"file": "d.npz"}, str)


def test_a_base_may_extend_another(tmp_path):
    middle = "extends: ../base.yaml\nseed: 4\ntrain: {steps: 30}\n"
    write(tmp_path, base=BASE, below__middle=middle, c="extends: below/middle.yaml\nseed: 5\n")
    read = load(tmp_path, "train.log_every_steps=7")
    assert (read.seed, read.train.steps, read.train.log_every_steps) == (5, 30, 7)


@pytest.mark.parametrize(
    ("text", "section", "key"),
    [
        ("optimizer: {name: Adam}", "optimizer", ("name", "Adam")),
        ("train: {input: {kind: function, function: 'a:b'}}", "train.input", ("function", "a:b")),
    ],
)
def test_another_kind_takes_no_keys_from_the_base(tmp_path, text, section, key):
    write(tmp_path, base=BASE, c=f"extends: base.yaml\n{text}\n")
    at = load(tmp_path)
    for part in section.split("."):
        at = getattr(at, part)
    assert getattr(at, key[0]) == key[1]


def test_faults_stand_where_the_value_stands(tmp_path):
    base = BASE.replace("seed: 3", "seed: x").replace("rows: [0, 3]", "rows: [0, 3], shufle: true")
    write(tmp_path, base=base, c="extends: base.yaml\n\ntrain: {steps: -1}\neval: {steps: 3}\n")
    assert sorted(faults_of(tmp_path)) == [
        "base.yaml:3: seed: must be a whole number, got 'x'.",
        "base.yaml:7: train.input.shufle: unknown key. Did you mean shuffle?",
        "c.yaml:3: train.steps: must be at least 1, got -1.",
        "c.yaml:4: eval.input: the key is required here. Add it.",
    ]
    for seed in ("x", "${R_NONE}"):  # a fault that is overridden is none
        write(tmp_path, base=BASE.replace("seed: 3", f"seed: {seed}"))
        write(tmp_path, c="extends: base.yaml\nseed: 1\n")
        assert load(tmp_path).seed == 1


def test_a_circle_names_its_files(tmp_path):
    write(tmp_path, c="seed: 1\nextends: a.yaml\n", a="extends: b.yaml\n", b="extends: c.yaml\n")
    found = faults_of(tmp_path)[0]
    assert found.startswith("b.yaml:1: extends: must not lead back to a file: c.yaml -> a.yaml -> ")
    assert found.endswith("b.yaml -> c.yaml. Remove one.")
    write(tmp_path, c="extends: ./c.yaml\n")
    assert "c.yaml -> c.yaml" in faults_of(tmp_path)[0]


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("none.yaml", "c.yaml:1: extends: must be a config file, but there is none by the name n"),
        ("3", "c.yaml:1: extends: must be the path of a config, got 3."),
        ("[base.yaml]", "c.yaml:1: extends: must be the path of a config, got ['base.yaml']."),
        ("", "got None"),
        ('"a\\0b"', "c.yaml:1: extends: must be a text without the character 0, got 'a\\x00b'"),
        ("/dev/zero", "must be a config file, but there is none by the name /dev/zero"),
        (".", "must be a config file, but there is none by the name ."),
        ("~nobody/x.yaml", "must be a config file, but there is none by the name ~nobody"),
        ("x" * 5000, "must be a config file, but there is none by the name xxx"),
        ("bad.yaml", "bad.yaml:2: must be valid YAML"),
        ("list.yaml", "list.yaml:1: a config is a mapping of keys to values, got [1]"),
        ("tag.yaml", "tag.yaml:1: a: a config holds plain data"),
        ("${REPLICATE_NOT_SET}", "c.yaml:1: extends: needs the environment variable"),
    ],
)
def test_what_cannot_be_extended_is_a_fault(tmp_path, written, fault):
    write(tmp_path, bad="a: [1\n", list="[1]\n", tag="a: !!python/name:os.system x\n")
    write(tmp_path, c=f"extends: {written}\nmodel_fn: a:b\n")
    assert fault in "\n".join(faults_of(tmp_path))


def test_a_chain_of_files_is_read_to_its_end(tmp_path):
    write(tmp_path, c="extends: c1.yaml\n", c40=BASE)
    write(tmp_path, **{f"c{i}": f"extends: c{i + 1}.yaml\n" for i in range(1, 40)})
    assert load(tmp_path).train.steps == 10
