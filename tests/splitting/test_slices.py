"""Large variables in slices: one device's numbers, steps that move rows, plain checkpoints."""

import logging

import numpy as np
import pytest

from replicate import estimator, model_fn
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.exporting import export
from replicate.graph import operations
from replicate.splitting import report
from replicate.strategy.policies import parameter_server
from tests import exactness
from tests.law import running

ROWS, WIDTH, K = 11, 2, 3  # of a table that 3 devices share as 4, 4, 3 rows
SLICED = running.Setting("sliced", K, (7, 5, 2, 1))
STATIC = running.Setting("sliced", K, (7, 7, 7), is_static=True)


def sliced(slice_bytes=1, devices=K, placement="balanced"):
    return parameter_server.LocalParameterServerStrategy(
        devices, placement=placement, slice_bytes=slice_bytes
    )


def table(name="table", rows=ROWS, **options):
    return tf1.get_variable(name, [rows, WIDTH], tf.float64, exactness.start, **options)


def batches(*sizes, **unused):
    del unused
    numbers, found = np.random.RandomState(5), []
    for rows in sizes:
        bags = numbers.randint(0, ROWS, [rows, 4])
        places = np.argwhere(numbers.uniform(size=bags.shape) < 0.6)
        values = bags[tuple(places.T)]
        sparse = tf1.SparseTensorValue(places.astype(np.int64), values, bags.shape)
        features = {"ids": numbers.randint(0, ROWS, [rows, 2]), "bag": sparse}
        found.append((features, numbers.uniform(-1, 1, [rows, WIDTH])))
    return found


def of_dense_ids(features):
    return tf.reduce_sum(tf.nn.embedding_lookup(table(), features["ids"]), 1)


def of_sparse_ids(features):
    return tf1.nn.safe_embedding_lookup_sparse(table(), features["bag"], combiner="mean")


def of_a_keras_layer(features):
    layer = tf.keras.layers.Embedding(ROWS, WIDTH, exactness.start, dtype="float64", name="table")
    return tf.reduce_sum(layer(features["ids"]), 1)


def of_a_branch(features):
    """Rows that are looked up in a branch alone."""
    t, ids = table(), features["ids"]
    found = tf1.cond(
        tf.size(ids) > 8, lambda: tf.gather(t, ids), lambda: tf.gather(t, ids[:, ::-1])
    )
    return found[:, 0]


def of_the_whole_table(features):
    """A product with all rows, as a softmax over words is."""
    found = tf.gather(table(), features["ids"][:, 0])
    scores = tf.nn.softmax(tf.matmul(found, table("words"), transpose_b=True))
    return tf.matmul(scores, table("words_too"))


MODELS = (of_dense_ids, of_sparse_ids, of_a_keras_layer, of_a_branch, of_the_whole_table)
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": running.momentum,
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": running.adam,
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.1, centered=True),
}


