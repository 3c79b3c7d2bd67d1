"""`verify`: what it finds on graphs that are split, and on towers that are calls of a model."""

import json
import re

import numpy as np
import pytest

import replicate
from replicate import errors, estimator, verification
from replicate.compat.tensorflow import tf, tf1
from tests import exactness

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
CPUS = ["/cpu:0", "/cpu:1", "/cpu:2"]
ROWS = 7  # 2 and 3 towers do not divide it
STEPPED = ("loss", "weights", "slots")
OTHERS = ("other variables", "metrics", "predictions", "export outputs")


def lines(is_static=False, with_labels=True):
    """Batches of 7 rows on y = 3 x."""

    def input_fn():
        x = np.linspace(0.1, 1.5, 2 * ROWS, dtype=np.float32)[:, np.newaxis]
        rows = ({"x": x}, 3 * x) if with_labels else {"x": x}
        return tf.data.Dataset.from_tensor_slices(rows).batch(ROWS, drop_remainder=is_static)

    return input_fn


def momentum():
    return tf1.train.MomentumOptimizer(0.1, 0.9)


def squared(labels, y):
    return tf1.losses.mean_squared_error(labels, y)


def spec(mode, y, loss, labels=None):
    metrics = None
    if mode == "eval" and labels is not None:
        metrics = {"error": tf1.metrics.mean_absolute_error(labels, y)}
    return estimator.EstimatorSpec(mode, {"y": y}, loss, tf.no_op(), metrics)


def regression(disturb=lambda x: x, joined=squared):
    """Returns a model_fn, with a metric, that disturbs its features in training."""

    def model_fn(features, labels, mode):
        x = disturb(features["x"]) if mode == "train" else features["x"]
        y = tf1.layers.dense(x, 1, name="line")
        return spec(mode, y, None if labels is None else joined(labels, y), labels)

    return model_fn


line = regression()


def verify(model_fn, input_fn=None, optimizer_fn=momentum, devices=CPUS[:2], **options):
    options.setdefault("config", estimator.RunConfig(session_config=exactness.session_config()))
    return replicate.verify(
        model_fn, input_fn or lines(), optimizer_fn=optimizer_fn, devices=devices, **options
    )


def call(model_fn, **options):
    """Compares towers that are calls of the model."""
    return verify(model_fn, tower_building="call", **options)


def verdicts(found):
    return {row.what: row.verdict for row in found.rows}


def require(found, changed=(), *texts):
    """Requires verdicts, by kinds; those of other kinds are `equal`. The text has some texts."""
    expected = dict.fromkeys((*STEPPED, *OTHERS), "equal") | dict(changed)
    assert verdicts(found) == expected
    assert found.holds is ("differs" not in expected.values())
    for text in texts:
        assert text in str(found)


def all_of(verdict, *kinds):
    return dict.fromkeys(kinds, verdict)


def row_of(found, what):
    return next(row for row in found.rows if row.what == what)


@pytest.mark.thorough("3")
@pytest.mark.parametrize("count", [2, 3])
def test_it_holds_for_an_exact_model(count):
    found = verify(line, devices=CPUS[:count])
    require(found)
    # As they come; not divided by K; fewer than 3 towers, once; one row.
    assert found.batch_sizes == {2: (7, 5, 1), 3: (7, 5, 2, 1)}[count]
    assert found.devices == tuple(f"/device:CPU:{i}" for i in range(count))
    assert str(found).endswith("The towers give what one device gives.")


@pytest.mark.thorough
def test_it_holds_where_the_graph_knows_the_batch_size():
    sizes = set()

    def model_fn(features, labels, mode):
        sizes.add(features["x"].shape[0])
        return line(features, labels, mode)

    require(verify(model_fn, lines(is_static=True), devices=CPUS, strategy="mirrored"))
    assert sizes == {7, 5, 2, 1}  # one device's, however many towers there are


def own_step(features, labels, mode):
    """Has an optimizer of its own."""
    made = line(features, labels, mode)
    if mode != "train":
        return made
    step = tf1.train.AdamOptimizer(0.01).minimize(made.loss, tf1.train.get_global_step())
    return made._replace(train_op=step)


@pytest.mark.thorough("two optimizers", "one tower")
@pytest.mark.parametrize(
    ("model_fn", "options", "texts"),
    [
        (own_step, {"optimizer_fn": None}, ()),
        (own_step, {}, ["replicate_model_fn on one device"]),  # which leaves the other one out
        (
            line,
            {"accumulate_steps": 2, "clip_global_norm": 0.5},
            ["replicate_model_fn on one device"],
        ),
        (line, {"devices": CPUS[:1]}, ["There is one tower: nothing is split."]),
    ],
    ids=["own optimizer", "two optimizers", "accumulated", "one tower"],
)
def test_it_holds_for_every_way_to_step(model_fn, options, texts):
    require(verify(model_fn, **options), (), *texts)


