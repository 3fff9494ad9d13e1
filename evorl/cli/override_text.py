"""Quotes override values for Hydra: paths are literal, Python values use Hydra's syntax.

Hydra's grammar parses ``a,b`` as a sweep, ``[x]`` as a list and ``2026`` as a number, and fails on accents and most
punctuation. A path may contain all of these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from evorl.config.command_lines import user_path
from evorl.config.override_grammar import CONSTANTS, PLAIN, QUOTED, as_text, quote, unquote
from evorl.runs.spec import RunSpec

# Settings whose values are paths. A test derives them from the config files and classes.
RUN_PATHS = tuple(sorted(RunSpec.keys("path")))
HYDRA_PATHS = ("hydra.run.dir", "hydra.sweep.dir")
PATHS = (
    *RUN_PATHS,
    *HYDRA_PATHS,
    *("init_from", "init_from.run", "replay.load"),
    *(f"{server}.{name}" for server in ("serve", "parameters") for name in ("cert", "key", "profile_dir")),
)
_OF_PARTS = re.compile(r"^(?:inner|learner)\.")
SWEEP_FLAGS = ("-m", "--multirun")
_STRUCTURED = ("[", "{", "(", "'", '"')


def is_path(key: str) -> bool:
    """Return True if the setting is a path; ``key`` is the text before the ``=``."""
    return _OF_PARTS.sub("", key.lstrip("+")) in PATHS


def given_text(argument: str) -> str:
    """Return the value of ``name=value`` as text, without the quotes of ``with_literal_text``."""
    return unquote(argument.partition("=")[2]).replace(r"\${", "${")


def with_literal_text(arguments: Sequence[str]) -> list[str]:
    """Quote paths, and text that Hydra cannot parse, in overrides.

    A path is literal, with four exceptions that Hydra interprets: an empty value, ``null``, a quoted string,
    and an interpolation (``${...}``); the last two only if no file of that name exists. In a sweep (``-m``) commas
    separate the values of ``init_from`` and ``replay.load`` unless a file of that name exists. Other settings are
    quoted only if Hydra could not parse them, such as ``title=Größe``.

    Args:
        arguments: command-line arguments, including flags.
    """
    in_sweep = bool(set(arguments) & set(SWEEP_FLAGS))
    return [_with_literal_text(argument, in_sweep) for argument in arguments]


def _with_literal_text(argument: str, in_sweep: bool) -> str:
    key, equals, value = argument.partition("=")
    if not equals or argument.startswith(("-", "~")) or value in ("", "null") or PLAIN.fullmatch(value):
        constant = value.lower() in CONSTANTS and value != "null"
        is_text = constant and is_path(key) and key.lstrip("+") != "compilation_cache"
        return f"{key}={quote(value)}" if is_text else argument
    if not is_path(key):
        return argument if _is_readable(value) else f"{key}={_quoted_values(value, in_sweep)}"
    if not _exists(value):
        is_mapping = key.lstrip("+") == "init_from" and value.startswith("{")
        if is_mapping or QUOTED.fullmatch(value) or "${" in value:
            return argument
        if in_sweep and key.lstrip("+") not in (*RUN_PATHS, *HYDRA_PATHS):
            return f"{key}={_quoted_values(value, in_sweep)}"
    escaped = value.replace("${", r"\${")
    return f"{key}={as_text(escaped)}"


def _quoted_values(value: str, in_sweep: bool) -> str:
    """Quote a value; in a sweep, quote each of the comma-separated values."""
    return ",".join(map(as_text, value.split(","))) if in_sweep else as_text(value)


def _exists(value: str) -> bool:
    try:
        return user_path(value).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def _is_readable(value: str) -> bool:
    """Return True if Hydra can parse a value, or reports a helpful error: for brackets, quotes and functions."""
    if value.startswith(_STRUCTURED) or "${" in value or re.match(r"\w+\(", value):
        return True
    try:
        OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return False
    return True
