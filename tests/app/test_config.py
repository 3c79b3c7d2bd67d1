"""A config is checked whole; what is right reads back as it was."""

import os
import pathlib
from typing import get_args

import pydantic
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate import errors
from replicate.app.config import catalog, config, sections, types

DIGITS = pathlib.Path(__file__).parents[2] / "configs" / "digits.yaml"

SMALL = """
model_fn: package.module:function
train: {steps: 10, input: {kind: npz, file: d.npz}}
"""
EVALUATED = SMALL + "eval: {every_steps: 1, input: 'a:b'}\n"
LASTING = "model_fn: a:b\ntrain:\n  input: a:rows\n"


def load(tmp_path, text, *assignments, **options):
    """Loads a config from text."""
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode())
    return config.load(str(path), assignments, **options)


def faults_of(tmp_path, text, *assignments):
    """Returns the faults of a config, a list of lines, without the folder."""
    with pytest.raises(errors.ConfigError) as caught:
        load(tmp_path, text, *assignments)
    return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()


def starts(faults):
    """Returns faults without the file and without what came."""
    return [one.partition(", got")[0].removeprefix("c.yaml:") for one in faults]


def test_defaults_come_with_their_role(tmp_path):
    read = load(tmp_path, EVALUATED)
    assert (read.name, read.model_dir) == ("c", os.path.join("runs", "c"))
    assert (read.train.input.shuffle, read.train.input.repeat) == (True, True)
    assert (read.eval.input.shuffle, read.eval.input.repeat) == (False, False)
    function = load(tmp_path, LASTING + "  steps: 1\n").train.input
    assert (function.function, function.shuffle, function.repeat) == ("a:rows", False, True)


def test_a_section_is_there_or_asked_for(tmp_path):
    read = load(tmp_path, SMALL)
    assert read.section(sections.Train) is read.train
    with pytest.raises(errors.ConfigError, match=r"^predict: this section is required\. Add it\.$"):
        read.section(sections.Predict)


def test_paths_are_relative_to_the_config_and_model_dir_is_not(tmp_path):
    read = load(tmp_path, SMALL, "model_dir=out")
    assert read.train.input.file == str(tmp_path / "d.npz")
    assert read.model_dir == "out"
    assert load(tmp_path, SMALL, model_dir="other").model_dir == "other"
    at_home = load(tmp_path, SMALL, "train.input.file=~/x").train.input.file
    assert at_home == os.path.expanduser("~/x")


def test_what_was_read_does_not_change(tmp_path):
    read = load(tmp_path, SMALL)
    for section, key in [(read, "seed"), (read.train, "steps"), (read.train.input, "file")]:
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            setattr(section, key, 3)


def test_all_faults_are_reported_at_once_in_their_order(tmp_path):
    text = (
        "modelfn: a:b\n"
        "model_fn: foo\n"
        "optimizer: {name: Momentun, momentum: 1}\n"
        "devices: [gpu0, '/gpu:0']\n"
        "train:\n"
        "  stepz: 3\n"
        "  input: {kind: csv, file: x.csv, columns: {a: flaot32}, shufle: true}\n"
        "eval: {input: {kind: npz}, steps: -1}\n"
    )
    faults = faults_of(tmp_path, text, "seed=yes")
    assert starts(faults) == [
        "1: modelfn: unknown key. Did you mean model_fn?",
        "2: model_fn: must be a function's name as package.module:function",
        "3: optimizer.name: must be one of " + ", ".join(catalog.OPTIMIZERS),
        "4: devices[0]: must be a device such as /gpu:0, GPU:0 or /device:CPU:1",
        "6: train.stepz: unknown key. Did you mean steps?",
        "7: train.input.columns.a: must be one of " + ", ".join(catalog.DTYPES),
        "7: train.input.shufle: unknown key. Did you mean shuffle?",
        "8: eval.input.file: the key is required here. Add it.",
        "8: eval.steps: must be at least 1",
        "--set seed=yes: seed: must be a whole number",
    ]
    assert faults[2].endswith("got 'Momentun'. Did you mean Momentum?")


