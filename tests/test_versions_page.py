"""The page of versions says what nox found."""

import importlib.util
from pathlib import Path

import pytest

from replicate.compat import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = """<testsuites>
<testsuite name="pytest" errors="{errors}" failures="2" skipped="3" tests="1012"></testsuite>
</testsuites>"""


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("versions_page", ROOT / "scripts/versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_pair_has_its_counts_and_one_without_wheels_none(script, tmp_path, monkeypatch):
    for pair, errors in {"2.9.1-3.9": 0, "2.15.1-3.9": 0, "2.15.1-3.10": 1}.items():
        (tmp_path / f"{pair}.xml").write_text(RESULTS.format(errors=errors))
    page = tmp_path / "versions.md"
    monkeypatch.setattr("sys.argv", ["versions", "--results", str(tmp_path), "--page", str(page)])
    with pytest.raises(SystemExit, match="True"):
        script.main()
    assert page.read_text().removeprefix(script.HEAD).split("\n") == [
        "",
        "| TensorFlow | Python 3.9 | Python 3.10 |",
        "| --- | --- | --- |",
        "| 2.9.1 | 1,007 passed, **2 failed** | – |",
        "| 2.15.1 | 1,007 passed, **2 failed** | 1,006 passed, **3 failed** |",
        "",
    ]
    (tmp_path / "2.15.1-3.10.xml").write_text(RESULTS.format(errors=0))
    (tmp_path / "2.9.1-3.9.xml").unlink()
    with pytest.raises(SystemExit, match="True"):
        script.main()
    assert page.read_text().splitlines()[-2:] == [  # what was not run again stays
        "| 2.9.1 | 1,007 passed, **2 failed** | – |",
        "| 2.15.1 | 1,007 passed, **2 failed** | 1,007 passed, **2 failed** |",
    ]


def test_no_results_are_told(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["versions", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "Run nox first" in capsys.readouterr().err


def test_the_page_has_all_versions_that_are_supported():
    text = (ROOT / "docs/versions.md").read_text()
    found = [line.split(" ")[1] for line in text.splitlines() if line.startswith("| 2.")]
    minors = [int(version.split(".")[1]) for version in found]
    assert minors == list(range(versions.OLDEST[1], versions.NEWEST[1] + 1))
    assert "failed" not in text.split("\n\n")[-1]
