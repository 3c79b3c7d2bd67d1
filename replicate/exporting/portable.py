"""A MetaGraphDef that loads on any machine.

Works on the proto, in place: devices and absolute paths of assets are taken out. Which tower an
operation belonged to stays written on it, so that a loading machine may place the towers again.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from replicate.compat.tensorflow import tf, tf1

TOWER = "_replicate_tower"
"""The attribute of an operation that says which tower it belongs to."""

_ASSETS = "saved_model_assets"


def strip_devices(meta_graph: tf1.MetaGraphDef, worker_devices: Sequence[str] = ()) -> None:
    """Takes out all devices, in functions as well.

    Args:
        meta_graph: A MetaGraphDef.
        worker_devices: The towers' devices: what was on one is marked as that tower's.
    """
    towers = {_type_and_index(device): i for i, device in enumerate(worker_devices)}
    known: dict[str, int | None] = {}
    for node in meta_graph.graph_def.node:
        if node.device not in known:
            known[node.device] = towers.get(_type_and_index(node.device))
        tower_id = known[node.device]
        if tower_id is not None:
            node.attr[TOWER].i = tower_id
        node.device = ""
    for function in meta_graph.graph_def.library.function:
        for node in function.node_def:
            node.device = ""


def towers(meta_graph: tf1.MetaGraphDef) -> dict[str, int]:
    """Returns operation name -> tower, for the operations that `strip_devices` marked."""
    nodes = meta_graph.graph_def.node
    return {node.name: node.attr[TOWER].i for node in nodes if TOWER in node.attr}


def _type_and_index(device: str) -> tuple[str, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    kind = spec.device_type
    return (kind.upper(), spec.device_index) if kind else ("", None)


def name_assets(meta_graph: tf1.MetaGraphDef) -> None:
    """Replaces the paths of assets by the names that they have in the SavedModel.

    A loader puts in the path where the SavedModel lies.
    """
    names = _asset_names(meta_graph)
    if not names:
        return
    for node in _all_nodes(meta_graph.graph_def):
        for value in node.attr.values():
            _replace_strings(value, names)


def _asset_names(meta_graph: tf1.MetaGraphDef) -> dict[bytes, bytes]:
    """Returns absolute path -> file name, longest paths first."""
    if _ASSETS not in meta_graph.collection_def:
        return {}
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    found = {}
    for item in meta_graph.collection_def[_ASSETS].any_list.value:
        asset = tf1.MetaGraphDef().asset_file_def.add()
        item.Unpack(asset)
        path = nodes[asset.tensor_info.name.split(":")[0]].attr["value"].tensor.string_val[0]
        if posixpath.isabs(path):
            found[path] = asset.filename.encode()
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def _all_nodes(graph_def: tf1.GraphDef) -> Iterator[tf1.NodeDef]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _replace_strings(value: tf1.AttrValue, names: Mapping[bytes, bytes]) -> None:
    """Replaces texts in one attribute's value, wherever strings can be in it."""

    def replaced(text: bytes) -> bytes:
        for path, name in names.items():
            text = text.replace(path, name)
        return text

    kind = value.WhichOneof("value")
    if kind == "s":
        value.s = replaced(value.s)
    elif kind == "tensor":
        value.tensor.string_val[:] = [replaced(text) for text in value.tensor.string_val]
    elif kind == "list":
        value.list.s[:] = [replaced(text) for text in value.list.s]
