"""Descriptions of the settings of a config, from the docstrings of the classes that it describes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from evorl.config.nodes import described_node, node_type
from evorl.config.values import field_types

_SECTION = re.compile(r"^(?:Attributes|Settings):\n((?:[ ].*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n(?:     .*|(?=\n)))*)", re.MULTILINE)

Setting = tuple[str, Any, str]


def field_descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions in the sections ``Attributes`` and ``Settings`` of a class and its bases, by field."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        doc = inspect.cleandoc(vars(base).get("__doc__") or "") + "\n"
        for section in _SECTION.findall(doc):
            texts |= {name: _plain(text) for name, text in _ENTRY.findall(section)}
    return texts


def described_settings(cls: type, config: Mapping[str, Any], above: str = "") -> Iterator[Setting]:
    """Yield path, value and description of every setting of a config; a nested node comes before its settings.

    Args:
        cls: class of the node that the config describes.
        config: complete config, see ``completed``.
        above: path of the config, with a trailing dot.
    """
    texts, hints = field_descriptions(cls), field_types(cls)
    if (parts := getattr(cls, "part_settings", None)) is not None:
        texts, hints = texts | field_descriptions(type(parts)), {**hints, **field_types(type(parts))}
    for name, value in config.items():
        nested = node_type(hints.get(name))
        path = f"{above}{name}"
        if isinstance(value, Mapping) and nested is not None:
            yield path, value, texts.get(name, "")
            kind, _ = described_node(nested, value, path)
            yield from described_settings(kind, value, f"{path}.")
        else:
            yield path, value, texts.get(name, "")


def _plain(text: str) -> str:
    """Convert a description from a docstring to the text of a comment."""
    return " ".join(text.split()).replace("``None``", "null").replace("``", "").removesuffix(".")