# Towers that are calls.


def by_tower(labels, y):
    """Each tower multiplies its loss by another number."""
    return squared(labels, y) * (1.0 + replicate.get_tower_context().tower_id)


def test_a_wrong_model_is_found():
    found = call(regression(joined=by_tower))
    require(found, all_of("differs", *STEPPED), "line/kernel")
    assert str(found).endswith(
        "The towers do not give what one device gives: loss, weights, slots."
    )
    loss = row_of(found, "loss")
    assert loss.difference > 1000 * loss.noise
    assert " of 7 rows" in loss.place or " of 5 rows" in loss.place


@pytest.mark.thorough("sum-*")
@pytest.mark.parametrize(("given", "holds"), [("sum", True), ("mean", False)])
def test_the_losses_of_towers_are_joined_as_it_is_said(given, holds):
    def total(labels, y):
        return tf.reduce_sum(tf.square(y - labels))

    found = verify(regression(joined=total), loss_reduction=given)
    require(found, {} if holds else all_of("differs", *STEPPED))
    assert ("that is one device's if the loss is a mean over rows" in str(found)) is not holds


def normalized(features, labels, mode):
    x = tf1.layers.dense(features["x"], 2)
    x = tf1.layers.batch_normalization(x, training=mode == "train", name="norm")
    y = tf1.layers.dense(x, 1)
    return spec(mode, y, None if labels is None else squared(labels, y), labels)


@pytest.mark.thorough
def test_rows_of_its_own_are_given_as_the_reason_and_nothing_is_said_beside_the_table(caplog):
    found = call(normalized)
    differing = (*STEPPED, "other variables")
    require(found, all_of("differs", *differing), "A tower sees only its own rows")
    for what in differing:
        assert "its own rows, also in batch normalisation" in row_of(found, what).explanations[-1]
    assert 'update_ops="mean"' in str(found)
    assert not [one for one in caplog.records if one.name == "replicate"]


@pytest.mark.thorough
def test_what_does_not_depend_on_random_numbers_is_compared():
    def beside(labels, y):
        aside = tf1.get_variable("aside", [], initializer=tf1.ones_initializer())
        return squared(labels, y) + 0.1 * tf.square(aside)

    found = call(regression(lambda x: tf1.layers.dropout(x, training=True), beside))
    require(found, (), "Random numbers (dropout/")
    # Two batches as they come and two cut ones: 4 losses in train and 4 in eval, 4 changes
    # of each of three weights, of which two are behind the dropout.
    assert row_of(found, "loss").detail == "4 of 8 values depend on random numbers"
    assert row_of(found, "weights").detail == "8 of 12 values depend on random numbers"


@pytest.mark.thorough
def test_random_numbers_go_on_from_a_variable_to_what_reads_it():
    def model_fn(features, labels, mode):
        w = tf1.get_variable("w", [1, 1])
        aside = tf1.get_variable("aside", [], initializer=tf1.ones_initializer())
        y = tf1.layers.dropout(features["x"], training=mode == "train") @ w
        if labels is None:
            return spec(mode, y, None)
        # The gradient of `aside` is w, which changes by what was dropped in the batch before.
        return spec(mode, y, squared(labels, y) + aside * tf.stop_gradient(w[0, 0]), labels)

    found = call(model_fn)
    # Nothing orders the loss' own read of w and the update of w.
    require(found, {**all_of("random", "weights", "slots"), "loss": "open in the model"})


def drop_with_a_graphs_seed(x):
    tf1.set_random_seed(5)
    return tf.nn.dropout(x, rate=0.5)


def drop_as_keras_does(x):
    return tf.keras.layers.Dropout(0.5)(x, training=True)


def add_stateless_noise(x):
    return x + tf.random.stateless_normal(tf.shape(x), [1, 2])


def add_noise_of_a_generator(x):
    return x + tf.random.Generator.from_seed(3).normal(tf.shape(x))


def add_noise_of_python(x):
    def noise(x):
        return np.random.normal(size=x.shape).astype(np.float32)

    return x + tf.ensure_shape(tf.numpy_function(noise, [x], tf.float32), x.shape)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "disturb", [drop_with_a_graphs_seed, add_stateless_noise, add_noise_of_a_generator]
)
def test_random_numbers_whose_seed_is_fixed_are_seen_too(disturb):
    require(call(regression(disturb)), all_of("random", "weights", "slots"), "Random numbers (")


