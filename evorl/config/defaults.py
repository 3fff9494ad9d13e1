"""Completes configs with the defaults of classes, which are the single source of default values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from evorl.config.nodes import default_of, described_node, has_name, node_type, variants_of
from evorl.config.values import field_types
from evorl.types import PyTreeNode


def completed(
    cls: type[PyTreeNode], config: Mapping[str, Any], default: PyTreeNode | None = None, where: str = ""
) -> dict[str, Any]:
    """Complete a mapping that describes a node: missing settings get the defaults of the class, recursively.

    Args:
        cls: class of the node.
        config: settings by name; entries that are not fields are left unchanged.
        default: node whose values override the class's defaults.
        where: path of the mapping, for messages.

    Raises:
        ValueError: a nested mapping names an unknown variant, or is null.
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
            raise ValueError(f"{path} must be a mapping of settings, got null: remove it to use the defaults.")
        elif value is not dataclasses.MISSING:
            settings[field.name] = value
        elif field_default is not dataclasses.MISSING:
            settings[field.name] = plain_value(field_default, field.metadata.get("names"))
    return {**settings, **{name: value for name, value in config.items() if name not in settings}}


def completed_node(cls: type[PyTreeNode], config: Any, default: Any, where: str) -> dict[str, Any]:
    """Return the complete settings of a nested mapping, or of a name that abbreviates one, see ``completed``."""
    kind, settings = described_node(cls, config, where)
    config = {"name": config} if isinstance(config, str) else config
    # Omit settings that the name determines.
    implied = set(settings) - set(config)
    complete = completed(kind, config, default if type(default) is kind else None, where)
    complete = {name: value for name, value in complete.items() if name not in implied}
    return {**({"name": complete["name"]} if "name" in complete else {}), **complete}


def plain_value(value: Any, names: Mapping[str, Any] | None = None) -> Any:
    """Convert a field's value to its form in configs: mappings for nodes, lists for tuples, or its key in ``names``."""
    if names is not None:
        value = next((name for name, candidate in names.items() if candidate is value), value)
    if isinstance(value, PyTreeNode):
        fields = {f.name: plain_value(getattr(value, f.name), f.metadata.get("names")) for f in _fields(type(value))}
        if (variants := variants_of(type(value))) is None:
            return fields
        name = variants.name_of(value)
        _, implied = described_node(type(value), name, name)
        return {"name": name} | {key: entry for key, entry in fields.items() if key not in implied}
    if isinstance(value, Mapping):
        return {name: plain_value(entry) for name, entry in value.items()}
    return [plain_value(entry) for entry in value] if isinstance(value, tuple | list) else value


def _fields(cls: type[PyTreeNode]) -> tuple[dataclasses.Field, ...]:
    """Return the fields that are constructor arguments; derived fields are not settings."""
    return tuple(field for field in dataclasses.fields(cls) if field.init)


def merged(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``config`` into ``defaults`` recursively; values that are not mappings replace the default."""
    result = dict(defaults)
    for name, value in config.items():
        default = result.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = merged(default, value)
        result[name] = value
    return result
