"""What is refused, with a text that says the rule, what came, and what to do next."""

import types

import pytest

import replicate
from replicate import errors
from replicate import strategy as core
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export, saver
from replicate.strategy import context
from replicate.strategy.variables import values, variables
from replicate.training import model, step

TWO = ["/cpu:0", "/cpu:1"]


def mirrored():
    return core.MirroredStrategy(TWO)


def distributed():
    return mirrored().distribute_dataset(lambda: tf.data.Dataset.range(4))


def called(model_fn, labels=None):
    return model.Model(model_fn, None, "train", None, None)({"x": 1.0}, labels)


def of_a_keras_optimizer():
    return tf.keras.optimizers.SGD(1.0)


def joined(*towers):
    descent = tf1.train.GradientDescentOptimizer(1.0)
    return step.joined_pairs([step.TowerGradients(descent, pairs) for pairs in towers], TWO)


class Named:
    """Stands for a variable: what is joined looks at names and at which object it is."""

    def __init__(self, name):
        self.name = name


A, B = Named("a"), Named("b")
REFUSED = {
    "transfer_dtype": (
        lambda: core.RingAllReduce(transfer_dtype=tf.int32),
        ValueError,
        r"tf\.float16, tf\.bfloat16 or None; got tf\.int32",
    ),
    "pack_bytes": (
        lambda: core.RingAllReduce(pack_bytes=-1),
        ValueError,
        "pack_bytes counts bytes, 0 or more; got -1",
    ),
    "group_size": (
        lambda: core.HierarchicalCopyAllReduce(group_size=0),
        ValueError,
        "group_size counts devices, 1 or more; got 0",
    ),
    "nccl": (
        lambda: core.NcclAllReduce().require(["/device:GPU:0", "/device:CPU:1"]),
        errors.DeviceError,
        r"between GPUs only; got \['/device:CPU:1'\]\. Use RingAllReduce",
    ),
    "placement": (
        lambda: core.LocalParameterServerStrategy(TWO, placement="near"),
        ValueError,
        r"placement is one of .*round_robin.*; got 'near'\. Choose one",
    ),
    "dataset_fn": (
        lambda: mirrored().distribute_dataset(lambda: [1, 2]),
        ValueError,
        r"must return a tf\.data\.Dataset; got list\. Use",
    ),
    "loop in a graph": (lambda: iter(distributed()), RuntimeError, "Only eager code can loop"),
    "shared_name": (
        lambda: distributed().make_initializable_iterator(shared_name="all"),
        ValueError,
        "belongs to one session: got shared_name='all'",
    ),
    "initializer": (
        lambda: distributed().make_one_shot_iterator().initializer,
        ValueError,
        r"one-shot iterator has no initializer\. Call get_next",
    ),
    "optimizer of Keras": (
        lambda: replicate.TowerOptimizer(of_a_keras_optimizer()),
        TypeError,
        "only the legacy ones of Keras 2 work",
    ),
    "optimizer": (
        lambda: replicate.TowerOptimizer(3),
        TypeError,
        r"TowerOptimizer takes .*; got int: 3\. Write",
    ),
    "no optimizer is made": (
        lambda: replicate.TowerOptimizer(lambda: 3).optimizer,
        TypeError,
        r"must return a tf\.compat\.v1\.train\.Optimizer; got 3\. Return an instance",
    ),
    "labels": (
        lambda: called(lambda features: None, labels=[1]),
        ValueError,
        r"gave labels, and .* takes \['features'\]\. Add the argument",
    ),
    "features": (
        lambda: called(lambda labels: None),
        ValueError,
        r"must take `features`: .* takes \['labels'\]\. Write",
    ),
    "no spec": (
        lambda: called(lambda features, mode: features),
        TypeError,
        r"must return an EstimatorSpec; got dict in mode 'train'\. Return",
    ),
    "no gradient": (
        lambda: step.GradientStep().apply_gradients(None, [(None, A)]),
        ValueError,
        r"none of \['a'\] has a gradient\. Check",
    ),
    "a gradient in the first tower": (
        lambda: joined([(1.0, A), (1.0, B)], [(1.0, A)]),
        errors.TowerMismatchError,
        r"tower 1 has none for b, tower 0 has one\. Look",
    ),
    "a gradient in the second tower": (
        lambda: joined([(1.0, A)], [(1.0, A), (1.0, B)]),
        errors.TowerMismatchError,
        r"tower 1 has one for b, tower 0 has none\. Look",
    ),
    "another order": (
        lambda: joined([(1.0, A), (1.0, B)], [(1.0, B), (1.0, A)]),
        errors.TowerMismatchError,
        r"as its number 1, tower 1 has b, tower 0 has a\. Look",
    ),
    "too few values": (
        lambda: values.select_tower(2, values.PerDevice([1, 2])),
        ValueError,
        r"got 2 values and tower 2\. Make one",
    ),
}


@pytest.mark.usefixtures("fresh_graph")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


