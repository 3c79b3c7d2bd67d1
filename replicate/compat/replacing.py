"""Names of TensorFlow that are replaced while somebody asks for it.

What stood there before is put back when the last one has left, also after an exception.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

Asked = TypeVar("Asked")


class Replaced(Generic[Asked]):
    """A name of a module or a class, in all threads.

    Args:
        owner: Returns the module or class; None where there is nothing to be replaced.
        name: The name.
        made: Given what stands there and all that is asked for, which changes while it is in
            force, makes what is to stand there.
    """

    def __init__(
        self, owner: Callable[[], Any], name: str, made: Callable[[Any, Sequence[Asked]], Any]
    ):
        self._owner, self._name, self._made = owner, name, made
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._own: Any = None
        self._is_inherited = False

    @contextlib.contextmanager
    def by(self, asked: Asked) -> Iterator[None]:
        """Replaces it, or asks for one thing more where it is replaced already."""
        owner = self._owner()
        if owner is None:
            yield
            return
        with self._lock:
            if not self._asked:
                self._own = getattr(owner, self._name)
                self._is_inherited = self._name not in vars(owner)
                setattr(owner, self._name, self._made(self._own, self._asked))
            self._asked.append(asked)
        try:
            yield
        finally:
            with self._lock:
                self._asked.remove(asked)
                if not self._asked:
                    self._put_back(owner)

    def _put_back(self, owner: Any) -> None:
        if self._is_inherited:
            delattr(owner, self._name)
        else:
            setattr(owner, self._name, self._own)
