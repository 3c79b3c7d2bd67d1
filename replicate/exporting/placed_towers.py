"""The towers of a merged SavedModel, placed again on devices of this machine."""

import os
from collections.abc import Sequence

from replicate import devices as device_names
from replicate import errors
from replicate.compat.tensorflow import tf, tf1
from replicate.exporting import export, portable


def place_towers(
    saved_model_dir: str | bytes | os.PathLike[str],
    devices: Sequence[str] | int | None,
    placed_dir: str | bytes | os.PathLike[str] | None = None,
) -> str:
    """Writes a copy of a merged SavedModel whose towers compute on devices of this machine.

    Args:
        saved_model_dir: A SavedModel of `export_saved_model(..., towers="merged")`.
        devices: One for each tower, or fewer, as `replicate_model_fn` takes them.
        placed_dir: Where the copy goes, if not to `saved_model_dir` with `-placed` added.

    Returns:
        The path of the copy, for any loader.

    Raises:
        DeviceError: If there are more devices than towers, or this machine lacks one.
        ValueError: If the directory holds no SavedModel, or `placed_dir` exists already.
    """
    source = os.fsdecode(saved_model_dir).rstrip("/")
    target = os.fsdecode(placed_dir or f"{source}-placed")
    if tf.io.gfile.exists(target):
        raise ValueError(
            f"A placed copy goes to a new directory; {target} exists already. Remove it, or "
            "name another placed_dir."
        )
    saved_model = export.read(source)
    for meta_graph in saved_model.meta_graphs:
        found = places(meta_graph, devices, source)
        for node in meta_graph.graph_def.node:
            node.device = found.get(node.name, node.device)
    export.copy(saved_model, source, target)
    return target


def places(
    meta_graph: tf1.MetaGraphDef, devices: Sequence[str] | int | None, path: str
) -> dict[str, str]:
    """Returns operation name -> device, for the operations of towers.

    Args:
        meta_graph: The graph.
        devices: As `replicate_model_fn` takes them, if operations are to be placed.
        path: Where the model is, for error texts.
    """
    if devices is None:
        return {}
    towers = portable.towers(meta_graph)
    count = max(towers.values(), default=-1) + 1
    found = device_names.resolve(devices, warn_of_missing=False)
    missing = [device for device in found if device_names.is_missing(device)]
    if missing:
        raise errors.DeviceError(
            f"Towers are placed on devices of this machine; it lacks {', '.join(missing)}, and "
            f"has {', '.join(device_names.local_devices())}. Name devices that it has."
        )
    if len(found) > count:
        raise errors.DeviceError(
            f"Each device needs a tower; {path} has {count} towers to place, got {len(found)} "
            "devices. Export it with towers='merged', or name fewer devices."
        )
    return {name: found[i * len(found) // count] for name, i in towers.items()}
