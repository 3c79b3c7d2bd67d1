"""Devices: every usual spelling, what exists, and clear refusals."""

import pytest

from replicate import devices, errors, estimator, model_fn, strategy
from replicate.compat.tensorflow import tf, tf1


@pytest.fixture
def machine(monkeypatch):
    """Lets a machine have any devices of any types, each physical one of which is one logical."""

    def have(**counts):
        physical = [
            tf.config.PhysicalDevice(f"/physical_device:{kind}:{i}", kind)
            for kind, count in counts.items()
            for i in range(count)
        ]

        def of(kind=None):
            return [device for device in physical if kind in (None, device.device_type)]

        monkeypatch.setattr(tf.config, "list_physical_devices", of)
        monkeypatch.setattr(tf.config, "get_visible_devices", of)
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)

    return have


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("/gpu:0", "/device:GPU:0"),
        ("GPU:0", "/device:GPU:0"),
        ("gpu:1", "/device:GPU:1"),
        ("/device:GPU:0", "/device:GPU:0"),
        ("/device:gpu:0", "/device:GPU:0"),
        ("device:GPU:10", "/device:GPU:10"),
        ("/cpu:0", "/device:CPU:0"),
        (" /cpu:0 ", "/device:CPU:0"),
        ("/tpu:3", "/device:TPU:3"),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "/device:CPU:0"),
        (
            "/job:worker/replica:0/task:1/device:GPU:0",
            "/job:worker/replica:0/task:1/device:GPU:0",
        ),
        ("/job:worker/task:1/gpu:0", "/job:worker/task:1/device:GPU:0"),
        ("/job:worker/gpu:0", "/job:worker/device:GPU:0"),
    ],
)
def test_every_usual_spelling_has_one_canonical_name(spelling, canonical):
    assert devices.canonicalize(spelling) == canonical
    assert devices.canonicalize(canonical) == canonical


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(([bad], "") for bad in ("", "gpu", "gpu0", "/gpu:", "/gpu:x", "/gpu:-1", 0, None)),
        (["/device:GPU:*"], "spelled with its type and number"),
        (["/foo:0"], r"CPU, GPU, TPU; got '/foo:0'\. "),
        (["/cpu:1", "/cpu:0", "CPU:1"], "'CPU:1' and '/cpu:1' are both /device:CPU:1"),
        (0, "between 1 and 8 here; got 0"),
        (9, "between 1 and 8 here; got 9"),
        ([], "At least one device"),
        (1.5, "devices is a list of names, a number, or None"),
        (True, "devices is a list of names, a number, or None"),
        ("/cpu:0", r"Write devices=\['/cpu:0'\]"),
    ],
)
def test_what_names_no_devices_is_refused_with_what_exists(given, text):
    with pytest.raises(errors.DeviceError, match=f"{text}.*This machine has /device:CPU:0"):
        devices.resolve(given)


def test_devices_that_are_missing_warn_once_but_for_cpus_which_sessions_make(caplog):
    for given in (["/gpu:51", "/gpu:52"], ["GPU:52", "/cpu:0", "GPU:51"], ["/cpu:0", "/cpu:8"]):
        assert len(devices.resolve(given)) == len(given)
    (record,) = caplog.records
    assert "lacks /device:GPU:51, /device:GPU:52;" in record.getMessage()
    assert "This machine has /device:CPU:0" in record.getMessage()


def test_a_type_that_a_plugin_registered_is_known(machine):
    machine(CPU=1, NPU=2)
    assert devices.canonicalize("/npu:1") == "/device:NPU:1"
    assert devices.local_devices() == ("/device:CPU:0", "/device:NPU:0", "/device:NPU:1")


def test_logical_devices_are_what_exists():
    assert devices.local_devices("CPU") == tuple(f"/device:CPU:{i}" for i in range(8))
    assert devices.local_devices("cpu") == devices.local_devices("CPU")


