"""Values of settings, checked against the field they are for: types by its annotation, ranges by its class.

Ranges are checked while building only: later a number may be traced, or a batch of them.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.config.names import did_you_mean, load, load_named, no_such
from evorl.config.own_parts import is_own_name

if TYPE_CHECKING:
    from evorl.types import PyTreeNode  # imports JAX, which settings that are no workflow's do without


@functools.cache
def field_types(cls: type) -> Mapping[str, Any]:
    """What the fields of a class and its bases are annotated with, by name; resolved once, and asked for often."""
    return types.MappingProxyType(typing.get_type_hints(cls))


def plain(config: Any) -> dict[str, Any]:
    """Return a config, such as an OmegaConf node, as plain dicts, lists and scalars, with interpolations resolved."""
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(config, resolve=True)  # pyright: ignore[reportReturnType]
    return {key: plain(value) if isinstance(value, Mapping) else value for key, value in config.items()}


def set_at(config: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of a nested dict, in place; missing levels are made."""
    *above, last = path.split(".")
    for key in above:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[last] = value


def check_names(names: Iterable[str], valid: Iterable[str], what: str) -> None:
    """Refuse a name that is not valid, and say the nearest one that is."""
    valid = sorted(valid)
    for name in names:
        if name not in valid:
            raise ValueError(no_such(what, name, valid))


LARGEST_FLOAT = float(np.finfo(np.float32).max)  # networks compute in float32
LONGEST_AXIS = 2**31 - 1  # of an array or of a loop
MOST_SEED = 2**32 - 1
BEST = "best"  # of several seeds the one with the best evaluation
_DIGITS_OF_SEED = 10
_SHOWN = 80  # characters of a value in a message


def positive(value: Any, name: str) -> int:
    """Return ``value`` as a positive whole number; a float without a fraction, such as 1e6, is one."""
    return whole_number(value, name, 1, LONGEST_AXIS)


def seed_number(value: Any, name: str = "seed") -> int:
    """Return ``value`` as a seed, a whole number from 0 to 2^32 - 1; a float without a fraction is one."""
    return whole_number(value, name, 0, MOST_SEED)


def seed_choice(value: Any, name: str = "seed_number") -> int | str:
    """Return ``best``, or the number of one of the seeds of a run, from 0; digits in a string are a number.

    Raises:
        ValueError: it is neither.
    """
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _DIGITS_OF_SEED
    number = int(value) if is_text else value
    if number == BEST or (type(number) is int and number >= 0):
        return number
    raise ValueError(f"{name} must be {BEST} or a whole number from 0, got {short_repr(value)}.")


def whole_number(value: Any, name: str, low: int, high: int) -> int:
    """Return ``value`` as a whole number of an interval.

    Args:
        value: a whole number, or a float without a fraction, such as 1e3.
        name: of the setting, for messages.
        low: the smallest number allowed, such as 0 or 1.
        high: the largest number allowed.

    Raises:
        ValueError: another type, a fraction, or out of the interval; the message has the value and the interval.
    """
    value = _plain(value)
    is_whole = _is_number(value) and (isinstance(value, int) or (math.isfinite(value) and value == int(value)))
    if is_whole and low <= value <= high:
        return int(value)
    if low == 1 and not (is_whole and value > high):
        expected = "a positive whole number"
    else:
        expected = f"at most {_bound(high)}" if low == 1 else f"a whole number from {low:,} to {_bound(high)}"
    raise ValueError(f"{name} must be {expected}, got {short_repr(value)}.")


def _bound(number: int) -> str:
    """Format a bound for messages; one that is a power of two minus 1 is also written that way."""
    power = (number + 1).bit_length() - 1
    return f"2^{power} - 1 = {number:,}" if power > 16 and number + 1 == 2**power else f"{number:,}"


def require_positive(node: Any, *names: str) -> None:
    """Raises ``ValueError`` unless these fields of a node, static ones, are positive whole numbers."""
    for name in names:
        positive(getattr(node, name), name)


