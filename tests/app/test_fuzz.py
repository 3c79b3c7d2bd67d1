"""Whatever stands in a data file or in TF_CONFIG, reading it is done or ends in our errors.

`scripts/fuzz.py` does the same for longer, guided by the lines that are reached; what is mutated
in a config is in test_mutations.
"""

import contextlib
import gzip
import io
import json
import pathlib
import runpy
import struct
import sys
import tempfile
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from replicate import errors
from replicate.app.config import catalog, config, input_config, sections
from replicate.app.data import inputs, npz, reading, tables
from replicate.app.inspect import samples, starter
from replicate.compat.tensorflow import tf, tf1
from replicate.strategy.cluster import cluster as clusters
from tests.app import test_mutations as mutations

DTYPES = st.sampled_from(catalog.DTYPES)
KEY = "k"
ours = contextlib.suppress(errors.ReplicateError)


@contextlib.contextmanager
def file_of(data):
    """Yields the path of a file with some bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "data")
        path.write_bytes(data)
        yield str(path)


def begin_with(path):
    """Lets `replicate init` look at a file; the config that it writes must be a good one."""
    text = None
    with ours:
        text = starter.text("a.b:c", samples.look(path), f"{path}.yaml")
    if text is not None:
        pathlib.Path(f"{path}.yaml").write_text(text, encoding="utf-8")
        config.load(f"{path}.yaml")


@st.composite
def edited(draw, good, garbage):
    """Returns bytes with something cut, repeated or put in, or as they are."""
    data = draw(st.sampled_from(good))
    return mutations.edited(draw, data, garbage) if draw(st.integers(0, 9)) else data


# Comma-separated text.

ROWS = b'name,age,share,ok\nann,31,0.5,true\n"bo, the 2nd",-7,1e3,false\n\n,0,nan,1\n'
CSV = [
    ROWS,
    ROWS.replace(b"\n", b"\r\n"),
    b"\xef\xbb\xbf" + ROWS,
    b"",
    gzip.compress(ROWS, 9, mtime=0),
]
CELLS = [
    *(b",", b"\n", b"\r", b'"', b'""', b";", b"\t", b"\0", b"\x1f\x8b", b"\xff", b"\xef\xbb\xbf"),
    *(
        b"1_0",
        b"1e400",
        b"-",
        b"inf",
        b"NA",
        b"0x1",
        b"9" * 20,
        b"9" * 5000,
        b"x" * 140_000,
        b"age",
    ),
    *("١".encode(), "\u2028".encode(), b" 1 ", b"True", b"PK\x03\x04", b"PAR1", b"name,age\n"),
]
COLUMNS = st.dictionaries(st.sampled_from(["name", "age", "share", "ok", "x"]), DTYPES, min_size=1)


@st.composite
def given_tables(draw):
    """Returns the bytes of a CSV file, and the keys of an input that reads it."""
    columns = draw(COLUMNS)
    keys = {
        "columns": columns,
        "label": draw(st.sampled_from([None, *columns])),
        "header": draw(st.booleans()),
        "delimiter": draw(st.sampled_from(",;\t ")),
        "na_values": draw(st.sampled_from([(), ("NA", "-")])),
        "holdout": draw(st.sampled_from([None, 0.5])),
    }
    return draw(edited(CSV, CELLS)), keys


def read_csv(given_table):
    """Reads a table as a training does."""
    data, keys = given_table
    with file_of(data) as path:
        with ours:
            features, label = tables.read(input_config.Csv(file=(path,), **keys), KEY)
            columns = [*features.values(), *(() if label is None else (label,))]
            assert len({len(column) for column in columns}) == 1
        begin_with(path)


# Archives of arrays.

ARRAYS = {
    "x": np.arange(6, dtype=np.float32).reshape(3, 2),
    "y": np.array([1, 0, 2]),
    "words": np.array(["a", "bc", "é"]),
    "flags": np.array([True, False, True]),
}


def archive(members, compression=zipfile.ZIP_STORED):
    """Returns the bytes of an archive with some members, by name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as found:
        for name, data in members.items():
            found.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def member(array, version=None):
    """Returns an array as an archive has it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=True)
    return file.getvalue()


MEMBERS = {name: member(array) for name, array in ARRAYS.items()}
ODD = {
    "object": member(np.array([{}, None], object)),
    "record": member(np.zeros(3, [("a", "i4"), ("b", "f8", 2)])),
    "date": member(np.array(["2020-01-01"] * 3, "M8[D]")),
    "complex": member(np.zeros(3, np.complex64)),
    "single": member(np.array(1.5)),
    "empty": member(np.zeros((0, 2))),
    "wide": member(np.zeros((3, 0), "f4")),
    "fortran": member(np.asfortranarray(np.eye(3))),
    "big": member(np.arange(3, dtype=">i8")),
    "bytes": member(np.array([b"\xff", b"a", b""])),
    "half": member(np.zeros(3, np.float16), (2, 0)),
    "nothing": b"",
    "text": b"hello",
}
PIECES = [
    *(b"|O", b"<f4", b"<f8", b">i2", b"|V3", b"|S0", b"<U9", b"<M8[ns]", b"|b1", b"<c16", b"<f16"),
    *(b"True", b"False", b"(3,)", b"(-1,)", b"(2**63,)", b"(9999999999,)", b"()", b"'descr'", b"{"),
    *(
        b"\x93NUMPY",
        b"\x93NUMPY\x03\x00",
        b"\x00\x00\x00\x00",
        b"\xff\xff",
        b"PK\x01\x02",
        b"(" * 300,
    ),
]
NAMES = [*ARRAYS, *ODD, "../x", "/x", "a/b", "x.npy", "é"]
NAMED = st.sampled_from(NAMES)
STORED = st.sampled_from([*NAMES, ""])


@st.composite
def archives(draw):
    """Returns the bytes of an npz file, and the keys of an input that reads it."""
    parts = {**MEMBERS, **ODD}
    chosen = draw(st.lists(st.sampled_from([*MEMBERS, *ODD]), min_size=1, max_size=4, unique=True))
    members = {}
    for name in chosen:
        data = draw(edited([parts[name]], PIECES))
        members[draw(st.just(name) | STORED) + draw(st.sampled_from([".npy", ""]))] = data
    whole = archive(members, draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
    keys = {
        "features": draw(st.none() | st.lists(NAMED, min_size=1, max_size=3).map(tuple) | NAMED),
        "label": draw(st.none() | NAMED),
        "rows": draw(st.sampled_from([None, (0, 2), (1, None), (2, 9)])),
    }
    return draw(st.just(whole) | edited([whole], PIECES)), keys


def read_npz(given_archive):
    """Reads an archive as a training does."""
    data, keys = given_archive
    with file_of(data) as path:
        with ours:
            npz.read(input_config.Npz(file=path, **keys), KEY)
        begin_with(path)


# Records.


def example(**features):
    """Returns a tf.train.Example as bytes."""
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    made = tf.train.Example()
    for name, values in features.items():
        field = made.features.feature[name]
        for value in values:
            getattr(field, kinds[type(value)]).value.append(value)
    return made.SerializeToString()


EXAMPLES = [
    example(x=[1.0, 2.0], y=[1], w=[b"a", b"bc"]),
    example(x=[3.0, 4.0], y=[0]),
    example(x=[1.0], y=[b"1"], w=[]),
    b"",
    b"hello",
]
BYTES = [
    *(b"\0", b"\xff", b"\x0a\x00", b"\xff" * 8, b"\x80" * 10, b"\x12\x01", b"\n" * 40, b"x", b"y")
]
FEATURES = {
    "fixed": st.fixed_dictionaries(
        {"dtype": st.sampled_from(["float32", "int64", "string"])},
        optional={"shape": st.sampled_from([(), (2,), (0,), (1, 2)])},
    ),
    "varied": st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["float32", "int64", "string"]),
            "kind": st.sampled_from(["sparse", "ragged"]),
        }
    ),
}


def framed(records):
    """Returns records as a file has them, with their checksums."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "data")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        return path.read_bytes()


