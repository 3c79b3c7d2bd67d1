#!/usr/bin/env python3
"""Prints what of public models' graphs each device runs on its rows, and what runs once.

    python scripts/whole.py [MODEL ...] [--devices K]

Without names all models of tests/models are told. For each: how many operations of a training step
are split, how many that read or make rows are whole, the largest of these with the reason, and the
floating-point operations of products and convolutions, of one row each. Exits with 1 if a product,
a convolution, a lookup or a recurrence is whole.
"""

import argparse
import logging
import math
import os
import pathlib
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul")
CONVOLUTIONS = ("Conv", "DepthwiseConv")
LOOKUPS = ("ResourceGather", "ResourceGatherNd", "SparseTensorDenseMatMul")
RECURRENCES = ("BlockLSTM", "CTCLoss", "CudnnRNN", "GRUBlockCell", "LSTMBlockCell")
TOLD = 5


def main(arguments=None) -> int:
    """Prints a table of the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args(arguments)
    _be_quiet()
    from replicate.compat.tensorflow import tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    shown = [tf.config.LogicalDeviceConfiguration()] * 8
    tf.config.set_logical_device_configuration(cpu, shown)
    from tests.models import every

    named = options.models or every.MODELS
    unknown = [name for name in named if name not in every.MODELS]
    if unknown:
        parser.error(f"argument MODEL: {unknown[0]!r} is none of {', '.join(every.MODELS)}")
    print("| model | operations split | whole, with rows | flops split | flops whole |")
    print("|---|---|---|---|---|")
    told, is_right = [], True
    for name in named:
        more, is_fit = _tell(name, _split(name, options.devices), options.devices)
        told += more
        is_right = is_right and is_fit
    print("\n".join(told))
    return 0 if is_right else 1


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from replicate.console import messages

    messages.show_news(False)


def _split(name: str, num_devices: int):
    """Returns what became of the graph of a model's training step."""
    from replicate import model_fn
    from replicate.compat.tensorflow import tf
    from replicate.splitting import report
    from tests.models import every

    model = every.MODELS[name]
    options = {"devices": num_devices, "strategy": "parameter_server"}
    with tf.Graph().as_default(), report.heard() as heard:
        model.build(model_fn.replicate_model_fn(model.model_fn, **options))
        return heard[-1]


def _tell(name: str, result, num_devices: int) -> tuple[list, bool]:
    """Prints a model's row of the table; returns what is told below, and whether all fits."""
    from replicate.splitting import report

    found = report.of(result, num_devices)
    split_flops = sum(_flops(result, op) for op in result.split)
    wrong = [op for op in result.whole if _is_large(op) and result.why(op)]  # with rows
    whole_flops = sum(_flops(result, op) for op in wrong)
    print(f"| {name} | {found.split} | {len(found.whole)} | {split_flops:,} | {whole_flops:,} |")
    lines = ["", f"{name}: the largest that are whole"]
    lines += [f"* {one.type} {one.name}: {one.reason}" for one in found.whole[:TOLD]]
    lines += [f"* NOT SPLIT: {op.type} {op.name}: {result.why(op)}" for op in wrong]
    return lines, not wrong


def _is_large(op) -> bool:
    return op.type in (*PRODUCTS, *LOOKUPS) or op.type.startswith((*CONVOLUTIONS, *RECURRENCES))


def _flops(result, op) -> int:
    """Returns two operations for each multiplication of a product or a convolution, of one row."""
    is_product = op.type in PRODUCTS
    if not is_product and not op.type.startswith(CONVOLUTIONS):
        return 0
    if is_product:
        # [m, k] by [k, n]: the square root of mk * kn * mn is mkn.
        sizes = [math.prod(_lengths(result, tensor)) for tensor in (*op.inputs, *op.outputs)]
        return 2 * round(math.sqrt(math.prod(sizes)))
    made = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
    kernel = _lengths(result, op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1])
    reads = kernel[:-2] if op.type.startswith("Depthwise") else kernel[:-1]
    return 2 * math.prod(_lengths(result, made)) * math.prod(reads)


def _lengths(result, tensor) -> list[int]:
    """Returns a tensor's dimensions where there is one row; 1 where one is not known."""
    return [each.size or each.multiple or 1 for each in result.shape(tensor) or ()]


if __name__ == "__main__":
    sys.exit(main())
