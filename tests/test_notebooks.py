"""The notebooks of the documentation match their pages, which ``test_docs.py`` runs, and run in a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import executed, notebook_of, pages

MOST_BYTES = 100_000
PAGES = [pytest.param(page, id=page.stem) for page in pages()]


@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_is_its_page_with_outputs(page: Path) -> None:
    kept = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(kept)
    made_anew = "; make it anew by python -m tests.support.notebooks"
    expected, there = ([(cell.cell_type, cell.source) for cell in n.cells] for n in (notebook_of(page), kept))
    assert there == expected, f"{page.name} has changed since its notebook was made{made_anew}"
    outputs = [output for cell in kept.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert page.with_suffix(".ipynb").stat().st_size < MOST_BYTES


def test_there_are_six_and_the_first_page_names_them() -> None:
    index = (pages()[0].parent / "index.md").read_text()
    assert len(PAGES) == 6
    assert all(f"({page.name})" in index for page in pages())


def test_the_first_one_runs_in_a_kernel(tmp_path: Path) -> None:
    (quickstart,) = [page for page in pages() if page.stem == "quickstart"]
    notebook = executed(quickstart, tmp_path)
    training, *_, last = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (curve,) = [output["data"] for output in training.outputs if "data" in output]  # one picture, which was replaced
    assert "image/png" in curve
    assert "100%" in curve["text/plain"]
    assert any("image/png" in output.get("data", {}) for output in last.outputs)
    assert (tmp_path / "runs").is_dir()