@st.composite
def records(draw):
    """Returns the bytes of a TFRecord file, and the keys of an input that reads it."""
    found = framed(draw(st.lists(edited(EXAMPLES, BYTES) | st.sampled_from(EXAMPLES), max_size=4)))
    data = draw(st.just(found) | edited([found], [*BYTES, struct.pack("<Q", 2**62)]))
    features = draw(
        st.dictionaries(
            st.sampled_from("xyw"), st.one_of(*FEATURES.values()), min_size=1, max_size=3
        )
    )
    keys = {"features": features, "label": draw(st.sampled_from([None, *features]))}
    keys["compression"] = draw(st.sampled_from(["none", "none", "none", "GZIP", "ZLIB"]))
    return draw(st.just(data) | st.just(gzip.compress(data, mtime=0))), keys


def read_tfrecord(given_records):
    """Reads records as an evaluation does."""
    data, keys = given_records
    features = {name: input_config.Feature(**one) for name, one in keys["features"].items()}
    with file_of(data) as path:
        source = input_config.Tfrecord(file=(path,), **{**keys, "features": features})
        held = config.Config.model_construct(model_dir="none")
        vars(held)["eval"] = sections.Eval(input=source)
        with ours, tf.Graph().as_default(), tf1.Session() as session:
            make = inputs.input_fn(source, "eval.input", "eval", {})
            element = tf1.data.make_one_shot_iterator(make()).get_next()
            with reading.naming(held, "eval"), contextlib.suppress(tf.errors.OutOfRangeError):
                for _ in range(5):
                    session.run(element)
        begin_with(path)


