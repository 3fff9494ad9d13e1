"""Checks that a page is well-formed and self-contained: ordered tags, unique ids, no external resources."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_FETCHED = {"src", "srcset", "data", "poster", "action", "background", "code", "object", "manifest", "formaction"}
_MAKES_FETCH = {"script", "link", "iframe", "object", "embed", "base", "form"}


class PageCheck(HTMLParser):
    """HTML parser; ``faults`` contains a sentence for each error.

    Attributes:
        faults: errors of the page.
        ids: ids of elements.
        text: visible text.
        tags: number of opened elements by name.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.tags: dict[str, int] = {}
        self._open: list[str] = []
        if not page.startswith("<!DOCTYPE html>\n<html"):
            self.faults.append("it does not begin as a page")
        self.feed(page)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self._open]
        self.faults += [f"the id {i} stands twice" for i in sorted(set(self.ids)) if self.ids.count(i) > 1]
        self.faults += [f"there is no #{r}" for r in sorted(set(self.references) - set(self.ids))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag in _MAKES_FETCH:
            self.faults.append(f"<{tag}>")
        if len({name for name, _ in attrs}) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        for name, value in attrs:
            self._look_at(tag, name, value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> where {self._open[-1:]} is open")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self._look_at_style(data)
        else:
            self.text += data

    def _look_at(self, tag: str, name: str, value: str) -> None:
        if name == "id":
            self.ids.append(value)
        if name.startswith("on"):
            self.faults.append(f"<{tag}> runs a script: {name}")
        if name in _FETCHED and not value.startswith("data:"):
            self.faults.append(f"<{tag}> fetches {value[:80]}")
        if name.endswith("href") and not (tag == "a" and value.startswith("https:")):
            self.references.append(value.removeprefix("#"))
            if not value.startswith("#"):
                self.faults.append(f"<{tag}> fetches {value[:80]}")
        if name != "src":
            self._look_at_style(value)

    def _look_at_style(self, text: str) -> None:
        for target in re.findall(r"url\(['\"]?([^)'\"]*)", text):
            self.references.append(target.removeprefix("#"))
            if not target.startswith("#"):
                self.faults.append(f"a style fetches {target[:80]}")
        if "@import" in text:
            self.faults.append("a style imports another")
