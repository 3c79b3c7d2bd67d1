"""Which kinds of operations read, draw random numbers, or have an effect.

A stateful operation has an effect, unless it is listed here. So an unknown kind is never lost, run
twice or run out of order.
"""

import functools

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf
from replicate.graph import operations

# What reads variables, tables and queues: between two writes, at any time and any number of times.
READS_OF_VARIABLES = operations.READS | {"IsVariableInitialized"}
READS_OF_VALUES = READS_OF_VARIABLES - {
    "IsVariableInitialized",
    "VarIsInitializedOp",
    "VariableShape",
}
READS_OF_TABLES = frozenset(
    """LookupTableExport LookupTableExportV2 LookupTableFind LookupTableFindV2 LookupTableSize
    LookupTableSizeV2 QueueIsClosed QueueIsClosedV2 QueueSize QueueSizeV2""".split()
)
READS = READS_OF_VARIABLES | READS_OF_TABLES

# What draws numbers from a state of its own, or returns memory as it is.
DRAWS = frozenset(
    """AllCandidateSampler Empty FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
    LogUniformCandidateSampler Multinomial NonDeterministicInts ParameterizedTruncatedNormal
    RandomCrop RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal
    RandomUniform RandomUniformInt SampleDistortedBoundingBox SampleDistortedBoundingBoxV2
    ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler""".split()
)

# Loops and branches of version 1, and what has no value that could be looked at or sent.
ENTERS = ("Enter", "RefEnter")
EXITS = ("Exit", "RefExit")
MERGES = ("Merge", "RefMerge")
SWITCHES = ("Switch", "RefSwitch")
WAYS_BACK = ("NextIteration", "RefNextIteration")
HANDLES = (tf.resource, tf.variant)

# What fails if values are wrong. Each device may check its own rows.
CHECKS = frozenset(("Assert", "CheckNumerics", "CheckNumericsV2"))

# Other stateful kinds, run for their values alone: of files, datasets, loops, lists and devices.
_QUIET = frozenset(
    """DatasetToSingleElement DeviceIndex DisableCopyOnRead GetSessionTensor GlobalIterId
    GuaranteeConst IsResourceHandleRefCounting IsTensorFloat32Enabled ReduceDataset RefEnter
    RefExit RefIdentity RefMerge RefNextIteration RefSelect RefSwitch Restore RestoreSlice
    RestoreV2 StatelessRandomGetAlg Timestamp""".split()
)
_QUIET_FAMILIES = ("Collective", "CudnnRNN", "Iterator", "Stack", "TensorArray")


def is_stateful(kind: str) -> bool:
    """Whether operations of a kind have, use or change something that outlives a step.

    A kind that is not registered, as the call of a TensorFlow 1 function, counts as stateful.
    """
    definition = tfc.op_def_registry.get(kind)
    if definition is None or definition.is_stateful:
        return True
    return any(argument.is_ref for argument in definition.input_arg)


@functools.cache
def has_effect(kind: str) -> bool:
    """Whether operations of a kind that calls no functions do more than make their outputs."""
    if not is_stateful(kind) or kind in READS or kind in DRAWS or kind in _QUIET:
        return False
    return not kind.startswith(_QUIET_FAMILIES) and not _only_makes_holders(kind)


@functools.cache
def changes_state(kind: str) -> bool:
    """Whether operations of a kind have an effect other than to check values."""
    return has_effect(kind) and kind not in CHECKS


def uses_handle(kind: str) -> bool:
    """Whether operations of a kind read or write what a handle names, such as a variable."""
    definition = tfc.op_def_registry.get(kind)
    resource = tf.resource.as_datatype_enum
    return definition is not None and any(each.type == resource for each in definition.input_arg)


def _only_makes_holders(kind: str) -> bool:
    """Whether a kind makes variables, tables or the like, and uses none."""
    definition = tfc.op_def_registry.get(kind)
    if definition is None or not definition.output_arg:
        return False
    resource, variant = tf.resource.as_datatype_enum, tf.variant.as_datatype_enum
    makes = definition.output_arg
    if not all(made.is_ref or made.type in (resource, variant) for made in makes):
        return False
    return not any(used.is_ref or used.type == resource for used in definition.input_arg)
