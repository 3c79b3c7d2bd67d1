"""One worker that splits models of the corpus: `workers_script.py FOLDER NUMBER SIZE WORKS...`.

A work is the name of a model, or one of the kinds of `workers_models.Built` and the name. TOWERS
says how many devices each worker has, ROWS how many rows of each worker (as `4,3`).
"""

import json
import os
import pathlib
import pickle
import sys

import numpy as np


def main(folder: pathlib.Path, number: int, size: int, works: list[str]) -> None:
    """Does the works that are named, one after the other."""
    from tests.cluster import worker

    addresses = worker._addresses(folder, number, size)
    task = {"type": "worker", "index": number}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})

    import replicate
    from replicate.compat.tensorflow import tf, tf1
    from tests.splitting import workers_models

    tf1.disable_eager_execution()
    towers = int(os.environ["TOWERS"])
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * towers
    )
    strategy = replicate.MultiWorkerStrategy(devices=towers, timeout=30, communication="ring")
    rows = [int(each) for each in os.environ["ROWS"].split(",")]
    for name in works:
        found = workers_models.run(*f"dynamic {name}".split()[-2:], strategy, number, rows)
        (folder / f"{name}-{number}.pickle").write_bytes(pickle.dumps(found))
        print(name, flush=True)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
