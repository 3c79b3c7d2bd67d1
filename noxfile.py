"""The conformance suite on every TensorFlow that is supported, with every Python that has it.

pip install "nox[uv]"
nox                                # all pairs: an environment each, 22 in all
nox --tags 2.18.1                  # one TensorFlow
nox --python 3.12                  # one Python
python scripts/versions.py         # writes what came of it to docs/versions.md
"""

import nox

# TensorFlow, and the minor versions of Python that it has wheels for and we support.
TENSORFLOWS = {
    "2.15.1": (10, 11),
    "2.16.2": (10, 11, 12),
    "2.17.1": (10, 11, 12),
    "2.18.1": (10, 11, 12),
    "2.19.1": (10, 11, 12),
    "2.20.0": (10, 11, 12, 13),
    "2.21.0": (10, 11, 12, 13),
}
PAIRS = [
    nox.param(f"3.{minor}", tensorflow, id=f"{tensorflow}-3.{minor}", tags=[tensorflow])
    for tensorflow, minors in TENSORFLOWS.items()
    for minor in minors
]

nox.options.default_venv_backend = "uv|virtualenv"


@nox.session
@nox.parametrize("python, tensorflow", PAIRS)
def conformance(session: nox.Session, tensorflow: str) -> None:
    """Runs the conformance suite, or what is named behind `--`, and keeps its results."""
    session.install("--editable", ".[dev]", f"tensorflow=={tensorflow}")
    results = f"build/versions/{tensorflow}-{session.python}.xml"
    tests = session.posargs or ["tests/conformance", "-n", "2"]
    session.run("pytest", "--quiet", f"--junit-xml={results}", *tests)
