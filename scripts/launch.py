#!/usr/bin/env python3
"""`scripts/launch.py CONFIG` is `replicate launch CONFIG`."""

import runpy
import sys

sys.argv[1:1] = ["launch"]
sys.path[0] += "/.."  # the checkout, so that it also runs without being installed
runpy.run_module("replicate", run_name="__main__")
