"""Options of a command that composes no config: ``name=value``, and what is named without a name.

Of an option that is a mapping each entry can be given for itself: ``serve.bind=127.0.0.1:7001``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        default: its value where it is not given; one of text is read as it stands, others as YAML.
        meaning: for a person, without a full stop.
        text: whether it is text, where the default does not tell.
    """

    default: Any
    meaning: str
    text: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the value is read as it stands."""
        return self.text or isinstance(self.default, str)


def read_options(
    arguments: Sequence[str], options: Mapping[str, Option], command: str, unnamed: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """What a command line gives.

    Args:
        arguments: as they stand behind the command.
        options: that there are.
        command: its name, for errors.
        unnamed: what is given without a name, as a word for errors; ``None`` where nothing is.

    Returns:
        Every option with its value, the default where none is given; and what has no name.

    Raises:
        ValueError: an option that there is not, is given twice or cannot be read; or something without a name where
            nothing is.
    """
    from evorl.config.values import check_names

    given: dict[str, Any] = {}
    without_name = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        # A path may have a sign of equality in it.
        if not equals or not _NAME.fullmatch(name):
            if unnamed is None or argument.startswith("-"):
                raise ValueError(f"{argument!r} is no option: give name=value. {command} --help tells which there are.")
            without_name.append(argument)
            continue
        whole, dot, entry = name.partition(".")
        place: Any = given
        if dot and whole in options and isinstance(options[whole].default, Mapping):
            place, is_text = given.setdefault(whole, {}), False
            if not isinstance(place, dict):
                raise ValueError(f"{whole}={place!r} is no mapping, of which {name} could be an entry.")
        else:
            check_names([name], options, f"option of {command}")
            entry, is_text = name, options[name].is_text
        if entry in place:
            raise ValueError(f"{name} is given twice: {place[entry]!r} and {text!r}.")
        try:
            place[entry] = text if is_text else yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{argument!r} cannot be read.") from error
    return {name: option.default for name, option in options.items()} | given, without_name


def options_in_words(options: Mapping[str, Option]) -> str:
    """A line for each option: its default and what it means."""
    shown = {f"{name}={as_given(option.default)}": option.meaning for name, option in options.items()}
    width = max(map(len, shown), default=0)
    return "".join(f"  {name:{width}s}  {meaning}\n" for name, meaning in shown.items())


def as_given(value: Any) -> str:
    """A value as it is written on a command line."""
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
