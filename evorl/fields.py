"""Fields of pytree dataclasses, which are either part of the tree structure or leaves."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types as python_types
import typing
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np


def pytree_field(*, static: bool | None = None, setting: bool = True, **kwargs: Any) -> Any:
    """Declare a dataclass field as static (part of the tree structure) or as data (leaves).

    Args:
        static: ``True`` for a field that affects shapes or control flow; its values must be hashable. ``False`` for
            data. With ``None``, the field is data in a ``PyTreeData``; a ``PyTreeNode`` decides by the annotation.
        setting: True if configs may set the field; False if other code sets it.
        **kwargs: arguments of ``dataclasses.field``.
    """
    metadata = dict(kwargs.pop("metadata", None) or {})
    metadata |= {"static": static, "setting": setting}
    return dataclasses.field(metadata=metadata, **kwargs)


@dataclasses.dataclass(frozen=True)
class Within:
    """Interval of a field's values: ``tau: Annotated[float, Within("[0, 1]")] = 0.005``.

    The values are checked when a config is read, see ``evorl.config.values``, but not by the class itself.

    Attributes:
        interval: lower and upper bound; square brackets mark bounds that are included: ``(0, 1]``, ``[0, inf)``.

    Raises:
        ValueError: ``interval`` is malformed, or empty, such as ``(1, 1]``.
    """

    interval: str

    def __post_init__(self) -> None:
        text = self.interval
        try:
            low, high = (float(bound) for bound in text[1:-1].split(","))
        except ValueError:
            low, high = 1.0, 0.0
        is_closed = text[:1] + text[-1:] == "[]"
        if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or not (low < high or (low == high and is_closed)):
            raise ValueError(f"an interval must have the form (0, 1] or [0, inf) and not be empty, got {text!r}.")


_STATIC_TYPES = (bool, int, str, bytes, enum.Enum, type, np.dtype)


def _annotation_is_static(annotation: Any) -> bool:
    """Return True for bool, int, str, bytes, enums, dtypes, types, callables, literals, and their tuples and unions."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _annotation_is_static(typing.get_args(annotation)[0])
    if origin in (typing.Union, python_types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        return bool(members) and all(_annotation_is_static(a) for a in members)
    if origin is tuple:
        return all(a is Ellipsis or _annotation_is_static(a) for a in typing.get_args(annotation))
    if origin in (Callable, typing.Literal) or annotation in (Callable, typing.Callable):
        return True
    cls = origin or annotation  # type[X] and np.dtype[X] have an origin
    return isinstance(cls, type) and issubclass(cls, _STATIC_TYPES)


def _resolved(cls: type, name: str, annotation: Any) -> Any:
    """Return an annotation, evaluated if it is a string. Raises ``TypeError`` if its names are unknown at runtime."""
    if not isinstance(annotation, str):
        return annotation
    namespace = vars(sys.modules.get(cls.__module__, python_types.ModuleType("none")))
    try:
        return eval(annotation, dict(namespace), dict(vars(cls)))
    except (NameError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{cls.__name__}.{name}: the annotation {annotation!r} cannot be evaluated ({error}), so it is not known "
            "whether the field is static. Import its names at module level, not only for type checking, or declare the "
            "field with pytree_field(static=...)."
        ) from None


def _is_class_variable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return typing.get_origin(annotation) is ClassVar or annotation is ClassVar


def mark_static_by_annotation(cls: type) -> None:
    """Set ``static`` by annotation for the fields of a ``PyTreeNode`` class that do not declare it.

    Raises:
        TypeError: the annotation of such a field cannot be evaluated.
    """
    for name, annotation in inspect.get_annotations(cls).items():
        default = cls.__dict__.get(name, dataclasses.MISSING)
        declared = default.metadata.get("static") if isinstance(default, dataclasses.Field) else None
        if declared is not None or _is_class_variable(annotation):
            continue
        static = _annotation_is_static(_resolved(cls, name, annotation))
        if isinstance(default, dataclasses.Field):
            default.metadata = python_types.MappingProxyType({**default.metadata, "static": static})
        elif static:
            options = {} if default is dataclasses.MISSING else {"default": default}
            setattr(cls, name, pytree_field(static=True, **options))