def test_none_is_all_gpus_or_the_cpu(machine):
    machine(CPU=1, GPU=2)
    assert devices.resolve(None) == ("/device:GPU:0", "/device:GPU:1")
    machine(CPU=1)
    assert devices.resolve(None) == ("/device:CPU:0",)


def test_a_number_is_that_many_gpus_or_cpus(machine):
    assert devices.resolve(2) == ("/device:CPU:0", "/device:CPU:1")
    machine(CPU=1, GPU=2)
    assert devices.resolve(1) == ("/device:GPU:0",)


def test_a_device_of_another_process_is_not_missing(caplog):
    devices.resolve(["/job:worker/task:1/gpu:0"])
    assert not caplog.records


@pytest.mark.parametrize(
    ("workers", "place"),
    [
        (["/device:GPU:0"], "/device:GPU:0"),
        (["/device:GPU:3"], "/device:GPU:3"),
        (["/device:GPU:0", "/device:GPU:1"], "/device:CPU:0"),
        (["/device:CPU:1"], "/device:CPU:0"),
        (["/device:CPU:0", "/device:GPU:0"], "/device:GPU:0"),
    ],
)
def test_variables_live_on_the_only_gpu_or_the_cpu(workers, place):
    assert devices.parameter_device(workers) == place


def test_more_cpus_cannot_be_made_once_tensorflow_runs():
    tf.constant(1.0).numpy()
    with pytest.raises(errors.DeviceError, match="9 are asked for, and it has started with 8"):
        devices.make_logical_cpus(9)


@pytest.mark.parametrize("bad", [0, True, "2"])
def test_a_number_of_cpus_is_a_number(bad):
    with pytest.raises(errors.DeviceError, match="1 or more"):
        devices.make_logical_cpus(bad)


# In a process of its own: CPUs are made once, and a model says once what it uses.
PROGRAM = """
import contextlib, sys, replicate
from replicate import devices, estimator
from replicate.compat.tensorflow import tf, tf1

print(devices.resolve(1), devices.make_logical_cpus(3))
print(devices.local_devices(), devices.make_logical_cpus(4)[-1])
print([d.name for d in tf.config.list_logical_devices()])

def model_fn(features, labels, mode):
    y = tf1.layers.dense(features["x"], 1)
    loss = tf.reduce_mean(y)
    step = tf1.train.get_global_step()
    return estimator.EstimatorSpec(mode, {"y": y}, loss, step.assign_add(1).op)

def input_fn():
    return tf.data.Dataset.from_tensors({"x": tf.ones([4, 2])})

with contextlib.redirect_stderr(sys.stdout):
    for given in (None, None, 1, 1):
        replicated = replicate.replicate_model_fn(model_fn, devices=given)
        estimator.Estimator(replicated).train(input_fn)
"""


@pytest.fixture(name="said", scope="module")
def run_program(run_python):
    return run_python(PROGRAM).splitlines()


@pytest.mark.thorough
def test_cpus_are_made_and_nothing_is_started(said):
    first, second, third = said[:3]
    assert first == "('/device:CPU:0',) ('/device:CPU:0', '/device:CPU:1', '/device:CPU:2')"
    assert second == "('/device:CPU:0', '/device:CPU:1', '/device:CPU:2') /device:CPU:3"
    assert third == str([f"/device:CPU:{i}" for i in range(4)])


@pytest.mark.thorough
def test_a_model_says_once_which_devices_it_uses(said):
    assert [line for line in said[3:] if " device" in line] == [
        "4 devices: /cpu:0, /cpu:1, /cpu:2, /cpu:3; variables on /cpu:0; TensorFlow sees no GPU",
        "1 device: /cpu:0; variables on /cpu:0",
    ]


MORE = ["/cpu:0", "/cpu:8"]  # the latter is one that nobody has made


def input_fn():
    return tf.data.Dataset.from_tensor_slices({"x": [[1.0], [2.0], [3.0]]}).repeat(2).batch(3)


