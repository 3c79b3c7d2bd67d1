#!/usr/bin/env python3
import pathlib, runpy, sys  # noqa: E401 - `scripts/check.py CONFIG` is `replicate check CONFIG`
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.argv[1:1] = ["check"]
runpy.run_module("replicate", run_name="__main__")
