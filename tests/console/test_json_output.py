"""A document on stdout stands alone, whatever a model prints."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from replicate.console import json_output

TOP = pathlib.Path(__file__).parents[2]

CODE = """
import os, subprocess, sys
from replicate.console import json_output

print("before")
with json_output.alone() as out:
    print("from python")
    os.write(1, b"from native code\\n")
    subprocess.run(["echo", "from a child"])
    json_output.write({"größe": [1, None]}, out)
    print("late")
print("after")
"""


def test_all_else_goes_to_stderr():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=TOP,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    before, document, after = done.stdout.splitlines()
    assert (before, json.loads(document), after) == ("before", {"größe": [1, None]}, "after")
    lines = ["from a child", "from native code", "from python", "late"]
    assert sorted(done.stderr.splitlines()) == lines


def test_a_stdout_that_is_not_the_process_s_own_is_spared_as_well(capsys):
    with json_output.alone() as out:
        print("from python")
        json_output.write([1.5], out)
    print("after")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[1.5]\nafter\n", "from python\n")


def test_what_json_has_no_word_for_is_refused(capsys):
    with json_output.alone() as out, pytest.raises(ValueError, match="not JSON compliant"):
        json_output.write(float("nan"), out)
