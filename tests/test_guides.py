"""The guides begin with an answer, and their examples run and print what they show.

A block whose first line is a comment with a file's name is that file. Other Python runs, block
after block; so do commands above the text that they print.
"""

import importlib.util
import logging
import re
import shlex
import subprocess
import sys
import types
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import yaml

import replicate
from replicate import choices
from replicate.app.command import cli
from replicate.app.config import config
from replicate.compat.tensorflow import tf, tf1

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml))\b")
NUMBER = re.compile(r"[(]?-?\d[\d,]*(\.\d+)?(e-?\d+)?[.,:)]*")
MOST_LINES = 15
IN_PROCESSES = ("machines", "servers")  # tests/cluster/test_guide.py runs these


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


COMMANDS, CONFIGS, PORTING, STRATEGIES, WATCHING = map(
    page, ("commands", "configs", "porting", "strategies", "watching")
)
GUIDES = re.findall(r"^\| [^|]+ \| \[[^]]+\]\(docs/([\w-]+)\.md\) \|$", page("../README"), re.M)
SLOW = ("checkpoints", "porting", "verifying")
RUN = [
    pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW))
    for name in GUIDES
    if name not in (*IN_PROCESSES, "performance")
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:UserWarning"),
    pytest.mark.filterwarnings("ignore:`Model.state_updates` will be removed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # an Estimator's temporary folder
    # Keras 2.15 asks for a seed so.
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning"),
]


def examples(text, language):
    """Returns the blocks of a language."""
    return [block for found, block in BLOCK.findall(text) if found == language]


def run(source, path):
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_made_cpus(text):
    """Returns a config for the suite's logical CPUs, which are made already."""
    return text.replace("devices: {cpu: 2}", 'devices: ["/cpu:0", "/cpu:1"]')


def prepare(text, folder):
    """Gives a folder what a clone has, and the files of a page."""
    for name in ("configs", "replicate"):
        (folder / name).symlink_to(ROOT / name)
    for _, block in BLOCK.findall(text):
        if found := FILE.match(block):
            (folder / found[1]).write_text(on_made_cpus(block), encoding="utf-8")


def missing(shown, printed):
    """Returns the first line of a text that is not printed, in order behind those before it."""
    lines = iter(printed.splitlines())
    return next((one for one in shown.splitlines() if not any(alike(one, n) for n in lines)), None)


def alike(shown, printed):
    """Whether two lines have the same words; numbers that are not whole may be others."""
    pairs = zip_longest(shown.split(), printed.split(), fillvalue="")
    return all(map(is_alike, *zip(*pairs, strict=True))) if shown.strip() else True


def is_alike(shown, printed):
    if shown == printed or set(shown + printed) <= set("-"):
        return True
    is_whole = all(word.strip(".,:()").isdigit() for word in (shown, printed))
    return not is_whole and all(NUMBER.fullmatch(word) for word in (shown, printed))


class Told(logging.Handler):
    """Shows what the package tells where the test's output is taken."""

    def emit(self, record):
        print(record.getMessage(), file=sys.stderr)


@pytest.fixture
def told():
    """Lets a page begin as a process does: what is told once is told, nothing is open."""
    handler, logger = Told(), logging.getLogger("replicate")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    tf1.summary.FileWriterCache.clear()
    yield
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


class Reader:
    """Somebody who copies what a page has into a folder, and runs it there."""

    def __init__(self, capsys):
        self._capsys, self._names = capsys, {"__name__": "__main__"}
        self._printed, self.missing = "", []

    def read(self, blocks):
        """Runs Python, and commands whose output is shown; compares what they print."""
        for number, (language, block) in enumerate(blocks):
            after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            shown = after[1] if after[0] == "text" else None
            if language == "python" and not FILE.match(block):
                exec(compile(block, "example", "exec"), self._names)
            elif language == "sh" and shown is not None:
                for arguments in commands(f"```sh\n{block}```"):
                    assert cli.main([*arguments, *devices_for(arguments)]) == 0
                    self._take()
            else:
                continue
            self._take()
            if shown is not None and (line := missing(shown, self._printed)):
                self.missing.append((line, self._printed))
            self._printed = ""

    def _take(self):
        taken = self._capsys.readouterr()
        self._printed += taken.err + taken.out


def devices_for(arguments):
    """Returns what gives a config of the clone the suite's logical CPUs."""
    is_given = len(arguments) > 1 and arguments[1].startswith("configs/")
    return ["--set", "devices=[/cpu:0, /cpu:1]"] if is_given else []


