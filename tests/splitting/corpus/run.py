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

from replicate import devices


def main(arguments=None) -> int:
    """Runs what the command line says; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("devices", type=int)
    parser.add_argument("sizes", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--strategy", default="parameter_server")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args(arguments)
    from tests.law import running, table

    names = [name for name in table.CORPUS if options.model in name]
    names = [options.model] if options.model in names else names
    setting = running.Setting(options.strategy, options.devices, options.sizes, options.static)
    different = sum(not run(table.CORPUS[name], name, setting, options.whole) for name in names)
    print(f"{len(names)} models, {different} differ")
    return int(different > 0)


def run(model, name: str, setting, tells_whole: bool) -> bool:
    """Runs a model in a setting; returns whether it is one device's."""
    began, fault, result = time.perf_counter(), "", None
    try:
        result = model.require_exact(setting)
    except Exception as error:  # noqa: BLE001 - the next model is run all the same
        fault = f"{type(error).__name__}: {error}"
    print(f"{'differs' if fault else 'right'}: {name} {time.perf_counter() - began:.1f} s")
    if fault:
        print("    ", fault[:2000])
    if tells_whole and result is not None:
        tell_whole(result)
    sys.stdout.flush()
    return not fault


def tell_whole(result) -> None:
    """Prints which operations are whole, and why."""
    ops = [op for op in result.whole if result.why(op)]
    counted = collections.Counter((op.type, result.why(op)) for op in ops)
    for (kind, why), number in counted.most_common():
        print(f"     {number} {kind}: {why}")


if __name__ == "__main__":
    devices.make_logical_cpus(8)
    sys.exit(main())
