"""TensorFlow as the rest of the package sees it.

`tf` and `tf1` are the public modules. Each private name is reached through a
`Door`, which lists it together with the reason; an unlisted name is an
`AttributeError`, so the list is complete by construction and a test proves that
every listed name exists in each supported TensorFlow. Names on instances are listed in
`instances`.
"""

import importlib
import os
import sys
import warnings
from typing import Any

from replicate.compat import advice, collector, versions
from replicate.console import messages

versions.choose_keras(os.environ)  # before TensorFlow, which looks at it while it is imported
try:
    if "tensorflow" not in sys.modules:  # else its user says what it logs
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with messages.loading("TensorFlow"), collector.paused():
            importlib.import_module("tensorflow")
    import tensorflow as tf
except ModuleNotFoundError as e:
    if e.name == "tensorflow":
        versions.require_supported(None)
    raise
versions.require_supported(getattr(tf, "__version__", "of an unknown version"))
versions.require_keras_2(tf.__version__, os.environ.get(versions.KERAS_VARIABLE))

tf1 = tf.compat.v1
advice.drop(tf)

if keras_3 := versions.bound_to_keras_3([tf, tf1]):
    warnings.warn(
        f"Keras 3 is in use already, as {', '.join(keras_3)}; replicate and Estimators need "
        "Keras 2 (tf-keras), models that mix the two fail. Write `from replicate import estimator` "
        f"before TensorFlow is imported, or set {versions.KERAS_VARIABLE}=1 for the process. See "
        "docs/porting.md#keras-2.",
        RuntimeWarning,
    )


class Door:
    """A private module, or a class in one, and the names taken from it.

    Args:
        path: Dotted module, optionally followed by `:ClassName`.
        **names: For each name, why it is needed.
    """

    def __init__(self, path: str, **names: str):
        self.path, self.names = path, names

    def target(self) -> Any:
        """Returns the module or class behind this door."""
        module, _, cls = self.path.partition(":")
        loaded = importlib.import_module(module)
        return getattr(loaded, cls) if cls else loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.names:
            raise AttributeError(f"{name!r} is not listed at the door of {self.path}")
        value = getattr(self.target(), name)
        self.__dict__[name] = value  # the next look-up costs nothing
        return value


