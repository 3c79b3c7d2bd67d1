"""Runs one model of the corpus and prints where it differs from one device.

    python tests/splitting/corpus/run.py MODEL K B[,B…] [--static] [--whole]

MODEL may be part of a name: all models that it fits are run. `--whole` prints what is whole, and
why.
"""

import argparse
import collections
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from replicate.compat.tensorflow import tf


def make_devices():
    """Shows one CPU as eight."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
    )


def main(arguments=None) -> int:
    """Runs what the command line says; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("devices", type=int)
    parser.add_argument("sizes", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args(arguments)
    from tests.splitting.corpus import running, table

    names = [name for name in table.MODELS if options.model in name]
    names = [options.model] if options.model in names else names
    different = 0
    for name in names:
        sizes = [(rows,) for rows in options.sizes] if options.static else [options.sizes]
        for rows in sizes:
            setting = running.Setting(name, rows, options.static, options.devices)
            different += not run(running, table, setting, options.whole)
    print(f"{len(names)} models, {different} differ")
    return int(different > 0)


def run(running, table, setting, tells_whole: bool) -> bool:
    """Runs a model in a setting; returns whether it is one device's."""
    began = time.perf_counter()
    try:
        found = running.faults(setting)
    except Exception as error:  # noqa: BLE001 - the next model is run all the same
        found = [f"{type(error).__name__}: {str(error)[:600]}"]
    label = f"{setting.name} {setting.num_devices}x{setting.sizes}"
    print(f"{'differs' if found else 'right'}: {label} {time.perf_counter() - began:.1f} s")
    for line in found[:6]:
        print("    ", line)
    if tells_whole:
        tell_whole(running.Built(table.MODELS[setting.name], setting))
    sys.stdout.flush()
    return not found


def tell_whole(built) -> None:
    """Splits a model; prints which operations are whole, and why."""
    result = built.split()
    counted = collections.Counter()
    for op in built.graph.get_operations():
        if not op.name.startswith("tower_") and result.how(op) == "whole":
            if result.why(op):
                counted[op.type, result.why(op)] += 1
    for (kind, why), number in counted.most_common():
        print(f"     {number} {kind}: {why}")


if __name__ == "__main__":
    make_devices()
    sys.exit(main())
