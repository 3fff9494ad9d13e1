"""Checks setting values against their fields: types by annotation, ranges as declared by ``Within``.

Ranges are checked only when a config is read: later, a number may be traced or batched.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.config.names import did_you_mean, is_custom_name, load_named, no_such
from evorl.fields import Within
from evorl.ops.custom_name import CustomName

if TYPE_CHECKING:
    from evorl.types import PyTreeNode  # imports JAX, which checks of other settings do not need


@functools.cache
def field_types(cls: type) -> Mapping[str, Any]:
    """Return the resolved annotations of the fields of a class and its bases, by name; cached."""
    return types.MappingProxyType(typing.get_type_hints(cls))


def plain(config: Any, resolve: bool = True) -> dict[str, Any]:
    """Return a config as plain containers; ``resolve=False`` leaves interpolations as text.

    Lists in a mapping that is not from OmegaConf are unchanged.
    """
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(config, resolve=resolve)  # pyright: ignore[reportReturnType]  # a mapping stays one
    return {key: plain(value, resolve) if isinstance(value, Mapping) else value for key, value in config.items()}


def set_at(node: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of a nested dict, in place; dicts replace levels above that are not dicts.

    A string for a dict with an entry ``name``, such as an optimizer, changes this entry only, as on the command line.
    """
    *above, last = path.split(".")
    for key in above:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
    if isinstance(value, str) and isinstance(node.get(last), dict) and "name" in node[last]:
        node, last = node[last], "name"
    node[last] = value