ops = Door(
    "tensorflow.python.framework.ops",
    _default_graph_stack="which graph is a thread's default one; see compat/graphs",
    SymbolicTensor="a Saver of a dict takes a tensor for the variable that it restores",
)
session_api = Door(
    "tensorflow.python.client.pywrap_tf_session",
    **dict.fromkeys(
        """TF_DeleteBuffer TF_DeleteImportGraphDefOptions TF_DeleteImportGraphDefResults
        TF_GraphImportGraphDefWithResults TF_ImportGraphDefOptionsAddInputMapping
        TF_ImportGraphDefOptionsAddReturnOperation TF_ImportGraphDefOptionsRemapControlDependency
        TF_ImportGraphDefResultsReturnOperations TF_NewBufferFromString
        TF_NewImportGraphDefOptions""".split(),
        "copies of thousands of operations are made at once; see compat/importing",
    ),
)
smart_cond = Door(
    "tensorflow.python.framework.smart_cond",
    smart_constant_value="a branch that is known to be taken is; see splitting/lowering",
)
random_seed = Door(
    "tensorflow.python.framework.random_seed",
    _graph_to_seed_dict="towers of one worker draw other numbers than those of another",
)
stateful_random_ops = Door(
    "tensorflow.python.ops.stateful_random_ops",
    get_replica_id="a generator draws what one device draws; see compat/keras",
)
op_def_registry = Door(
    "tensorflow.python.framework.op_def_registry", get="whether operations of a type hold a state"
)
graph_class = Door(
    "tensorflow.python.framework.ops:Graph",
    switch_to_thread_local="towers in threads need scopes of their own",
)
variable_scope = Door(
    "tensorflow.python.ops.variable_scope",
    _VARSTORE_KEY="the collection that holds the store behind get_variable",
    _VariableStore="a tower begins with a store as it was before all towers",
    get_variable_scope_store="a tower's thread inherits the scope and its counters",
)
gradients_util = Door(
    "tensorflow.python.ops.gradients_util",
    _GradientsHelper="gradients by which a model updates by hand; see compat/gradients",
)
imperative_grad = Door(
    "tensorflow.python.eager.imperative_grad", imperative_grad="gradients of a tape, likewise"
)
record = Door(
    "tensorflow.python.eager.record",
    should_record_backprop="whether a tower's tape watches what a merge call is given",
)
eager_context = Door(
    "tensorflow.python.eager.context",
    eager_mode="a tower's thread runs eagerly where its caller does",
    device_policy="a tower's thread inherits the device policy",
    context="holds the device policy that a tower's thread inherits",
    global_seed="eager towers of a seeded run draw from it one after the other",
)
distribute_lib = Door(
    "tensorflow.python.distribute.distribute_lib",
    _CrossReplicaThreadMode="tells tf.distribute that code runs across towers",
)
saveable_object = Door(
    "tensorflow.python.training.saving.saveable_object",
    SaveableObject="a Saver writes a distributed variable once, under its plain name",
    SaveSpec="a Saver writes a distributed variable once, under its plain name",
)
trackable = Door(
    "tensorflow.python.trackable.base",
    VARIABLE_VALUE_KEY="the name of a variable's value in tf.train.Checkpoint",
)
autograph = Door(
    "tensorflow.python.autograph.impl.api",
    tf_convert="a tower's function is converted as the code is that gave it",
    autograph_artifact="our own functions are called as they are",
    StagingError="what it gives in place of an exception that it cannot make anew",
)
autograph_status = Door(
    "tensorflow.python.autograph.core.ag_ctx",
    control_status_ctx="whether the running code was converted",
    Status="whether the running code was converted",
)
loader_impl = Door(
    "tensorflow.python.saved_model.loader_impl",
    parse_saved_model="reads all graphs of a SavedModel, of which TensorFlow loads one",
)
summary_ops = Door(
    "tensorflow.python.ops.summary_ops_v2",
    _summary_state="the first tower's thread writes the summaries of its caller",
)
multi_device_iterator = Door(
    "tensorflow.python.data.ops.multi_device_iterator_ops",
    MultiDeviceIterator="a graph's iterator that prefetches onto each tower's device",
    OwnedMultiDeviceIterator="the eager iterator that does the same",
)
tf_export = Door(
    "tensorflow.python.util.tf_export",
    API_ATTRS="tensorflow-estimator registers its symbols here",
    API_ATTRS_V1="tensorflow-estimator registers its symbols here",
)
composite_tensor = Door(
    "tensorflow.python.framework.composite_tensor",
    CompositeTensor="values of several devices pass in and out of a tf.function",
)
core_types = Door(
    "tensorflow.python.types.core", Tensor="a distributed variable is accepted wherever a tensor is"
)
resource_variable_ops = Door(
    "tensorflow.python.ops.resource_variable_ops",
    BaseResourceVariable="a replicated variable as a TPU replica sees it",
    UninitializedVariable="lists as global alone what a tf.function makes in a graph, and holds "
    "a value until an asynchronous checkpoint is written",
    variable_accessed="tapes and functions note that a replicated variable was read",
)
ref_variable = Door(
    "tensorflow.python.ops.ref_variable",
    default_variable_creator="a replica's copy is made past the creators of a strategy",
)
tpu_util = Door(
    "tensorflow.python.distribute.tpu_util",
    enclosing_tpu_context="a replicated variable in tpu.replicate is the replica's",
)


def doors() -> dict[str, Door]:
    """Returns every door of this module by its name here."""
    return {name: value for name, value in globals().items() if isinstance(value, Door)}
