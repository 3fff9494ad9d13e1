"""HTML pages as trees of elements, which guarantees escaping and closed tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from xml.etree import ElementTree

from evorl.runs.privacy import shareable_text

Element: TypeAlias = ElementTree.Element
Content: TypeAlias = "str | Element | Iterable[Content] | None"
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/:'\",=]+/)+")


def element(tag: str, *content: Content, **attributes: str) -> Element:
    """Build an element with its content.

    Args:
        tag: tag of HTML or SVG.
        content: text, elements, or sequences of these; ``None`` is empty.
        attributes: attributes; ``class_`` is written as ``class``, ``data_x`` as ``data-x``.
    """
    made = ElementTree.Element(tag, {name.rstrip("_").replace("_", "-"): text for name, text in attributes.items()})
    _append(made, content)
    return made


def _append(parent: Element, content: Content) -> None:
    if content is None:
        return
    if isinstance(content, ElementTree.Element):
        parent.append(content)
    elif isinstance(content, str):
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + content
        else:
            parent.text = (parent.text or "") + content
    else:
        for part in content:
            _append(parent, part)


def table(heading: Sequence[Content], rows: Iterable[Sequence[Content]], left: int = 1) -> Element:
    """Build a table that scrolls sideways if too wide; columns from index ``left`` on are numbers, right-aligned."""

    def cells(tag: str, row: Sequence[Content]) -> Element:
        return element(
            "tr", [element(tag, cell, class_="text" if i < left else "number") for i, cell in enumerate(row)]
        )

    body = element("tbody", [cells("td", row) for row in rows])
    return element("div", element("table", element("thead", cells("th", heading)), body), class_="wide")


def as_html(page: Element) -> str:
    """Return the HTML text of a whole page."""
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode", method="html") + "\n"


def without_folders(text: str) -> str:
    """Shorten absolute paths in a text to their last part and hide passwords, so that a page can be shared."""
    return _FOLDERS.sub(".../", shareable_text(text))
