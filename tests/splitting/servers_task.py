"""One task of a cluster with parameter servers whose chief splits: `servers_task.py FOLDER`."""

import json
import os
import pathlib
import sys
import traceback

DEVICES = 2


def main(folder: pathlib.Path) -> None:
    """Serves, or trains beside another worker, each on its own batches."""
    job = json.loads(os.environ["TF_CONFIG"])["task"]["type"]

    from replicate.compat.tensorflow import tf, tf1

    tf1.disable_eager_execution()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * DEVICES,
    )
    from tests.splitting import servers_acts

    if job == "ps":
        servers_acts.serve(folder)
    else:
        servers_acts.train(folder, job)


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1]))
    except BaseException:  # noqa: BLE001 - the process ends with it
        traceback.print_exc()
        os._exit(1)  # whatever waits in other threads
