"""Converts Matplotlib figures to SVG elements with colors from the page's style sheet, for light and dark screens."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from evorl.ops.terminal_text import escaped
from evorl.recorders.learning_curve import BLUE, GRAY, GREEN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colors of the figures on light screens, and their replacements on dark screens.
SERIES = {
    BLUE: "#84b3ee", "#cc6b12": "#f0a35e", GREEN: "#5cc79b", "#c0453b": "#ee8b82", "#7d57b5": "#b89be6",
    "#168a9a": "#5fc6d4", "#8a6238": "#c9a27a", "#c2528b": "#e994c0",
}  # fmt: skip
RAMP = {"#b4c0cc": "#55606d", "#8bafd2": "#4f779c", "#5a92c8": "#5e9bd3", "#2c6bb0": "#93c4f5", "#133f78": "#dcecff"}
INK = {"#222222": "#e8eaed", GRAY: "#a3adb9", "#e6e9ee": "#2f353d", "#c8ced6": "#4a525d", "#ffffff": "#15181c"}
COLORS = list(SERIES)
RAMP_COLORS = list(RAMP)
PAPER = "#ffffff"
_VARIABLES = {
    light: f"{name}{i}" for name, colors in (("c", SERIES), ("r", RAMP), ("i", INK)) for i, light in enumerate(colors)
}
_LONG = re.compile(r"(\d+\.\d\d)\d+")
_FONT = re.compile(r"font: ([^;]*?px) [^;]*")
_PLAIN = {"Date": None, "Creator": None, "Format": None, "Type": None}


def variable(color: str) -> str:
    """Return the CSS expression of a color of the figures, ``var(--<name>)``."""
    return f"var(--{_VARIABLES[color]})"


def variables(dark: bool) -> str:
    """Return the CSS declarations of all colors, for dark or light mode."""
    pairs = {**SERIES, **RAMP, **INK}.items()
    return " ".join(f"--{_VARIABLES[light]}: {on_dark if dark else light};" for light, on_dark in pairs)


@contextmanager
def figure_of(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of this size in inches, within Matplotlib settings that keep text as text in SVG."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # no font cache message
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "evorl", "path.simplify_threshold": 0.3}
    with matplotlib.rc_context({**settings, "text.parse_math": False}):  # a name with two $ is not a formula
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        yield figure


def as_svg(figure: Figure, name: str, about: str) -> ElementTree.Element:
    """Convert a figure to an SVG element of a page.

    Args:
        figure: figure in the colors of this module.
        name: prefix of its ids, which keeps the ids of several figures distinct.
        about: text alternative of the figure, for screen readers.
    """
    file = io.StringIO()
    with warnings.catch_warnings():  # glyphs missing in Matplotlib's font do not matter: the browser draws the text
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="svg", transparent=True, metadata=_PLAIN)
    text = file.getvalue()
    for color in _VARIABLES:
        text = text.replace(color, variable(color))
    root = ElementTree.fromstring(escaped(text))  # names may contain control characters, which XML does not allow
    _make_local(root, name)
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    for size in ("width", "height"):
        del root.attrib[size]
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": about, "class": "chart", "style": f"max-width: {width * 1.55:.0f}px"}
    return root


def _make_local(root: ElementTree.Element, name: str) -> None:
    """Remove namespaces, which HTML does not need, and unused ids; prefix the remaining ids, and shorten numbers."""
    used = set(re.findall(r"#([\w-]+)", " ".join(value for node in root.iter() for value in node.attrib.values())))
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in node.attrib.items()}
        node.attrib.clear()
        for key, value in attributes.items():
            if key in ("version", "space") or (key == "id" and value not in used):
                continue
            if key == "id":
                value = f"{name}-{value}"
            elif key == "href" or "url(#" in value:
                value = value.replace("#", f"#{name}-")
            elif key == "d":
                value = _LONG.sub(r"\1", value).replace("\n", "")
            elif key == "style":
                value = _FONT.sub(r"font: \1 var(--font)", value) if "font:" in value else value
            node.attrib[key] = value
