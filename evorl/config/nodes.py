"""Nodes and their configs: builds nodes from nested mappings, and completes mappings with the defaults of classes.

Classes are the single source of default values. Unknown names raise errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from evorl.config.custom_parts import custom_class
from evorl.config.names import is_custom_name, load_named, name_and_options, no_such
from evorl.config.values import check_names, checked_mapping, checked_value, declared_ranges, field_types, plain
from evorl.ops.schedules import ExponentialScheduleSpec, Schedule
from evorl.types import PyTreeDict, PyTreeNode

Node = TypeVar("Node", bound=PyTreeNode)


class Variants(NamedTuple):
    """Lookup of the classes that a config selects by ``name`` in place of a base class.

    Attributes:
        choose: called with the base class, a ``name`` (``None`` if missing) and the path of the mapping; returns the
            class, and the settings that the name implies.
        name_of: returns the config name of a node.
    """

    choose: Callable[[Any, Any, str], tuple[Any, dict[str, Any]]]
    name_of: Callable[[Any], str]


@contextlib.contextmanager
def named_section(where: str, *others: str) -> Iterator[None]:
    """Prefix a ``ValueError`` with ``where``, unless it names a key in this section, or one of ``others``."""
    known = "|".join([rf"\b{re.escape(where)}[.=:]", *(rf"\b{word}" for word in others)])
    try:
        yield
    except ValueError as error:
        if type(error) is ValueError and not re.search(known, str(error)):
            error.args = (f"{where}: {error}",)
        raise


VARIANTS: dict[type[PyTreeNode], Variants] = {}  # by base class; modules that list variants add entries


def variants_of(cls: type[PyTreeNode]) -> Variants | None:
    """Return the variants of a class or of its closest base; ``None`` if it has no variants."""
    return next((VARIANTS[base] for base in cls.__mro__ if base in VARIANTS), None)


def node_from_config(
    cls: type[Node], config: Mapping[str, Any] | None, where: str, default: Node | None = None, **fixed: Any
) -> Node:
    """Build a node whose fields are read from a mapping.

    Args:
        cls: class of the node.
        config: settings by name; ``None`` is empty.
        where: path of the mapping, for messages.
        default: node whose values override the defaults of the class.
        **fixed: values of fields that are not settings, and which the mapping must not contain.

    Raises:
        ValueError: a key is unknown (the message suggests the closest one), missing, or has an invalid value, or the
            value of a field that is not a setting differs from its default.
    """
    config = plain(checked_mapping(config, where))
    fields = dataclasses.fields(cls)
    check_names(config, {field.name for field in fields} - set(fixed), f"key of {where}")
    for field in fields:
        if field.name in config and not field.metadata.get("setting", True):
            standard = plain_value(default_of(field) if default is None else getattr(default, field.name))
            if (value := config[field.name]) != standard:
                raise ValueError(
                    f"{where}.{field.name}={value!r} has no effect in {cls.__name__}: remove it, also "
                    "from the config.yaml of a stored run."
                )
        required = default is None and field.init and default_of(field) is dataclasses.MISSING
        if required and field.name not in {*config, *fixed}:
            limit = declared_ranges(cls).get(field.name)
            value = f"a number in {limit}" if limit else "a value"
            raise ValueError(f"{where}.{field.name} is missing, got {config!s:.200}: add {{{field.name}: {value}}}.")
    values = {**fields_from_config(cls, config, where, default), **fixed}
    with named_section(where):
        return cls(**values) if default is None else default.replace(**values)


def fields_from_config(
    cls: type[PyTreeNode], config: Mapping[str, Any], where: str, default: PyTreeNode | None = None
) -> dict[str, Any]:
    """Read values for the fields of ``cls`` from a mapping.

    A nested mapping becomes a node of the class that annotates its field, or of the variant that it names if that class
    has ``Variants``. A string abbreviates a mapping that has only a ``name``, or is a key of ``names`` in the field's
    metadata. ``float | Schedule`` accepts a number or a mapping. Missing settings of nested mappings have the values of
    the field's default.

    Raises:
        ValueError: a name is unknown, or a value has the wrong type or is out of the range that its field declares.
    """
    annotations = field_types(cls)
    ranges = declared_ranges(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name, value in config.items():
        annotation, names = annotations[name], fields[name].metadata.get("names")
        nested = node_type(annotation)
        path = f"{where}.{name}" if where else name
        if names is not None and isinstance(value, str):
            if value not in names and not is_custom_name(value):
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
            base = default_of(fields[name]) if default is None else getattr(default, name)
            values[name] = node = node_from_config(kind, settings, path, base if type(base) is kind else None)
            if isinstance(node, Schedule | ExponentialScheduleSpec):
                _check_ends(node, path, ranges.get(name))
    return values


def _check_ends(schedule: Schedule | ExponentialScheduleSpec, path: str, within: str | None) -> None:
    """Raise ``ValueError`` if the first or last value of a schedule is outside the interval of the setting.

    The last value may equal an open lower bound. Exponential schedules must start and end at positive values.
    """
    start, end = ends = ("start", "end") if isinstance(schedule, Schedule) else ("init", "final")
    checked_value(getattr(schedule, start), float, f"{path}.{start}", within)
    checked_value(getattr(schedule, end), float, f"{path}.{end}", within and f"[{within[1:]}")
    for name in ends if getattr(schedule, "kind", None) == "exponential" else ():
        if getattr(schedule, name) <= 0.0:
            raise ValueError(
                f"{path}.{name} must be above 0 for kind=exponential, which multiplies by a constant factor; got "
                f"{getattr(schedule, name):g}. Use a small positive number, or choose kind=linear."
            )


def described_node(cls: type[PyTreeNode], config: Any, where: str) -> tuple[type[PyTreeNode], Mapping[str, Any]]:
    """Return the class that a mapping or a name describes, ``cls`` or a variant, and the settings of the class.

    A variant may be a user-defined subclass of ``cls``, with ``name: package.module:Class``.

    Raises:
        ValueError: ``config`` is neither a mapping nor a name, or the variant is unknown.
    """
    variants = variants_of(cls)
    is_name = isinstance(config, str) and (has_name(cls) or is_custom_name(config))
    settings = checked_mapping({"name": config} if is_name else config, where)
    name, options = name_and_options(settings)
    if is_custom_name(name) and (variants is not None or not has_name(cls)):
        return custom_class(name, cls, f"{where}.name"), options
    if variants is None:
        return cls, settings
    kind, implied = variants.choose(cls, name, where)
    return kind, options | implied


def has_name(cls: type[PyTreeNode]) -> bool:
    """Return True if a string may abbreviate a mapping that has only a ``name``."""
    return variants_of(cls) is not None or "name" in field_types(cls)


def default_of(field: dataclasses.Field) -> Any:
    """Return the default value of a field; ``dataclasses.MISSING`` if a value is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_plain(value: Any, annotation: Any) -> bool:
    """Return True if the union ``annotation`` accepts the value as ``None`` or ``float``, without building a node."""
    members = typing.get_args(annotation)
    return (value is None and type(None) in members) or (float in members and not isinstance(value, Mapping | Schedule))


def node_type(annotation: Any) -> type[PyTreeNode] | None:
    """Return the node class of a field's annotation, alone or in a union; ``None`` for other annotations."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((a for a in candidates if isinstance(a, type) and issubclass(a, PyTreeNode)), None)


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
    """Return the fields that are settings: constructor arguments that configs may set."""
    return tuple(field for field in dataclasses.fields(cls) if field.init and field.metadata.get("setting", True))