BROKEN = r"""
optimizer={name: Momentum, learning_rate: 1} | optimizer.momentum: the key is required here. Add i
optimizer={name: Adam, beta3: 1} | optimizer.beta3: unknown key. Did you mean beta2?
optimizer={name: Adam, learning_rate: fast} | optimizer.learning_rate: must be a number or a mappi
optimizer={name: Adagrad, learning_rate: 1, initial_accumulator_value: -1} | must be at least 0
train.keep_checkpoint_max=2147483648 | train.keep_checkpoint_max: must be at most 2,147,483,647, g
optimizer={learning_rate: 1} | optimizer.name: the key is required here. Add it.
optimizer=Adamm | Did you mean Adam?
optimizer=Adagrad | optimizer.learning_rate: the key is required here. Add it.
optimizer={name: SGD, learning_rate: 1} | Did you mean GradientDescent?
optimizer={name: Adam, lr: 1} | optimizer.lr: unknown key. Did you mean learning_rate?
train.input={kind: npz, file: x, path: y} | train.input.path: unknown key. Did you mean file?
train.input={kind: csv, file: x, columns: [age]} | train.input.columns: must be a mapping of keys
train.input={kind: csv, file: x, columns: {a: int}} | Did you mean int32 or int64?
train.input={kind: tfrecord, file: x, features: {a: {dtype: double}}} | Did you mean float32?
devices=0 | devices: must be at least 1, got 0.
devices={cpu:2} | devices.cpu:2: must be one of gpu, cpu, got 'cpu:2'. Did you mean cpu?
run={gpu_allow_growth:true} | run.gpu_allow_growth:true: unknown key. YAML wants a space after the
train.input={kind:npz, file: x} | train.input.kind: the key is required here. Add it.
devices=true | devices: must be auto or a whole number or a list or a mapping of keys to values, g
devices={cpus: 2} | devices.cpus: must be one of gpu, cpu, got 'cpus'. Did you mean cpu?
cpus=2 | cpus: unknown key. Did you mean devices?
model_fn=mymodels.model_fn | Did you mean mymodels:model_fn?
train.input=my.data.rows | Did you mean my.data:rows?
optimizer=my.sgd | Did you mean my:sgd?
train.keep_best=true | train.keep_best: must be a mapping of keys to values, got True.
optimizer={name: Adam, learning_rate: {name: cosine}} | Did you mean cosine_decay?
optimizer={name: Adam, learning_rate: {name: cosine_decay, learning_rate: 1}} | decay_steps: the key
devices={gpu: 0} | devices.gpu: must be at least 1, got 0.
devices=[] | devices: must not be empty, got [].
loss_reduction=average | Did you mean mean?
strategy=miror | Did you mean mirrored?
tower_building=clone | tower_building: must be one of split, call, got 'clone'.
devices=[/device:XLA_GPU:0] | devices[0]: must be a device such as /gpu:0, GPU:0 or /device:CPU:1,
clip_global_norm=0 | clip_global_norm: must be above 0, got 0.
clip_global_norm=.nan | clip_global_norm: must be a finite number, got nan.
train.input.kind=cvs | Did you mean csv?
train.input.file="a\0b" | train.input.file: must be a text without the character 0, got 'a\x00b'
train.input.rows=[3, 3] | train.input.rows: must be [start, stop] with start below stop, got [3, 3
train.input.batch_size=0 | train.input.batch_size: must be at least 1, got 0.
train.input.batch_size=1e30 | train.input.batch_size: must be at most 9223372036854775807, got 1e+
train.input.shuffle=99999999999 | train.input.shuffle: must be at most 100,000,000, got 9999999999
seed=99999999999999999999 | seed: must be at most 9223372036854775807, got 99999999999999999999.
train.input.features=7 | train.input.features: must be a text or a list or a mapping of keys to va
train.input=3 | train.input: must be a mapping of keys to values, got 3.
train.input={file: x} | train.input.kind: the key is required here. Add it.
train.save_checkpoints={} | Did you mean save_checkpoints_secs?
eval={input: {kind: npz, file: x, repeat: true}} | eval.steps: must be set: eval.input repeats for
predict={input: {kind: npz, file: x, repeat: true}} | predict.input: must come to an end, got repe
export={inputs: {x: {dtype: float, shape: [null]}}} | Did you mean float32 or float64?
train.input={kind: csv, file: x, columns: {a: int32}, label: b} | label: must be one of columns
train.input={kind: csv, file: x, columns: {a: int32}, defaults: {b: 1}} | be for one of columns
train.input={kind: csv, file: x, columns: {a: int8}, defaults: {a: 1.5}} | must be int8
train.input={kind: csv, file: x, columns: {a: float32}, defaults: {a: null}} | got None.
train.input={kind: csv, file: x, columns: {a: string}, defaults: {a: 0010}} | must be string
train.input={kind: csv, file: x, columns: {a: int32}, delimiter: ab} | at most 1 character
train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, default: 1.5}}} | be int64
train.input={kind: tfrecord, file: x, features: {a: {dtype: int64}}, label: b} | one of features
name=3 | name: must be a text, got 3.
cluster={timeout: 1e300} | cluster.timeout: must be at most 1,000,000,000, got 1e+300.
cluster={timeout: .nan} | cluster.timeout: must be a finite number, got nan.
train.early_stopping={} | train.early_stopping: must come with eval.every_steps. Set that.
train.early_stopping={patience: 0} | train.early_stopping.patience: must be at least 1
train.keep_best={} | train.keep_best: must come with an eval section. Add one.
train.mixed_precision=true | train.mixed_precision: must come with an optimizer
train.hooks=[a] | train.hooks[0]: must be a function's name as package.module:f
train.input={CSV a, holdout: 1.0} | input.holdout: must be below 1, got 1.
train.input={CSV a, holdout: 0} | input.holdout: must be above 0, got 0
train.input={CSV a} ; eval={input: {CSV a, holdout: 0.1}} | eval: must have th
train.input={CSV [a, b], holdout: 0.2} ; eval={input: {CSV [b, c]}} | eval: must have the input.hold
tower_building=split ; loss_reduction=mean | must be left out with tower_building: split, which has
tower_building=split ; update_ops=first | must be left out with tower_building: split, which has one
tower_building=call ; random_numbers=one_device | must be left out with tower_building: call: each
loss_reduction=sum ; random_numbers=per_device | must be left out with loss_reduction: each tower dr
update_ops=mean ; random_numbers=one_device | must be left out with update_ops: each tower draws
loss_reduction=mean ; micro_batches=2 | must be left out with loss_reduction, which splits no graph
model_dir='runs/a[1]' | model_dir: must be a path without * ? [ and \, by which TensorFlow finds non
name='a*b' | model_dir: must be a path without * ? [ and \, by which TensorFlow finds none
model_dir=~nobody-is-called-so/runs | model_dir: must be a path in a home folder that is known, got
train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, default: [1, 2]}}} | be int64
train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, kind: sparse, shape: [2]}}} | kin
train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, default: {}}}} | got {}.
train.input={CSV gs://a/b.csv} | train.input.file: must be on this machine: tfrecord alone is read
train.input={kind: npz, file: 'gs://a/b.npz'} | train.input.file: must be on this machine
params=[] | params: must be a mapping of keys to values, got [].
run={threads: 1} | run.threads: unknown key. Known: allow_soft_placement, gpu_allow_growth, inter_
random_number=one_device | random_number: unknown key. Did you mean random_numbers?
run={"\0csv": 1} | keys are plain words.
train.input={kind: npz, file: x, "\0npz": 1} | keys are plain words.
train.input={kind: npz, file: x, "[key]": 1} | train.input.[key]: unknown key. Known: batch_size,
train.input={kind: csv, file: x, columns: {a: int32}, delimiter: "\n"} | ends no line and is no
train.input={kind: csv, file: x, columns: {a: int32}, delimiter: "→"} | input.delimiter: must be an
train.input={kind: tfrecord, file: x, features: {a: {dtype: float32, default: 'x'}}} | be float32
"""