def serving_input_receiver_fn():
    x = tf1.placeholder(tf.float32, [None, 1])
    return estimator.export.ServingInputReceiver({"x": x}, {"x": x})


def line(features, labels, mode):
    y = tf1.layers.dense(features["x"], 1, name="line")
    loss = tf.reduce_mean(tf.square(y))
    train_op = tf1.train.AdamOptimizer().minimize(loss, tf1.train.get_global_step())
    return estimator.EstimatorSpec(mode, {"y": y}, loss, train_op)


class Shown(tf1.train.SessionRunHook):
    """What sessions show, and where a step runs kernels of towers."""

    def __init__(self):
        self.devices, self.used = [], set()

    def before_run(self, run_context):
        options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
        return tf1.train.SessionRunArgs([], options=options)

    def after_run(self, run_context, run_values):
        listed = run_context.session.list_devices()
        self.devices.append(len([device for device in listed if device.device_type == "CPU"]))
        traced = run_values.run_metadata.step_stats.dev_stats
        self.used |= {
            devices.canonicalize(each.device)
            for each in traced
            if any("tower_" in node.node_name for node in each.node_stats)
        }


def config_of(**counts):
    return estimator.RunConfig(session_config=tf1.ConfigProto(device_count=counts))


@pytest.mark.thorough("None-*")
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (None, {}),
        (config_of(), {"tower_building": "call"}),
        (config_of(GPU=0), {"strategy": "mirrored"}),
        (config_of(CPU=12), {"strategy": "balanced"}),
    ],
)
def test_sessions_of_an_estimator_run_on_all_devices_named(tmp_path, config, options):
    replicated = model_fn.replicate_model_fn(line, devices=MORE, **options)
    made = estimator.Estimator(replicated, str(tmp_path), config)
    told = str(made.config.session_config)
    hooks = [Shown(), Shown(), Shown()]
    made.train(input_fn, hooks=hooks[:1])
    made.evaluate(input_fn, hooks=hooks[1:2])
    assert len(list(made.predict(input_fn, hooks=hooks[2:]))) == 6
    for hook in hooks:
        assert hook.devices == [12 if "CPU" in told else 9] * 2
        assert "/device:CPU:8" in hook.used
    assert str(made.config.session_config) == told
    assert made.export_saved_model(str(tmp_path / "export"), serving_input_receiver_fn)


def test_a_server_shows_the_devices_that_are_named_unless_it_is_told():
    devices.resolve(MORE)
    jobs = tf.train.ClusterSpec({"local": ["localhost:0"]})
    told = tf1.ConfigProto(device_count={"CPU": 2})
    by_hand = tf.train.ServerDef(
        cluster=jobs.as_cluster_def(), job_name="local", default_session_config=told
    )
    for given, config, is_told in (
        (jobs, None, False),
        (jobs, tf1.ConfigProto(device_count={"GPU": 0}), False),
        (jobs, told, True),
        (by_hand, None, True),
    ):
        server = tf.distribute.Server(given, config=config, protocol="grpc", start=False)
        number = server.server_def.default_session_config.device_count["CPU"]
        assert number == 2 if is_told else number >= 9
        assert devices.sessions.SERVERS[-1] is server


@pytest.mark.parametrize("counts", [{"CPU": 1}, {"CPU": 8, "GPU": 2}])
def test_a_session_of_an_estimator_that_is_told_fewer_devices_fails(tmp_path, counts):
    made = estimator.Estimator(
        model_fn.replicate_model_fn(line, devices=MORE), str(tmp_path), config_of(**counts)
    )
    told = r"lacks /device:CPU:8\. Leave device_count out.* give device_count={'CPU': 9}"
    with pytest.raises(errors.DeviceError, match=told):
        made.train(input_fn)


