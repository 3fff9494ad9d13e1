"""Flags of the app commands, such as ``-a`` and ``--exploit``, translated into ``name=value`` arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def without_flags(arguments: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """Return the arguments with flags replaced by ``name=value``.

    Args:
        arguments: arguments after the command.
        flags: option of each flag, as in ``{"-a": "algorithm", "--exploit": "exploit=true"}``. If the option includes
            a value, the flag is a switch; otherwise the flag needs a value, ``-a ppo`` or ``-a=ppo``.

    Raises:
        ValueError: the value of a flag is missing.
    """
    remaining = list(arguments)
    translated = []
    while remaining:
        argument = remaining.pop(0)
        flag, equals, value = argument.partition("=")
        if flag not in flags:
            translated.append(argument)
        elif "=" in flags[flag]:
            name, _, value_of_switch = flags[flag].partition("=")
            translated.append(f"{name}={value if equals else value_of_switch}")
        elif equals:
            translated.append(f"{flags[flag]}={value}")
        elif remaining:
            translated.append(f"{flags[flag]}={remaining.pop(0)}")
        else:
            raise ValueError(f"{flag} needs a value: {flag} ..., or {flags[flag]}=...")
    return translated