CSV = "kind: csv, columns: {x: float32}, file:"


@pytest.mark.parametrize(
    ("assignments", "fault"), [row.split(" | ") for row in BROKEN.strip("\n").splitlines()]
)
def test_a_broken_rule_is_named(tmp_path, assignments, fault):
    *before, last = assignments.replace("CSV", CSV).split(" ; ")
    (found,) = faults_of(tmp_path, SMALL, *before, last)
    assert found.startswith(f"--set {last.partition('=')[0]}")
    assert fault in found
    load(tmp_path, SMALL, *before)


@pytest.mark.parametrize(
    "assignments",
    [
        ("train.input=a:b", "eval={input: {kind: function, function: 'a:c'}}"),
        (f"train.input={{{CSV} a, holdout: 0.1}}", f"eval={{input: {{{CSV} [b, c]}}}}"),
        (f"train.input={{{CSV} a, holdout: 0.1}}", f"eval={{input: {{{CSV} a, holdout: 0.1}}}}"),
    ],
)
def test_other_rows_than_those_trained_on_may_be_evaluated(tmp_path, assignments):
    load(tmp_path, SMALL, *assignments)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"seed: 0x{'f' * 5000}", "seed: must be a value of the type int, got '0xfff"),
        (f"seed: {'9' * 5000}", "seed: must be a value of the type int, got '999"),
        (f"clip_global_norm: 1{'0' * 400}", "clip_global_norm: must be a number, got 1000"),
        (f"params: {{a: {'[' * 70}{']' * 70}}}", "params: must be at most 64 levels deep"),
        ('run: {"\\0csv": 1}', "run: keys are plain words"),
        (f"params: {{a: {'[' * 9000}{']' * 9000}}}", "must be at most 64 levels deep"),
    ],
)
def test_what_python_itself_would_refuse_is_named_by_its_line(tmp_path, line, fault):
    (found,) = faults_of(tmp_path, SMALL + line + "\n")
    assert fault in found
    assert found.startswith("c.yaml:1: " if "9000" in line else "c.yaml:")


