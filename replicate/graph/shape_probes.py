"""Scratch graphs in which a batch has a known size, and TensorFlow infers what follows from it.

Functions that operations call are copied in their place, so that shapes are known inside of
them, and behind them. What inference cannot follow, the length of a list that a loop has
filled, is measured.
"""

from collections.abc import Container, Sequence

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import ancestry, copying, functions

# An extent for what is unknown of a batch, its size aside.
_EXTENT = 48

# Operations of which inference never knows the length.
_LENGTHS = ("RaggedTensorToTensor", "TensorListStack")


class Scratch:
    """What has been copied of one graph, of a tower or of a function that it calls.

    Attributes:
        copies: The copies by their originals' `ref()`.
        ends: The operations that have been copied.
        children: Of each operation that calls functions, what has been copied of these.
    """

    def __init__(self, copies: dict):
        self.copies = copies
        self.ends: set[tf.Operation] = set()
        self.children: dict[tf.Operation, list[Scratch]] = {}


class Probe:
    """A scratch graph in which a batch has a known size.

    Args:
        given: The tower's part of the batch: its dense tensors.
        size: How many rows it has there.
        shapes: The `ref()`s of those that are the shape of a sparse tensor.
    """

    def __init__(self, given: Sequence[tf.Tensor], size: int, shapes: Container):
        self._shapes = shapes
        self._given = list(given)
        self._size = size
        self._graph = tf.Graph()
        self.root = Scratch({})

    def shape_of(self, tensor: tf.Tensor) -> tf.TensorShape:
        """Returns what TensorFlow infers of a tensor's shape."""
        if not self.root.ends:
            with self._graph.as_default():
                self._start()
        return self.copy(tensor, self.root).shape

    def copy(self, tensor: tf.Tensor, scratch: Scratch) -> tf.Tensor:
        """Returns the copy of a tensor; functions that are called are copied into the graph."""
        if tensor.ref() not in scratch.copies:
            with self._graph.as_default():
                self._learn([tensor], scratch)
        return scratch.copies[tensor.ref()]

    def _start(self) -> None:
        for tensor in self._given:
            shape = tensor.shape
            if tensor.ref() in self._shapes and shape.rank == 1 and shape[0]:
                sizes = [self._size, *[_EXTENT] * (shape[0] - 1)]
                self.root.copies[tensor.ref()] = tf.constant(sizes, tensor.dtype)
                self.root.ends.add(tensor.op)
                continue
            if shape.rank:
                inner = [_EXTENT if size is None else size for size in shape.as_list()[1:]]
                known = tf.compat.dimension_value(shape[0])
                shape = [self._size if known is None else known, *inner]
            self.root.copies[tensor.ref()] = tf1.placeholder(tensor.dtype, shape)
            self.root.ends.add(tensor.op)

    def _learn(self, tensors: Sequence[tf.Tensor], scratch: Scratch) -> None:
        # NOTE: TensorFlow lets a loop or a branch that it derives give out more, in place.
        known = scratch.copies
        grown = [op for op in scratch.children if any(t.ref() not in known for t in op.outputs)]
        scratch.ends.difference_update(grown)
        new = ancestry.made_from(tensors, ends=scratch.ends) - scratch.ends
        for op in [op for op in new if op.type in _LENGTHS or functions.bodies(op)]:
            if op not in scratch.ends:
                self._learn(op.inputs, scratch)
                self._measure(op, scratch) if op.type in _LENGTHS else self._inline(op, scratch)
        new -= scratch.ends
        scratch.ends |= new
        scratch.copies.update(copying.copied(list(new), scratch.copies, "probe"))

    def _measure(self, op: tf.Operation, scratch: Scratch) -> None:
        """Copies an operation whose shape depends on data, and says what it is."""
        scratch.ends.add(op)
        scratch.copies.update(copying.copied([op], scratch.copies, "probe"))
        made = scratch.copies[op.outputs[0].ref()]
        known = tf.TensorShape([self._size, _EXTENT])
        if op.type == "TensorListStack":
            known = self._stacked(op.inputs[0], scratch)
        if made.shape.rank and known.rank:
            rest = known.as_list() + [None] * made.shape.rank
            sizes = zip(made.shape.as_list(), rest, strict=False)
            made.set_shape([other if own is None else own for own, other in sizes])

    def _stacked(self, tensor: tf.Tensor, scratch: Scratch) -> tf.TensorShape:
        """Returns the shape of what a list holds, through loops back to where it was made."""
        item = tf.TensorShape(None)
        while functions.is_loop(tensor.op) or tensor.op.type == "Identity":
            if functions.is_loop(tensor.op) and tensor.op in scratch.children:
                item = _item(tensor, scratch.children[tensor.op][0])
            tensor = tensor.op.inputs[tensor.value_index]
        number = scratch.copies.get(tensor.op.inputs[-1].ref())
        if tensor.op.type != "TensorListReserve" or number is None:
            return tf.TensorShape(None)
        length = tf.fill(tf.stack([number]), 0.0).shape  # as inference knows it
        return length.concatenate(item)

    def _inline(self, op: tf.Operation, scratch: Scratch) -> None:
        """Copies the functions that an operation calls in its place."""
        found, scratch.children[op] = functions.bodies(op), []
        for body in found:
            pairs = zip(body.inputs, body.arguments, strict=True)
            own = Scratch({own.ref(): scratch.copies[given.ref()] for own, given in pairs})
            own.ends.update(tensor.op for tensor in body.inputs)
            scratch.children[op].append(own)
            self._learn(body.outputs, own)
        scratch.ends.add(op)
        for n, tensor in enumerate(op.outputs):
            ends = [
                own.copies[body.outputs[n].ref()]
                for body, own in zip(found, scratch.children[op], strict=True)
            ]
            if functions.is_loop(op):
                ends.append(scratch.copies[op.inputs[n].ref()])
            scratch.copies[tensor.ref()] = _merged(ends)


def _item(tensor: tf.Tensor, scratch: Scratch) -> tf.TensorShape:
    """Returns the shape of what a loop puts into a list."""
    made = functions.bodies(tensor.op)[0].outputs[tensor.value_index]
    while made.op.type == "Identity":
        made = made.op.inputs[0]
    if made.op.type != "TensorListSetItem":
        return tf.TensorShape(None)
    return scratch.copies[made.op.inputs[2].ref()].shape


def _merged(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a tensor of the shape that several tensors have in common."""
    first = tensors[0]
    shapes = [tensor.shape for tensor in tensors]
    if first.dtype in (tf.variant, tf.resource) or len({str(shape) for shape in shapes}) == 1:
        return first
    if len({shape.rank for shape in shapes}) > 1 or first.shape.rank is None:
        return tf1.placeholder(first.dtype, None)
    sizes = zip(*[shape.as_list() for shape in shapes], strict=True)
    common = [size[0] if len(set(size)) == 1 else None for size in sizes]
    return tf1.placeholder(first.dtype, common)
