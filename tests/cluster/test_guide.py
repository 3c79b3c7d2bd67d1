"""The guides to several processes: their examples run, or are what Kubernetes' operator takes."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
import yaml

from replicate.graph import packing
from replicate.strategy.cluster import cluster
from scripts.benchmarking import formula

ROOT = pathlib.Path(__file__).parents[2]
MACHINES, SERVERS, NETWORK = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("machines", "servers", "network")
)


def examples(guide, language):
    """Returns the blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", guide, re.DOTALL)


def example(guide, language, text):
    """Returns the first block in which a text is."""
    return next(block for block in examples(guide, language) if text in block)


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def run(script, folder, seconds, **variables):
    """Runs a shell script to its end, none of whose processes outlives it."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **variables}
    with (folder / "log").open("w+") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = shell.wait(seconds)
        finally:
            for end in (lambda: os.killpg(shell.pid, signal.SIGKILL), shell.wait):
                try:
                    end()
                except ProcessLookupError:
                    pass
        log.seek(0)
        return code, log.read()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["by hand", "launch"])
def test_two_machines_train_as_printed(tmp_path, way):
    (tmp_path / "mine.py").write_text(example(MACHINES, "python", "# mine.py"), encoding="utf-8")
    hand = example(MACHINES, "sh", "CLUSTER=")
    # Both machines are this one: the first task beside the second.
    for printed, port in zip(("gpu1:2222", "gpu2:2222"), free_ports(2), strict=True):
        hand = hand.replace(printed, f"127.0.0.1:{port}")
    (launch,) = re.findall("`(replicate launch .* -- python mine.py)`", MACHINES)
    script = {"by hand": hand.replace("# gpu1", "&") + "wait", "launch": f"{launch} && cat logs/*"}
    code, log = run(script[way], tmp_path, 120)
    assert code == 0, log
    shown = next(block for block in examples(MACHINES, "text") if "chief:0" in block)
    assert set(shown.splitlines()) <= set(log.splitlines())


@pytest.mark.thorough
def test_servers_train_as_printed(tmp_path):
    (tmp_path / "mine.py").write_text(example(SERVERS, "python", "# mine.py"), encoding="utf-8")
    code, log = run(example(SERVERS, "sh", "replicate launch"), tmp_path, 120)
    assert code == 0, log
    assert set(examples(SERVERS, "text")[0].splitlines()) <= set(log.splitlines())


def test_slurm_makes_the_tf_config_of_each_task(tmp_path):
    (tmp_path / "tf_config.py").write_text(
        example(MACHINES, "python", "SLURM_PROCID"), encoding="utf-8"
    )
    script = example(MACHINES, "sh", "scontrol show hostnames")
    # What makes HOSTS and TF_CONFIG, as printed, with a `scontrol` and an `srun` of our own: the
    # first prints three hosts, the second runs the command for each of three tasks.
    places = {
        "scontrol": 'test "$*" = "show hostnames node[1-3]" && printf "node1\\nnode2\\nnode3\\n"',
        "srun": 'shift; for i in 0 1 2; do SLURM_PROCID=$i "$@" || exit 1; done',
        "replicate": '[ "$1" = check ] || echo "$TF_CONFIG"',
    }
    for name, text in places.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_ID": "41007"}
    script = f'export PATH="{tmp_path}:$PATH"\n{script}'
    code, log = run(script, tmp_path, 60, **slurm)
    assert code == 0, log
    tasks = [cluster.of(json.loads(line)) for line in log.splitlines()]
    assert [one.name for one in tasks] == ["chief:0", "worker:0", "worker:1"]
    # 1007 is what is left of 41007 when 20000 is taken from it as often as it goes.
    assert {one.addresses for one in tasks} == {("node1:13007", "node2:13007", "node3:13007")}


@pytest.mark.parametrize("guide", [MACHINES, SERVERS], ids=["collectives", "servers"])
def test_manifests_are_what_the_operator_takes(guide):
    """The words are those of kubeflow.org/v1: the training operator's TFJob."""
    job = yaml.safe_load(example(guide, "yaml", "apiVersion"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert set(job["spec"]) <= {"runPolicy", "tfReplicaSpecs", "successPolicy"}
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    assert job["spec"]["runPolicy"]["backoffLimit"] > 0  # exit code 1 may be there to stay
    for kind, replicas in job["spec"]["tfReplicaSpecs"].items():
        assert kind in ("Chief", "Worker", "PS", "Evaluator")
        assert set(replicas) == {"replicas", "restartPolicy", "template"}
        assert replicas["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        pod = replicas["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "tensorflow"
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["volumes"]}


def test_the_table_on_paper_is_what_the_formula_gives():
    network, compute, dense = formula.Network(10e9 / 8, 1e-4), 0.5, 440_000_000

    def ring(pack, workers):
        sizes = [pack] * (dense // pack) + [dense % pack] * bool(dense % pack) + [8] * 3
        return formula.ring(
            [formula.Collective(formula.ALL_REDUCE, size) for size in sizes], workers
        )

    def servers(number, workers):
        return formula.servers([dense // number] * number, [dense // number] * number, workers)

    rows = re.findall(r"^\| ([\d,]+) \|(.*)\|$", NETWORK.partition("## On paper")[2], re.MULTILINE)
    assert [workers for workers, _ in rows] == ["2", "4", "16", "64", "256", "1,000"]
    for first, rest in rows:
        workers = int(first.replace(",", ""))
        small, packed = ring(1 << 22, workers), ring(packing.pack_bytes(workers), workers)
        few, many = servers(8, workers), servers(workers // 2, workers)
        seconds = [one.seconds(network) for one in (small, packed, few, many)]
        times = [f"{one:.2f} | {workers * compute / (compute + one):.1f}" for one in seconds]
        expected = [
            f"{small.sent / 1e6:,.0f} | {small.messages:,} | {times[0]}",
            f"{packed.messages:,} | {times[1]}",
            f"{few.server_sent / 1e6:,.0f} | {times[2]}",
            times[3],
        ]
        assert rest.strip() == " | ".join(expected)