@pytest.mark.parametrize(
    ("assignments", "fault"),
    [
        (["seed=1", "optimizer.name=Momentum"], "1: optimizer.momentum: the key is required here"),
        (["train.input.kind=csv", "seed=1"], "0: train.input.columns: the key is required here"),
        (["optimizer=null", "eval.input.repeat=true"], "1: eval.steps: must be set"),
    ],
)
def test_a_fault_that_an_assignment_brings_is_not_blamed_on_the_file(tmp_path, assignments, fault):
    text = SMALL + (
        "optimizer: {name: Adam, learning_rate: 1}\n"
        "eval: {input: {kind: npz, file: d.npz}}\n"
        "model_fm: a:b\n"
    )
    found = faults_of(tmp_path, text, *assignments)
    assert len(found) == 2
    number, _, rule = fault.partition(": ")
    assert any(one.startswith(f"--set {assignments[int(number)]}: {rule}") for one in found)
    assert any(one.startswith("c.yaml:6: model_fm: unknown key") for one in found)


@pytest.mark.parametrize("again", ["eval: {input: *data}", "eval:\n  input: {<<: *data}"])
def test_what_is_wrong_behind_an_anchor_is_one_fault(tmp_path, again):
    text = "model_fn: a:b\ntrain:\n  steps: 1\n  input: &data\n    kind: npz\n    files: d.npz\n"
    expected = ["c.yaml:6: train.input.files: unknown key. Did you mean file?"]
    assert faults_of(tmp_path, f"{text}{again}\npredict: {{input: *data}}\n") == expected


def test_what_lacks_behind_an_anchor_is_one_fault(tmp_path):
    text = "model_fn: a:b\ntrain: {steps: 1, input: &data {kind: npz}}\neval: {input: *data}\n"
    assert starts(faults_of(tmp_path, text)) == [
        "2: train.input.file: the key is required here. Add it."
    ]
    # Each one's own fault stays its own, and so do two equal ones in one line.
    text += "predict: {input: {<<: *data, fille: x, batch_size: 0}}\n"
    assert len(faults_of(tmp_path, text)) == 3
    twins = "export: {inputs: {x: {dtype: a}, y: {dtype: a}}}\n"
    assert len(faults_of(tmp_path, SMALL + twins)) == 2


