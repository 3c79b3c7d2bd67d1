"""The slices of large variables, as Savers and sessions see them: parts of one variable each."""

from collections.abc import Sequence

from replicate.compat import tensorflow as tfc
from replicate.compat.tensorflow import tf, tf1
from replicate.console import messages
from replicate.graph import placement
from replicate.splitting import slices
from replicate.splitting.structure import replacing

_WHY = {  # a large variable is whole, by whether it has enough rows
    True: "something uses them that is not done slice by slice, such as a loop that writes one",
    False: "they have fewer rows than there are devices",
}


def list_slices(sliced: slices.Sliced, slicing: slices.Slicing) -> None:
    """Lists slices in collections in place of their variable, as a partitioner's parts are listed.

    Says which large variables are not cut.

    Args:
        sliced: The variables that are cut.
        slicing: What was to be cut.
    """
    cut = sliced.variables.values()
    found = {id(variable): _parts(variable, sliced.slices(variable)) for variable in cut}
    graph = tf1.get_default_graph()
    for key in graph.get_all_collection_keys() if found else ():
        listed = graph.get_collection_ref(key)
        listed[:] = [part for each in listed for part in found.get(id(each), [each])]
    large = [each for each in slicing.variables if slicing.is_large(each) and id(each) not in found]
    for is_so, why in _WHY.items():
        names = [
            f"{each.op.name} ({placement.size_in_bytes(each.shape, each.dtype):,} bytes)"
            for each in large
            if slicing.has_rows(each) is is_so
        ]
        if names:
            what = f"Variables above slice_bytes={slicing.most_bytes} that are whole"
            messages.tell(f"{what}, since {why}: {', '.join(names)}.")


def _parts(variable: tf.Variable, parts: Sequence[slices.Slice]) -> list[tf.Variable]:
    """Returns a variable's slices as variables."""
    made = []
    for part in parts:
        name = part.handle.op.name
        member = tfc.resource_variable_ops.BaseResourceVariable(
            trainable=variable.trainable,
            shape=[part.rows, *variable.shape[1:]],
            dtype=variable.dtype,
            handle=part.handle,
            constraint=variable.constraint,
            synchronization=variable.synchronization,
            aggregation=variable.aggregation,
            unique_id=name,
            handle_name=f"{name}:0",
            graph_element=part.value,
            initial_value=part.initializer.inputs[1] if part.initializer.inputs else None,
            initializer_op=part.initializer,
            is_initialized_op=part.check,
        )
        whole, others = variable.shape.as_list(), [0] * (variable.shape.rank - 1)
        own = [part.rows, *whole[1:]]
        info = tf.Variable.SaveSliceInfo(variable.op.name, whole, [part.begin, *others], own)
        member._set_save_slice_info(info)
        made.append(member)
    return made


class UsesHook(tf1.train.SessionRunHook):
    """Lets what other hooks have made, in `begin`, use the slices of variables that are cut.

    Args:
        sliced: The variables.

    Raises:
        ValueError: If it does to one what cannot be done slice by slice, or is made later.
    """

    def __init__(self, sliced: slices.Sliced):
        self._sliced = sliced

    def begin(self) -> None:
        """See base class."""
        replacing.fetch_moved(tf1.get_default_graph(), self._sliced.lower())

    def after_create_session(self, session: tf1.Session, coordinator: object) -> None:
        """See base class."""
        del session, coordinator
        self._sliced.require_lowered()
