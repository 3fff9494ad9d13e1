"""Lists of the algorithms' pages, made while the documentation is built: a new page is in them by being there."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

FOLDER = "algorithms/"
MARK = "<!-- algorithms -->"  # where a page lists them all


def titles(docs: Path) -> dict[str, str]:
    """The title of every page in the folder, by its path below ``docs``, in the order of titles."""
    found = {}
    for path in sorted((docs / FOLDER).glob("*.md")):
        heading = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        found[f"{FOLDER}{path.name}"] = heading.removeprefix("# ").strip()
    return dict(sorted(found.items(), key=lambda item: item[1].casefold()))


def on_config(config: Any) -> Any:
    """MkDocs: in the navigation the folder's name stands for its pages."""
    pages = [{title: path} for path, title in titles(Path(config["docs_dir"])).items()]
    config["nav"] = [
        {name: pages if entry == FOLDER else entry for name, entry in item.items()} for item in config["nav"]
    ]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """MkDocs: links to all pages at the mark."""
    here = posixpath.dirname(page.file.src_uri)
    pages = titles(Path(config["docs_dir"])).items()
    links = ", ".join(f"[{title}]({posixpath.relpath(path, here or '.')})" for path, title in pages)
    return markdown.replace(MARK, links)