def test_rules_between_keys_are_told_once_the_keys_are_right(tmp_path):
    text = (
        "model_fn: a.b\n"
        "train:\n"
        "  steps: 1\n"
        "  save_checkpoints_steps: 1\n"
        "  save_checkpoints_secs: 1\n"
        "  input: {kind: csv, file: x.csv, columns: {bought: int8}, label: bougt}\n"
        "eval: {input: {kind: npz, file: x.npz, repeat: true}}\n"
    )
    found = faults_of(tmp_path, text)
    assert [one.partition(": must")[0] for one in starts(found)] == [
        "1: model_fn",
        "6: train.input.label",
        "7: eval.steps",
    ]
    assert found[1].endswith("must be one of columns, got 'bougt'. Did you mean bought?")
    # Those of a section, once its own keys are right; those of all sections, once all are.
    text = text.replace("a.b", "a:b").replace("bougt", "bought").replace(", repeat: true", "")
    text += "loss_reduction: sum\ntower_building: split\n"
    (fault,) = faults_of(tmp_path, text)
    assert fault.startswith("c.yaml:5: train.save_checkpoints_secs: must be alone")
    text = text.replace("  save_checkpoints_secs: 1\n", "  early_stopping: {}\n")
    text = text.replace("  steps: 1\n", "  steps: 1\n  mixed_precision: true\n")
    assert [one.partition(": must")[0] for one in starts(faults_of(tmp_path, text))] == [
        "4: train.mixed_precision",
        "6: train.early_stopping",
        "9: loss_reduction",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{early_stopping: {}, steps: 1, input: 'a:b'}\neval: {input: 'a:c', every_step: 5}",
        "{early_stopping: {}, steps: 1, input: 'a:b'}\neval: {input: 'a:c', every_steps: ${NOT}}",
        "{keep_best: {}, steps: 1, input: 'a:b'}\nevl: {input: 'a:c'}",
        "{steps: 1, input: {kind: csv, file: x, columns: {a: flaot32}, label: a}}",
        "{steps: 1, input: {kind: csv, file: x, columns: {}, label: a}}",
        "{steps: 1, input: {kind: csv, file: x, columns: [a], label: b}}",
        "{steps: 1, input: {kind: '${NOT}', file: x}}",
        "{steps: 1, input: {kind: csv, fil: x, columns: {a: int8}}}\n"
        "eval: {input: {kind: csv, file: x, columns: {a: int8}, holdout: 0.1}}",
    ],
)
def test_rules_about_keys_that_are_wrong_are_not_told(tmp_path, text):
    (fault,) = faults_of(tmp_path, f"model_fn: a:b\ntrain: {text}\n")
    assert "must have the" not in fault
    assert "must come" not in fault


def test_all_wrong_items_of_lists_and_mappings_are_told(tmp_path):
    table = "columns: {a: flaot32, b: int8, c: int8}"
    text = (
        "model_fn: a:b\n"
        "optimizer: {name: Adam, learning_rate:\n"
        "  {name: piecewise_constant, boundaries: [1, x, 3], values: [1, 2]}}\n"
        f"train: {{steps: 1, input: {{kind: csv, file: [a.csv, 3], holdout: 0.1, {table}}}}}\n"
        "eval:\n"
        "  input: {kind: tfrecord, file: a.csv, features: {x: {dtype: foat32}}}\n"
    )
    assert starts(faults_of(tmp_path, text)) == [
        "3: optimizer.learning_rate.boundaries[1]: must be a whole number",
        "4: train.input.file[1]: must be a text",
        "4: train.input.columns.a: must be one of " + ", ".join(catalog.DTYPES),
        "6: eval.input.features.x.dtype: must be one of float32, int64, string",
    ]
    table = "kind: csv, file: x, columns: {b: int8, c: int8}, label: y, defaults: {b: x, c: z}"
    assert starts(faults_of(tmp_path, f"model_fn: a:b\npredict: {{input: {{{table}}}}}\n")) == [
        "2: predict.input.label: must be one of columns",
        "2: predict.input.defaults.b: must be int8 as its column is",
        "2: predict.input.defaults.c: must be int8 as its column is",
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("model_fn: a:b\ntrain: {epoch: 1, input: 'a:b'}", ["2: train.epoch: unknown key."]),
        ("modelfn: a:b", ["1: modelfn: unknown key. Did you mean model_fn?"]),
        (
            "model_fn: a:b\ntrain: {steps: -1, stesp: 1, input: 'a:b'}",
            ["2: train.steps: must be at least 1", "2: train.stesp: unknown key."],
        ),
        (
            "model_fn: a:b\ntrain: {steps: 1, inptu: 'a:b', keep_best: {metric: m, higher: true}}",
            ["2: train.inptu: unknown key.", "2: train.keep_best.higher: unknown key. Did you m"],
        ),
    ],
)
def test_of_a_mistyped_key_not_told_that_the_right_one_is_missing(tmp_path, text, faults):
    found = faults_of(tmp_path, text + "\n")
    assert len(found) == len(faults)
    for one, start in zip(found, faults, strict=True):
        assert one.startswith(f"c.yaml:{start}")


