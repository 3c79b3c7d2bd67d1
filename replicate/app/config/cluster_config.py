"""The part of a config that says of a cluster what `TF_CONFIG` does not."""

from typing import Literal

from pydantic import Field

from replicate.app.config import checks

__all__ = ["Cluster", "strategy_fault"]


class Cluster(checks.Section):
    """What TF_CONFIG does not say of a cluster; without one nothing of it counts."""

    timeout: checks.number(above=0) = Field(
        600.0,
        description="After how many seconds a worker fails that waits for another one: at the "
        "start, in a step, and while the chief evaluates or exports.",
    )
    communication: Literal["auto", "ring", "nccl"] = Field(
        "auto", description="How workers reach each other; auto: NCCL between GPUs, else a ring."
    )
    pack_bytes: checks.whole(0) | None = Field(
        None,
        description="Tensors of workers share a transfer, up to so many bytes; 0: none do; null: "
        "4 MiB, or 128 KiB for each worker where that is more.",
    )
    evaluator: checks.Boolean = Field(
        False,
        description="Whether a task of its own evaluates, keeps the best checkpoint and exports, "
        "and not the chief; the job evaluator in TF_CONFIG, or `replicate launch --evaluator`, "
        "says so as well.",
    )
    grace: checks.number(above=0) = Field(
        20.0,
        description="For how many seconds `replicate launch` waits for processes that it has "
        "asked to end, before it kills them.",
    )


def strategy_fault(wanted: str | None, workers: int, servers: int) -> str | None:
    """Returns the fault of a strategy that would leave workers alone; None where there is none.

    Args:
        wanted: The key strategy.
        workers: How many workers a cluster has.
        servers: How many parameter servers.
    """
    if servers and wanted in ("multi_worker", "mirrored"):
        return (
            f"strategy: must leave the variables to the parameter servers of the cluster, got "
            f"{wanted}. Leave strategy out, or the servers."
        )
    if not servers and workers > 1 and wanted not in (None, "multi_worker"):
        return (
            f"strategy: must be multi_worker where a cluster has {workers} workers and no "
            f"parameter servers, got {wanted}. Set that, or leave strategy out."
        )
    return None
