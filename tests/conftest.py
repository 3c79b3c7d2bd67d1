"""Shows one CPU to TensorFlow as eight devices, before any test can start it."""

import fnmatch
import gc
import os
import pathlib
import signal
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the suite reads Python warnings, not C++ logs

NUM_LOGICAL_CPUS = 8

# Graphs are many objects that last for a test: looking through them for garbage as often as Python
# does by itself takes a third of the suite's time.
GARBAGE = (50_000, 10, 5)
gc.set_threshold(*GARBAGE)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the suite in the background has it ignore what tests are to send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Newer TensorFlows greet on file descriptor 2 before any setting of theirs can stop them.
_STDERR = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
    import pytest

    from replicate import devices
    from replicate.compat import tensorflow as tfc
    from replicate.compat.tensorflow import tf, tf1
    from replicate.console import messages

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * NUM_LOGICAL_CPUS,
    )
finally:
    os.dup2(_STDERR, 2)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out what is marked thorough")


def pytest_collection_modifyitems(config, items):
    """Deselects thorough tests, and the thorough parameters of a test."""
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if is_thorough(item)])
        items[:] = [item for item in items if not is_thorough(item)]


def pytest_collection_finish():
    """Spares the garbage collector all that is imported and collected, which stays."""
    gc.collect()
    gc.freeze()


def is_thorough(item) -> bool:
    """Whether its mark, or that of its class or module, leaves an item to thorough runs."""
    mark = item.get_closest_marker("thorough")
    identity = item.callspec.id if hasattr(item, "callspec") else ""
    return mark is not None and not any(fnmatch.fnmatch(identity, quick) for quick in mark.args)


@pytest.fixture
def fresh_graph():
    """A graph of the test's own, entered; also what the one-device run of a test builds in."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def session(fresh_graph):
    """A session on `fresh_graph`; it says no where an operation cannot be where it was put."""
    config = tf1.ConfigProto(
        allow_soft_placement=False,
        device_count={"CPU": NUM_LOGICAL_CPUS},  # a config of one's own makes one CPU
    )
    with tf1.Session(graph=fresh_graph, config=config) as session:
        yield session


@pytest.fixture(params=["shapes of version 1", "shapes of version 2"])
def either_shapes(request):
    """Shapes that hold Dimensions, as after `tf1.disable_v2_behavior()`, and those with numbers."""
    if request.param == "shapes of version 1":
        tf1.disable_v2_tensorshape()
    yield
    tf1.enable_v2_tensorshape()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After each test the default graph is the process's own, empty one, and nothing is seeded.

    What was warned of is forgotten, and that somebody made logical CPUs.
    """
    yield
    devices._made_cpus = 1
    tf1.reset_default_graph()
    messages._said.clear()
    if tfc.eager_context.global_seed() is not None:  # as `seed` of a config does
        tf.random.set_seed(None)
    for package in ("keras", "tf_keras"):  # the same seeds Keras 2, if it is loaded
        seeds = getattr(sys.modules.get(f"{package}.src.backend"), "_SEED_GENERATOR", None)
        if seeds is not None:
            seeds.generator = None


@pytest.fixture(scope="session")
def run_python():
    """Runs code in a process of its own, for what may happen only once in a process."""
    root = pathlib.Path(__file__).parent.parent

    def run(code: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", f"import gc; gc.set_threshold{GARBAGE}\n{code}"],
            env={**os.environ, "PYTHONPATH": str(root), **variables},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.fail(f"{code}\n\nended with {done.returncode}:\n{done.stderr[-4000:]}")
        return done.stdout

    return run