@pytest.mark.parametrize(
    ("is_higher", "metrics"),
    [
        (
            True,
            "accuracy head/auc_precision_recall Top-5_accuracy precision/positive_threshold_0.5",
        ),
        (False, "loss average_loss rmse false_positives"),
        (None, "score label/mean neg_mean_squared_error accuracy_loss one_minus_auc accuracy_drop"),
    ],
)
def test_which_way_a_metric_is_better_is_known_or_must_be_said(tmp_path, metrics, is_higher):
    for metric in metrics.split():
        given = f"train.keep_best={{metric: {metric}}}"
        if is_higher is None:
            (fault,) = faults_of(tmp_path, EVALUATED, given)
            rule = f"must be given, true or false: the name {metric!r}"
            assert f"train.keep_best.higher_is_better: {rule}" in fault
        else:
            known = load(tmp_path, EVALUATED, given)
            assert known.train.keep_best.higher_is_better is is_higher
            assert load(tmp_path, config.to_yaml(known)) == known
    said = f"train.keep_best={{metric: {metric}, higher_is_better: {not is_higher}}}"
    assert load(tmp_path, EVALUATED, said).train.keep_best.higher_is_better is not is_higher


def test_an_optimizer_without_needs_may_be_a_bare_name(tmp_path):
    read = load(tmp_path, SMALL, "optimizer=Adam")
    assert read == load(tmp_path, SMALL, "optimizer={name: Adam}")
    assert read.optimizer.arguments["learning_rate"] == 0.001


VALUES = {"boundaries": [3, 9], "values": [0.3, 0.2, 0.1]}


@pytest.mark.parametrize("name", [*catalog.OPTIMIZERS, *catalog.SCHEDULES])
def test_every_optimizer_and_schedule_reads_back(tmp_path, name):
    row = {**catalog.OPTIMIZERS, **catalog.SCHEDULES}[name]
    needed = {key: VALUES.get(key, 2) for key, one in row.items() if one is catalog.REQUIRED}
    given_values, is_schedule = {"name": name, **needed}, name in catalog.SCHEDULES
    optimizer = {"name": "GradientDescent", "learning_rate": given_values}
    optimizer = optimizer if is_schedule else given_values
    read = load(tmp_path, SMALL + yaml.safe_dump({"optimizer": optimizer})).optimizer
    arguments = read.arguments["learning_rate"].arguments if is_schedule else read.arguments
    assert set(arguments) - {"warmup_steps"} == set(row)
    read = load(tmp_path, SMALL + yaml.safe_dump({"optimizer": optimizer}))
    assert load(tmp_path, config.to_yaml(read)) == read


