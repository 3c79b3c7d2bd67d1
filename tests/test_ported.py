"""docs/ported.md: each model that it tells of gives on several devices what one gives."""

import pathlib
import runpy

import pytest

from tests import exactness
from tests.models import ported

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ported.md").read_text(encoding="utf-8")

# What depends on a rate that reads the step, which the train_op counts in no order to that.
OPEN = {
    "electra": {"loss", "weights", "slots"},
    "simclr": {"loss", "weights", "slots", "other variables"},
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "ported.py"))


def test_the_page_has_a_table_of_every_model(script):
    assert sorted(script["verified"](PAGE)) == sorted(ported.MODELS)
    assert PAGE.count("The towers give what one device gives") == len(ported.MODELS)
    for name in ported.MODELS:
        assert f"`tests/models/{name}.py`" in PAGE


def test_a_table_is_written_in_its_place(script):
    page = "<!-- verify one -->\n```text\nold\n```\n<!-- verify two -->\n```text\nold\n```\n"
    written = script["with_table"](page, "two", "new")
    assert written == page[: -len("old\n```\n")] + "new\n```\n"


@pytest.mark.thorough("vae")
@pytest.mark.parametrize("name", ported.MODELS)
def test_a_model_gives_what_one_device_gives(name):
    with exactness.quiet():
        found = ported.MODELS[name].verified()
    verdicts = {row.what: row.verdict for row in found.rows}
    if name == "bert":
        # Softmax takes no notice of a bias of keys: what its gradient of 0 rounds to moves it.
        assert verdicts.pop("weights") in ("equal", "depends on rounding"), str(found)
    left_open = {what for what, verdict in verdicts.items() if verdict == "open in the model"}
    assert left_open == OPEN.get(name, set()), str(found)
    compared = verdicts.keys() - left_open
    assert {verdicts[what] for what in compared} == {"equal"}, str(found)