def checked_mapping(value: Any, name: str) -> Mapping[str, Any]:
    """``value``, if it is a mapping of settings; ``None`` is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping from settings to values, got {value!r}.")
    return value


def checked_list(value: Any, name: str, element: str) -> tuple[Any, ...]:
    """Return a list of settings as a tuple; ``None`` is an empty one.

    Args:
        value: as it comes from YAML, the command line or Python.
        name: of the setting, for messages.
        element: an example of an element, for messages.

    Raises:
        ValueError: ``value`` is no list.
    """
    if value is not None and (not isinstance(value, Sequence) or isinstance(value, str | bytes)):
        raise ValueError(f"{name} must be a list, such as [{element}], got {short_repr(value)}.")
    return tuple(value or ())


def checked_num_atoms(num_atoms: Any, values: str, support_low: Any, support_high: Any) -> int | None:
    """``agent.num_atoms``, if it goes with ``agent.values``: expected values have none, distributions have some.

    Raises:
        ValueError: it does not, or is no positive number; or the ends of the grid of categories are in disorder.
    """
    if (num_atoms is None and values in ("categorical", "quantile")) or (num_atoms and values == "expected"):
        raise ValueError(
            f"agent.num_atoms={num_atoms!r} does not go with agent.values={values}: distributions have a number of "
            "atoms (51 categories or 200 quantiles, say), expected values have none (null)."
        )
    if num_atoms is None:
        return None
    if values == "categorical" and positive(num_atoms, "agent.num_atoms") < 2:
        raise ValueError("agent.values=categorical needs agent.num_atoms of at least 2, the ends of the grid.")
    ends = [_number(support_low, "agent.support_low", None), _number(support_high, "agent.support_high", None)]
    if values == "categorical" and ends[0] >= ends[1]:
        raise ValueError(
            f"agent.support_low={ends[0]:g} is not below agent.support_high={ends[1]:g}: give the least return and the "
            "greatest."
        )
    return positive(num_atoms, "agent.num_atoms")


def checked_value(value: Any, annotation: Any, name: str, within: str | None = None) -> Any:
    """``value`` as the type that a field is annotated with.

    Args:
        value: as it comes from YAML, the command line or Python.
        annotation: of the field. Numbers, flags and names are checked, alone or with ``None``; a float without a
            fraction serves as a whole number, and whole numbers are positive. So are mappings, of which ``None`` is an
            empty one. Others are left as they are.
        name: the setting's path, for messages.
        within: the interval of a number, such as ``"[0, 1]"`` or ``"(0, inf)"``; any finite number by default.

    Raises:
        ValueError: another type, or out of range; the message says what is expected.
    """
    members = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    kinds = [member for member in members if member is not type(None)]
    value = _plain(value)
    if value is None and len(kinds) < len(members):
        return None
    if len(kinds) > 1 and any(getattr(kind, "__name__", "") == "OwnName" for kind in kinds):
        own = load("evorl.ops.own_name:OwnName")
        if is_own_name(value):
            return own(value, load_named(value, name))
        kinds = [kind for kind in kinds if kind is not own]
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
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, such as [{short_repr(value)}], got {short_repr(value)}.")
        element = typing.get_args(kind)[0]
        return tuple(checked_value(x, element, f"{name}[{i}]") for i, x in enumerate(value))
    if kind is str and not isinstance(value, str):
        raise ValueError(f"{name} must be a name, got {short_repr(value)}.")
    if typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
        valid = [str(option) for option in typing.get_args(kind)]
        hint = did_you_mean(value, valid)
        raise ValueError(f"{name} is one of {', '.join(sorted(valid))}; got {short_repr(value)}.{hint}")
    return value


def declared_ranges(cls: type[PyTreeNode]) -> dict[str, str]:
    """The intervals that a class and its bases declare as ``ranges``, by field."""
    ranges: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        ranges |= vars(base).get("ranges", {})
    return ranges


def _number(value: Any, name: str, within: str | None) -> float:
    interval = within or "(-inf, inf)"
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    fits = _is_number(value) and value == value  # nan is not
    fits = fits and (value > low or (value == low and interval[0] == "["))
    fits = fits and (value < high or (value == high and interval[-1] == "]"))
    fits = fits and (abs(value) <= LARGEST_FLOAT or value in (math.inf, -math.inf))
    if not fits:
        size = ", 3.4e38 at most" if _is_number(value) and math.inf > abs(value) > LARGEST_FLOAT else ""
        raise ValueError(f"{name} must be a number{_in_words(interval, low, high)}{size}, got {short_repr(value)}.")
    return float(value)


def _in_words(interval: str, low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" above {low:g}" if interval[0] == "(" else f" of at least {low:g}"
    return f" in {interval}"


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def short_repr(value: Any) -> str:
    """Format a value for messages; a long one is shortened."""
    if value is None:
        return "null"
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    text = repr(value)
    return text if len(text) <= 4 * _SHOWN else f"{text[:_SHOWN]}..."