def test_the_digits_config_reads_back_from_anywhere(tmp_path):
    read = config.load(str(DIGITS))
    assert load(tmp_path, config.to_yaml(read)) == read
    assert yaml.safe_load(config.to_yaml(read))["train"]["steps"] == read.train.steps


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts.filter(bool), inner, max_size=3)
    ),
    max_leaves=6,
)
configs = st.fixed_dictionaries(
    {
        "model_fn": st.just("a.b:c"),
        "params": st.dictionaries(texts.filter(bool), plain_values, max_size=4),
        "devices": st.sampled_from(["auto", ["/gpu:0", "CPU:1"], {"gpu": 4}, {"cpu": 2}, 3]),
        "loss_reduction": st.sampled_from([None, "sum", "mean"]),
        "strategy": st.sampled_from([None, *get_args(catalog.Strategy)]),
        "accumulate_steps": st.integers(1, 9),
        "clip_global_norm": st.none() | st.floats(1e-6, 1e6),
        "seed": st.none() | st.integers(0, 2**31),
        "train": st.none()
        | st.fixed_dictionaries(
            {
                "steps": st.integers(1, 10**9),
                "input": st.sampled_from(
                    [
                        {"kind": "csv", "file": ["a", "b"], "columns": {"1e3": "int32"}},
                        {"kind": "npz", "file": "a", "features": {"x": "y"}, "rows": [None, 3]},
                        {"kind": "function", "function": "a:b", "shuffle": 10},
                        {
                            "kind": "tfrecord",
                            "file": "*.r",
                            "features": {"x": {"dtype": "int64", "default": 1}},
                        },
                    ]
                ),
            }
        ),
    }
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(configs)
def test_any_config_reads_back_equal(tmp_path, data):
    text = yaml.safe_dump(data, allow_unicode=True)
    read = load(tmp_path, text)
    assert load(tmp_path, config.to_yaml(read)) == read


def test_a_training_lasts_for_steps_or_epochs_or_both(tmp_path):
    assert faults_of(tmp_path, LASTING) == [
        "c.yaml:2: train.steps: must be given, or epochs: how long to train. Add one of them."
    ]
    assert faults_of(tmp_path, LASTING + "  epochs: 0\n") == [
        "c.yaml:4: train.epochs: must be at least 1, got 0."
    ]
    for lasting in ("epochs: 2", "steps: 2", "epochs: 2\n  steps: 3"):
        load(tmp_path, f"{LASTING}  {lasting}\n")


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("ident", ["rent", "id"], "id"),
        ("ident", ["rent", "day"], "rent"),
        ("lat", ["late_fee", "latitude"], "latitude"),
        ("lable", ["label", "l"], "label"),
        ("epochs", ["epoch", "epochs_"], "epochs_"),
        ("xyz", ["rent", "id"], ""),
    ],
)
def test_the_nearest_word_begins_alike_before_it_looks_alike(word, known, meant):
    assert types.nearest(word, known) == meant


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1000", 1000),
        ("64MB", 64_000_000),
        ("64 MiB", 67_108_864),
        ("1.5kB", 1500),
        ("2GB", 2 * 10**9),
        ("7B", 7),
    ],
)
def test_bytes_are_written_with_their_unit(tmp_path, written, expected):
    read = load(tmp_path, SMALL + f"strategy: {{name: balanced, slice_bytes: {written}}}\n")
    assert (read.strategy_name, read.slice_bytes) == ("balanced", expected)


def test_a_strategy_is_a_name_or_has_slices(tmp_path):
    named = load(tmp_path, SMALL + "strategy: balanced\n")
    assert (named.strategy_name, named.slice_bytes) == ("balanced", None)
    for strategy, expected in {
        "{name: mirrored, slice_bytes: 1}": "name: must be one of balanced, round_robin",
        "{name: balanced, slice_bytes: 64XB}": "slice_bytes: must be a number of bytes, such as ",
        "{name: balanced, slice_bytes: 1.5.5MB}": "slice_bytes: must be a number of bytes",
        '{name: balanced, slice_bytes: "1,000MB"}': "slice_bytes: must be a number of bytes",
        "{name: balanced}": "slice_bytes: the key is required here",
    }.items():
        (fault,) = faults_of(tmp_path, SMALL + f"strategy: {strategy}\n")
        assert fault.startswith(f"c.yaml:4: strategy.{expected}")
