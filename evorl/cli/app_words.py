"""Short flags of the app commands, translated into ``name=value`` arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def without_flags(arguments: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """Return the arguments with flags replaced by ``name=value``.

    Args:
        arguments: arguments after the command.
        flags: option of each flag, as in ``{"-a": "algorithm", "--exploit": "exploit=true"}``. A flag whose option
            includes a value is a switch; any other takes a value, as ``-a ppo`` or ``-a=ppo``.

    Raises:
        ValueError: the value of a flag is missing.
    """
    words = list(arguments)
    found = []
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in flags:
            found.append(word)
        elif "=" in flags[flag]:
            name, _, usual = flags[flag].partition("=")
            found.append(f"{name}={value if equals else usual}")
        elif equals:
            found.append(f"{flags[flag]}={value}")
        elif words:
            found.append(f"{flags[flag]}={words.pop(0)}")
        else:
            raise ValueError(f"{flag} needs a value: {flag} ..., or {flags[flag]}=...")
    return found
