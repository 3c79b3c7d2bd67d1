"""Hooks of mkdocs (see mkdocs.yml): pages from outside docs/, and where public names are defined.

README.md becomes the first page; CONTRIBUTING.md, SECURITY.md and CHANGELOG.md are added. Links
between them and docs/ are those of the checkout, so that they also work where the files are read as
they are.
"""

import re
from pathlib import Path
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md"} | dict.fromkeys(
    ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
)
NAME = re.compile(r"^::: replicate\.([\w.]+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text).replace("](README.md", "](index.md")
        files.append(File.generated(config, page or name, content=text))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """Makes links to the pages from outside docs/ those of the site, and names those of modules."""
    markdown = re.sub(r"\]\(\.\./(README|CONTRIBUTING|SECURITY|CHANGELOG)\.md", _page, markdown)
    return NAME.sub(_defined, markdown)


def _page(link: re.Match) -> str:
    name = f"{link[1]}.md"
    return f"]({PAGES[name] or name}"


def _defined(directive: re.Match) -> str:
    """Returns the directive for a public name: it is documented where it is defined."""
    import replicate

    value = replicate
    for part in directive[1].split("."):
        value = getattr(value, part)
    if isinstance(value, ModuleType):
        return f"::: {value.__name__}"
    heading = f"replicate.{directive[1]}"
    return f'::: {value.__module__}.{value.__qualname__}\n    options: {{heading: "{heading}"}}'
