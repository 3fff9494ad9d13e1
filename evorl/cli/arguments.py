"""Normalizes command-line arguments for Hydra, and rejects overrides that Hydra would silently ignore.

Paths are literal. Hydra's grammar parses ``a,b`` as a sweep, ``[x]`` as a list and ``2026`` as a number, and fails on
accents and most punctuation. Paths may contain all of these, so they are quoted for Hydra.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from evorl.cli.config_tree import config_names
from evorl.config.command_lines import CONSTANTS, PLAIN, QUOTED, as_text, quote, unquote, user_path
from evorl.config.names import no_such
from evorl.ops.terminal_text import sentence
from evorl.runs.spec import RunSpec

# Hydra flags that take a value.
FOLDER_FLAGS = ("--config-dir", "-cd")
FLAGS_WITH_VALUE = (*FOLDER_FLAGS, "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c")
FLAGS_WITH_VALUE += ("--package", "-p", "--experimental-rerun")
# Settings with paths as values. A test compares this list with the descriptions of all settings.
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


def overrides_first(arguments: list[str]) -> list[str]:
    """Return the arguments in the order that Hydra expects: overrides, then flags with their values.

    ``experiment=null`` becomes ``~experiment``, because Hydra rejects null for an optional config group, and
    ``init_from=<run>`` becomes ``init_from.run=<run>``. Values are quoted for Hydra, see ``with_literal_text``.
    ``hydra.mode=MULTIRUN`` becomes ``-m``.
    """
    overrides, flags = [], []
    arguments = ["-m" if argument == "hydra.mode=MULTIRUN" else argument for argument in arguments]
    for previous, argument in zip(["", *arguments], with_literal_text(arguments), strict=False):
        is_value = previous in FLAGS_WITH_VALUE  # a flag's value, such as a folder name, may contain an equals sign
        is_flag = argument.startswith("-") or not ("=" in argument or argument.startswith(("~", "+")))
        (flags if is_flag or is_value else overrides).append(argument)
    return [*map(as_hydra_override, overrides), *flags]


def as_hydra_override(argument: str) -> str:
    """Return an argument in the form that Hydra accepts.

    Short forms such as ``init_from=<run>`` are written in full.
    """
    name, equals, value = argument.partition("=")
    if name == "init_from" and equals and not value.startswith("{"):
        return f"init_from.run={value}"
    return "~experiment" if argument == "experiment=null" else argument


def check_overrides(overrides: Iterable[str], config_folders: Iterable[Path]) -> None:
    """Reject overrides that would have no effect.

    Args:
        overrides: overrides of this run, as the user wrote them.
        config_folders: config tree, and the folders that ``--config-dir`` adds.

    Raises:
        ValueError: an override deletes a setting, which would silently restore its default; or the experiment does
            not exist, which Hydra ignores because the group is optional.
    """
    folders = list(config_folders)
    groups = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}
    for override in overrides:
        key = override.partition("=")[0]
        name = key.lstrip("~+")
        if key.startswith("~") and name.partition("@")[0] not in groups:
            raise ValueError(f"{override}: a setting cannot be removed. Set it to a value, or, if valid, {name}=null.")
        if name == "experiment" and not key.startswith("~") and (value := given_text(override)) not in ("", "null"):
            known = [option for folder in folders for option in config_names(folder / "experiment")]
            if value not in known:
                raise ValueError(sentence(no_such("experiment", value, known)))


def own_folders(arguments: Sequence[str]) -> list[Path]:
    """Return the config folders that flags add."""
    words = [word for text in arguments for word in (text.split("=", 1) if text.startswith("-") else [text])]
    return [Path(word) for flag, word in itertools.pairwise(words) if flag in FOLDER_FLAGS]


def is_path(key: str) -> bool:
    """Return True if the value of a setting is a path; ``key`` is the text before the ``=``."""
    return _OF_PARTS.sub("", key.lstrip("+")) in PATHS


def given_text(argument: str) -> str:
    """Return the value of ``name=value`` as text, without the quotes and escapes of ``with_literal_text``."""
    return unquote(argument.partition("=")[2]).replace(r"\${", "${")


def given_values(arguments: Iterable[str]) -> dict[str, str]:
    """Return the text of each ``name=value`` argument, see ``given_text``, by name."""
    return {argument.partition("=")[0]: given_text(argument) for argument in arguments if "=" in argument}


def with_literal_text(arguments: Sequence[str]) -> list[str]:
    """Return the arguments; in overrides, paths and text that Hydra cannot parse are quoted.

    A path is literal, except that Hydra interprets an empty value, ``null``, a boolean as ``compilation_cache`` and, if
    no such file exists, a quoted string, an interpolation (``${...}``) and a mapping as ``init_from``. In a sweep, a
    path with commas is a list of paths, unless such a file exists or the setting is in ``RUN_PATHS`` or
    ``HYDRA_PATHS``. Values of other settings are quoted only if Hydra cannot parse them, such as ``title=Größe``.

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
    values = value.split(",") if in_sweep else [value]
    return ",".join(text if text == "null" else as_text(text) for text in values)


def _exists(value: str) -> bool:
    try:
        return user_path(value).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def _is_readable(value: str) -> bool:
    """Return True if Hydra can parse a value, or if Hydra should report its error (brackets, quotes, functions)."""
    if value.startswith(_STRUCTURED) or "${" in value or re.match(r"\w+\(", value):
        return True
    try:
        OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return False
    return True
