"""A hook of mkdocs: pages that stand elsewhere in the repository, and a list that makes itself."""

import pathlib
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = pathlib.Path(__file__).parent
NAMES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
DECISIONS = "decisions"


def on_config(config: MkDocsConfig) -> None:
    """Put every decision where the navigation says ``decisions``."""
    found = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / DECISIONS).glob("*.md"))
    config.nav = _filled(config.nav, list(found))


def _filled(nav: Any, decisions: list[str]) -> Any:
    if isinstance(nav, list):
        return [_filled(part, decisions) for part in nav]
    if isinstance(nav, dict):
        return {title: _filled(part, decisions) for title, part in nav.items()}
    return decisions if nav == DECISIONS else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root under their names in lower case."""
    for name in NAMES:
        path = DOCS.parent / name
        files.append(File.generated(config, name.lower(), abs_src_path=str(path)))
    return files