def dotted_keys(node: Any, prefix: str = "") -> list[str]:
    """Return the dotted path of every key of a nested mapping."""
    keys = []
    for key, value in node.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def flat(node: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each entry of nested mappings; an empty mapping is a value."""
    for key, value in node.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, name)
        else:
            yield name, value


def check_names(names: Iterable[str], valid: Iterable[str], kind: str) -> None:
    """Raise ``ValueError`` for a name that is not in ``valid``; the message has ``kind`` and the closest valid name."""
    valid = sorted(valid)
    for name in names:
        if name not in valid:
            raise ValueError(no_such(kind, name, valid))


LARGEST_FLOAT = float(np.finfo(np.float32).max)  # largest finite float32, in which networks compute
LONGEST_AXIS = 2**31 - 1  # maximum length of an array's axis or of a loop
MAX_SEED = 2**32 - 1  # largest seed
BEST = "best"  # the seed with the highest evaluation return
_DIGITS_OF_SEED = 10
_SHOWN = 80  # maximum number of characters of a value in a message


def positive(value: Any, name: str) -> int:
    """Return ``value``, an integer or integral float from 1 to 2^31 - 1, as an int; otherwise raise ``ValueError``."""
    return whole_number(value, name, 1, LONGEST_AXIS)


def seed_number(value: Any, name: str = "seed") -> int:
    """Return a seed, an integer or integral float from 0 to 2^32 - 1, as an int; otherwise raise ``ValueError``."""
    return whole_number(value, name, 0, MAX_SEED)


def seed_choice(value: Any, name: str = "seed_number") -> int | str:
    """Return ``"best"`` unchanged, or the index of a run's seed as an int.

    Raises:
        ValueError: ``value`` is not ``"best"``, an integer from 0, or a string of at most 9 digits.
    """
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _DIGITS_OF_SEED
    number = int(value) if is_text else value
    if number == BEST or (type(number) is int and number >= 0):
        return number
    raise ValueError(f"{name} must be {BEST} or an integer from 0, got {short_repr(value)}.")


def whole_number(value: Any, name: str, low: int, high: int) -> int:
    """Return ``value`` as an integer in an interval.

    Args:
        value: an integer, or an integral float, such as 1e3.
        name: name of the setting, for messages.
        low: smallest valid number, such as 0 or 1.
        high: largest valid number.

    Raises:
        ValueError: the type is wrong, or the value is a fraction or out of range; the message states the interval.
    """
    value = _plain(value)
    is_whole = _is_number(value) and (isinstance(value, int) or (math.isfinite(value) and value == int(value)))
    if is_whole and low <= value <= high:
        return int(value)
    if low == 1 and not (is_whole and value > high):
        expected = "a positive integer"
    else:
        expected = f"at most {_bound(high)}" if low == 1 else f"an integer from {low:,} to {_bound(high)}"
    raise ValueError(f"{name} must be {expected}, got {short_repr(value)}.")


def _bound(number: int) -> str:
    power = (number + 1).bit_length() - 1
    return f"2^{power} - 1 = {number:,}" if power > 16 and number + 1 == 2**power else f"{number:,}"


def require_positive(node: Any, *names: str) -> None:
    """Raise ``ValueError`` if one of these static fields of a node is not a positive integer."""
    for name in names:
        positive(getattr(node, name), name)


def checked_mapping(value: Any, name: str) -> Mapping[str, Any]:
    """Return a mapping of settings, ``None`` as an empty one; raise ``ValueError`` if ``value`` is not a mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping from settings to values, got {short_repr(value)}.")
    return value


def checked_list(value: Any, name: str, element: str) -> tuple[Any, ...]:
    """Return a setting that is a list as a tuple; ``None`` is an empty list.

    Args:
        value: value from YAML, the command line or Python.
        name: name of the setting, for messages.
        element: example of an element, for messages.

    Raises:
        ValueError: ``value`` is not a list.
    """
    if value is not None and (not isinstance(value, Sequence) or isinstance(value, str | bytes)):
        raise ValueError(f"{name} must be a list, such as [{element}], got {short_repr(value)}.")
    return tuple(value or ())


def checked_num_atoms(num_atoms: Any, values: str, support_low: Any, support_high: Any) -> int | None:
    """Return ``agent.num_atoms``, checked against ``agent.values``; ``None`` for expected values.

    Raises:
        ValueError: ``num_atoms`` is missing for distributions, set for expected values, or too small; or, for
            categorical values, ``support_low`` is not below ``support_high``.
    """
    is_missing = num_atoms is None and values in ("categorical", "quantile", "implicit")
    if is_missing or (num_atoms and values == "expected"):
        raise ValueError(
            f"agent.num_atoms={short_repr(num_atoms)} contradicts agent.values={values}: distributions need a number, "
            "such as 51 categories or 200 quantiles; agent.values=expected needs null."
        )
    if num_atoms is None:
        return None
    if values == "categorical" and positive(num_atoms, "agent.num_atoms") < 2:
        raise ValueError(f"agent.num_atoms={num_atoms} must be at least 2, because categorical values form a grid.")
    low, high = _number(support_low, "agent.support_low", None), _number(support_high, "agent.support_high", None)
    if values == "categorical" and low >= high:
        raise ValueError(
            f"agent.support_low={low:g} must be below agent.support_high={high:g}: set them to the lowest and the "
            "highest return."
        )
    return positive(num_atoms, "agent.num_atoms")


def checked_value(value: Any, annotation: Any, name: str, within: str | None = None) -> Any:
    """Convert ``value`` to the type of a field's annotation, and check it.

    Args:
        value: value from YAML, the command line or Python.
        annotation: annotation of the field. Numbers, flags, names and tuples are checked, alone or in a union with
            ``None``. Integers must be positive; integral floats are accepted. For ``Mapping``, ``None`` is read as an
            empty mapping; for ``CustomName``, a custom name is imported. Other values are returned unchanged.
        name: path of the setting, for messages.
        within: interval of a number, such as ``"[0, 1]"`` or ``"(0, inf)"``; any finite number by default.

    Raises:
        ValueError: the value has the wrong type or is out of range; the message states the expected type and range.
    """
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    kinds = [member for member in members if member is not type(None)]
    value = _plain(value)
    if value is None and len(kinds) < len(members):
        return None
    if CustomName in kinds and len(kinds) > 1:
        if isinstance(value, str) and is_custom_name(value):
            return CustomName(value, load_named(value, name))
        kinds.remove(CustomName)
    if bool in kinds and len(kinds) > 1:
        if isinstance(value, bool):
            return value
        kinds.remove(bool)
    if annotation is Mapping:
        return checked_mapping(value, name)
    if float in kinds:
        return _number(value, name, within)
    if len(kinds) != 1:
        return value
    (kind,) = kinds
    if kind is int:
        return positive(value, name)
    if kind is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {short_repr(value)}.")
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            example = value if type(value) is element else {str: "name", int: 1, float: 0.5}.get(element, True)
            raise ValueError(f"{name} must be a list, such as [{short_repr(example)}], got {short_repr(value)}.")
        return tuple(checked_value(x, element, f"{name}[{i}]") for i, x in enumerate(value))
    if kind is str and not isinstance(value, str):
        raise ValueError(f"{name} must be text, such as a name, got {short_repr(value)}.")
    if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
        valid = [*typing.get_args(kind), *["false", "true"] * (bool in members), *["null"] * (type(None) in members)]
        hint = did_you_mean(value, valid)
        raise ValueError(f"{name} must be one of {', '.join(sorted(map(str, valid)))}; got {short_repr(value)}.{hint}")
    return value


@functools.cache
def declared_ranges(cls: type[PyTreeNode]) -> Mapping[str, str]:
    """Return the intervals that the fields of a class declare by ``Within``, by field; cached.

    A field that a subclass redeclares, with a different default, keeps its interval unless it declares a new one.
    """
    ranges: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in typing.get_type_hints(base, include_extras=True).items():
            declared = [part.interval for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Within)]
            if declared:
                ranges[name] = declared[-1]
    return types.MappingProxyType(ranges)


def _number(value: Any, name: str, within: str | None) -> float:
    interval = within or "(-inf, inf)"
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    fits = _is_number(value) and value == value  # not NaN
    fits = fits and (value > low or (value == low and interval[0] == "["))
    fits = fits and (value < high or (value == high and interval[-1] == "]"))
    fits = fits and (abs(value) <= LARGEST_FLOAT or value in (math.inf, -math.inf))
    if not fits:
        size = " with magnitude up to 3.4e38" if _is_number(value) and abs(value) > LARGEST_FLOAT else ""
        expected = _describe_interval(interval, low, high)
        raise ValueError(f"{name} must be a number{expected}{size}, got {short_repr(value)}.")
    return float(value)


def _describe_interval(interval: str, low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" above {low:g}" if interval[0] == "(" else f" of at least {low:g}"
    return f" in {interval}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def short_repr(value: Any) -> str:
    """Format a value for messages, shortened if it is long."""
    if value is None:
        return "null"
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    text = repr(value)
    return text if len(text) <= 4 * _SHOWN else f"{text[:_SHOWN]}..."