def test_a_model_fn_that_passes_all_on_takes_all():
    assert model.argument_names(lambda **given: None) == model.argument_names(
        lambda features, labels, mode, params, config: None
    )


def test_a_mirrored_variable_takes_one_value(fresh_graph):
    strategy = mirrored()
    with strategy.scope():
        variable = tf1.get_variable("v", initializer=1.0, use_resource=True)
    apart = values.PerDevice([tf.constant(1.0), tf.constant(2.0)], TWO)
    with strategy.scope(), pytest.raises(ValueError, match=r"v.* may differ .* Reduce it first"):
        variable.assign(apart)


@pytest.mark.parametrize(
    ("devices", "gpus", "kind"),
    [
        (["/device:GPU:0", "/device:GPU:1"], 2, core.NcclAllReduce),
        (["/device:GPU:0", "/device:GPU:1"], 1, core.ReductionToOneDevice),
        (["/device:GPU:0"], 2, core.ReductionToOneDevice),
        (["/device:GPU:0", "/device:CPU:0"], 2, core.ReductionToOneDevice),
    ],
)
def test_gpus_that_exist_sum_by_nccl(monkeypatch, devices, gpus, kind):
    from replicate.strategy import cross_device

    there = [f"/device:GPU:{n}" for n in range(gpus)]
    monkeypatch.setattr(cross_device.device_names, "local_devices", lambda kind: there)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
    assert type(cross_device.best_for(devices)) is kind


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: values.PerDevice([value])])
@pytest.mark.parametrize("name", ["SUM", "MEAN"])
def test_without_a_strategy_a_value_is_its_own_sum_and_mean(session, name, wrap):
    default = core.get_distribution_strategy()
    aggregation = getattr(tf.VariableAggregation, name)
    found = core.get_tower_context().merge_call(
        lambda strategy, value: strategy.reduce(aggregation, wrap(value)), tf.constant(2.0)
    )
    assert default.num_towers == 1
    assert session.run(found) == 2.0


def test_the_mean_of_what_all_have_is_that(session):
    strategy = core.MirroredStrategy(TWO[:1])
    value = values.Mirrored([tf.constant(2.0)], TWO[:1])
    with strategy.scope():
        found = strategy.reduce(tf.VariableAggregation.MEAN, value, TWO[0])
    assert session.run(tf.convert_to_tensor(found)) == 2.0


def test_nothing_is_packed_unless_it_is_asked_for():
    for kind in (core.ReductionToOneDevice, core.RingAllReduce, core.HierarchicalCopyAllReduce):
        assert repr(kind()) == f"{kind.__name__}(pack_bytes=0, transfer_dtype=None)"


def test_a_mirrored_value_is_the_first_one_out_of_towers(fresh_graph, session):
    value = values.Mirrored([tf.constant(1.0), tf.constant(2.0)], TWO)
    assert context.current() is None or context.current().tower is None
    assert session.run(tf.convert_to_tensor(value)) == 1.0
    strategy = mirrored()
    with strategy.scope():
        variable = tf1.get_variable("v", initializer=1.0, use_resource=True)
        found = strategy.update(variable, lambda each: tf.convert_to_tensor(value) * 10.0)
    assert session.run(list(found.values)) == [10.0, 20.0]


def test_an_export_takes_the_next_number_where_another_one_was_faster(tmp_path, monkeypatch):
    made, real = tmp_path / "made", tf.io.gfile.rename
    made.mkdir()
    taken = []

    def rename(source, target):
        if not taken:
            taken.append(target)
            tf.io.gfile.makedirs(target + "/another")
        return real(source, target)

    monkeypatch.setattr(tf.io.gfile, "rename", rename)
    moved = export._move(str(made), str(tmp_path))
    assert [moved] == [f"{tmp_path}/{int(taken[0].rpartition('/')[2]) + 1}"]
    with pytest.raises(tf.errors.OpError):
        export._move(str(made), str(tmp_path))  # it is gone: no other number helps


def test_a_scaffold_that_saves_objects_is_left_alone(fresh_graph):
    scaffold = tf1.train.Scaffold(saver=tf.train.Checkpoint())
    spec = replicate.estimator.EstimatorSpec(
        "eval", loss=tf.constant(1.0), scaffold=scaffold, eval_metric_ops={}
    )
    assert saver.make_exportable(spec, (), None) is spec


def test_a_batch_that_cannot_be_split_is_on_the_first_device(fresh_graph, caplog):
    def model_fn(features, mode):
        return replicate.estimator.EstimatorSpec(mode, predictions=features["x"] * 2.0)

    caplog.set_level("INFO")
    replicated = replicate.replicate_model_fn(model_fn, devices=TWO)
    replicated({"x": tf.ones([1, 2])}, None, "infer")
    said = "The model's graph runs on one device, /device:CPU:0: the batch has one row."
    assert said in caplog.text


@pytest.mark.parametrize("base", [core.DistributionStrategy, variables.DistributedVariable])
def test_a_keyword_of_a_class_that_says_nothing_is_refused(base):
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        types.new_class("Derived", (base,), {"name": "derived"})
