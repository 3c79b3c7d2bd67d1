"""Stands for `replicate train`, without TensorFlow: `python child.py FOLDER`.

It does what plan.json has for the number of its cluster and its name, in a word; without one it
ends well. Nobody does it before all are there, or one that is lost might not have been.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from replicate.app.cluster import lifeline

TASK, FOLDER = json.loads(os.environ["TF_CONFIG"]), pathlib.Path(sys.argv[1])
NAME, JOBS = "{type}:{index}".format(**TASK["task"]), TASK["cluster"]
TELL = lifeline.attached()


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


def clusters():
    """Returns the address of the chief of each cluster so far."""
    known = FOLDER / "clusters"
    lines = known.read_text().splitlines() if known.exists() else []
    return [json.loads(line)["chief"][0] for line in lines]


def save(step):
    if NAME == "chief:0" and WHAT != "idle":
        (FOLDER / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


def end(asked, frame):
    save(20 * NUMBER + 20)
    TELL({"stopped": "saved"})
    print("saved", file=sys.stderr, flush=True)
    if WHAT == "finish":
        print("finished by", NAME, flush=True)
    os._exit(int(WHAT) if WHAT.isdigit() else 0 if WHAT == "finish" else 130)


if NAME == "chief:0":
    with (FOLDER / "clusters").open("a") as file:
        file.write(json.dumps(JOBS) + "\n")
wait_for(lambda: JOBS["chief"][0] in clusters())
NUMBER = clusters().index(JOBS["chief"][0])
PLAN = json.loads((FOLDER / "plan.json").read_text())
WHAT = PLAN[NUMBER].get(NAME, "work") if NUMBER < len(PLAN) else "work"
STAYS = WHAT in ("stay", "stuck", "idle", "late", "finish") or WHAT.isdigit()
signal.signal(signal.SIGTERM, signal.SIG_IGN if WHAT == "stuck" else end)
save(20 * NUMBER + 10)
(FOLDER / f"{NAME}.json").write_text(json.dumps([os.getpid(), TASK]))
(FOLDER / f"{NAME}.{NUMBER}").touch()
ALL = [f"{job}:{index}" for job, listed in JOBS.items() for index in range(len(listed))]
wait_for(lambda: all((FOLDER / f"{name}.{NUMBER}").exists() for name in ALL))
for done in range(0, 21, 10):
    text = f"train {done}/20"
    TELL({"task": 0, "bar": ["train", done, 20, "loss 2.5"]})
    TELL({"line": text})
    print(text, file=sys.stderr, flush=True)
print("a line of", NAME, file=sys.stderr, flush=True)
(FOLDER / f"{NAME}.at").touch()
if WHAT == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if WHAT == "fail late":
    chief = json.loads((FOLDER / "chief:0.json").read_text())[0]
    wait_for(lambda: not pathlib.Path(f"/proc/{chief}").exists())
if WHAT.startswith("fail"):
    print("the reason", file=sys.stderr, flush=True)
    sys.exit(3)
if WHAT == "refused":
    TELL(lifeline.REFUSED)
if WHAT in ("refused", "usage", "interrupted"):
    sys.exit({"refused": 1, "usage": 2, "interrupted": 130}[WHAT])
if WHAT == "nurse":
    (FOLDER / "nursed").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
if WHAT == "slow":
    time.sleep(0.5)
if WHAT in ("late", "finish") or WHAT.isdigit():
    (FOLDER / f"late.{NUMBER}").touch()
while STAYS or NAME.startswith("ps"):
    time.sleep(0.01)
print(f"result of {NAME} in cluster {NUMBER + 1}")