def contrastive(features, labels, mode):
    x = tf1.layers.dense(features["x"], 2)
    own = tf.range(tf.shape(x)[0])
    similar = tf.matmul(x, x, transpose_b=True)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=own, logits=similar)
    return spec(mode, x, tf.reduce_mean(loss))


@pytest.mark.thorough
def test_a_loss_over_all_rows_is_told():
    found = call(contrastive)
    require(found, {**all_of("differs", *STEPPED), "metrics": "not compared"})
    loss, own = row_of(found, "loss").explanations
    assert "are averaged by rows: that is one device's if the loss is a mean over rows" in loss
    assert "A tower sees only its own rows" in own


def roll(x):
    return tf.roll(x, 1, 0)


def test_what_depends_on_the_order_of_rows_is_told_apart():
    found = call(regression(roll))
    require(found, all_of("depends on order", *STEPPED))
    assert str(found).endswith("one device gives; loss, weights, slots cannot be compared.")
    assert str(found).count("Values that depend on order change as much on one device if") == 1


@pytest.mark.thorough
def test_python_functions_of_towers_are_told():
    def centre(x):
        return tf.numpy_function(lambda rows: rows - rows.mean(), [x], tf.float32)

    found = call(regression(lambda x: tf.ensure_shape(centre(x), x.shape)))
    require(found, all_of("differs", *STEPPED))
    assert any("Python functions" in text for text in row_of(found, "loss").explanations)


# What fails.


def test_a_mode_that_one_device_cannot_run_is_not_compared():
    found = verify(line, lines(with_labels=False))
    lacking = all_of("not compared", *STEPPED, "other variables", "metrics")
    require(found, lacking, "In train, with batches as they come, one device raises ValueError")
    assert row_of(found, "loss").detail == "one device raises ValueError"


def failing_in(*modes):
    def model_fn(features, labels, mode):
        if mode in modes:
            raise KeyError("a fault of the user's")
        return line(features, labels, mode)

    return model_fn


@pytest.mark.parametrize(
    ("modes", "with_labels"),
    [(["train"], True), (["train", "eval", "infer"], True), (["train", "eval", "infer"], False)],
)
def test_what_fails_in_training_or_in_all_modes_is_raised(modes, with_labels):
    with pytest.raises(KeyError, match="a fault of the user's"):
        verify(failing_in(*modes), lines(with_labels=with_labels))


@pytest.mark.thorough
def test_an_output_that_one_device_cannot_make_is_not_compared():
    found = verify(failing_in("infer"))
    require(found, {"export outputs": "not compared"})  # the predictions are those of EVAL
    assert row_of(found, "export outputs").detail == "one device raises KeyError"


@pytest.mark.thorough
def test_what_only_towers_refuse_differs():
    def model_fn(features, labels, mode):
        if replicate.get_tower_context().num_towers > 1 and mode == "train":
            raise ValueError("not here")
        return line(features, labels, mode)

    found = call(model_fn)
    differing = all_of("differs", *STEPPED, "other variables")
    require(found, differing, "the towers raise ValueError: not here.")
    assert row_of(found, "weights").detail == "the towers raise ValueError"


def test_the_reason_of_an_error_at_run_time_is_told():
    def too_few(x):
        with tf.control_dependencies([tf1.assert_greater(tf.shape(x)[0], 5, message="too few")]):
            return tf.identity(x)

    found = call(regression(too_few))  # 7 rows on one device, 4 and 3 on two
    assert re.search(
        r"the towers raise InvalidArgumentError: assertion failed: \[too few", str(found)
    )
    assert "Graph execution error" not in str(found)


