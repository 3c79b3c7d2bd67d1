"""YAML is read as plain data, with the place of every key."""

import re

import pytest

from replicate import errors
from replicate.app.config import documents


def fault_of(text):
    """Returns what reading a text complains about."""
    try:
        return "\n".join(documents.parse(text, "c.yaml").faults)
    except errors.ConfigError as e:
        return str(e)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2e+3", -2000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.5e-3", 0.0015),
        ("12", 12),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("~", None),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'1e-3'", "1e-3"),
        ("e3", "e3"),
        ("[1, 2e0]", [1, 2.0]),
        ("{a: {b: x}}", {"a": {"b": "x"}}),
    ],
)
def test_values_have_the_type_they_look_like(written, value):
    read = documents.parse(f"key: {written}", "c.yaml").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_every_key_has_its_place():
    document = documents.parse("a: 1\nb:\n  c: [x,\n    y]\n", "c.yaml")
    assert document.place(("a",)).text == "c.yaml:1"
    assert document.place(("b", "c")).text == "c.yaml:3"
    assert document.place(("b", "c", 1)).text == "c.yaml:4"
    assert document.place(("b", "missing")).text == "c.yaml:2"
    assert document.place(("missing",)).text == "c.yaml:1"


def test_a_repeated_key_is_a_fault_that_names_both_lines():
    assert fault_of("a: 1\nb: {c: 1}\na: 2\n") == (
        "c.yaml:3: a: a key is given once; it already stands in line 1. Remove one of the two."
    )


def test_a_merge_may_be_overridden():
    document = documents.parse("a: &x {p: 1, q: 2}\nb: {<<: *x, p: 3}\n", "c.yaml")
    assert document.faults == []
    assert document.data["b"] == {"p": 3, "q": 2}


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
    document = documents.parse(text, "c.yaml")
    assert document.faults == []
    assert document.data["z"] == expected
    assert document.data["w"] == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [1\n", "c.yaml:2: must be valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "c.yaml:1: a: a config holds plain data"),
        ("a: !!int x\n", "c.yaml:1: a: must be a value of the type int, got 'x'"),
        ("a: &x [*x]\n", "c.yaml:1: must be finite"),
        ("- 1\n", "c.yaml:1: a config is a mapping of keys to values, got a list"),
        ("text", "got a text"),
        ("a: 1\n---\nb: 2\n", "must be valid YAML"),
        ("? [1]\n: 2\n", "keys are plain words"),
        ("a: {<<: {? [1] : 2}}\n", "keys are plain words"),
        (
            "a: {<<: [{b: 1, <<: {c: 1}}, {<<: {b: 1, b: 2}}]}\n",
            "c.yaml:1: a.b: a key is given once",
        ),
        ("a: {<<: 3}\n", "merges (<<) take a mapping, or a list of mappings"),
        ("a: {<<: [1]}\n", "merges (<<) take a mapping, or a list of mappings"),
    ],
)
def test_what_is_no_plain_mapping_is_a_fault(text, fault):
    assert fault in fault_of(text)


def test_aliases_of_aliases_come_to_an_end():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 30)]
    assert "must be finite" in fault_of("\n".join(lines))


def test_an_empty_file_is_an_empty_mapping():
    assert documents.parse("# nothing\n", "c.yaml").data == {}


def test_a_file_must_exist_and_be_utf8(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"none.yaml: a config file must exist"):
        documents.read(tmp_path / "none.yaml")
    with pytest.raises(errors.ConfigError, match="must be readable"):
        documents.read(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"a: \xff")
    with pytest.raises(errors.ConfigError, match="UTF-8"):
        documents.read(bad)


def test_override_is_typed_and_makes_mappings_on_the_way():
    given = ["a.b=1e-3", "d.e.f=[x, 2]", "a.c=null", "g=p=q"]
    document = documents.parse("a: {b: 1, c: [1]}\n", "c.yaml", given)
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
        ("a.b=1", "a is 3 in c.yaml and has no keys"),
        ("a=[1", "--set a=.1: must be valid YAML"),
        ("a={x: 1, x: 2}", "a key is given once"),
    ],
)
def test_a_bad_override_is_refused(assignment, fault):
    try:
        found = documents.parse("a: 3\n", "c.yaml", [assignment]).faults
    except errors.ConfigError as e:
        found = [str(e)]
    assert re.search(fault, *found)


def test_what_an_alias_shares_is_overridden_in_one_place_alone():
    text = "a: &a {x: 1, y: {z: 1}}\nb: *a\nc: {<<: *a}\n"
    document = documents.parse(text, "c.yaml", ["b.x=2", "c.y.z=3"])
    assert document.data == {
        "a": {"x": 1, "y": {"z": 1}},
        "b": {"x": 2, "y": {"z": 1}},
        "c": {"x": 1, "y": {"z": 3}},
    }


def test_dumped_texts_that_look_like_numbers_stay_texts():
    data = {"a": "1e-3", "b": "1:30", "c": "2024-01-01", "d": "yes", "e": 1e-5, "f": [], "g": {}}
    assert documents.parse(documents.dump(data), "c.yaml").data == data
