"""The notebooks of the documentation: each is generated from a page, with the outputs of its cells.

``python -m tests.support.notebooks`` runs the pages of ``docs/notebooks`` and writes the notebooks next to them;
arguments select pages by name.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
_KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
_SECONDS = 600  # timeout of a cell
_WIDTH, _COLORS = 640, 48  # images in notebooks have some kilobytes each


def pages() -> list[Path]:
    """Return the pages that are notebooks."""
    return sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")


def notebook_of(page: Path) -> Any:
    """Convert a page to a notebook without outputs."""
    notebook = jupytext.reads(page.read_text(encoding="utf-8"), fmt="md")
    notebook.metadata = nbformat.from_dict(_KERNEL)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
    return notebook


def executed(page: Path, folder: Path) -> Any:
    """Convert a page to a notebook and run it in a new kernel in ``folder``.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = notebook_of(page)
    NotebookClient(
        notebook, timeout=_SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})  # execution times
        if cell.cell_type == "code":
            cell.outputs = _kept(cell.outputs)
    notebook.metadata = nbformat.from_dict(_KERNEL)  # Python version
    return notebook


def _kept(outputs: list[Any]) -> list[Any]:
    """Return simplified outputs: merged text streams and small images."""
    kept: list[Any] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
            continue
        if picture := output.get("data", {}).get("image/png"):
            output.data["image/png"] = _small(picture)
            output.metadata = nbformat.from_dict({})
        kept.append(output)
    return kept


def _small(picture: str) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.thumbnail((_WIDTH, _WIDTH))
    small = io.BytesIO()
    image.quantize(_COLORS).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def main(names: list[str]) -> None:
    for page in pages():
        if names and page.stem not in names:
            continue
        print(page.stem, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            text = nbformat.writes(executed(page, Path(folder)))
        text = text.replace(f"{folder}/", "")  # as if it ran in the notebook's folder
        page.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
