"""Figures of recorders: drawn by Matplotlib, which is imported with the first figure, and written as PNG."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.runs.files import replacing, writing_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def white_figure(width: float, height: float, dpi: int = 130, **options: Any) -> Figure:
    """Return an empty white figure that needs no screen.

    Args:
        width: width in inches.
        height: height in inches.
        dpi: pixels per inch.
        options: additional arguments of ``matplotlib.figure.Figure``.
    """
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it logs that it builds its font cache
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white", **options)
    FigureCanvasAgg(figure)
    return figure


def write_png(figure: Figure, path: Path | str) -> None:
    """Write a figure as PNG; raise ``RunFolderError`` if the image cannot be written."""
    with writing_to(Path(path).parent), replacing(Path(path)) as file:
        figure.savefig(file, format="png")
