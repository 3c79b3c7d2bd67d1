"""docs/configuration.md is what the model gives."""

import pathlib
import runpy

import pytest

from replicate.app.config import catalog, config, schema

TOP = pathlib.Path(__file__).parents[2]
PAGE = TOP / "docs" / "configuration.md"


@pytest.fixture(name="page", scope="module")
def make_page():
    """Returns the page as the script writes it."""
    return runpy.run_path(str(TOP / "scripts" / "configuration.py"))["text"]()


def test_the_page_is_what_the_model_gives(page):
    written = PAGE.read_text(encoding="utf-8")
    assert written == page, "scripts/configuration.py writes it again"


def test_the_page_has_every_key_of_every_section(page):
    rows = {line.split(" | ")[0] for line in page.splitlines()}
    for section in schema.sections().values():
        is_section = section["properties"].get("name", {}).get("const") is None
        assert not is_section or {f"| `{key}`" for key in section["properties"]} <= rows
    assert {f"| `{name}`" for name in [*catalog.OPTIMIZERS, *catalog.SCHEDULES]} <= rows


def test_a_row_says_type_default_and_meaning(page):
    lines = page.splitlines()
    meaning = config.Config.model_fields["clip_global_norm"].description
    assert f"| `clip_global_norm` | number > 0 or `null` | `null` | {meaning} |" in lines
    assert "| `Adagrad` | `learning_rate`, `initial_accumulator_value: 0.1` |" in lines


def test_the_page_names_the_dtypes_that_there_are(page):
    assert f"one of {', '.join(catalog.DTYPES)}." in page
