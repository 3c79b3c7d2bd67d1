"""The README's examples run as they stand, and print what it says they print."""

import contextlib
import importlib.util
import io
import logging
import pathlib
import re
import subprocess
import sys

import pytest

from replicate.compat.tensorflow import tf1

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 800

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # an Estimator's temporary folder
]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(source, folder):
    """Returns what a script defines, and what it prints."""
    (folder / "readme.py").write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme", folder / "readme.py")
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        spec.loader.exec_module(module)
    return vars(module), printed.getvalue()


class _Kept(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """What somebody has who runs all examples, what they print, and the warnings on the way."""
    folder, kept = tmp_path_factory.mktemp("readme"), _Kept()
    logging.getLogger("replicate").addHandler(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names, printed = run("\n".join(blocks("python")), folder)
    logging.getLogger("replicate").removeHandler(kept)
    return names, printed, kept.texts


def printed_line():
    """What the example prints, behind what stderr shows."""
    return blocks("text")[0].splitlines(keepends=True)[-1]


def test_the_example_prints_what_is_shown(reader):
    assert reader[1].startswith(printed_line())


def test_the_example_runs_on_two_devices(reader):
    names, used = reader[0], set()

    class Used(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
            return tf1.train.SessionRunArgs([], options=options)

        def after_run(self, run_context, run_values):
            for each in run_values.run_metadata.step_stats.dev_stats:
                if any("MatMul(" in node.timeline_label for node in each.node_stats):
                    used.add(each.device.rpartition("/device:")[2])

    names["model"].evaluate(names["input_fn"], steps=1, hooks=[Used()])
    assert used == {"CPU:0", "CPU:1"}


def columns(table):
    """Returns what a run does not change in the table of `verify`: all but its numbers."""
    lines = [line for line in table.splitlines() if line.strip("- ")]
    return [re.sub(r"\s+\S+\s+\S+(?=\s\s(equal|not compared))", "", line) for line in lines]


def test_verify_prints_the_table_that_is_shown(reader):
    assert columns(reader[1].removeprefix(printed_line())) == columns(blocks("text")[1])


def test_nothing_warns(reader):
    assert reader[2] == []


@pytest.mark.thorough
def test_a_new_user_sees_what_is_shown_and_nothing_else(tmp_path, monkeypatch):
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS"):  # the suite has set them
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "readme.py"
    path.write_text(blocks("python")[0], encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert done.stderr + done.stdout == blocks("text")[0]


def test_the_change_of_an_estimator_is_all_there_is(reader, tmp_path, monkeypatch):
    (change,) = blocks("diff")
    monkeypatch.chdir(tmp_path)
    added = [line[1:] for line in change.splitlines() if line.startswith("+")]
    names = {"model_fn": reader[0]["model_fn"]}
    exec("\n".join(added), names)
    assert "y" in next(names["model"].predict(reader[0]["input_fn"], yield_single_examples=True))


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS
