#!/usr/bin/env python3
"""`scripts/plot.py MODEL_DIR` is `replicate plot MODEL_DIR`."""

import runpy
import sys

sys.argv[1:1] = ["plot"]
sys.path[0] += "/.."  # the checkout, so that it also runs without being installed
runpy.run_module("replicate", run_name="__main__")