# TF_CONFIG.

CLUSTERS = [
    {
        "cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    },
    {"cluster": {"worker": ["[::1]:9"], "ps": ["p:4"]}, "task": {"type": "ps", "index": "0"}},
    {
        "cluster": {"master": ["m:1"], "evaluator": ["e:5"]},
        "task": {"type": "evaluator", "index": 0},
    },
    {"cluster": {}, "environment": "cloud"},
]
TEXTS = [json.dumps(one) for one in CLUSTERS]
SCRAPS = [
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "null",
        "NaN",
        "-1",
        "1.5",
        "1e999",
        "9" * 5000,
        "[" * 100_000,
    ),
    *(
        '{"a":' * 50_000,
        "\\ud800",
        "\\u0000",
        "\0",
        "a:0",
        "a:65536",
        "a:" + "9" * 5000,
        "a:١",
        "\ud83d",
    ),
]


@st.composite
def mutated_clusters(draw):
    """Returns JSON whose values were changed."""
    data = mutations.changed(draw, json.loads(draw(st.sampled_from(TEXTS))))
    with contextlib.suppress(ValueError):
        return json.dumps(data)
    return "{}"


@st.composite
def mutated_texts(draw):
    """Returns JSON with something cut, repeated, or put in."""
    return mutations.edited(draw, draw(st.sampled_from(TEXTS)), SCRAPS)


def read_tf_config(text):
    """Reads a cluster as a task does when it starts."""
    with ours:
        found = clusters.of(text)
        tf.train.ClusterSpec(found.spec())
        json.dumps(found.as_environment())
        assert found.own in (*found.tasks, *found.servers) or found.own.job == "evaluator"


class What(NamedTuple):
    """What is read.

    Attributes:
        given: What it may be.
        read: Reads it; raises what is not ours.
        examples: How many the suite takes.
    """

    given: SearchStrategy
    read: object
    examples: int = 100


WHAT = {
    "config": What(mutations.MUTATED, mutations.check_answers),
    "csv": What(given_tables(), read_csv, 100),
    "npz": What(archives(), read_npz, 150),
    "tfrecord": What(records(), read_tfrecord, 30),
    "tf_config": What(mutated_clusters() | mutated_texts(), read_tf_config, 200),
}


def one_input(what):
    """Returns the function of bytes that a fuzzer calls; what fails is kept for the tests."""
    return checks(what).hypothesis.fuzz_one_input


def checks(what):
    """Returns the test of one kind of input."""
    one = WHAT[what]
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run = settings(max_examples=one.examples, deadline=None, suppress_health_check=slow)
    return run(given(one.given)(one.read))


@pytest.mark.thorough("npz", "csv", "tf_config")
@pytest.mark.parametrize("what", [name for name in WHAT if name != "config"])
def test_reading_ends_well_or_in_an_error_of_ours(what):
    checks(what)()


def test_the_script_offers_all_of_it(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    script = pathlib.Path(__file__).parents[2] / "scripts" / "fuzz.py"
    assert tuple(WHAT) == runpy.run_path(str(script))["WHAT"]