@pytest.mark.thorough("configs", "optimizers")
@pytest.mark.parametrize("name", RUN)
def test_a_guide_prints_what_it_shows(name, tmp_path, monkeypatch, capsys, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = page(name)
    if name == "watching":  # what is left sets the process's loggers
        text = text.partition("## A quiet TensorFlow")[0]
    prepare(text, tmp_path)
    reader = Reader(capsys)
    reader.read(BLOCK.findall(text))
    assert reader.missing == []


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_begins_with_a_short_answer_and_its_output(name):
    begin = page(name).partition("\n## ")[0]
    if name == "performance":
        assert begin.count("\n| ") > 5  # its answer is a table
        return
    languages = [language for language, _ in BLOCK.findall(begin)]
    answer = languages[: languages.index("text")]
    blocks = [block for _, block in BLOCK.findall(begin)[: len(answer)]]
    assert [block for block in blocks if block.count("\n") > MOST_LINES] == []
    assert begin.index("```") < 300  # nothing but a sentence comes first


def test_every_guide_is_in_the_table_and_in_the_menu():
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("theme:")[0])
    (listed,) = (one["Guides"] for one in menu["nav"] if "Guides" in one)
    pages = [name.removesuffix(".md") for one in listed for name in one.values()]
    assert pages == [name for name in GUIDES if name != "performance"]


@pytest.mark.thorough
def test_the_lines_that_quiet_tensorflow_do(tmp_path):
    quiet, logs = examples(WATCHING, "python")[-2:]
    loud = "import replicate\ntf.get_logger().warning('not this')\n"
    loud += "logging.getLogger('replicate').info('but this')\n"
    (tmp_path / "quiet.py").write_text(quiet + logs + loud, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "quiet.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "but this" in told
    assert "not this" not in told


def test_the_algorithm_of_ones_own_equals_one_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = examples(STRATEGIES, "python")
    copies = [copy.numpy() for copy in run(example, tmp_path / "own.py").w.members]
    # One device: the mean of (w x - y)^2 over (1, 3), (2, 6) has the gradient
    # (2 (w - 3) + 2 * 2 (2 w - 6)) / 2 = 5 (w - 3).
    w = 10.0
    for _ in range(100):
        w -= 0.1 * 5.0 * (w - 3.0)
    np.testing.assert_allclose(copies, [w, w], rtol=1e-6)


def test_every_strategy_of_a_name_is_in_the_guide():
    listed = set(re.findall(r'^\|[^|]*"(\w+)"', STRATEGIES, re.MULTILINE))
    assert listed >= set(choices.NAMED)


def replacements():
    """Returns the names on the right of the last table that are spelt out."""
    rows = PORTING.partition("## Replacements of `tf.contrib`\n")[2]
    cells = re.findall(r"^\| `tf\.contrib[^|]*\|([^|]*)\|$", rows, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    return [name for name in names if name != "params"]


def test_what_replaces_tf_contrib_is_there():
    roots = {"replicate": replicate, "tf": tf}
    assert len(replacements()) > 15
    for name in replacements():
        first, *rest = name.split(".")
        value = roots[first]
        for part in rest:
            value = getattr(value, part)
        assert isinstance(value, type | types.ModuleType) or callable(value), name


def commands(text):
    """Returns the arguments of each `replicate` command in the shell's blocks, scripts apart."""
    blocks = "\n".join(one for one in examples(text, "sh") if not one.startswith("#!"))
    blocks = blocks.replace("\\\n", " ")
    lines = [line.partition("replicate ") for line in blocks.splitlines()]
    return [shlex.split(rest, comments=True) for _, word, rest in lines if word]


_WITHOUT_KEYS = ("init", "plot")
_SHELLS = {
    " ".join(given): given
    for given in commands("".join(map(page, ("commands", *GUIDES))))
    if given[0] not in _WITHOUT_KEYS and "--" not in given  # a script of one's own
}


@pytest.mark.parametrize("arguments", _SHELLS.values(), ids=[name[:60] for name in _SHELLS])
def test_the_commands_of_the_guides_are_understood(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare("".join(map(page, GUIDES)), tmp_path)
    given = arguments[: next((i for i, a in enumerate(arguments) if a in ("||", "|", "&&")), None)]
    if given[0] != "check":
        given.append("--print-config")
    assert cli.main([one.replace("*", "digits").strip("'") for one in given]) == 0
    capsys.readouterr()


def first_config():
    (found,) = (block for block in examples(CONFIGS, "yaml") if "# mine.yaml" in block)
    return found


def test_the_keys_in_the_guides_are_keys_of_a_config(tmp_path):
    blocks = [block for name in GUIDES for block in examples(page(name), "yaml")]
    for block in blocks:
        merged = yaml.safe_load(first_config()) | yaml.safe_load(block)
        if "apiVersion" not in merged:
            (tmp_path / "merged.yaml").write_text(yaml.safe_dump(merged), encoding="utf-8")
            config.load(str(tmp_path / "merged.yaml"))


def test_recipes_have_ten_lines_or_fewer():
    section = CONFIGS.partition("## Recipes\n")[2].partition("\n## ")[0]
    recipes = examples(section, "yaml") + examples(section, "sh")
    assert len(recipes) > 3
    assert [one for one in recipes if one.count("\n") > 10] == []


def test_a_config_for_a_model_of_ones_own_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare(CONFIGS, tmp_path)
    (data,) = (block for block in examples(CONFIGS, "python") if "savez" in block)
    run(data, tmp_path / "data.py")
    assert cli.main(["train", "mine.yaml", "--quiet", "--set", "train.steps=2"]) == 0
    capsys.readouterr()