def of(forward, optimizer="adam"):
    """Returns a model_fn that trains what `forward` makes of features."""

    def built(features, labels, mode):
        found = forward(features)
        if mode == "infer":
            return estimator.EstimatorSpec(mode, predictions={"found": found})
        loss = tf.reduce_mean(tf.square(found - labels))
        step = OPTIMIZERS[optimizer]().minimize(loss, tf1.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    return built


@pytest.mark.thorough("*-dynamic")
@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("setting", [SLICED, STATIC], ids=str)
@pytest.mark.parametrize("forward", MODELS)
def test_a_model_with_slices_is_one_devices(forward, setting):
    running.require_exact(of(forward), setting, given=batches(*setting.rows))


@pytest.mark.thorough(
    "of_sparse_ids-adagrad",
    "of_sparse_ids-rmsprop",
    "of_sparse_ids-sgd",
    "of_dense_ids-ftrl",
    "of_dense_ids-momentum",
)
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adam"])
@pytest.mark.parametrize("forward", [of_dense_ids, of_sparse_ids])
def test_each_optimizer_updates_slices_as_the_whole(forward, optimizer):
    running.require_exact(of(forward, optimizer), SLICED, given=batches(*SLICED.rows))


def built(model, strategy=None, mode="train", sizes=(7,)):
    """Builds a replicated model; returns its spec."""
    tf1.train.create_global_step()
    features, labels = exactness.placeholders(batches(*sizes)[0], False)
    replicated = model_fn.replicate_model_fn(model, strategy=strategy or sliced())
    return replicated(features, labels, mode)


@pytest.mark.thorough("of_sparse_ids-adam", "of_dense_ids-rmsprop")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("forward", [of_dense_ids, of_sparse_ids])
def test_a_step_moves_ids_and_rows_and_never_a_table(fresh_graph, forward, optimizer):
    spec = built(of(forward, optimizer))
    executed = operations.executed_by([spec.train_op, spec.loss])
    made = [tensor for op in executed for tensor in op.outputs if tensor.shape.rank]
    assert [tensor.name for tensor in made if ROWS in tensor.shape.as_list()] == []
    made = [tensor for tensor in made if tensor.shape.rank == 2]
    own = [tensor for tensor in made if tensor.shape[0] in (3, 4)]
    for tensor in own:
        assert {op.device for op in tensor.consumers() if op in executed} <= {tensor.device}
    assert bool(own) == (optimizer == "adam")  # which passes over all rows in each step


@pytest.mark.thorough("of_sparse_ids-adam")
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("forward", [of_dense_ids, of_sparse_ids])
def test_no_operation_on_rows_is_whole(fresh_graph, forward, optimizer):
    with report.heard() as results:
        built(of(forward, optimizer))
    (result,) = results
    assert {op.name: result.why(op) for op in result.whole if result.why(op)} == {}


def test_devices_hold_as_many_rows(fresh_graph):
    built(of(of_sparse_ids, "adagrad"))
    found = {variable.op.name: variable for variable in tf1.global_variables()}
    names = [f"table/{slot}part_{k}" for slot in ("", "Adagrad/") for k in range(K)]
    assert {*names, "global_step"} == set(found)
    assert [found[name].shape[0] for name in names] == [4, 4, 3] * 2
    assert [found[name].device for name in names] == [f"/device:CPU:{k}" for k in range(K)] * 2
    assert [variable.op.name for variable in tf1.trainable_variables()] == names[:K]


def test_the_balance_counts_no_variable_that_is_cut(fresh_graph):
    def model(features, labels, mode):
        found = of_dense_ids(features)
        for n in range(K):
            found += tf1.get_variable(f"bias_{n}", [WIDTH], tf.float64)
        return of(lambda features: found, "sgd")(features, labels, mode)

    built(model, sliced(slice_bytes=WIDTH * 8))
    biases = [v.device for v in tf1.global_variables() if v.op.name.startswith("bias")]
    assert biases == [f"/device:CPU:{k}" for k in range(K)]


@pytest.mark.filterwarnings("ignore:.*GPU")
def test_the_first_value_is_made_on_the_host(fresh_graph):
    gpus = parameter_server.LocalParameterServerStrategy(
        ["/gpu:0", "/gpu:1"], placement="balanced", slice_bytes=1
    )
    built(of(of_dense_ids), gpus)
    parts = tf1.trainable_variables()
    assert [part.device for part in parts] == ["/device:GPU:0", "/device:GPU:1"]
    slots = [each for each in tf1.global_variables() if each.op.name.startswith("table/Adam/")]
    for part, slot in zip(parts, slots, strict=True):
        first = part.initial_value
        assert (first.shape, first.device) == (part.shape, "/device:CPU:0")
        # What is alike in all rows is made of each slice by itself.
        first = slot.initial_value
        assert (first.op.type, first.shape, first.device) == ("Fill", slot.shape, slot.device)


# Checkpoints and exports.


def trained(directory, strategy, steps, model=None, parts=1):
    options = {"strategy": strategy, "micro_batches": parts}
    replicated = model_fn.replicate_model_fn(model or of(of_dense_ids), **options)
    made = estimator.Estimator(replicated, str(directory))
    made.train(input_fn, max_steps=steps)
    return made


def input_fn():
    def rows():
        for features, labels in batches(*(5,) * 6):
            yield {"ids": features["ids"]}, labels

    ids, labels = tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, WIDTH], tf.float64)
    return tf.data.Dataset.from_generator(rows, output_signature=({"ids": ids}, labels))


def values(made):
    return {name: made.get_variable_value(name) for name in made.get_variable_names()}


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["sliced", "one_device"])
def test_checkpoints_interchange_with_those_of_whole_variables(tmp_path, first):
    ways = {"sliced": {"strategy": sliced(), "parts": 2}, "one_device": {"strategy": "one_device"}}
    trained(tmp_path / "both", steps=3, **ways.pop(first))
    (second,) = ways.values()
    found = values(trained(tmp_path / "both", steps=6, **second))
    for steps in (3, 6):
        one = trained(tmp_path / "one", "one_device", steps)
    assert {"table", "table/Adam", "table/Adam_1"} < set(found)
    exactness.compare(found, values(one), 1e-9, 1e-12)


