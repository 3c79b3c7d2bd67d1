"""Whatever stands in a config, `check` says what is wrong, or that nothing is."""

import contextlib
import copy
import io
import pathlib
import tempfile

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.app.command import cli

RICH = """
name: rich
model_fn: a.b:c
optimizer: {name: Momentum, momentum: 0.9, learning_rate: {name: piecewise_constant,
  boundaries: [3, 9], values: [0.3, 0.2, 1e-3]}}
params: {layers: [64, 32], rates: {a: 1e-3}, name: null}
devices: [/gpu:0, 'CPU:1']
clip_global_norm: 1
train:
  steps: ${R_STEPS:1000}
  input: &data
    kind: csv
    file: [a.csv, ~/b.csv]
    columns: {x: float32, y: int64}
    label: y
    defaults: {x: 0}
    shuffle: 100
eval: {steps: 3, input: {<<: *data, repeat: true}}
predict: {keys: [p],
  input: {kind: tfrecord, file: '*.r', features: {x: {dtype: int64, shape: [3]}}}}
export: {inputs: {x: {dtype: float32, shape: [null, 3]}}}
run: {per_process_gpu_memory_fraction: 0.5}
"""
CONFIGS = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.yaml"))
TEXTS = [RICH, *(path.read_text(encoding="utf-8") for path in CONFIGS)]

WORDS = ["\0csv", *"[key] kind name steps input extends params csv best Adam << x".split()]
KEYS = st.sampled_from(WORDS) | st.text(max_size=4)
VALUES = st.sampled_from(
    [
        *(None, True, -1, 0, 1.5, 1e300, 10**400, float("inf"), float("nan"), "", "a:b", "auto"),
        *("~x/y", "\0", "${R_NONE}", "${", "c.yaml", "/cpu:0", [], {}, [[]], [None], WORDS),
        *({"kind": "npz"}, {"name": "Adam"}, {"kind": []}, {"name": {}}, {"cpu": "x"}, [3, 2, 1]),
    ]
) | st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
GARBAGE = [
    *"&a [*a];*data;&data ;*none;!!python/object/apply:os.getcwd [];!!int x;!!set ".split(";"),
    *"<<: *data;<<: 3;? [1]\n: 2;---\n;...\n;%YAML 9\n;\t;\0;\ufeff;\u2028;\ud83d\ude00".split(";"),
    *"{;};[;];:;: ;- ;#;|;>;';\";\\;\n;\n  ;${;$${;}};[".split(";"),
    *("[" * 200, "{a: " * 100, "9" * 5000, "0x" + "f" * 5000, "x" * 5000),
    *"1e999;.nan;0o9;1:30;extends: c.yaml\n;extends: /dev/zero\n;extends: [;${R_NONE:${X}}".split(
        ";"
    ),
    "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))]),
]


def paths_of(value, path=()):
    """Yields the path of everything below a value."""
    if not isinstance(value, dict | list):
        return
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        yield from paths_of(child, (*path, key))


def drop(draw, parent, key):
    """Takes a value away."""
    del parent[key]


def rename(draw, parent, key):
    """Gives a value another key, or place."""
    value = parent.pop(key)
    if isinstance(parent, dict):
        parent[draw(KEYS)] = value
    else:
        parent.append(value)


def retype(draw, parent, key):
    """Puts another value in place of one."""
    parent[key] = copy.deepcopy(draw(VALUES))


def nest(draw, parent, key):
    """Puts a value into a mapping or a list."""
    parent[key] = draw(
        st.sampled_from([[parent[key]], {draw(KEYS): parent[key]}, [[[parent[key]]]]])
    )


def repeat(draw, parent, key):
    """Puts a value in a second place."""
    value = copy.deepcopy(parent[key])
    if isinstance(parent, dict):
        parent.setdefault(draw(KEYS), value)
    else:
        parent.append(value)


CHANGES = [drop, rename, retype, nest, repeat]


def changed(draw, data):
    """Returns nested data in which values were changed."""
    for change in draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3)):
        paths = list(paths_of(data))
        if not paths:
            break
        *way, key = draw(st.sampled_from(paths))
        parent = data
        for part in way:
            parent = parent[part]
        change(draw, parent, key)
    return data


def edited(draw, text, garbage, most=3):
    """Returns text, or bytes, with something cut, repeated, or put in."""
    anything = st.binary(max_size=4) if isinstance(text, bytes) else st.text(max_size=3)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 30)))
        put_in = draw(st.sampled_from(garbage) | anything | st.just(text[start:end] * 2))
        text = text[:start] + put_in + text[end:]
    return text


@st.composite
def mutated_data(draw):
    """Returns the text of a config whose values were changed."""
    data = changed(draw, yaml.safe_load(draw(st.sampled_from(TEXTS))))
    return yaml.safe_dump(data, allow_unicode=True)


@st.composite
def mutated_text(draw):
    """Returns the text of a config with something cut, repeated, or put in."""
    return edited(draw, draw(st.sampled_from(TEXTS)), GARBAGE)


MUTATED = mutated_data() | mutated_text()


def check_answers(text):
    """Lets `replicate check` read a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "c.yaml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["check", str(path)])
    assert code in (0, 2), err.getvalue()
    said = err.getvalue() if code else out.getvalue()
    assert "c.yaml" in said
    assert "Traceback" not in said


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MUTATED)
def test_check_answers_to_any_mutation(text):
    check_answers(text)
