"""Pages of notebooks: each code block is followed by the output that is recorded in the notebook of the same name."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

FOLDER = "notebooks/"
BADGE = '[Open in Colab](https://colab.research.google.com/{path}){{ .md-button target="_blank" rel="noopener" }}'
_BLOCK = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)


def output(recorded: dict[str, Any]) -> str:
    """Return the HTML of one recorded output: an image, a table, or text."""
    data = recorded.get("data", {})
    if picture := data.get("image/png"):
        return f'<img alt="Output of the cell" src="data:image/png;base64,{"".join(picture).strip()}">'
    if table := data.get("text/html"):
        table = re.sub(r"<style.*?</style>|^\s+", "", "".join(table), flags=re.DOTALL | re.MULTILINE)
        return table.replace("\n", "")
    text = "".join(recorded.get("text", data.get("text/plain", ""))).rstrip()
    return f"<pre><code>{html.escape(text)}</code></pre>".replace("\n", "&#10;")


def with_outputs(markdown: str, notebook: dict[str, Any]) -> str:
    """Return the page with the outputs of the notebook, whose cells are the page's code blocks in order.

    Raises:
        ValueError: the notebook has another number of code cells than the page has code blocks.
    """
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = _BLOCK.findall(markdown)
    if len(cells) != len(blocks):
        raise ValueError(f"{len(blocks)} code blocks, but {len(cells)} cells: run python -m tests.support.notebooks")
    remaining = iter(cells)

    def follow(block: re.Match[str]) -> str:
        shown = "".join(output(recorded) for recorded in next(remaining)["outputs"])
        return f'{block[0]}\n\n<div class="cell-output">{shown}</div>' if shown else block[0]

    return _BLOCK.sub(follow, markdown)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """MkDocs: show recorded outputs, and a link to Colab if the repository's address is known."""
    notebook = (Path(config["docs_dir"]) / page.file.src_uri).with_suffix(".ipynb")
    if not page.file.src_uri.startswith(FOLDER) or not notebook.exists():
        return markdown
    markdown = with_outputs(markdown, json.loads(notebook.read_text(encoding="utf-8")))
    address = config["repo_url"] or ""
    if "//github.com/" not in address:
        return markdown
    path = f"github/{address.split('//github.com/')[1]}/blob/main/docs/{notebook.relative_to(config['docs_dir'])}"
    title, _, rest = markdown.partition("\n")
    return f"{title}\n\n{BADGE.format(path=path)}\n{rest}"
