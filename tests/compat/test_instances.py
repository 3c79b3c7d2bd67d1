"""Names on instances: each is there, and no other private name is in use."""

import ast
import functools
import pathlib
import sys

import numpy as np
import pytest

from replicate import estimator
from replicate.compat import instances
from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1

ROOT = pathlib.Path(__file__).parent.parent.parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.glob("replicate/**/*.py"))
TABLES = {"taken": instances.TAKEN, "given": instances.GIVEN}

# Private by their look alone; Python's documentation lists them.
OF_PYTHON = {"_replace", "_fields", "_make", "_asdict", "_exit"}

# In use, but in no module as one word.
PUT_TOGETHER = {"_eval_distribute"}


def resource_variable():
    return tf1.get_variable("v", initializer=1.0, use_resource=True)


def mirrored_variable():
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        return tf1.get_variable("v", initializer=1.0, use_resource=True)


def copy_of_a_mirrored_variable():
    # NOTE: what is set on a resource variable is lost in tf.nest; its handle keeps it.
    return mirrored_variable().values[0].handle


def tpu_context():
    found = []

    def replica():
        found.append(tfc.tpu_util.enclosing_tpu_context())
        return tf.constant(1.0)

    tf1.tpu.replicate(replica, inputs=[[], []])
    return found[0]


def synchronous():
    return tf1.train.SyncReplicasOptimizer(tf1.train.AdamOptimizer(), 1)


def run_config():
    return estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy(["/cpu:0"]))


def variable_that_keras_sets():
    with tf.Graph().as_default():
        variable = resource_variable()
        tf1.keras.backend.set_value(variable, np.zeros(variable.shape))
        return variable


def backend_of_keras():
    package = tf.keras.layers.Layer.__module__.partition(".src.")[0]
    return sys.modules[f"{package}.src.backend"]


MAKERS = {
    "graph": tf1.get_default_graph,
    "graph of a function": lambda: tf.function(lambda: 1).get_concrete_function().graph,
    "stack of a graph": lambda: tf1.get_default_graph()._colocation_stack,
    "operation": lambda: tf.constant(1.0).op,
    "dtype": lambda: tf.float32,
    "tensor": lambda: tf.constant(1.0),
    "resource variable": resource_variable,
    "variable that tf.keras has set": variable_that_keras_sets,
    "mirrored variable": mirrored_variable,
    "copy of a mirrored variable": copy_of_a_mirrored_variable,
    "store of variables": lambda: tfc.variable_scope._VariableStore(),
    "store of variable scopes": lambda: tfc.variable_scope.get_variable_scope_store(),
    "summary state": lambda: tfc.summary_ops._summary_state,
    "eager context": lambda: tfc.eager_context.context(),
    "function": lambda: tf.function(lambda: 1.0),
    "replicate context of a TPU": tpu_context,
    "optimizer": lambda: tf1.train.GradientDescentOptimizer(1.0),
    "synchronous optimizer": synchronous,
    "hook of a synchronous optimizer": lambda: synchronous().make_session_run_hook(True),
    "loss of tf.keras": lambda: tf.keras.losses.MeanSquaredError(),
    "backend of tf.keras": backend_of_keras,
    "optimizer of tf.keras": lambda: tf.keras.optimizers.SGD(),
    "hook that saves": lambda: tf1.train.CheckpointSaverHook("unused", save_steps=1),
    "scaffold": tf1.train.Scaffold,
    "estimator": lambda: estimator.Estimator(lambda features: None, model_dir="unused"),
    "run config": estimator.RunConfig,
    "run config with a strategy": run_config,
    "strategy": lambda: tf1.distribute.OneDeviceStrategy("/cpu:0"),
    "extended strategy": lambda: tf1.distribute.OneDeviceStrategy("/cpu:0").extended,
    "replica context": tf.distribute.get_replica_context,
    "composite tensor": lambda: tf.ragged.constant([[1.0]]),
    "type spec": lambda: tf.RaggedTensorSpec([None, None]),
    "dataset of version 1": lambda: tf1.data.Dataset.range(1),
}

