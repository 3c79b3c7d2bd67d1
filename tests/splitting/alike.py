"""One graph, run as it is and split over several devices: both must give the same."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicate.compat.tensorflow import tf, tf1
from replicate.splitting import splitter
from tests import exactness

F64 = tf.float64
DEVICES = [f"/device:CPU:{k}" for k in range(8)]
PATIENCE = tf1.RunOptions(timeout_in_ms=20_000)  # a graph that waits for itself is a failure
EXACT = (1e-12, 1e-12)


def split(given: Sequence, keep: Sequence, num_devices: int = 3, **options) -> splitter.Result:
    """Splits the current graph; options are `split_graph`'s."""
    devices = DEVICES[:num_devices]
    return splitter.split_graph(list(given), devices, list(keep), home=DEVICES[0], **options)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers from -1 to 1."""
    return np.random.RandomState(seed).uniform(-1, 1, shape)


def session() -> tf1.Session:
    """A session of the current graph that runs it as it was built."""
    return tf1.Session(config=exactness.session_config())


def optimizing_session() -> tf1.Session:
    """A session of the current graph that optimizes it first, as users' do."""
    return tf1.Session(config=tf1.ConfigProto(device_count={"CPU": len(DEVICES)}))


def placeholder(value: Any, is_static: bool) -> Any:
    """Returns a placeholder for a value; the second dimension of padded rows is never known."""
    if isinstance(value, exactness.Padded):
        rows = len(value) if is_static else None
        return tf1.placeholder(value.dtype, [rows, None, *value.shape[2:]])
    return exactness.placeholders(value, is_static)


def padded(value: np.ndarray) -> np.ndarray:
    """Returns rows whose second dimension only a run tells."""
    return np.asarray(value).view(exactness.Padded)


def run(
    make: Callable,
    batches: Sequence,
    num_devices: int = 0,
    is_static: bool = False,
    sessions: Callable = session,
    look: Callable = lambda result: None,
    **options,
) -> list:
    """Builds a graph and runs it on batches; returns what each gives, and then all variables.

    Args:
        make: From placeholders to a list of what is fetched.
        batches: An array each, or a tuple of arrays.
        num_devices: K; 0: the graph is not split.
        is_static: Whether the graph knows the number of rows.
        sessions: Makes the session.
        look: Gets what `split_graph` returns, if it splits.
        **options: See `split`.
    """
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in batches]
    with tf.Graph().as_default():
        tf1.set_random_seed(3)
        given = [placeholder(array, is_static) for array in batches[0]]
        fetch = make(*given)
        if num_devices:
            options |= {"static_rows": len(batches[0][0])} if is_static else {}
            result = split(given, [fetch], num_devices, **options)
            look(result)
            fetch = result.fetch[0]
        with sessions() as made:
            made.run(exactness.initializer_of_all())
            feeds = [dict(zip(given, batch, strict=True)) for batch in batches]
            found = [made.run(fetch, feed, PATIENCE) for feed in feeds]
            return [*found, {v.name: made.run(v) for v in tf1.global_variables()}]


def require_alike(
    make: Callable,
    batches: Sequence,
    devices: Sequence[int] = (3,),
    tolerance: tuple[float, float] = EXACT,
    **options,
) -> list:
    """Requires several devices to give what one gives; returns it. Options are `run`'s."""
    expected = run(make, batches, **options)
    for num_devices in devices:
        found = run(make, batches, num_devices, **options)
        exactness.compare(found, expected, *tolerance)
        exactness.compare(shapes(found), shapes(expected))
    return found


def shapes(nest: Any) -> Any:
    """Returns the lengths of all arrays."""
    return [np.shape(value) for value in tf.nest.flatten(nest)]
