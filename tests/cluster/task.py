"""One task of a cluster with parameter servers: `task.py FOLDER`, with `TF_CONFIG` set.

The chief and the worker go through the same acts, one after the other, and write what comes out
into files of the folder; they wait for each other between acts. Parameter servers serve until they
are killed, and the evaluator evaluates one of the acts.
"""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

import numpy as np

TOWERS = 2
STEPS = 60  # of all workers together, where they are asynchronous
SYNCHRONOUS = 4
CHIEFS, MANY = 6, 10**6  # the last step of a chief that ends first, and of a worker who is told
WAITED = 2.0  # seconds for a server that is gone


def main(folder: pathlib.Path) -> None:
    """Does what the task of `TF_CONFIG` does."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]

    from replicate.compat.tensorflow import tf, tf1

    tf1.disable_eager_execution()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * TOWERS
    )
    from tests.cluster import acts

    if task["type"] == "ps":
        acts.serve(folder)
    elif task["type"] == "evaluator":
        acts.evaluate(folder)
    else:
        acts.train(folder, task["type"])


class Company:
    """The chief and the worker, as they wait for each other.

    Args:
        folder: Where files are.
        own: `chief` or `worker`.
    """

    def __init__(self, folder: pathlib.Path, own: str):
        self.folder = folder
        self.own = own
        self.is_chief = own == "chief"

    def meet(self, name: str) -> None:
        """Waits until both have come here."""
        self.note(f"{name}.{self.own}")
        self.await_file(f"{name}.{'worker' if self.is_chief else 'chief'}")

    def note(self, name: str, text: str = "") -> None:
        """Writes a file, whole or not at all."""
        part = self.folder / f"{name}.{self.own}.part"
        part.write_text(text)
        part.rename(self.folder / name)

    def await_file(self, name: str, seconds: float = 60) -> None:
        """Waits for a file."""
        deadline = time.monotonic() + seconds
        while not (self.folder / name).exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.own} has waited in vain for {name}")
            time.sleep(0.02)

    def tell(self, act: str, **found) -> None:
        """Writes down what came of an act."""
        self.note(f"{act}-{self.own}.json", json.dumps(found, default=float))

    def save(self, act: str, variables: dict) -> None:
        """Writes down variables."""
        np.savez(self.folder / f"{act}-{self.own}.npz", **variables)


def kill_self() -> None:
    """Ends this process at once, as a machine that is gone would."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1]))
    except BaseException:  # noqa: BLE001 - the process ends with it
        traceback.print_exc()
        os._exit(1)  # whatever waits in other threads
