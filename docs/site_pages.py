"""Parts of every page of the site: the version, the license, and the file that the page is made from.

``EVORL_REPOSITORY`` is the public address of the repository, such as ``https://github.com/OWNER/NAME``. If it is set
while the site is built, pages link to their source for editing, and notebooks to Colab.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = "EVORL_REPOSITORY"
BRANCH = "main"
REFERENCE = "reference/"


def on_config(config: Any) -> Any:
    """MkDocs: add version, license, and the repository if its address is known."""
    project = tomllib.loads((Path(config["docs_dir"]).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config["site_name"] = f"{config['site_name']} {project['version']}"
    config["copyright"] = f"evorl {project['version']} · License: {project['license']}"
    if address := os.environ.get(REPOSITORY, "").rstrip("/"):
        config["repo_url"], config["repo_name"] = address, address.rsplit("/", 1)[-1]
        config["edit_uri"] = f"edit/{BRANCH}/docs/"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs: rank the generated reference below the guides in the search."""
    if page.file.src_uri.startswith(REFERENCE):
        page.meta["search"] = {"boost": 0.2}
    return markdown


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """MkDocs: name the source of the page at its end."""
    path = f"<code>docs/{page.file.src_uri}</code>"
    link = f'<a href="{page.edit_url}">{path}</a>' if page.edit_url else path
    return f'{html}\n<p class="page-source">Source of this page: {link}</p>'
