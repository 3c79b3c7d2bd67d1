"""A config is checked whole; what is right reads back as it was."""

import os
import pathlib

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


def load(tmp_path, text, *assignments, **options):
    """Loads a config from text."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return config.load(str(path), assignments, **options)


def faults_of(tmp_path, text, *assignments):
    """Returns the faults of a config, a list of lines, without the folder."""
    with pytest.raises(errors.ConfigError) as caught:
        load(tmp_path, text, *assignments)
    return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()


def test_defaults_come_with_their_role(tmp_path):
    text = SMALL + "eval: {input: {kind: npz, file: d.npz}}\n"
    read = load(tmp_path, text)
    assert (read.name, read.model_dir) == ("c", os.path.join("runs", "c"))
    assert (read.train.input.shuffle, read.train.input.repeat) == (True, True)
    assert (read.eval.input.shuffle, read.eval.input.repeat) == (False, False)


def test_a_section_is_there_or_asked_for(tmp_path):
    read = load(tmp_path, SMALL)
    assert read.section(sections.Train) is read.train
    with pytest.raises(errors.ConfigError, match=r"^predict: this section is required\. Add it\.$"):
        read.section(sections.Predict)


def test_a_function_in_training_is_not_shuffled_by_itself(tmp_path):
    read = load(tmp_path, "model_fn: a:b\ntrain: {steps: 1, input: 'a.b:c'}\n")
    assert read.train.input.function == "a.b:c"
    assert (read.train.input.shuffle, read.train.input.repeat) == (False, True)


def test_paths_are_relative_to_the_config_and_model_dir_is_not(tmp_path):
    read = load(tmp_path, SMALL, "model_dir=out")
    assert read.train.input.file == str(tmp_path / "d.npz")
    assert read.model_dir == "out"
    assert load(tmp_path, SMALL, model_dir="other").model_dir == "other"


@pytest.mark.parametrize("place", ["runs/a[1]", "a*b", "a?", "x\\y"])
def test_a_model_dir_is_no_pattern(tmp_path, place):
    # TensorFlow's latest_checkpoint takes paths for patterns: [1] is found where 1 is.
    (fault,) = faults_of(tmp_path, SMALL, f"model_dir='{place}'")
    assert "model_dir: must be a path without * ? [ and \\, by which TensorFlow" in fault
    (fault,) = faults_of(tmp_path, SMALL, f"name='{place}'")
    assert "model_dir: must be a path without" in fault


def test_a_model_dir_is_in_a_home_folder_that_is_known(tmp_path):
    (fault,) = faults_of(tmp_path, SMALL, "model_dir=~nobody-is-called-so/runs")
    assert "model_dir: must be a path in a home folder that is known, got '~nobody-is" in fault


@pytest.mark.parametrize(
    "given", [["tower_building=split"], ["random_numbers=one_device"], ["loss_reduction=sum"]]
)
def test_how_towers_are_built_is_said_or_left_open(tmp_path, given):
    read = load(tmp_path, SMALL, *given)
    name, _, value = given[0].partition("=")
    assert getattr(read, name) == value
    assert read.tower_building == (value if name == "tower_building" else None)
    assert load(tmp_path, config.to_yaml(read)) == read


@pytest.mark.parametrize(
    ("one", "other", "fault"),
    [
        ("tower_building=split", "loss_reduction=mean", "tower_building: split, which computes"),
        ("tower_building=split", "update_ops=first", "tower_building: split, which computes"),
        ("tower_building=call", "random_numbers=one_device", "tower_building: call: each tower"),
        ("loss_reduction=sum", "random_numbers=per_device", "loss_reduction: each tower draws"),
        ("update_ops=mean", "random_numbers=one_device", "update_ops: each tower draws its own"),
    ],
)
def test_what_only_the_other_way_of_building_has_is_refused(tmp_path, one, other, fault):
    (found,) = faults_of(tmp_path, SMALL, one, other)
    key = other.partition("=")[0]
    assert found.startswith(f"--set {other}: {key}: must be left out with {fault}")
    assert found.endswith("Leave out one of them.")


def test_what_was_read_does_not_change(tmp_path):
    read = load(tmp_path, SMALL)
    for section, key in [(read, "seed"), (read.train, "steps"), (read.train.input, "file")]:
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            setattr(section, key, 3)


def test_all_faults_are_reported_at_once(tmp_path):
    text = (
        "modelfn: a:b\n"
        "model_fn: foo\n"
        "optimizer: {name: Momentun, momentum: 1}\n"
        "devices: [gpu0, '/gpu:0', '/device:GPU:0']\n"
        "train:\n"
        "  stepz: 3\n"
        "  input: {kind: csv, file: x.csv, columns: {a: flaot32}, shufle: true}\n"
        "eval: {input: {kind: npz}, steps: -1}\n"
    )
    faults = faults_of(tmp_path, text, "seed=yes")
    assert [fault.rpartition(", got")[0] or fault for fault in faults] == [
        "c.yaml:1: modelfn: unknown key. Did you mean model_fn?",
        "c.yaml:2: model_fn: must be a function's name as package.module:function",
        "c.yaml:3: optimizer.name: must be one of " + ", ".join(catalog.OPTIMIZERS),
        "c.yaml:4: devices[0]: must be a device such as /gpu:0, GPU:0 or /device:CPU:1",
        "c.yaml:4: devices[2]: must be a device that is not listed yet",
        "--set seed=yes: seed: must be a whole number",
        "c.yaml:6: train.stepz: unknown key. Did you mean steps?",
        "c.yaml:7: train.input.shufle: unknown key. Did you mean shuffle?",
        "c.yaml:7: train.input.columns.a: must be one of " + ", ".join(catalog.DTYPES),
        "c.yaml:8: eval.input: the key file is required here. Add it.",
        "c.yaml:8: eval.steps: must be a whole number of at least 1",
    ]
    assert faults[2].endswith("got 'Momentun'. Did you mean Momentum?")


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ("optimizer={name: Momentum, learning_rate: 1}", "Momentum needs the key momentum"),
        ("optimizer={name: Adam, beta3: 1}", "optimizer.beta3: unknown key"),
        ("optimizer={name: Adam, learning_rate: fast}", "must be a number of at least 0"),
        (
            "optimizer={name: Ftrl, learning_rate: 1, l1_regularization_strength: -1}",
            "optimizer.l1_regularization_strength: must be a number of at least 0, got -1",
        ),
        (
            "optimizer={name: Adagrad, learning_rate: 1, initial_accumulator_value: -1}",
            "optimizer.initial_accumulator_value: must be a number of at least 0, got -1",
        ),
        ("run.intra_op_parallelism_threads=4097", "of at least 1 and at most 4096, got 4097"),
        ("train.keep_checkpoint_max=2147483648", "of at least 0 and at most 2147483647, got 2147"),
        ("optimizer={learning_rate: 1}", "the key name is required"),
        ("optimizer=Adamm", "or a function's name as package.module:function, got 'Adamm'. Did y"),
        ("optimizer=sgd", "Did you mean {name: GradientDescent, ...}?"),
        ("optimizer=Adagrad", "Adagrad needs the key learning_rate. Add it: {name: Adagrad, learn"),
        ("optimizer={name: SGD, learning_rate: 1}", "got 'SGD'. Did you mean GradientDescent?"),
        ("optimizer={name: Adam, lr: 1}", "Did you mean learning_rate?"),
        ("train.input={kind: npz, file: x, path: y}", "Did you mean file?"),
        ("train.input={kind: csv, file: x, columns: [age]}", "columns to dtypes, as {age: float"),
        ("train.input={kind: csv, file: x, columns: {a: int}}", "Did you mean int32 or int64?"),
        ("train.input={kind: csv, file: x, columns: {a: double}}", "Did you mean float64 or"),
        (
            "train.input={kind: tfrecord, file: x, features: {a: {dtype: double}}}",
            "got 'double'. Did you mean float32?",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: {a: float32}}",
            "features.a: must be a mapping that says how it is read, as {dtype: float32}, got 'fl",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: [a]}",
            "features: must be a mapping of features to how they are read, as {age: {dtype: float",
        ),
        ("devices=0", "devices: must be a whole number of at least 1"),
        ("devices={cpu:2}", "got {'cpu:2': None}. YAML wants a space after the colon: cpu: 2"),
        ("run={gpu_allow_growth:true}", "wants a space after the colon: gpu_allow_growth: true"),
        ("train.input={kind:npz, file: x}", "YAML wants a space after the colon: kind: npz"),
        ("devices=true", "devices: must be auto, a list of devices, how many"),
        ("devices={cpus: 2}", "got {'cpus': 2}. Did you mean {cpu: 2}?"),
        ("devices={GPU: 2}", "got {'GPU': 2}. Did you mean {gpu: 2}?"),
        ("cpus=2", "cpus: unknown key. Did you mean devices?"),
        ("model_fn=mymodels.model_fn", "Did you mean mymodels:model_fn?"),
        ("train.input=my.data.rows", "Did you mean my.data:rows?"),
        ("train.hooks=[my.hook]", "Did you mean my:hook?"),
        ("optimizer=my.sgd", "Did you mean my:sgd?"),
        ("eval={input: 'a:b', metric_reductions: {m: my.max}}", "Did you mean my:max?"),
        ("train.keep_best=true", "must be a mapping such as {metric: accuracy}, got True."),
        ("train.early_stopping=3", "must be a mapping such as {metric: accuracy, patience: 3}"),
        ("optimizer={name: Adam, learning_rate: {name: cosine}}", "Did you mean cosine_decay?"),
        (
            "optimizer={name: Adam, learning_rate: {name: cosine_decay, learning_rate: 1}}",
            "the schedule cosine_decay needs the key decay_steps",
        ),
        (
            "optimizer={name: Adam, learning_rate: {name: piecewise_constant, "
            "boundaries: [5, 3], values: [1, 2, 3]}}",
            "must be rising steps",
        ),
        (
            "optimizer={name: Adam, learning_rate: {name: piecewise_constant, "
            "boundaries: [5], values: [1, 2, 3]}}",
            "must be a list of 2 values",
        ),
        ("devices={gpu: 0}", "devices.gpu: must be a whole number of at least 1"),
        ("devices={tpu: 4}", "devices: must be auto, a list of devices"),
        ("devices=[]", "must be a list of at least 1 values"),
        ("loss_reduction=average", "must be one of sum, mean"),
        ("strategy=miror", "strategy: must be one of"),
        ("strategy=multi", "strategy: must be one of parameter_server, round_robin"),
        (
            "tower_building=clone",
            "tower_building: must be one of split, call, got 'clone'",
        ),
        ("devices=[/cpu:0, 'CPU:00']", "devices[1]: must be a device that is not listed yet"),
        ("devices=['GPU:1', '/job:localhost/task:0/gpu:1']", "not listed yet"),
        ("devices=[/device:XLA_GPU:0]", "devices[0]: must be a device such as /gpu:0"),
        ("devices=['XLA_CPU:0']", "devices[0]: must be a device such as /gpu:0"),
        ("clip_global_norm=0", "must be a number above 0"),
        ("clip_global_norm=.nan", "must be a finite number"),
        (f"clip_global_norm=1{'0' * 400}", "clip_global_norm: must be a finite number, got 1000"),
        ("accumulate_steps=1.5", "must be a whole number"),
        ("train.input.kind=cvs", "Did you mean csv?"),
        ("train.input.file=~nouser/x.npz", "a path in a home folder that is known, got '~nouser"),
        ('train.input.file="a\\0b"', "must be a path without the character 0, got 'a\\x00b'"),
        ('model_dir="a\\0b"', "model_dir: must be a path without the character 0"),
        ('export={assets_extra: {"a\\0b": c}}', "named by a path within assets.extra"),
        ("train.input.rows=[3, 3]", "with start below stop"),
        ("train.input.rows=[3]", "with start below stop"),
        ("train.input.batch_size=0", "at least 1"),
        ("train.input.batch_size=1e30", "at most 2147483647"),
        ("train.input.shuffle=99999999999", "at most 100000000"),
        ("seed=99999999999999999999", "at most 9223372036854775807"),
        ("train.input.features=7", "must be an array's name"),
        ("train.input=3", "must be a mapping with its kind, or package.module:function"),
        ("train.input={file: x}", "the key kind is required here"),
        ("train.save_checkpoints={}", "unknown key"),
        ("eval={input: {kind: npz, file: x, repeat: true}}", "eval.steps: must be set"),
        ("predict={input: {kind: npz, file: x, repeat: true}}", "must come to an end"),
        ("predict={input: 'a.b:c', keys: []}", "at least 1"),
        ("eval={input: 'a.b:c', metric_reductions: {m: maxx}}", "Did you mean max?"),
        ("export={towers: two}", "must be one of one, merged"),
        ("export={exporters: [{kind: bets}]}", "Did you mean best?"),
        (
            "export={exporters: [{name: x}]}",
            "kind is required here: one of final, latest, best",
        ),
        ("export={exporters: [final]}", "must be a mapping with its kind"),
        ("export={exporters: {kind: final}}", "export.exporters: must be a list"),
        ("export={exporters: [{kind: final, exports_to_keep: 3}]}", "unknown key"),
        ("export={exporters: [{kind: final, nme: a}]}", "Did you mean name?"),
        ("eval={input: 'a.b:c', every_steps: 0}", "at least 1"),
        ("export={exporters: [{kind: final, name: '12'}]}", "a folder's name that is no number"),
        ("export={exporters: [{kind: final, name: ..}]}", "a folder's name that is no number"),
        ("export={exporters: [{kind: final}, {kind: final}]}", "must have different names"),
        ("export={exporters: [{kind: latest}]}", "no latest exporter without an eval section"),
        ("export={as_text: 'yes'}", "must be true or false"),
        ("export={assets_extra: [a]}", "must be a mapping"),
        ("export={assets_extra: {../a: b}}", "named by a path within assets.extra"),
        ("export={inputs: {x: {dtype: float, shape: [null]}}}", "Did you mean float"),
        ("train.input={kind: csv, file: [], columns: {a: int32}}", "at least 1 values"),
        (
            "train.input={kind: csv, file: x, columns: {a: int32}, label: b}",
            "train.input.label: must be one of columns",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: int32}, defaults: {b: 1}}",
            "must be for one of columns",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: int8}, defaults: {a: 1.5}}",
            "train.input.defaults: a must be int8 as its column is, got 1.5. Correct it.",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: int8}, defaults: {a: 300}}",
            "a must be int8 as its column is, got 300",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: bool}, defaults: {a: 2}}",
            "a must be bool as its column is, got 2",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: float32}, defaults: {a: null}}",
            "a must be float32 as its column is, got None",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: string}, defaults: {a: null}}",
            "a must be a text (in quotes) as its column is, got None",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: string}, defaults: {a: 0010}}",
            "a must be a text (in quotes) as its column is, got 8",
        ),
        (
            "train.input={kind: csv, file: x, columns: {a: int32}, delimiter: ab}",
            "a single character",
        ),
        *(
            (
                f"train.input={{kind: csv, file: x, columns: {{a: int32}}, delimiter: {one}}}",
                "a single character in quotes, which ends no line and is no quote",
            )
            for one in (r'"\n"', r'"\r"', "'\"'", r'"\0"')
        ),
        (
            "train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, default: 1.5}}}",
            "features.a.default: must be int64 as dtype says, got 1.5. Correct it.",
        ),
        (
            'train.input={kind: tfrecord, file: x, features: {a: {dtype: float32, default: "1"}}}',
            "must be float32 as dtype says, got '1'",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: {a: {dtype: string, default: 1}}}",
            "must be string as dtype says, got 1",
        ),
        (
            "train.input={kind: tfrecord, file: x, "
            "features: {a: {dtype: int64, shape: [3], default: [1, 2]}}}",
            "must be one value or a list of 3, as many as its shape has, got 2",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: {a: {dtype: int64, default: {}}}}",
            "must be int64 as dtype says, got {}",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: {a: {dtype: int64}}, label: b}",
            "must be one of features",
        ),
        (
            "train.input={kind: tfrecord, file: x, features: "
            "{a: {dtype: int64, kind: sparse, shape: [2]}}}",
            "must be fixed to have shape",
        ),
        ("name=3", "must be a text"),
        (
            "cluster={timeout: 1e300}",
            "cluster.timeout: must be at most 1000000000 seconds, got 1e+30",
        ),
        ("cluster={timeout: .inf}", "cluster.timeout: must be a finite number, got inf"),
        ("cluster={timeout: .nan}", "cluster.timeout: must be a finite number, got nan"),
        ("cluster={grace: 1e10}", "cluster.grace: must be at most 1000000000 seconds, got 1000"),
        ("train.max_time=999999d", "train.max_time: must be at most 1000000000 seconds, got 86"),
        ("train.save_checkpoints_secs=1e10", "at least 1 and at most 1000000000, got 1000"),
        ("params=[]", "must be a mapping"),
        ("run={threads: 1}", "run.threads: unknown key"),
        ("random_number=one_device", "random_number: unknown key. Did you mean"),
        ("random_numbers=one_devise", "one of one_device, per_device, got 'one_devise'. Did you"),
        ('run={"\\0csv": 1}', "run.\0csv: unknown key"),
        ('train.input={kind: npz, file: x, "\\0npz": 1}', "input.\0npz: unknown key"),
        ('train.input={kind: npz, file: x, "[key]": 1}', "input.[key]: unknown key"),
        ('export={assets_extra: {"[key]": 3}}', "assets_extra.[key]: must be a path, got 3"),
        ('export={assets_extra: {"": a}}', "assets_extra.: must be named by a path"),
    ],
)
def test_a_broken_rule_is_named(tmp_path, assignment, fault):
    faults = faults_of(tmp_path, SMALL, assignment)
    assert len(faults) == 1
    assert faults[0].startswith(f"--set {assignment.partition('=')[0]}")
    assert fault in faults[0]


def test_a_key_like_a_unions_tag_hides_no_other(tmp_path):
    assignment = 'train.input={kind: npz, file: x, "\\0npz": text, nam: 2}'
    faults = faults_of(tmp_path, SMALL, assignment)
    assert [fault.partition("unknown key")[1] for fault in faults] == ["unknown key"] * 2
    assert "input.nam: " in faults[1]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"seed: 0x{'f' * 5000}", "seed: must be a value of the type int, got '0xfff"),
        (f"seed: {'9' * 5000}", "seed: must be a value of the type int, got '999"),
        (f"params: {{a: {'[' * 70}{']' * 70}}}", "params: must be at most 64 levels deep"),
        (f"params: {{a: {'[' * 9000}{']' * 9000}}}", "must be at most 64 levels deep"),
        ("predict: {input: {kind: npz, file: ~no_such_user/x}}", "predict.input.file: must be"),
    ],
)
def test_what_python_itself_would_refuse_is_named_by_its_line(tmp_path, line, fault):
    (found,) = faults_of(tmp_path, SMALL + line + "\n")
    assert found.startswith(f"c.yaml:4: {fault}")


@pytest.mark.parametrize(
    ("assignments", "fault"),
    [
        (["seed=1", "optimizer.name=Momentum"], "1: optimizer: the optimizer Momentum needs the"),
        (["train.input.kind=csv", "seed=1"], "0: train.input: the key columns is required here"),
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


@pytest.mark.parametrize(
    "text",
    [
        "train:\n  input: &data\n    kind: npz\n    files: d.npz\neval: {input: *data}\n",
        "train:\n  input: &data\n    kind: npz\n    files: d.npz\neval:\n  input: {<<: *data}\n",
        "train:\n  input: &data\n    kind: npz\n    files: d.npz\n"
        "eval:\n  input:\n    <<: *data\n    batch_size: 8\npredict: {input: *data}\n",
    ],
)
def test_a_typo_behind_an_anchor_is_one_fault(tmp_path, text):
    text = f"model_fn: a:b\n{text}".replace("train:", "train:\n  steps: 1")
    found = faults_of(tmp_path, text)
    assert found == ["c.yaml:6: train.input.files: unknown key. Did you mean file?"]


def test_what_lacks_behind_an_anchor_is_one_fault(tmp_path):
    text = "model_fn: a:b\ntrain: {steps: 1, input: &data {kind: npz}}\neval: {input: *data}\n"
    assert faults_of(tmp_path, text) == [
        "c.yaml:2: train.input: the key file is required here. Add it."
    ]
    # Each one's own fault stays its own, and so do two equal ones in one line.
    text += "predict: {input: {<<: *data, fille: x, batch_size: 0}}\n"
    assert len(faults_of(tmp_path, text)) == 3
    twins = "export: {inputs: {x: {dtype: a}, y: {dtype: a}}}\n"
    assert len(faults_of(tmp_path, SMALL + twins)) == 2


def test_rules_between_keys_are_told_beside_wrong_keys_elsewhere(tmp_path):
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
    assert [fault.partition(": must")[0].removeprefix("c.yaml:") for fault in found] == [
        "1: model_fn",
        "6: train.input.label",
        "7: eval.steps",
    ]
    assert found[1].endswith("must be one of columns, got 'bougt'. Did you mean bought?")
    # Those of a section, once its own keys are right; those of all sections, once all are.
    text = text.replace("a.b", "a:b").replace("bougt", "bought").replace(", repeat: true", "")
    (fault,) = faults_of(tmp_path, text + "loss_reduction: sum\ntower_building: split\n")
    assert fault.startswith("c.yaml:5: train.save_checkpoints_secs: must be alone")
    text = text.replace("  save_checkpoints_secs: 1\n", "  early_stopping: {}\n")
    text = text.replace("  steps: 1\n", "  steps: 1\n  mixed_precision: true\n")
    found = faults_of(tmp_path, text + "loss_reduction: sum\ntower_building: split\n")
    assert [fault.partition(": must")[0].removeprefix("c.yaml:") for fault in found] == [
        "9: loss_reduction",
        "2: train",
        "2: train",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{early_stopping: {}, steps: 1, input: 'a:b'}\neval: {input: 'a:c', every_step: 5}",
        "{early_stopping: {}, steps: 1, input: 'a:b'}\neval: {input: 'a:c', every_steps: x}",
        "{early_stopping: {}, steps: 1, input: 'a:b'}\neval: {input: 'a:c', every_steps: ${NOT}}",
        "{keep_best: {}, steps: 1, input: 'a:b'}\nevl: {input: 'a:c'}",
        "{steps: 1, input: {kind: csv, file: x, columns: {a: flaot32}, label: a}}",
        "{steps: 1, input: {kind: csv, file: x, columns: {}, label: a}}",
        "{steps: 1, input: {kind: csv, file: x, columns: [a], label: b}}",
        "{steps: 1, input: {kind: csv, file: x, columns: {a: flaot32}, defaults: {a: true}}}",
        "{steps: 1, input: {kind: '${NOT}', file: x}}",
        "{steps: 1, input: {kind: csv, fil: x, columns: {a: int8}}}\n"
        "eval: {input: {kind: csv, file: x, columns: {a: int8}, holdout: 0.1}}",
    ],
)
def test_rules_about_keys_that_are_wrong_are_not_told(tmp_path, text):
    (fault,) = faults_of(tmp_path, f"model_fn: a:b\ntrain: {text}\n")
    assert "must have" not in fault


def test_all_wrong_items_of_lists_and_mappings_are_told(tmp_path):
    table = "columns: {a: flaot32, b: int8, c: int8}"
    text = (
        "model_fn: a:b\n"
        "optimizer: {name: Adam, learning_rate:\n"
        "  {name: piecewise_constant, boundaries: [1, x, 3], values: [1, 2]}}\n"
        f"train: {{steps: 1, input: {{kind: csv, file: [a.csv, 3], holdout: 0.1, {table}}}}}\n"
        "eval:\n"
        "  input: {kind: tfrecord, file: a.csv, features: {x: {dtype: foat32}}}\n"
        "export:\n"
        "  exporters: [{kind: best, metrik: a}, {kind: bst}, {kind: best, exports_to_keep: 0}]\n"
        "  inputs: {x: {dtype: foat32}}\n"
    )
    found = faults_of(tmp_path, text)
    assert [fault.partition(", got")[0].removeprefix("c.yaml:") for fault in found] == [
        "3: optimizer.learning_rate.boundaries[1]: must be a whole number of at least 0",
        "4: train.input.file[1]: must be a path",
        "4: train.input.columns.a: must be one of " + ", ".join(catalog.DTYPES),
        "6: eval.input.features.x.dtype: must be one of float32, int64, string",
        "8: export.exporters[0].metrik: unknown key. Did you mean metric?",
        "8: export.exporters[1].kind: must be one of final, latest, best",
        "8: export.exporters[2].exports_to_keep: must be a whole number of at least 1",
        "9: export.inputs.x.dtype: must be one of " + ", ".join(catalog.DTYPES),
    ]
    table = "kind: csv, file: x, columns: {b: int8, c: int8}, label: y, defaults: {b: x, c: z}"
    found = faults_of(tmp_path, f"model_fn: a:b\npredict: {{input: {{{table}}}}}\n")
    assert [fault.partition(", got")[0].removeprefix("c.yaml:") for fault in found] == [
        "2: predict.input.label: must be one of columns",
        "2: predict.input.defaults: b must be int8 as its column is",
        "2: predict.input.defaults: c must be int8 as its column is",
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("model_fn: a:b\ntrain: {epoch: 1, input: 'a:b'}", ["2: train.epoch: unknown key."]),
        ("modelfn: a:b", ["1: modelfn: unknown key. Did you mean model_fn?"]),
        ("model_fn: a:b\ntrain: {stesp: 1, input: 'a:b'}", ["2: train.stesp: unknown key."]),
        (
            "model_fn: a:b\ntrain: {steps: -1, stesp: 1, input: 'a:b'}",
            ["2: train.stesp: unknown key.", "2: train.steps: must be a whole number"],
        ),
        (
            "model_fn: a:b\ntrain: {steps: 1, inptu: 'a:b', keep_best: {metric: m, higher: true}}",
            [
                "2: train.inptu: unknown key.",
                "2: train.keep_best.higher: unknown key. Did you mean",
            ],
        ),
    ],
)
def test_of_a_mistyped_key_not_told_that_the_right_one_is_missing(tmp_path, text, faults):
    found = faults_of(tmp_path, text + "\n")
    assert len(found) == len(faults)
    for one, start in zip(found, faults, strict=True):
        assert one.startswith(f"c.yaml:{start}")


@pytest.mark.parametrize(
    ("metric", "is_higher"),
    [
        ("accuracy", True),
        ("head/auc_precision_recall", True),
        ("Top-5 accuracy", True),
        ("precision/positive_threshold_0.500000_mean", True),
        ("loss", False),
        ("average_loss", False),
        ("rmse", False),
        ("false_positives", False),
        ("score", None),
        ("label/mean", None),
        ("neg_mean_squared_error", None),
        ("accuracy_loss", None),
        ("negative_loss", None),
        ("one_minus_auc", None),
        ("accuracy_drop", None),
    ],
)
def test_which_way_a_metric_is_better_is_known_or_must_be_said(tmp_path, metric, is_higher):
    text = SMALL + "eval: {every_steps: 1, input: 'a:b'}\n"
    for place in ("train.keep_best", "train.early_stopping", "export.exporters"):
        given, other = f"metric: {metric}", f"metric: {metric}, higher_is_better: {not is_higher}"
        mapping = "[{{kind: best, {}}}]" if place.startswith("export") else "{{{}}}"
        assignments = [f"{place}={mapping.format(one)}" for one in (given, other)]
        said = load(tmp_path, text, assignments[1])
        if is_higher is None:
            (fault,) = faults_of(tmp_path, text, assignments[0])
            assert f"higher_is_better: must be given, true or false: the name {metric!r}" in fault
            continue
        known = load(tmp_path, text, assignments[0])
        assert load(tmp_path, config.to_yaml(known)) == known
        found = [
            one.export.exporters[0]
            if one.export
            else one.train.keep_best or one.train.early_stopping
            for one in (known, said)
        ]
        assert [one.higher_is_better for one in found] == [is_higher, not is_higher]


def test_an_optimizer_without_needs_may_be_a_bare_name(tmp_path):
    read = load(tmp_path, SMALL, "optimizer=Adam")
    assert read == load(tmp_path, SMALL, "optimizer={name: Adam}")
    assert read.optimizer.arguments["learning_rate"] == 0.001


def test_devices_may_be_a_number(tmp_path):
    read = load(tmp_path, SMALL, "devices=2")
    assert read.devices == 2
    assert load(tmp_path, config.to_yaml(read)) == read


def test_checkpoints_go_by_steps_or_by_seconds(tmp_path):
    faults = faults_of(
        tmp_path, SMALL, "train.save_checkpoints_steps=1", "train.save_checkpoints_secs=1"
    )
    assert "save_checkpoints_steps is set. Keep one" in faults[0]


@pytest.mark.parametrize("name", catalog.OPTIMIZERS)
def test_every_optimizer_reads_back(tmp_path, name):
    given_values = {
        key: 0.5 for key, one in catalog.OPTIMIZERS[name].items() if one is catalog.REQUIRED
    }
    text = yaml.safe_dump({"optimizer": {"name": name, **given_values}})
    read = load(tmp_path, SMALL + text)
    assert set(read.optimizer.arguments) == set(catalog.OPTIMIZERS[name])
    assert load(tmp_path, config.to_yaml(read)) == read


@pytest.mark.parametrize("name", catalog.SCHEDULES)
def test_every_schedule_reads_back(tmp_path, name):
    values = {"boundaries": [3, 9], "values": [0.3, 0.2, 0.1]}
    arguments = {
        key: values.get(key, 2)
        for key, one in catalog.SCHEDULES[name].items()
        if one is catalog.REQUIRED
    }
    rate = {"name": name, **arguments}
    text = yaml.safe_dump({"optimizer": {"name": "GradientDescent", "learning_rate": rate}})
    read = load(tmp_path, SMALL + text)
    assert read.optimizer.arguments["learning_rate"].name == name
    assert load(tmp_path, config.to_yaml(read)) == read


def test_the_digits_config_reads_back_from_anywhere(tmp_path):
    read = config.load(str(DIGITS))
    assert load(tmp_path, config.to_yaml(read)) == read
    assert yaml.safe_load(config.to_yaml(read))["train"]["steps"] == read.train.steps


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
configs = st.fixed_dictionaries(
    {
        "model_fn": st.just("a.b:c"),
        "params": st.dictionaries(st.text(min_size=1, max_size=5), plain_values, max_size=4),
        "devices": st.sampled_from(["auto", ["/gpu:0", "CPU:1"], {"gpu": 4}, {"cpu": 2}, 3]),
        "loss_reduction": st.sampled_from([None, "sum", "mean"]),
        "strategy": st.sampled_from([None, *catalog.STRATEGIES]),
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
                            "features": {"x": {"dtype": "int64", "default": [1]}},
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
    read = load_utf8(tmp_path, text)
    assert load_utf8(tmp_path, config.to_yaml(read)) == read


def load_utf8(tmp_path, text):
    """Loads a config from text with any characters."""
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode("utf-8"))
    return config.load(str(path))


LASTING = "model_fn: a:b\ntrain:\n  input: a:rows\n"


def test_a_training_lasts_for_steps_or_epochs_or_both(tmp_path):
    assert faults_of(tmp_path, LASTING) == [
        "c.yaml:2: train.steps: must be given, or epochs: how long to train. Add one of them."
    ]
    assert faults_of(tmp_path, LASTING + "  epochs: 0\n") == [
        "c.yaml:4: train.epochs: must be a whole number of at least 1, got 0."
    ]
    for lasting in ("epochs: 2", "steps: 2", "epochs: 2\n  steps: 3"):
        load(tmp_path, f"{LASTING}  {lasting}\n")


@pytest.mark.parametrize(
    ("key", "assignment", "text"),
    [
        ("early_stopping: {}", "eval.input=a:rows", "early_stopping without eval.every_steps"),
        ("early_stopping: {}", "name=x", "early_stopping without eval.every_steps. Set that."),
        ("keep_best: {}", "name=x", "keep_best without an eval section. Add one."),
        ("mixed_precision: true", "name=x", "mixed_precision where model_fn has an optimizer of"),
        (
            "early_stopping: {patience: 0}",
            "eval={input: 'a:rows', every_steps: 1}",
            "must be a whole number of at least 1, got 0",
        ),
        ("hooks: [a]", "name=x", "train.hooks[0]: must be a function's name as package.module:f"),
    ],
)
def test_what_training_needs_elsewhere_is_told(tmp_path, key, assignment, text):
    (fault,) = faults_of(tmp_path, f"{LASTING}  steps: 1\n  {key}\n", assignment)
    assert text in fault


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("1h30m", 5400), ("1d1s", 86401), ("2m", 120)]
)
def test_a_time_is_given_in_seconds_or_units(tmp_path, text, seconds):
    read = load(tmp_path, f"{LASTING}  steps: 1\n  max_time: {text}\n")
    assert read.train.max_time == seconds
    for wrong in ("1x", "0s", "0", "-1", "h"):
        (fault,) = faults_of(tmp_path, f"{LASTING}  steps: 1\n  max_time: {wrong}\n")
        assert "above 0" in fault


@pytest.mark.parametrize(
    ("trained", "evaluated", "text"),
    [
        ("", "holdout: 0.1", "eval: must have the input.holdout that train has, or it has rows"),
        ("holdout: 0.2", "holdout: 0.1", "eval: must have the input.holdout that train has, or"),
        ("holdout: 0.2", "", "eval: must have the input.holdout that train has, or it has rows"),
        ("holdout: 1.0", "", "train.input.holdout: must be a number above 0 and below 1, got 1.0"),
        ("holdout: 0", "", "train.input.holdout: must be a number above 0, got 0"),
    ],
)
def test_no_row_is_evaluated_on_that_is_trained_on(tmp_path, trained, evaluated, text):
    inputs = (f"{{kind: function, function: 'a:rows', {one}}}" for one in (trained, evaluated))
    both = "model_fn: a:b\ntrain: {{steps: 1, input: {}}}\neval: {{input: {}}}\n".format(*inputs)
    (fault,) = faults_of(tmp_path, both)
    assert text in fault
    elsewhere = ("eval.input.function=a:others", "train.input.holdout=0.5")
    assert load(tmp_path, both, *elsewhere).train.input.holdout == 0.5


@pytest.mark.parametrize(("evaluated", "is_refused"), [("[b.csv, c.csv]", True), ("c.csv", False)])
def test_no_file_is_evaluated_on_whole_that_training_holds_rows_out_of(
    tmp_path, evaluated, is_refused
):
    shared = "kind: csv, columns: {x: float32}"
    text = (
        f"model_fn: a:b\neval: {{input: {{{shared}, file: {evaluated}}}}}\n"
        f"train: {{steps: 1, input: {{{shared}, file: [a.csv, b.csv], holdout: 0.1}}}}\n"
    )
    if is_refused:
        (fault,) = faults_of(tmp_path, text)
        assert "eval: must have the input.holdout that train has" in fault
    else:
        assert load(tmp_path, text).eval.input.holdout is None


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