def test_a_device_that_is_missing_fails_where_a_session_is_to_run(tmp_path):
    replicated = model_fn.replicate_model_fn(line, devices=["/cpu:0", "/gpu:54"])
    made = estimator.Estimator(replicated, str(tmp_path))
    with pytest.raises(errors.DeviceError, match=r"lacks /device:GPU:54\. Name devices that exist"):
        made.train(input_fn)


def test_a_model_may_be_exported_for_devices_that_are_missing(tmp_path):
    estimator.Estimator(line, str(tmp_path)).train(input_fn)
    replicated = model_fn.replicate_model_fn(line, devices=["/gpu:55", "/gpu:56"])
    made = estimator.Estimator(replicated, str(tmp_path))
    assert made.export_saved_model(str(tmp_path / "export"), serving_input_receiver_fn)


@pytest.mark.parametrize("config", [None, tf1.ConfigProto(allow_soft_placement=True)])
def test_sessions_of_ones_own_show_the_devices_of_towers(config):
    mirrored = strategy.MirroredStrategy(MORE)
    with tf.Graph().as_default(), mirrored.scope():
        w = tf1.get_variable("w", initializer=1.0)
        mirrored.call_for_each_tower(lambda: w + 1.0)
        with tf1.train.MonitoredTrainingSession(config=config) as session:
            assert session.run(w) == 1.0
        for make in (tf1.Session, tf1.InteractiveSession):
            session = make(config=config)
            assert "CPU:8" in {each.name[-5:] for each in session.list_devices()}
            session.close()


def test_sessions_of_ones_own_that_are_told_fewer_devices_fail():
    mirrored = strategy.MirroredStrategy(MORE)
    with tf.Graph().as_default(), mirrored.scope():
        mirrored.call_for_each_tower(lambda: tf.constant(1.0))
        for make in (tf1.Session, tf1.InteractiveSession, tf1.train.MonitoredTrainingSession):
            config = tf1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
            with pytest.raises(errors.DeviceError, match=r"CPU:8\. Leave device_count out"):
                make(config=config)


def test_towers_in_a_function_of_a_graph_need_their_devices():
    def one():
        return tf.constant(1.0)

    mirrored = strategy.MirroredStrategy(MORE)
    with tf.Graph().as_default(), mirrored.scope():
        tf.function(mirrored.run)(one)
        with pytest.raises(errors.DeviceError, match="lacks /device:CPU:8"):
            tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 1}))


def test_eager_towers_need_their_devices():
    mirrored = strategy.MirroredStrategy(MORE)
    for run in (mirrored.run, tf.function(mirrored.run)):
        with pytest.raises(errors.DeviceError, match=r"machine lacks /device:CPU:8\."):
            run(lambda: tf.constant(1.0))


def test_without_gpus_all_cpus_that_were_made_are_used(monkeypatch):
    assert devices.resolve(None) == ("/device:CPU:0",)
    monkeypatch.setattr(devices, "_made_cpus", 1)
    made = devices.make_logical_cpus(3)
    assert devices.resolve(None) == made


@pytest.mark.parametrize(
    ("workers", "keepers", "text"),
    [
        (["GPU:0", "GPU:1"], ["CPU:0"], "2 devices: /gpu:0, /gpu:1; variables on /cpu:0"),
        (["CPU:0"], ["CPU:0"], "1 device: /cpu:0; variables on /cpu:0"),
        (
            ["CPU:0"],
            ["/job:ps/task:0/device:CPU:0"],
            "1 device: /cpu:0; variables on /job:ps/task:0/cpu:0",
        ),
    ],
)
def test_devices_are_described_in_a_line(workers, keepers, text):
    workers, keepers = (
        [name if "/" in name else f"/device:{name}" for name in names]
        for names in (workers, keepers)
    )
    assert devices.described(workers, keepers, True) == text
    assert devices.described(workers, keepers, False) == f"{text}; TensorFlow sees no GPU"
    parts = text.replace("; ", ", 4 micro-batches each; ", 1)
    assert devices.described(workers, keepers, True, 4) == parts
