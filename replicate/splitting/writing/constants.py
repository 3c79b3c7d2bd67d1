"""Constants are not sent: each device that reads one has its own."""

from collections.abc import Callable, Mapping, Sequence

from replicate.compat.tensorflow import tf
from replicate.splitting.structure.nodes import Maker, Nodes, Waited


class Constants:
    """The constants of one graph, of which new operations read copies.

    Args:
        nodes: The new operations.
        controls: What operations of the graph wait for, where that changes.
        device_of: Returns the device of an operation.
        maker_of: Returns what makes an input as it is written.
        parts: The parts of new operations, where devices have several.
    """

    def __init__(
        self,
        nodes: Nodes,
        controls: Mapping[tf.Operation, Sequence[Waited]],
        device_of: Callable[[Maker], str],
        maker_of: Callable[[str], Maker],
        parts: Mapping[Maker, int],
    ):
        self._nodes = nodes
        self._controls = controls
        self._device_of = device_of
        self._maker_of = maker_of
        self._parts = parts
        self._are_free: dict[str, bool] = {}
        self._copies: dict[tuple[object, ...], str] = {}

    def copy(self, is_aside: Callable[[Maker], bool]) -> None:
        """Gives each device the constants that it reads.

        Args:
            is_aside: Whether no step runs an operation: what writes a variable's initial value,
                which may be fed, reads that.
        """
        for node in [each for each in self._nodes.by_name.values() if not is_aside(each.name)]:
            device, part = node.device, self._parts.get(node.name)
            for n, written in enumerate(node.input):
                if not written.startswith("^") and self.is_free(written):
                    node.input[n] = self.on(written, device, part)

    def is_free(self, written: str) -> bool:
        """Whether an input is a constant that may be anywhere."""
        if written not in self._are_free:
            made_by = self._maker_of(written)
            if self._nodes.type_of(made_by) != "Const":
                is_free = False
            elif isinstance(made_by, str):
                is_free = not self._nodes.by_name[made_by].input
            else:
                is_free = made_by._get_control_flow_context() is None
            self._are_free[written] = is_free
        return self._are_free[written]

    def on(self, written: str, device: str, part: int | None = None) -> str:
        """Returns a constant on a device; one that waits for copies waits for those of a part."""
        made_by = self._maker_of(written)
        key = (written, device, part if made_by in self._controls else None)
        if key not in self._copies:
            self._copies[key] = written
            # NOTE: what waits for copies, which all devices have, would wait for other devices.
            if self._device_of(made_by) != device or made_by in self._controls:
                found = (
                    self._nodes.by_name[made_by] if isinstance(made_by, str) else made_by.node_def
                )
                if not isinstance(made_by, str):  # a session would feed the one, and not the copies
                    made_by.graph.prevent_feeding(made_by.outputs[0])
                attributes = {name: found.attr[name] for name in ("dtype", "value")}
                controls = self._waits_on(made_by, device, part)
                self._copies[key] = self._nodes.add(
                    "Const", [], device, controls=controls, **attributes
                )
        return self._copies[key]

    def _waits_on(self, made_by: Maker, device: str, part: int | None) -> list[str]:
        """Returns what a constant's copy waits for on a device: for the same, at once."""
        if isinstance(made_by, str) or not made_by.control_inputs:
            return []
        controls = self._controls.get(made_by, made_by.control_inputs)
        controls = [each for each in controls if self._is_on(each, device, part)]
        if not controls:
            return []
        key = (*sorted(map(self._nodes.wait, controls)), device)
        if key not in self._copies:
            self._copies[key] = self._nodes.add("NoOp", [], device, controls=controls)
        return [self._copies[key]]

    def _is_on(self, waited: Waited, device: str, part: int | None) -> bool:
        """Whether something is a copy on a device, or of a part, or no copy, which all wait for."""
        if not isinstance(waited, str):
            return True
        is_of_part = part is None or self._parts.get(waited) == part
        return is_of_part and self._nodes.by_name[waited].device == device