@pytest.mark.thorough("True-*")
@pytest.mark.parametrize(
    ("has_more", "text"),
    [(False, "the towers have no eval/more"), (True, "only the towers have eval/more")],
)
def test_what_only_one_side_has_differs(has_more, text):
    def model_fn(features, labels, mode):
        made = line(features, labels, mode)
        if mode != "eval" or is_replicated() is not has_more:
            return made
        return made._replace(predictions={**made.predictions, "more": labels})

    found = verify(model_fn)
    require(found, {"predictions": "differs"})
    assert row_of(found, "predictions").detail == text


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"devices": ["/cpu:0", "/cpu:99"]}, errors.DeviceError, "has no /device:CPU:99"),
        ({"devices": 99}, errors.DeviceError, "got 99"),
        ({"steps": 0}, ValueError, "steps is 1 or more; got 0"),
        ({"update_ops": "last"}, ValueError, "update_ops is one of"),
        (
            {"input_fn": lambda: lines()().take(0)},
            errors.BatchError,
            "the input_fn gave none",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        verify(line, **given)


# What it does, and leaves.


def test_nothing_is_written_and_nothing_is_left(tmp_path):
    seen = set()

    def model_fn(features, labels, mode, params, config):
        seen.add(config.model_dir)
        params["rate"] += 1  # a copy of each call's own
        return line(features, labels, mode)

    params = {"rate": 1}
    config = estimator.RunConfig(model_dir=str(tmp_path / "model"), tf_random_seed=3)
    assert verify(model_fn, params=params, config=config).holds
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path / "model") not in seen
    assert params == {"rate": 1}
    assert config.model_dir == str(tmp_path / "model")
    assert tf1.get_default_graph().get_operations() == []


@pytest.mark.thorough
def test_it_says_on_the_way_how_far_it_is():
    told = []
    verify(line, devices=CPUS[:2], watch=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, 9) for i in range(9)]  # three modes of three rounds


def test_plain_data_is_for_json():
    found = verification.Verification(
        (verification.Row("loss", "differs", float("inf"), 0.5, "train", "batch 1 of 2 rows"),),
        ("/device:CPU:0",),
        (2,),
    )
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["holds"] is False
    assert plain["rows"][0]["difference"] == "inf"
    assert plain["rows"][0]["noise"] == 0.5


# Graphs that are split.


@pytest.mark.thorough
def test_features_may_be_sparse_ragged_and_nested():
    def model_fn(features, labels, mode):
        (numbers, words), bag = features["pair"], features["bag"]
        table = tf1.get_variable("table", [10, 2])
        by_word = tf.reduce_sum(tf.gather(table, words), axis=1)
        by_bag = tf.sparse.sparse_dense_matmul(bag, tf1.get_variable("bag", [6, 2]))
        y = tf1.layers.dense(numbers + by_word + by_bag, 1)
        name = tf.strings.as_string(numbers[:, 0])
        loss = None if labels is None else squared(labels["y"], y)
        made = spec(mode, y, loss, labels and labels["y"])
        return made._replace(predictions={"y": y, "name": name, "most": tf.argmax(numbers, 1)})

    def input_fn():
        drawn = np.random.RandomState(0)
        words = [list(drawn.randint(0, 10, drawn.randint(0, 4))) for _ in range(ROWS)]
        bag = tf.sparse.from_dense(drawn.randint(0, 2, [ROWS, 6]).astype(np.float32))
        numbers = drawn.uniform(size=[ROWS, 2]).astype(np.float32)
        features = {"bag": bag, "pair": (numbers, tf.ragged.constant(words, tf.int64))}
        labels = {"y": drawn.uniform(size=[ROWS, 1]).astype(np.float32)}
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(ROWS)

    require(verify(model_fn, input_fn))


@pytest.mark.thorough("add_stateless_noise")
@pytest.mark.parametrize(
    "disturb",
    [
        lambda x: tf.nn.dropout(x, rate=0.5),
        drop_with_a_graphs_seed,
        drop_as_keras_does,
        add_stateless_noise,
        add_noise_of_a_generator,
        add_noise_of_python,
        tf.random.shuffle,
    ],
)
def test_random_numbers_of_a_split_graph_are_compared(disturb):
    found = verify(regression(disturb), random_numbers="per_device")
    require(found)
    told = "are the same on both sides, so all values are compared" in str(found)
    assert told is (disturb is not add_noise_of_python)  # whether that draws is not seen


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["parameter_server", "mirrored"])
def test_a_split_graph_needs_no_explanations(strategy):
    def model_fn(features, labels, mode):
        x = tf1.layers.dense(features["x"], 2)
        x = tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)
        return normalized({"x": x}, labels, mode)

    found = verify(model_fn, strategy=strategy)
    require(found)
    assert found.notes == ()


@pytest.mark.thorough
def test_what_depends_on_the_order_of_rows_is_compared_where_a_graph_is_split():
    found = verify(regression(roll))
    require(found)
    loss = row_of(found, "loss")
    assert loss.noise < 1e-4
    # Of two batches of 7 rows and one of 5 and 1: that of one row has no other order.
    assert re.fullmatch("[23] of 8 values depend on the order of rows", loss.detail)


def is_replicated():
    return isinstance(tf.distribute.get_strategy(), replicate.DistributionStrategy)