each_row = pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{table}-{row.owner}-{row.name}")
        for table, rows in TABLES.items()
        for row in rows
    ],
)
each_module = pytest.mark.parametrize("module", MODULES, ids=str)


@pytest.mark.filterwarnings("ignore:.*LossScale.*:UserWarning")
@each_row
def test_name_exists_on_a_real_object(row, fresh_graph):
    if row.since and version(tf.__version__) < version(row.since):
        pytest.skip(f"older than {row.since}")
    assert hasattr(MAKERS[row.owner](), row.name)


def version(text):
    return tuple(map(int, text.split(".")[:2]))


def test_every_row_has_a_reason_and_stands_once():
    for rows in TABLES.values():
        assert all(len(row.why.split()) >= 3 for row in rows)
        assert len({(row.owner, row.name) for row in rows}) == len(rows)


def test_every_row_is_in_use():
    others = [nodes_in(module) for module in MODULES if module.name != "instances.py"]
    of_bases = all_of(of_self_in, others) - made_in_modules()
    taken = all_of(taken_in, others) | of_bases
    given = all_of(literals_in, others) | made_in_modules()
    for table, found in (("taken", taken), ("given", given)):
        named = {row.name for row in TABLES[table]}
        assert named - found == (PUT_TOGETHER if table == "taken" else set())


@each_module
def test_private_names_of_others_are_listed(module):
    nodes = nodes_in(module)
    listed = {row.name for row in instances.TAKEN}
    known = listed | OF_PYTHON | made_in(nodes) | doors_of(nodes)
    found = [f"line {line}: {name}" for line, name in read_in(nodes) if name not in known]
    assert not found, f"{found}: list them in replicate/compat/instances.py, or at a door"


@each_module
def test_private_names_of_self_are_made_in_the_package_or_listed(module):
    listed = {row.name for rows in TABLES.values() for row in rows}
    known = made_in_modules() | listed | OF_PYTHON
    assert [name for name in of_self_in(nodes_in(module)) if name not in known] == []


@functools.cache
def nodes_in(module):
    return list(ast.walk(ast.parse((ROOT / module).read_text())))


@functools.cache
def made_in_modules():
    return all_of(made_in, map(nodes_in, MODULES))


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    """Whether an expression is `self`, `cls`, or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Name) and node.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def read_in(nodes):
    """Yields line and name of each private attribute of something other than self."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.lineno, node.attr
        name = named_in_call(node)
        if name is not None and is_private(name) and not is_own(node.args[0]):
            yield node.lineno, name


def named_in_call(node):
    """Returns the name that a call of getattr and its like is given as a literal."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id not in ("getattr", "setattr", "hasattr", "delattr") or len(node.args) < 2:
        return None
    name = node.args[1]
    return name.value if isinstance(name, ast.Constant) else None


def of_self_in(nodes):
    return [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and is_private(node.attr) and is_own(node.value)
    ]


def made_in(nodes):
    """Returns the private names that classes of a module define, or set on themselves."""
    made = set()
    for cls in nodes:
        if not isinstance(cls, ast.ClassDef):
            continue
        for node in cls.body:
            if isinstance(node, ast.FunctionDef):
                made.add(node.name)
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            made.update(target.id for target in targets if isinstance(target, ast.Name))
        for node in ast.walk(cls):
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if is_set and is_own(node.value):
                made.add(node.attr)
    return {name for name in made if is_private(name)}


def doors_of(nodes):
    """Returns the names at the doors that a module opens."""
    opened = {
        node.attr if isinstance(node, ast.Attribute) else node.name
        for node in nodes
        if isinstance(node, ast.Attribute | ast.alias)
    }
    return {name for door in opened & {*tfc.doors()} for name in tfc.doors()[door].names}


def literals_in(nodes):
    """Returns the texts of a module that may be names."""
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def taken_in(nodes):
    """Returns the names that a module reads on something other than self, or lists."""
    read = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and not is_own(node.value)
    }
    return literals_in(nodes) | read


def all_of(find, modules):
    return set().union(*map(find, modules))
