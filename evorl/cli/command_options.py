"""Options of the commands that do not compose a Hydra config: ``name=value``, and positional arguments.

Every option declares the values that it accepts, and ``read_options`` checks them. Entries of an option that is a
mapping can be set one by one: ``serve.bind=127.0.0.1:7001``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from evorl.config.command_lines import as_setting
from evorl.config.values import MAX_SEED, check_names, checked_mapping, checked_value, whole_number
from evorl.config.yaml_text import inline_yaml, read_yaml

Check = Callable[[Any, str], Any]


def _checked_name(value: Any, name: str, names: Sequence[str]) -> str:
    check_names([value], names, f"value of {name}")
    return value


def whole(low: int, high: int) -> Check:
    """Return the check for an integer in ``[low, high]``; integral floats such as 1e3 are accepted."""
    return functools.partial(whole_number, low=low, high=high)


def number(interval: str) -> Check:
    """Return the check for a number in an interval, such as ``"(0, 100]"``."""
    return lambda value, name: checked_value(value, float, name, interval)


def one_of(*names: str) -> Check:
    """Return the check for one of several names."""
    return functools.partial(_checked_name, names=names)


def checkpoint(value: Any, name: str) -> str:
    """Return ``value`` as text; raise ``ValueError`` unless it is ``best``, ``latest``, or an iteration number."""
    text = str(value)
    if text not in ("best", "latest") and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"{name} must be 'best', 'latest' or an iteration number; got {text!r}.")
    return text


SEED = whole(0, MAX_SEED)
PIXELS = whole(16, 4096)  # height or width of an image
FPS = number("(0, 100]")
NUM_EPISODES = whole(1, 10_000)
NUM_FRAMES = whole(1, 10_000)

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        default: default value. If it is a boolean, a text or a mapping, values must have the same type.
        meaning: help text, without a full stop.
        check: ``check(value, name)`` returns the checked value or raises ``ValueError``; required for numbers.
        text: True if values are text although the default is not; values that are not text are parsed as YAML.
        path: True if values are text, in which a leading ``~`` is the user's home folder.
        null: True if null is accepted although the default is not null.
        empty: True if the text may be empty.
    """

    default: Any
    meaning: str
    check: Check | None = None
    text: bool = False
    path: bool = False
    null: bool = False
    empty: bool = False

    @property
    def is_text(self) -> bool:
        """True if the value is used as text instead of being parsed as YAML."""
        return self.text or self.path or isinstance(self.default, str)

    def read(self, text: str, name: str) -> Any:
        """Return the unchecked value of a text from the command line; for ``null``, ``None`` if null is accepted.

        Raises:
            ValueError: the text is empty although ``empty`` is false, or the text is not valid YAML.
        """
        if not text.strip() and not self.empty:
            raise ValueError(f"{name} is empty: set it to a value, or omit it.")
        if not self.is_text:
            return read_yaml(text, f"{name}={text}")
        if text == "null" and (self.null or self.default is None):
            return None
        return os.path.expanduser(text) if self.path else text

    def checked(self, value: Any, name: str) -> Any:
        """Return the value after type and range checks, as commands use it; raise ``ValueError`` if invalid."""
        if value is None and (self.null or self.default is None):
            return None
        if isinstance(self.default, Mapping):
            value = dict(checked_mapping(value, name))
        elif isinstance(self.default, bool):
            return checked_value(value, bool, name)
        return value if self.check is None else self.check(value, name)


def read_options(
    arguments: Sequence[str], options: Mapping[str, Option], command: str, unnamed: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Read the arguments of a command.

    Args:
        arguments: arguments after the command.
        options: options of the command, by name.
        command: name of the command, for error messages.
        unnamed: noun for positional arguments, for error messages; ``None`` if the command accepts none.

    Returns:
        All options by name, each with its checked value or its default; and the positional arguments, in order.

    Raises:
        ValueError: an option is unknown, repeated, unreadable or invalid; or a positional argument is unexpected.
    """
    values: dict[str, Any] = {}
    without_name = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, text = argument.partition("=")
        if not equals or not _NAME.fullmatch(name):  # a path may contain an equals sign
            if unnamed is None or argument.startswith("-"):
                form = as_setting(argument, following)
                form = form if form.partition("=")[0] in options else "name=value"
                raise ValueError(f"{argument!r} is not an option: use {form}. {command} --help lists the options.")
            if not argument:
                raise ValueError(f"expected <{unnamed}>, got an empty argument: {command} --help has examples.")
            without_name.append(argument)
            continue
        whole_name, dot, entry = name.partition(".")
        target: Any = values
        if dot and whole_name in options and isinstance(options[whole_name].default, Mapping):
            target = values.setdefault(whole_name, {})
            if not isinstance(target, dict):
                raise ValueError(f"{whole_name}={target!r} is not a mapping: remove it, or {name}.")
            value: Any = read_yaml(text, argument)
        else:
            check_names([name], options, f"option of {command}")
            entry, value = name, options[name].read(text, name)
        if entry in target:
            raise ValueError(f"{name} was set twice, to {target[entry]!r} and {value!r}: remove one of them.")
        target[entry] = value
    checked = {name: options[name].checked(value, name) for name, value in values.items()}
    return {name: option.default for name, option in options.items()} | checked, without_name


def describe_options(options: Mapping[str, Option]) -> str:
    """Return the help lines of the options: each option with its default and its description."""
    defaults = {name: option.default for name, option in options.items()}
    texts = {name: value if isinstance(value, str) else inline_yaml(value) for name, value in defaults.items()}
    shown = {f"{name}={texts[name]}": option.meaning for name, option in options.items()}
    width = max(map(len, shown), default=0)
    return "".join(f"  {name:{width}s}  {meaning}\n" for name, meaning in shown.items())
