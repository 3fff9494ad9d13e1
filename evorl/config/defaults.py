"""Configs completed from classes: the fields of a class are its defaults, said once, and read from there."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from evorl.config.nodes import default_of, described_node, has_name, node_type
from evorl.config.values import field_types
from evorl.types import PyTreeNode


def completed(
    cls: type[PyTreeNode], config: Mapping[str, Any], default: PyTreeNode | None = None, where: str = ""
) -> dict[str, Any]:
    """A mapping that describes a node, completed by the class's defaults where it is silent; nested ones likewise.

    Args:
        cls: what the mapping describes.
        config: settings by name; those that are no fields are left as they are.
        default: a node whose values stand for the class's.
        where: the mapping's path, for messages.

    Raises:
        ValueError: the mapping names a variant that there is not, in words.
    """
    settings: dict[str, Any] = {}
    hints = field_types(cls)
    for field in _fields(cls):
        value = config.get(field.name, dataclasses.MISSING)
        field_default = default_of(field) if default is None else getattr(default, field.name)
        nested = node_type(hints[field.name])
        path = f"{where}.{field.name}" if where else field.name
        if nested is not None and isinstance(value, str | Mapping if has_name(nested) else Mapping):
            settings[field.name] = completed_node(nested, value, field_default, path)
        elif value is None and nested is not None and type(None) not in typing.get_args(hints[field.name]):
            raise ValueError(f"{path} must be a mapping of settings, got null: leave it out for the usual ones.")
        elif value is not dataclasses.MISSING:
            settings[field.name] = value
        elif field_default is not dataclasses.MISSING:
            settings[field.name] = plain_value(field_default, field.metadata.get("names"))
    return {**settings, **{name: value for name, value in config.items() if name not in settings}}


def completed_node(cls: type[PyTreeNode], config: Any, default: Any, where: str) -> dict[str, Any]:
    """A nested mapping, or a name that is short for one, completed for the class that it describes."""
    kind, settings = described_node(cls, config, where)
    config = {"name": config} if isinstance(config, str) else config
    # What the name alone says is no setting beside it.
    said_by_name = set(settings) - set(config)
    complete = completed(kind, config, default if type(default) is kind else None, where)
    complete = {name: value for name, value in complete.items() if name not in said_by_name}
    return {**({"name": complete["name"]} if "name" in complete else {}), **complete}


def plain_value(value: Any, names: Mapping[str, Any] | None = None) -> Any:
    """A field's value as a config says it: nodes are mappings, tuples lists; ``names`` are those of its values."""
    if names is not None:
        value = next((name for name, named in names.items() if named is value), value)
    if isinstance(value, PyTreeNode):
        fields = {f.name: plain_value(getattr(value, f.name), f.metadata.get("names")) for f in _fields(type(value))}
        if (name := getattr(value, "variant_name", None)) is None:
            return fields
        _, said_by_name = described_node(type(value), name, name)
        return {"name": name} | {key: entry for key, entry in fields.items() if key not in said_by_name}
    if isinstance(value, Mapping):
        return {name: plain_value(entry) for name, entry in value.items()}
    return [plain_value(entry) for entry in value] if isinstance(value, tuple | list) else value


def _fields(cls: type[PyTreeNode]) -> tuple[dataclasses.Field, ...]:
    """The fields that can be given; what a node makes of them by itself is no setting."""
    return tuple(field for field in dataclasses.fields(cls) if field.init)  # pyright: ignore[reportArgumentType]


def merged(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping over another, nested ones likewise; what is no mapping replaces what was there."""
    result = dict(defaults)
    for name, value in config.items():
        below = result.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[name] = merged(below, value) if both else value  # pyright: ignore[reportArgumentType]
    return result
