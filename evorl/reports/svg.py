"""Matplotlib's figures as parts of a page: colours by its style sheet, so that they suit paper and dark screens."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from evorl.recorders.learning_curve import BLUE, GREEN, GREY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the figures are drawn in, the light colours, and what stands for it on dark screens.
SERIES = {
    BLUE: "#84b3ee", "#cc6b12": "#f0a35e", GREEN: "#5cc79b", "#c0453b": "#ee8b82", "#7d57b5": "#b89be6",
    "#168a9a": "#5fc6d4", "#8a6238": "#c9a27a", "#c2528b": "#e994c0",
}  # fmt: skip
RAMP = {"#b4c0cc": "#55606d", "#8bafd2": "#4f779c", "#5a92c8": "#5e9bd3", "#2c6bb0": "#93c4f5", "#133f78": "#dcecff"}
INK = {"#222222": "#e8eaed", GREY: "#a3adb9", "#e6e9ee": "#2f353d", "#c8ced6": "#4a525d", "#ffffff": "#15181c"}
COLOURS = list(SERIES)
RAMP_COLOURS = list(RAMP)
PAPER = "#ffffff"
_VARIABLES = {
    light: f"{name}{i}" for name, colours in (("c", SERIES), ("r", RAMP), ("i", INK)) for i, light in enumerate(colours)
}
_LONG = re.compile(r"(\d+\.\d\d)\d+")
_FONT = re.compile(r"font: ([^;]*?px) [^;]*")
_PLAIN = {"Date": None, "Creator": None, "Format": None, "Type": None}


def variable(colour: str) -> str:
    """A colour of the figures as the style sheet has it."""
    return f"var(--{_VARIABLES[colour]})"


def variables(dark: bool) -> str:
    """The declarations of all colours, for light or for dark screens."""
    pairs = {**SERIES, **RAMP, **INK}.items()
    return " ".join(f"--{_VARIABLES[light]}: {on_dark if dark else light};" for light, on_dark in pairs)


@contextmanager
def figure_of(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, with text as text, within the settings that it has to be drawn with."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells when it builds its font cache
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "evorl", "path.simplify_threshold": 0.3}):
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        yield figure


def as_svg(figure: Figure, name: str, about: str) -> ElementTree.Element:
    """A figure as an element that can stand in a page.

    Args:
        figure: drawn in the colours of this module.
        name: before its ids, so that those of several figures differ.
        about: what it shows, for who cannot see it.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_PLAIN)
    text = file.getvalue()
    for colour in _VARIABLES:
        text = text.replace(colour, variable(colour))
    root = ElementTree.fromstring(text)
    _make_local(root, name)
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    for size in ("width", "height"):
        del root.attrib[size]
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": about, "class": "chart", "style": f"max-width: {width * 1.55:.0f}px"}
    return root


def _make_local(root: ElementTree.Element, name: str) -> None:
    """No namespaces, which HTML does without; ids of this figure only, and none that nobody asks for; short numbers."""
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
