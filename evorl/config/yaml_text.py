"""YAML reader for users' files: numbers as on Hydra's command line; errors with file, line and a suggested fix.

PyYAML follows YAML 1.1: ``1e3`` is a string, ``1:30`` is 90 and ``2026-01-31`` is a date. Hydra reads the first as a
number and the others as strings. This module reads all user-written YAML, so that a value means the same in an option,
an override, ``app.yaml`` and a config file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_DEPTH = 50  # maximum depth of nested lists and mappings
MAX_DIGITS = 4000  # maximum digits of an integer; Python converts at most 4,300
_WHOLE = r"(?:0|[1-9](?:_?[0-9])*)"
_DIGITS = r"[0-9](?:_?[0-9])*"
_POINT = rf"(?:{_WHOLE}\.(?:{_DIGITS})?|\.{_DIGITS})"
_INT = re.compile(rf"[-+]?{_WHOLE}")
_FLOAT = re.compile(rf"[-+]?(?:(?:{_WHOLE}|{_POINT})[eE][-+]?{_DIGITS}|{_POINT}|\.?(?:[iI][nN][fF]|[nN][aA][nN]))")
_TAGS = {"null", "bool", "map", "seq", "str", "merge"}  # tags of YAML 1.1, without numbers and dates
_ADVICE = {
    "found character '\\t'": "a tab, but YAML requires spaces: replace it with spaces",
    "found duplicate key": "the key {key!r} occurs twice: remove one of them",
    "mapping values are not allowed": "an unexpected colon: check the indentation, and quote text that has a colon",
    "could not determine a constructor": "tags (!) are not supported: use plain values",
    "found undefined alias": "an undefined alias (*): quote text that begins with *",
    "found unhashable key": "a key must not be a list or a mapping: use a name",
    "special characters are not allowed": "a control character: remove it",
}
_FALLBACK = "check the indentation (spaces only), brackets and quotes"


class _Loader(yaml.SafeLoader):
    """Reads plain values: numbers by Hydra's rules, no tags, no duplicate keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open_anchors: list[str | None] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Build a node; raise ``yaml.MarkedYAMLError`` for values that are nested too deep or contain themselves."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open_anchors:
            problem = f"*{event.anchor} contains itself: remove it"
            raise yaml.constructor.ConstructorError(None, None, problem, event.start_mark)
        if len(self._open_anchors) > MAX_DEPTH:
            problem = f"values are nested more than {MAX_DEPTH} levels deep: reduce the nesting"
            raise yaml.constructor.ConstructorError(None, None, problem, event.start_mark)
        self._open_anchors.append(event.anchor)
        try:
            return super().compose_node(parent, index)
        finally:
            self._open_anchors.pop()

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping; raise ``yaml.MarkedYAMLError`` for a duplicate key."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "found unhashable key", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(str(key), None, "found duplicate key", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Build a number from a scalar that matches a number pattern; raise an error beyond ``MAX_DIGITS`` digits."""
        text = node.value.replace("_", "")
        if _INT.fullmatch(node.value):
            if len(text) > MAX_DIGITS:
                problem = f"an integer has {len(text):,} digits, more than {MAX_DIGITS:,}: use fewer"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return int(text)
        return float(text.replace(".", "") if text[-1:].isalpha() else text)


class _Dumper(yaml.SafeDumper):
    """Writes plain values so that ``_Loader`` reads them back: strings that look like numbers are quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full instead of as aliases."""
        return True


def _with_numbers(resolver: Any) -> None:
    """Replace the number patterns of a YAML class by this module's patterns."""
    resolver.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in patterns if tag.rpartition(":")[2] in _TAGS]
        for first, patterns in resolver.yaml_implicit_resolvers.items()
    }
    first = list("-+0123456789.iInN")
    # PyYAML only matches from the start.
    resolver.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"(?:{_INT.pattern})\Z"), first)
    resolver.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), first)


for _class in (_Loader, _Dumper):
    _with_numbers(_class)
_Loader.yaml_constructors = {
    tag: build
    for tag, build in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _TAGS
}
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def read_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML text; ``source``, a file or argument, is named in messages.

    Raises:
        ValueError: the text is not valid YAML, or has a duplicate key, a tag or more than ``MAX_DEPTH`` levels; the
            message has source, line and a suggested fix.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(_describe(error, text, source)) from error
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{source} cannot be read as YAML: {error}.") from error


def read_text_file(path: Path | str, expected: str = "a file of settings") -> str:
    """Return the text of a user's file, with Unix line ends; ``expected`` describes the file in error messages.

    Raises:
        ValueError: the file does not exist, is a folder, cannot be read or is not UTF-8; the message suggests a fix.
    """
    path = Path(path)
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}: expected {expected}. Check the path.") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder, expected {expected}: use the path of a file.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: the byte 0x{error.object[error.start]:02x} is not valid UTF-8: save the file as "
            "UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path} cannot be read ({reason}): check the path and its permissions.") from error


def dump_yaml(value: Any, **options: Any) -> str:
    """Return a value as YAML that ``read_yaml`` reads back; see ``yaml.dump`` for the options."""
    return yaml.dump(value, Dumper=_Dumper, **options)


def inline_yaml(value: Any) -> str:
    """Return a value as YAML on one line, without a line end."""
    return dump_yaml(value, default_flow_style=True, width=math.inf).removesuffix("\n").removesuffix("\n...")


def _describe(error: Any, text: str, source: str) -> str:
    problem = " ".join(str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).split())
    advice = next((text for start, text in _ADVICE.items() if problem.startswith(start)), None)
    if advice is None:
        advice = problem if isinstance(error, yaml.constructor.ConstructorError) else f"{problem}: {_FALLBACK}"
    else:
        advice = advice.format(key=getattr(error, "context", None))
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)  # index of the character; set if the mark is missing
    line = mark.line + 1 if mark else text[:position].count("\n") + 1
    return f"{_format_location(source, text, line)}: {advice}."


def _format_location(source: str, text: str, line: int) -> str:
    """Return the source and the line; without the line if the source is a command-line argument with this text."""
    if "\n" not in text and source.endswith(f"={text}"):
        return f"{source} cannot be read"
    return f"{source}, line {line}"