@pytest.mark.thorough("merged-2")
@pytest.mark.parametrize(("towers", "parts"), [("one", 1), ("merged", 2)])
def test_an_export_holds_the_whole_table(tmp_path, towers, parts):
    made = trained(tmp_path / "run", sliced(), 2, parts=parts)
    ids = np.asarray([[0, 10], [5, 5], [4, 8]])

    def receiver():
        given = tf1.placeholder(tf.int64, [None, 2])
        return estimator.export.ServingInputReceiver({"ids": given}, {"ids": given})

    path = export.export_saved_model(made, str(tmp_path / "out"), receiver, towers=towers)
    served = tf.saved_model.load(path).signatures["serving_default"]
    whole = made.get_variable_value("table")
    found = served(ids=tf.constant(ids))["found"].numpy()
    np.testing.assert_allclose(found, whole[ids].sum(1))


# Who names a variable that is cut.


def test_whoever_names_the_variable_has_all_its_rows(fresh_graph):
    kept = {}

    def model(features, labels, mode):
        spec = of(of_dense_ids, "sgd")(features, labels, mode)
        kept["table"] = fresh_graph.get_collection("trainable_variables")[0]
        kept["twice"] = kept["table"].assign(2.0 * kept["table"])
        kept["norm"] = tf.reduce_sum(kept["table"])
        return spec

    built(model)
    whole = exactness.start([ROWS, WIDTH], tf.float64)
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(exactness.initializer_of_all())
        expected = session.run(whole)
        np.testing.assert_array_equal(session.run(kept["table"]), expected)
        np.testing.assert_array_equal(session.run("table/Read/ReadVariableOp:0"), expected)
        session.run(kept["twice"])
        np.testing.assert_allclose(session.run(kept["norm"]), 2 * expected.sum())
        session.run(kept["table"].initializer)
        np.testing.assert_array_equal(session.run(kept["table"]), expected)
        kept["table"].load(expected + 1, session)
        np.testing.assert_array_equal(session.run(kept["table"]), expected + 1)


def test_a_saver_of_the_model_saves_and_restores_slices(fresh_graph, tmp_path):
    kept = {}

    def model(features, labels, mode):
        spec = of(of_dense_ids, "sgd")(features, labels, mode)
        kept["saver"] = tf1.train.Saver({"mine": tf1.trainable_variables()[0]})
        return spec

    built(model)
    parts = tf1.trainable_variables()
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(exactness.initializer_of_all())
        before = session.run(parts)
        path = kept["saver"].save(session, str(tmp_path / "of-the-model"))
        session.run([part.assign(tf.zeros_like(part)) for part in parts])
        kept["saver"].restore(session, path)
        after = session.run(parts)
    np.testing.assert_array_equal(np.concatenate(after), np.concatenate(before))
    saved = tf.train.load_variable(path, "mine")
    np.testing.assert_array_equal(saved, np.concatenate(before))


class Halving(tf1.train.SessionRunHook):
    """Halves a variable that the model gave it, and reads it, from `begin` on."""

    def begin(self):
        self.read = self.variable.read_value()
        self.halved = self.variable.assign(self.variable * 0.5)

    def after_create_session(self, session, coordinator):
        del coordinator
        self.before = session.run(self.read)
        session.run(self.halved)
        self.after = session.run(self.read)


def test_what_a_hook_makes_uses_the_slices(tmp_path):
    hook = Halving()

    def model(features, labels, mode):
        spec = of(of_dense_ids, "sgd")(features, labels, mode)
        (hook.variable,) = tf1.trainable_variables()
        return spec._replace(training_hooks=[hook])

    trained(tmp_path, sliced(), 1, model)
    assert hook.before.shape == (ROWS, WIDTH)
    np.testing.assert_array_equal(hook.after, 0.5 * hook.before)


class Looping(Halving):
    """Reads a variable in a loop."""

    def begin(self):
        turn = lambda n: n + tf.cast(self.variable[0, 0], n.dtype)  # noqa: E731
        self.read = tf1.while_loop(lambda n: n < 3.0, turn, [tf.constant(0.0)])


def test_what_a_hook_does_in_a_loop_is_refused(tmp_path):
    hook = Looping()

    def model(features, labels, mode):
        spec = of(of_dense_ids, "sgd")(features, labels, mode)
        (hook.variable,) = tf1.trainable_variables()
        return spec._replace(training_hooks=[hook])

    with pytest.raises(ValueError, match=r"in no loop and no function; got while.*of type"):
        trained(tmp_path, sliced(), 1, model)


class Late(tf1.train.Scaffold):
    """Writes a variable that the model gave it, when all hooks have begun."""

    def finalize(self):
        self.variable.assign(tf.ones([ROWS, WIDTH], tf.float64))
        return super().finalize()


