"""Options of a command that composes no config: ``name=value``, and arguments without a name.

Every option declares what it accepts, and ``read_options`` checks it. Of an option that is a mapping each entry can be
given for itself: ``serve.bind=127.0.0.1:7001``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from evorl.config.values import MOST_SEED, check_names, checked_mapping, checked_value, whole_number
from evorl.config.yaml_text import dump_yaml, read_yaml

Check = Callable[[Any, str], Any]


def _checked_number(value: Any, name: str, interval: str) -> float:
    return checked_value(value, float, name, interval)


def _checked_name(value: Any, name: str, names: Sequence[str]) -> str:
    check_names([value], names, f"value of {name}")
    return value


def whole(low: int, high: int) -> Check:
    """Return the check for a whole number of ``[low, high]``; 1e3 is one."""
    return functools.partial(whole_number, low=low, high=high)


def number(interval: str) -> Check:
    """Return the check for a number of an interval, such as ``"(0, 100]"``."""
    return functools.partial(_checked_number, interval=interval)


def one_of(*names: str) -> Check:
    """Return the check for one of several names."""
    return functools.partial(_checked_name, names=names)


def checkpoint(value: Any, name: str) -> str:
    """Return ``value`` if it names a checkpoint: best, latest, or the number of an iteration.

    Raises:
        ValueError: it is none of these.
    """
    text = str(value)
    if text not in ("best", "latest") and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"{name} must be best, latest or the number of an iteration; got {text}.")
    return text


SEED = whole(0, MOST_SEED)
PIXELS = whole(16, 4096)  # of a picture's height or width
FPS = number("(0, 100]")
NUM_EPISODES = whole(1, 10_000)
NUM_FRAMES = whole(1, 10_000)

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        default: its value where it is not given. A flag, a text and a mapping are checked by the type of their default.
        meaning: description for users, without a full stop.
        check: ``check(value, name)`` returns the checked value or raises ``ValueError``; needed for numbers.
        text: whether the value is text, where the default does not tell; other values are read as YAML.
        null: whether null is a value, besides options that are null by default.
        empty: whether a text may be empty.
    """

    default: Any
    meaning: str
    check: Check | None = None
    text: bool = False
    null: bool = False
    empty: bool = False

    @property
    def is_text(self) -> bool:
        """Return whether the value is taken as text instead of read as YAML."""
        return self.text or isinstance(self.default, str)

    def read(self, text: str, name: str) -> Any:
        """Return the value of a text of the command line, unchecked.

        Raises:
            ValueError: it is empty, or no YAML.
        """
        if not text.strip() and not self.empty:
            raise ValueError(f"{name} is empty: give it a value, or leave it out.")
        if not self.is_text:
            return read_yaml(text, f"{name}={text}")
        return None if text == "null" and (self.null or self.default is None) else text

    def checked(self, value: Any, name: str) -> Any:
        """Return a value that was read, as the command takes it.

        Raises:
            ValueError: another type, out of range or null; the message has the name and the value.
        """
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
        arguments: behind the command.
        options: of the command.
        command: its name, for errors.
        unnamed: noun for arguments without a name, for errors; ``None`` where there are none.

    Returns:
        Every option with its checked value or its default; and the arguments without a name.

    Raises:
        ValueError: an unknown option, one that is given twice, cannot be read or is not as it declares; or an argument
            without a name where there is none.
    """
    given: dict[str, Any] = {}
    without_name = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not _NAME.fullmatch(name):  # a path may contain an equals sign
            if unnamed is None or argument.startswith("-"):
                raise ValueError(f"{argument!r} is no option: give name=value. {command} --help tells which there are.")
            if not argument:
                raise ValueError(f"an empty argument is no {unnamed}: {command} --help has examples.")
            without_name.append(argument)
            continue
        whole_name, dot, entry = name.partition(".")
        target: Any = given
        if dot and whole_name in options and isinstance(options[whole_name].default, Mapping):
            target = given.setdefault(whole_name, {})
            if not isinstance(target, dict):
                raise ValueError(f"{whole_name}={target!r} is no mapping, of which {name} could be an entry.")
            value: Any = read_yaml(text, argument)
        else:
            check_names([name], options, f"option of {command}")
            entry, value = name, options[name].read(text, name)
        if entry in target:
            raise ValueError(f"{name} is given twice: {target[entry]!r} and {text!r}.")
        target[entry] = value
    checked = {name: options[name].checked(value, name) for name, value in given.items()}
    return {name: option.default for name, option in options.items()} | checked, without_name


def options_in_words(options: Mapping[str, Option]) -> str:
    """Format a line for each option: its default and its meaning."""
    shown = {f"{name}={as_given(option.default)}": option.meaning for name, option in options.items()}
    width = max(map(len, shown), default=0)
    return "".join(f"  {name:{width}s}  {meaning}\n" for name, meaning in shown.items())


def as_given(value: Any) -> str:
    """Return a value as it is written on a command line."""
    return value if isinstance(value, str) else dump_yaml(value, default_flow_style=True).split("\n")[0]
