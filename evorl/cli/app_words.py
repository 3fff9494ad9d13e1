"""The words behind the commands of apps: ``name=value`` as everywhere, and the short flags that they have too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def without_flags(arguments: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """The arguments with flags as ``name=value``.

    Args:
        arguments: as they stand behind the command.
        flags: ``{"-a": "algorithm", "--exploit": "exploit=true"}``: one whose meaning has a value is a switch, others
            are followed by their value, or have it behind a sign of equality.

    Raises:
        ValueError: a flag has no value.
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
            raise ValueError(f"{flag} needs a value behind it: {flag} ..., or {flags[flag]}=...")
    return found
