"""Tensors that go from one device to others in one transfer, as variables that all towers read.

Between devices a transfer costs more than its bytes. What goes from one device is held by one
optional, which travels as one tensor; between CPUs only pointers go, however large it is. Between
processes each tensor goes by itself, to one device, and from there on to the others.
"""

from collections.abc import Iterator, Sequence

from replicate.compat.tensorflow import tf, tf1

SCOPE = "replicate_read/"  # of whatever is sent: no name of the model's is taken
_CPU = "/device:CPU:"
_SENT = "OptionalFromValue"


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
                by_device.setdefault(_device_of(read.deref()), []).append(read.deref())
        for device, tensors in by_device.items():
            if len(tensors) > 1:
                self._send(device, tensors)

    def _send(self, device: str, tensors: list) -> None:
        with tf1.control_dependencies(None), tf1.name_scope(SCOPE), tf1.device(None):
            later = range(1, len(self._devices))
            here = _process(self._devices[0])
            found = tensors
            if _process(device) != here:  # they come over the network once
                device = f"{here}{_CPU}0"
                with tf.device(device):
                    found = [tf.identity(tensor) for tensor in tensors]
                for i in later:
                    self._note(i, tensors, found)
            others = [i for i in later if may_share(device, self._devices[i])]
            received = sent(found, device, [self._devices[i] for i in others])
            for i, own in zip(others, received, strict=True):
                self._note(i, tensors, own)

    def _note(self, i: int, tensors: list, received: list) -> None:
        pairs = zip(tensors, received, strict=True)
        self._received[i].update((tensor.ref(), own) for tensor, own in pairs)

    def received(self, i: int, tensor: tf.Tensor) -> tf.Tensor:
        """Returns what tower i reads in place of a tensor; the same if it was not sent."""
        return self._received[i].get(tensor.ref(), tensor)


def _device_of(read: tf.Tensor) -> str:
    """Returns where a variable is read: beside it, where the operation names no device."""
    return read.device or read.op.inputs[0].device


def users(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that use a tensor, also where it was sent together with others."""
    for user in tensor.consumers():
        yield user
        if user.type == "Identity" and user.name.startswith(SCOPE):
            yield from users(user.outputs[0])
        if user.type == _SENT:
            places = [n for n, other in enumerate(user.inputs) if other is tensor]
            for received in user.outputs[0].consumers():
                for n in places:
                    yield from received.outputs[n].consumers()


def may_share(source: str, target: str) -> bool:
    """Whether tensors go from one device to another in one transfer that copies nothing."""
    is_near = _process(source) == _process(target)
    return source != target and is_near and _CPU in source and _CPU in target


def _process(device: str) -> str:
    """Returns job, replica and task of a device; nothing where it names none."""
    return device.partition("/device:")[0]


def sent(tensors: Sequence[tf.Tensor], source: str, targets: Sequence[str]) -> list[list]:
    """Sends N tensors from one CPU to M others, to each in one transfer.

    Args:
        tensors: Of any shapes and dtypes.
        source: The canonical name of the device that they are on.
        targets: M canonical names of devices, to which `may_share` holds.

    Returns:
        M lists of N.
    """
    if not targets:
        return []
    with tf.device(source):
        together = tf.raw_ops.OptionalFromValue(components=list(tensors))
    received = []
    for target in targets:
        with tf.device(target):
            received.append(
                tf.raw_ops.OptionalGetValue(
                    optional=together,
                    output_types=[tensor.dtype for tensor in tensors],
                    output_shapes=[tensor.shape for tensor in tensors],
                )
            )
    return received