def faulty(model):
    """The model, whose loss is twice as large where it is replicated: far from rounding."""

    def model_fn(features, labels, mode):
        made = model(features, labels, mode)
        factor = 2.0 if is_replicated() else 1.0
        return made if labels is None else made._replace(loss=made.loss * factor)

    return model_fn


def test_a_fault_of_a_split_graph_is_found():
    found = verify(faulty(line))
    told = "A difference is a fault of replicate, unless the model depends on"
    require(found, all_of("differs", *STEPPED), told)


def by_hand(features, labels, mode):
    """A rate that reads the step, beside an assignment to the step: BERT's own train_op."""
    made = line(features, labels, mode)
    if labels is None:
        return made
    step = tf1.train.get_global_step()
    rate = 0.05 * tf.cast(1 + step, tf.float32)
    train_op = tf1.train.GradientDescentOptimizer(rate).minimize(made.loss)
    return made._replace(train_op=tf.group(train_op, step.assign(step + 1)))


def in_turn(features, labels, mode):
    """Two optimizers, each of which writes what the other one's loss reads for itself."""

    def predicted():
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            return tf1.layers.dense(tf.tanh(tf1.layers.dense(features["x"], 3, name="a")), 1)

    y = predicted()
    if labels is None:
        return spec(mode, y, None)
    losses = squared(labels, y), tf.reduce_mean(tf.abs(predicted() + labels))
    trained = tf1.trainable_variables()
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    steps = [
        optimizer.minimize(losses[0], tf1.train.get_global_step(), trained[:2]),
        optimizer.minimize(losses[1], None, trained[2:]),
    ]
    return spec(mode, y, losses[0], labels)._replace(train_op=tf.group(steps))


OPEN = {**all_of("open in the model", "loss", "weights"), "slots": "not compared"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model_fn", "variable", "reader", "writer"),
    [
        (by_hand, "global_step", "ReadVariableOp", "AssignVariableOp"),
        (in_turn, "model/a/kernel", "model_1/a/", "GradientDescent/update_model/a/kernel/"),
    ],
)
def test_what_a_model_leaves_open_is_named_each_time(model_fn, variable, reader, writer):
    for _ in range(2):
        found = verify(model_fn, optimizer_fn=None)
        require(found, OPEN)
        (text, *_) = row_of(found, "weights").explanations
        assert f"whether {variable} is read ({reader}" in text
        assert f"before it is written ({writer}" in text
        assert str(found).endswith("one device gives; loss, weights: open in the model.")


@pytest.mark.thorough
def test_a_fault_beside_what_a_model_leaves_open_is_found():
    found = verify(faulty(by_hand), optimizer_fn=None)
    require(found, {**OPEN, "loss": "differs"})  # the gradients are those of the loss as it was


def test_what_both_sides_leave_open_is_not_compared():
    found = verify(by_hand, optimizer_fn=None, devices=CPUS[:1])
    require(found, OPEN)
    weights = row_of(found, "weights")
    assert weights.difference is None
    assert "it is not compared" in weights.explanations[0]


def in_bfloat16(features, labels, mode):
    """Computes in bfloat16 what is stored in float32, as Keras' mixed precision does."""
    x = tf.keras.layers.Dense(4, dtype=tf.keras.mixed_precision.Policy("mixed_bfloat16"))
    return line({"x": tf.cast(x(features["x"]), tf.float32)}, labels, mode)


@pytest.mark.thorough
def test_rounding_is_that_of_the_precision_in_which_a_step_computes():
    found = verify(in_bfloat16)
    require(found)
    # Another rounding of a weight by 2^-7 is seen in what is made from it.
    assert row_of(found, "predictions").noise > 1e-4


@pytest.mark.thorough
def test_a_fault_of_a_step_in_bfloat16_is_found():
    assert not verify(faulty(in_bfloat16)).holds


@pytest.mark.thorough
def test_what_rounding_brings_over_an_edge_now_and_then_depends_on_it():
    def model_fn(features, labels, mode):
        """Its loss is twice as large beyond an edge, at which three numbers are.

        They are all beyond it in one of eight ways to round them otherwise.
        """
        made = line(features, labels, mode)
        numbers = tf1.get_variable("numbers", 3, tf.float32, tf1.ones_initializer())
        edge = np.nextafter(np.float32(1), np.float32(0)) if is_replicated() else np.float32(1)
        factor = tf.where(tf.reduce_min(numbers) > edge, 2.0, 1.0)
        return made if labels is None else made._replace(loss=made.loss * factor)

    found = verify(model_fn)
    assert found.holds
    assert verdicts(found)["loss"] == "depends on rounding"
    assert row_of(found, "loss").difference > 0.1
