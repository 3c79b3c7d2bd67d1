"""Processes of clusters, all forked from one that has imported TensorFlow.

An import takes seconds of a processor, and a cluster has several processes. The one that forks is
none of those that run tests: these have sessions, whose threads a fork would lose. It serves one
process of tests, by lines of JSON on its stdin and stdout, and ends with it. What it forks runs a
script to its end, and ends as any process of Python does.
"""

import atexit
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]


class Forked:
    """A process that runs a script; what `subprocess.Popen` calls so.

    Args:
        script: The script's path.
        arguments: Of the script.
        environment: All environment variables.
        log: The file that stdout and stderr are added to.
    """

    def __init__(self, script: Any, arguments: list[str], environment: dict, log: Any):
        self.returncode: int | None = None
        self._number = _ask(
            "start",
            arguments=[str(script), *arguments],
            environment=environment,
            log=str(log),
        )

    def poll(self) -> int | None:
        """Returns its exit code, below 0 where a signal ended it; None: it still runs."""
        if self.returncode is None:
            self.returncode = _ask("poll", number=self._number)
        return self.returncode

    def kill(self) -> None:
        """Ends it, unless it has ended."""
        if self.poll() is None:
            _ask("kill", number=self._number)

    def wait(self) -> int:
        """Waits for its end; returns its exit code."""
        if self.returncode is None:
            self.returncode = _ask("wait", number=self._number)
        return self.returncode


def _ask(what: str, **about) -> Any:
    forking = _forking()
    forking.stdin.write(json.dumps({"what": what, **about}) + "\n")
    forking.stdin.flush()
    return json.loads(forking.stdout.readline())


@functools.cache
def _forking() -> subprocess.Popen:
    """Starts the process that forks, once for those that run tests in this process."""
    forking = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # newer TensorFlows greet there
        text=True,
    )

    def end():
        forking.stdin.close()
        try:
            forking.wait(10)
        except subprocess.TimeoutExpired:
            forking.kill()
            forking.wait()
        forking.stdout.close()

    atexit.register(end)
    return forking


def _serve() -> dict | None:
    """Does what it is asked for; returns what to run where this is a new process."""
    codes: dict[int, int | None] = {}  # of all that were started, by their numbers

    def code_of(number, options):
        if codes[number] is None:
            ended, status = os.waitpid(number, options)
            codes[number] = os.waitstatus_to_exitcode(status) if ended else None
        return codes[number]

    def kill(number):
        if code_of(number, os.WNOHANG) is None:
            os.kill(number, signal.SIGKILL)

    for line in sys.stdin:
        request = json.loads(line)
        number = request.get("number")
        match request["what"]:
            case "start":
                answer = os.fork()
                if answer == 0:
                    return request
                codes[answer] = None
            case "poll":
                answer = code_of(number, os.WNOHANG)
            case "wait":
                answer = code_of(number, 0)
            case "kill":
                answer = kill(number)
        print(json.dumps(answer), flush=True)
    for number in codes:
        kill(number)
        code_of(number, 0)
    return None


def _become(request: dict) -> None:
    """Runs a script in this process."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(_ROOT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever runs the tests ends all
    from replicate import estimator
    from tests.cluster import acts  # noqa: F401 - and all that it imports

    estimator.Estimator  # noqa: B018 - is imported when it is asked for
    asked = _serve()
    if asked is not None:
        _become(asked)
