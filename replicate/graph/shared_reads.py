"""Variables that all towers read: once for all, and sent to each tower in one transfer.

Between devices a transfer costs more than its bytes. What is read of the variables of one
device is held by one optional, which goes to a tower as one tensor; between CPUs only
pointers go, however large the variables are.
"""

from collections.abc import Sequence

from replicate.compat.tensorflow import tf, tf1

SCOPE = "replicate_read/"  # of whatever is sent: no name of the model's is taken
_CPU = "/device:CPU:"


class SharedReads:
    """What later towers have received of what the first one has read.

    Args:
        devices: The K towers' devices.
    """

    def __init__(self, devices: Sequence[str]):
        self._devices = devices
        self._received: list[dict] = [{} for _ in devices]

    def send(self, reads: Sequence[tf.Tensor]) -> None:
        """Sends values to all later towers; those of one device together.

        Args:
            reads: Values of variables. What is sent already is not sent again.
        """
        by_device: dict[str, list] = {}
        for read in dict.fromkeys(tensor.ref() for tensor in reads):
            if read not in self._received[-1]:
                by_device.setdefault(read.deref().device, []).append(read.deref())
        for device, tensors in by_device.items():
            if len(tensors) > 1 and _CPU in device:
                self._send(device, tensors)

    def _send(self, device: str, tensors: list) -> None:
        with tf1.control_dependencies(None), tf1.name_scope(SCOPE), tf1.device(None):
            with tf.device(device):
                together = tf.raw_ops.OptionalFromValue(components=tensors)
            for i, target in enumerate(self._devices):
                if i == 0 or target == device or _CPU not in target:
                    continue
                with tf.device(target):
                    found = tf.raw_ops.OptionalGetValue(
                        optional=together,
                        output_types=[tensor.dtype for tensor in tensors],
                        output_shapes=[tensor.shape for tensor in tensors],
                    )
                pairs = zip(tensors, found, strict=True)
                self._received[i].update((tensor.ref(), own) for tensor, own in pairs)

    def received(self, i: int, tensor: tf.Tensor) -> tf.Tensor:
        """Returns what tower i reads in place of a tensor; the same if it was not sent."""
        return self._received[i].get(tensor.ref(), tensor)