def test_what_is_made_too_late_is_refused(tmp_path):
    scaffold = Late()

    def model(features, labels, mode):
        spec = of(of_dense_ids, "sgd")(features, labels, mode)
        (scaffold.variable,) = tf1.trainable_variables()
        return spec._replace(scaffold=scaffold)

    with pytest.raises(ValueError, match=r"got AssignVariableOp.*, which was made later"):
        trained(tmp_path, sliced(), 1, model)


# What stays whole.


def names(collection="variables"):
    return [variable.op.name for variable in tf1.get_collection(collection)]


def test_a_partitioner_of_the_model_stays(fresh_graph):
    def parted(features):
        with tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(2), use_resource=True):
            return tf.reduce_sum(tf.nn.embedding_lookup(table(), features["ids"]), 1)

    built(of(parted, "sgd"))
    assert names("trainable_variables") == ["table/part_0", "table/part_1"]
    devices = [variable.device for variable in tf1.trainable_variables()]
    assert devices == ["/device:CPU:0", "/device:CPU:1"]


@pytest.mark.parametrize(
    ("slice_bytes", "count"), [(ROWS * WIDTH * 8, 1), (ROWS * WIDTH * 8 - 1, K)]
)
def test_variables_up_to_slice_bytes_stay_whole(fresh_graph, slice_bytes, count):
    built(of(of_dense_ids, "sgd"), sliced(slice_bytes))
    assert len(tf1.trainable_variables()) == count


def test_variables_of_fewer_rows_than_devices_stay_whole_and_are_balanced(fresh_graph):
    def model(features):
        return of_dense_ids(features) + table("few", K - 1)[0] + table("others", K - 1)[0]

    built(of(model, "sgd"))
    few = [variable for variable in tf1.trainable_variables() if "part" not in variable.name]
    assert [variable.op.name for variable in few] == ["few", "others"]
    assert len({variable.device for variable in few}) == 2


def written_in_a_loop(features):
    counts = tf1.get_variable(
        "counts", [ROWS], tf.float64, tf1.zeros_initializer(), trainable=False
    )

    def turn(n):
        with tf.control_dependencies([counts.assign_add(tf.ones([ROWS], tf.float64))]):
            return n + 1

    turns = tf1.while_loop(lambda n: n < 2, turn, [0], back_prop=False)
    return of_dense_ids(features) + tf.cast(turns, tf.float64)


def test_a_variable_that_cannot_be_cut_is_whole_and_named_with_its_bytes(fresh_graph, caplog):
    messages._said.clear()
    with caplog.at_level(logging.INFO, "replicate"):
        for _ in range(2):  # as an Estimator builds its model again and again
            with tf.Graph().as_default():
                built(of(written_in_a_loop, "sgd"))
                assert [name for name in names() if name.startswith("counts")] == ["counts"]
    told = [message for message in caplog.messages if "slice_bytes" in message]
    assert len(told) == 1
    assert told[0].endswith(f"such as a loop that writes one: counts ({ROWS * 8} bytes).")


def test_one_device_cuts_nothing(fresh_graph):
    built(of(of_dense_ids, "sgd"), sliced(devices=1))
    assert names("trainable_variables") == ["table"]


# What is refused.


@pytest.mark.parametrize("slice_bytes", [0, -1, 1.5, "64MB", True])
def test_slice_bytes_is_a_number_of_bytes(slice_bytes):
    with pytest.raises(ValueError, match="whole number of 1 or more; got"):
        sliced(slice_bytes)


def test_slices_need_several_devices():
    with pytest.raises(ValueError, match='placement="single" has one'):
        parameter_server.LocalParameterServerStrategy(2, slice_bytes=1)


def test_slices_are_on_no_parameter_device_that_is_named():
    with pytest.raises(ValueError, match="with parameter_device='/cpu:0'"):
        parameter_server.LocalParameterServerStrategy(2, "/cpu:0", "balanced", slice_bytes=1)


def test_towers_have_no_slices():
    with pytest.raises(ValueError, match="slice_bytes cuts variables of a graph that is split"):
        model_fn.replicate_model_fn(of(of_dense_ids), strategy=sliced(), tower_building="call")


def test_a_scope_has_no_slices(fresh_graph):
    with sliced().scope(), pytest.raises(ValueError, match="Leave out slice_bytes"):
        table()


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_id_of_no_row_is_refused(fresh_graph, wrong):
    holder = tf1.placeholder(tf.int64, [None, 2])
    replicated = model_fn.replicate_model_fn(of(of_dense_ids), strategy=sliced())
    spec = replicated({"ids": holder}, None, "infer")
    with tf1.Session(config=exactness.session_config()) as session:
        session.run(exactness.initializer_of_all())
        session.run(spec.predictions, {holder: [[0, 1], [2, ROWS - 1], [3, 4]]})
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(spec.predictions, {holder: [[0, 1], [2, wrong], [3, 4]]})
