#!/usr/bin/env python3
"""Makes the pictures of the README in docs/images, of configs/digits.yaml and tagger.yaml."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINED, DESCRIBED = (str(ROOT / "configs" / f"{name}.yaml") for name in ("digits", "tagger"))
IMAGES = ROOT / "docs" / "images"
# Enough points for curves: a summary every 20 steps, an evaluation every 50.
OFTEN = ("--train.save_summary_steps", "20", "--train.save_checkpoints_steps", "50")
OFTEN += ("--eval.every_steps", "50", "--set", "export=null")


def main() -> None:
    """Trains, and draws."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        replicate(folder, "train", TRAINED, "--quiet", "--model-dir", "digits", *OFTEN)
        replicate(folder, "plot", "digits", "--png", str(IMAGES / "plot.png"))
        picture = ("--png", str(IMAGES / "describe.png"))
        replicate(folder, "describe", DESCRIBED, "--strategy", "balanced", *picture)


def replicate(folder: str, *arguments: str) -> None:
    """Runs a command of this checkout, in a folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "replicate", *arguments]
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
