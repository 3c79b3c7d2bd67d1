"""One worker of a cluster, in a process of its own: `worker.py FILE NUMBER NAMES...`.

The address of each worker is chosen by the system: a worker writes down its own, and waits
for the others'. What comes out is written to files beside these. Environment variables say how
many TOWERS each has, for how many seconds one WAITED for another, and the number of the worker
that is KILLED in its third step.
"""

import json
import os
import pathlib
import signal
import socket
import sys
import time

import numpy as np


def main(folder: pathlib.Path, number: int, size: int, names: list[str]) -> None:
    """Trains the cases that are named, one after the other."""
    addresses = _addresses(folder, number, size)
    job = {"type": "worker", "index": number - 1} if number else {"type": "chief", "index": 0}
    jobs = {"chief": addresses[:1], "worker": addresses[1:]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": jobs, "task": job})

    import replicate
    from replicate.compat.tensorflow import tf, tf1
    from tests.cluster import cases

    tf1.disable_eager_execution()
    towers = int(os.environ.get("TOWERS", "2"))
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * towers
    )
    strategy = replicate.MultiWorkerStrategy(
        devices=towers, timeout=float(os.environ.get("WAITED", "30")), communication="ring"
    )
    estimators = replicate.estimator
    for name in names:
        case = cases.CASES[name]
        config = estimators.RunConfig(
            model_dir=str(folder / name), log_step_count_steps=None, save_summary_steps=2
        )
        config = strategy.evaluating_together(config)
        estimator = estimators.Estimator(
            replicate.replicate_model_fn(
                cases.model_of(case, estimators.EstimatorSpec),
                case.optimizer,
                strategy=strategy,
                **case.options,
            ),
            config=config,
        )
        seen = _Seen(number)
        given = cases.batches_of(case, number)
        estimator.train(lambda: cases.dataset(given, case.is_static), hooks=[seen.hook()])  # noqa: B023
        metrics = {}
        if case.is_evaluated:
            metrics = estimator.evaluate(lambda: cases.dataset(given, case.is_static))  # noqa: B023
        found = {f"metric {key}": value for key, value in metrics.items()}
        np.savez(folder / f"{name}-{number}.npz", **seen.variables, **found)


class _Seen:
    """The variables of a run after its last step."""

    def __init__(self, number: int):
        self.number = number
        self.variables: dict = {}

    def hook(self):
        """Returns a hook that looks on."""
        from replicate.compat.tensorflow import tf1

        seen = self

        class Hook(tf1.train.SessionRunHook):
            def begin(self):
                self._steps = 0
                self._variables = {
                    f"{variable.op.name.replace('/', '|')} of tower {i}": copy.read_value()
                    for variable in tf1.global_variables()
                    for i, copy in enumerate(getattr(variable, "members", (variable,)))
                }

            def after_run(self, context, values):
                self._steps += 1
                if self._steps == 3 and os.environ.get("KILLED") == str(seen.number):
                    os.kill(os.getpid(), signal.SIGKILL)

            def end(self, session):
                seen.variables = session.run(self._variables)

        return Hook()


def _addresses(folder: pathlib.Path, number: int, size: int) -> list[str]:
    """Returns the addresses of all workers, of which each has chosen its own."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{listening.getsockname()[1]}"
    (folder / f"{number}.part").write_text(own)
    (folder / f"{number}.part").rename(folder / f"{number}.address")
    files = [folder / f"{i}.address" for i in range(size)]
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            raise SystemExit("no address of another worker has come")
        time.sleep(0.05)
    return [file.read_text() for file in files]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
