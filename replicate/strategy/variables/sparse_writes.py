"""How parts of a variable with several copies are written: scatters and slices."""

from typing import Any

from replicate.compat.tensorflow import tf

_ON_READ = tf.VariableSynchronization.ON_READ

_SLICE = "slice_assign"  # how a write to a slice is called on its way to the copies


def write(member: Any, method: str, value: Any, kwargs: dict) -> Any:
    """Calls a method of one copy that writes it.

    Args:
        member: The copy.
        method: The name of the method.
        value: What is written.
        kwargs: The method's further arguments.
    """
    if method == _SLICE:
        return member._strided_slice_assign(value=value, **kwargs)
    return getattr(member, method)(value, **kwargs)


class SparseWrites:
    """The methods of a distributed variable that write parts of it."""

    def _strided_slice_assign(self, begin, end, strides, value, name, *masks, **named):
        """Assigns `variable[begin:end:strides]`; see `assign`."""
        named.update(zip(_MASKS, masks, strict=False))
        return self._write(_SLICE, value, begin=begin, end=end, strides=strides, name=name, **named)

    def _lazy_read(self, op):
        """Called once an operation on the handle of one copy has been made, or has run."""
        is_own = self.synchronization == _ON_READ and not self._is_across()
        if len(self._members) == 1 or is_own or not (self._is_across() or self._tower()):
            return self._member()._lazy_read(op)
        if tf.executing_eagerly() and self.synchronization != _ON_READ:
            if self._is_across():
                self._copy_member(self._members[0])  # what has run on the first copy
                return self
            others = [member for member in self._members if member is not self._member()]
            self._copy_member(others[0])  # as if nothing had run
        name = getattr(op, "name", "an eager one")
        raise RuntimeError(
            f"An operation on the handle of {self.name} writes one copy of "
            f"{len(self._members)}: got {name}. Use the variable's own scatter methods, or "
            "strategy.update."
        )

    def _copy_member(self, source: Any) -> None:
        """Gives all copies the value of one of them."""
        for member in self._members:
            if member is not source:
                with tf.device(member.device):
                    member.assign(tf.identity(source.value()), read_value=False)


_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _scattered(name: str):
    def scatter(self, sparse_delta, use_locking=False, name=None, method=name):
        return self._write(method, sparse_delta, name=name, use_locking=use_locking)

    scatter.__doc__ = f"Applies `{name}` with IndexedSlices to the copies; see `assign`."
    scatter.__name__ = name
    return scatter


def _scattered_nd(name: str):
    def scatter(self, indices, updates, name=None, method=name):
        return self._write(method, indices, updates=updates, name=name)

    scatter.__doc__ = f"Applies `{name}` to the copies; see `assign`."
    scatter.__name__ = name
    return scatter


for _name in "add sub update max min mul div".split():
    setattr(SparseWrites, f"scatter_{_name}", _scattered(f"scatter_{_name}"))
for _name in "add sub update max min".split():
    setattr(SparseWrites, f"scatter_nd_{_name}", _scattered_nd(f"scatter_nd_{_name}"))
SparseWrites.batch_scatter_update = _scattered("batch_scatter_update")
