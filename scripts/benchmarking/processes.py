"""A fresh process for each measurement, cheaply: forked from one that only has imported."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarking import names

WORK = "--work-for-a-benchmark"  # what the script is called with to be a worker
SCRIPT = pathlib.Path(__file__).parent.parent / "benchmark.py"


class Worker:
    """A process that has imported TensorFlow and replicate, and forks for each request.

    Args:
        python: The interpreter.
        root: The checkout whose `replicate` is measured.
    """

    def __init__(self, python: str, root: pathlib.Path):
        environment = {
            "TF_XLA_FLAGS": "--tf_xla_cpu_global_jit",  # for sessions that want XLA, on CPUs too
            **os.environ,
            "PYTHONPATH": str(root),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, str(SCRIPT), WORK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.versions = self._answer()

    def ask(self, request: names.Request) -> dict:
        """Returns the measurements, or `{"error": text}`."""
        self._process.stdin.write(json.dumps(request._asdict()) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Lets the process end."""
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        raise SystemExit(f"The measuring process ended:\n{self._errors.read()[-4000:]}")


def machine() -> dict:
    """Returns what the numbers depend on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": model, "cores": cores, "system": platform.system()}


def work() -> None:
    """The worker's side: a line of JSON in, a line of JSON out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what TensorFlow and models print is no answer
    from benchmarking import harness
    from replicate import estimator
    from replicate.compat.tensorflow import tf

    found = {"tensorflow": tf.__version__, "python": sys.version.split()[0]}
    found["estimator"] = estimator.Estimator.__module__.partition(".")[0]
    print(json.dumps(found), file=answers, flush=True)
    for line in sys.stdin:
        request = names.Request(**json.loads(line))
        print(json.dumps(_forked(harness.measure, request)), file=answers, flush=True)


def _forked(measure: Callable[[names.Request], dict], request: names.Request) -> dict:
    """Returns what is measured in a process of its own."""
    forking = multiprocessing.get_context("fork")
    reader, writer = forking.Pipe(duplex=False)
    child = forking.Process(target=_send, args=(writer, measure, request))
    child.start()
    writer.close()
    try:
        return reader.recv()
    except EOFError:
        child.join()
        return {"error": f"The process ended with status {child.exitcode}."}
    finally:
        child.join()


def _send(writer: Connection, measure: Callable, request: names.Request) -> None:
    try:
        writer.send(measure(request))
    except BaseException as e:  # noqa: BLE001 - the process ends here whatever it was
        last = traceback.extract_tb(e.__traceback__)[-1]
        text = f"{type(e).__name__}: {e}"[:600]
        writer.send({"error": f"{text} ({pathlib.Path(last.filename).name}:{last.lineno})"})
