"""Nodes from mappings: nested mappings become the nodes their fields are annotated with, unknown names are refused."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from evorl.config.names import load_named, no_such
from evorl.config.own_parts import is_own_name, own_class
from evorl.config.values import check_names, checked_mapping, checked_value, declared_ranges, field_types, plain
from evorl.ops.schedules import Schedule
from evorl.types import PyTreeDict, PyTreeNode

Node = TypeVar("Node", bound=PyTreeNode)


def node_from_config(
    cls: type[Node], config: Mapping[str, Any] | None, where: str, default: Node | None = None, **given: Any
) -> Node:
    """A node whose fields are read from a mapping.

    Args:
        cls: of the node.
        config: settings by name.
        where: the mapping's path, for messages.
        default: a node whose values count where the mapping is silent, instead of the class's.
        **given: fields that the mapping may not hold.

    Raises:
        ValueError: a key is no field of the node, with the nearest valid name; or a field that needs a value has none.
    """
    config = plain(checked_mapping(config, where))
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    check_names(config, {field.name for field in fields} - set(given), f"key of {where}")
    for field in fields:
        needed = default is None and field.init and default_of(field) is dataclasses.MISSING
        if needed and field.name not in {*config, *given}:
            raise ValueError(f"{where}.{field.name} is missing: give it a value.")
    values = {**fields_from_config(cls, config, where, default), **given}
    return cls(**values) if default is None else default.replace(**values)


def fields_from_config(
    cls: type[PyTreeNode], config: Mapping[str, Any], where: str, default: PyTreeNode | None = None
) -> dict[str, Any]:
    """Values for the fields of ``cls``: nested mappings become the node their field is annotated with, or the variant
    of it that they name, where it has a method ``variant(config, where) -> (class, config)``. A name by itself is short
    for a mapping that holds nothing else; ``float | Schedule`` reads a number or a mapping. What a nested mapping
    leaves out is as in the field's default.

    Raises:
        ValueError: a value is not of the type of its field, or out of the range that the class declares.
    """
    annotations = field_types(cls)
    ranges = declared_ranges(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    values = {}
    for name, value in config.items():
        annotation, names = annotations[name], fields[name].metadata.get("names")
        nested = node_type(annotation)
        path = f"{where}.{name}" if where else name
        if names is not None and isinstance(value, str):
            if value not in names and not is_own_name(value):
                raise ValueError(no_such(path, value, names))
            values[name] = names[value] if value in names else load_named(value, path)
        elif nested is None or _is_plain(value, annotation):
            values[name] = checked_value(value, annotation, path, ranges.get(name))
            if annotation is PyTreeDict:
                values[name] = PyTreeDict(checked_mapping(value, path))
        elif isinstance(value, nested):
            values[name] = value
        else:
            kind, settings = described_node(nested, value, path)
            usual = default_of(fields[name]) if default is None else getattr(default, name)
            values[name] = node = node_from_config(kind, settings, path, usual if type(usual) is kind else None)
            if isinstance(node, Schedule):
                _check_ends(node, path, ranges.get(name))
    return values


def _check_ends(schedule: Schedule, path: str, within: str | None) -> None:
    """Raise ``ValueError`` unless a schedule keeps to its setting's interval; it may end at the lower bound.

    The ends of an exponential schedule are positive.
    """
    checked_value(schedule.start, float, f"{path}.start", within)
    checked_value(schedule.end, float, f"{path}.end", within and f"[{within[1:]}")
    for name in ("start", "end") if schedule.kind == "exponential" else ():
        if getattr(schedule, name) <= 0.0:
            raise ValueError(
                f"{path}.{name} must be above 0 for kind=exponential, which multiplies by a constant factor; got "
                f"{getattr(schedule, name):g}. Give a small positive number, or choose kind=linear."
            )


def described_node(cls: type[PyTreeNode], config: Any, where: str) -> tuple[type[PyTreeNode], Mapping[str, Any]]:
    """The class that a mapping, or a name by itself, describes, ``cls`` or a variant of it; and the mapping.

    A variant may be a class of the user's own that inherits from ``cls``, with ``name: package.module:Class``.

    Raises:
        ValueError: it is neither a mapping nor a name, or there is no such variant.
    """
    variant = getattr(cls, "variant", None)
    is_name = isinstance(config, str) and (has_name(cls) or is_own_name(config))
    settings = checked_mapping({"name": config} if is_name else config, where)
    if is_own_name(settings.get("name")) and (variant is not None or not has_name(cls)):
        return own_class(settings["name"], cls, f"{where}.name"), {k: v for k, v in settings.items() if k != "name"}
    return (cls, settings) if variant is None else variant(settings, where)


def has_name(cls: type[PyTreeNode]) -> bool:
    """Whether a name by itself is short for a mapping that holds nothing else."""
    return hasattr(cls, "variant") or "name" in field_types(cls)


def default_of(field: dataclasses.Field) -> Any:
    """What a field is by default; ``dataclasses.MISSING`` if it needs a value."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_plain(value: Any, annotation: Any) -> bool:
    """Whether the value is for a member of a union that is no node: ``None``, or a number for ``float | Schedule``."""
    members = typing.get_args(annotation)
    return (value is None and type(None) in members) or (float in members and not isinstance(value, Mapping | Schedule))


def node_type(annotation: Any) -> type[PyTreeNode] | None:
    """The class of nodes that a field is annotated with, alone or in a union."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((a for a in candidates if isinstance(a, type) and issubclass(a, PyTreeNode)), None)
