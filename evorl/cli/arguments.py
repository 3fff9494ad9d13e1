"""Checks command-line arguments, normalizes them for Hydra, and rejects overrides that Hydra would silently ignore.

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

from evorl.cli.config_tree import config_folder, config_names
from evorl.config.command_lines import (
    CONSTANTS,
    PLAIN,
    QUOTED,
    as_arguments,
    as_setting,
    as_text,
    quote,
    unquote,
    user_path,
)
from evorl.config.names import no_such
from evorl.execution.multiprocess import process_info
from evorl.ops.terminal_text import sentence
from evorl.runs.spec import RunSpec

# Hydra flags that take a value.
FOLDER_FLAGS = ("--config-dir", "-cd")
FLAGS_WITH_VALUE = (*FOLDER_FLAGS, "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c")
FLAGS_WITH_VALUE += ("--package", "-p", "--experimental-rerun")
# Settings with paths as values. A test compares this list with the descriptions of all settings.
RUN_PATHS = tuple(sorted(RunSpec.keys("path")))
HYDRA_PATHS = RUN, SWEEP = ("hydra.run.dir", "hydra.sweep.dir")
PATHS = (
    *RUN_PATHS,
    *HYDRA_PATHS,
    *("init_from", "init_from.run", "replay.load"),
    *(f"{server}.{name}" for server in ("serve", "parameters") for name in ("cert", "key", "profile_dir")),
)
_OF_PARTS = re.compile(r"^(?:inner|learner)\.")
SWEEP_FLAGS = ("-m", "--multirun")
PLAN = "--plan"
_CFG = ("--cfg", "-c")
_OTHERS = ("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--info", "-i")
_OTHERS += ("--shell-completion", "-sc")
_GROUPS = ("agent", "env", "experiment")
# Mappings with a ``name``, which the command line can set by that name alone: ``optimizer=sgd``.
NAMED = re.compile(r"(?:\w+\.)*(?:\w*optimizer|archive)")
# The long form of an archive or evolutionary optimizer, whose kind determines its settings.
_KIND = re.compile(r"((?:(?:inner|learner)\.)?(?:optimizer|archive))\.name")
_STRUCTURED = ("[", "{", "(", "'", '"')


def overrides_first(arguments: list[str]) -> list[str]:
    """Return the arguments in the order that Hydra expects: overrides, then flags with their values.

    ``experiment=null`` becomes ``~experiment``, also with ``@inner`` or ``@learner``, because Hydra rejects null for an
    optional config group, and ``init_from=<run>`` becomes ``init_from.run=<run>``. Values are quoted for Hydra, see
    ``with_literal_text``. ``hydra.mode=MULTIRUN`` becomes ``-m``.
    """
    overrides, flags = [], []
    arguments = ["-m" if argument == "hydra.mode=MULTIRUN" else argument for argument in arguments]
    for previous, argument in zip(["", *arguments], with_literal_text(arguments), strict=False):
        is_value = previous in FLAGS_WITH_VALUE  # a flag's value, such as a folder name, may contain an equals sign
        is_flag = argument.startswith("-") or not ("=" in argument or argument.startswith(("~", "+")))
        (flags if is_flag or is_value else overrides).append(argument)
    return [*map(as_hydra_override, overrides), *flags]


def as_hydra_override(argument: str) -> str:
    """Return an argument in the form that Hydra accepts; short forms such as ``init_from=<run>`` become full ones."""
    name, equals, value = argument.partition("=")
    if name == "init_from" and equals and not value.startswith("{"):
        return f"init_from.run={value}"
    return f"~{name}" if name.partition("@")[0] == "experiment" and value == "null" else argument


def as_hydra_overrides(arguments: Sequence[str]) -> list[str]:
    """Return arguments as Hydra accepts them, in which ``optimizer=sgd`` and ``optimizer.name=sgd`` are equivalent.

    The short form also sets the name, which a config file might set to another one. The long form also chooses the
    group, which has the settings of this kind. A command with ``-m`` does not change, but the ones of its runs do.
    """
    parts = [] if set(arguments) & set(SWEEP_FLAGS) else [argument.partition("=") for argument in arguments]
    values = {name: value for name, _, value in parts}
    implied = {f"{key}.name": value for key, value in values.items() if NAMED.fullmatch(key)}
    implied |= {match[1]: value for key, value in values.items() if (match := _KIND.fullmatch(key))}
    added = [f"{key}={x}" for key, x in implied.items() if key not in values and x not in ("", "null") and x[0] != "{"]
    return [*added, *map(as_hydra_override, arguments)]


def without_implied(overrides: Sequence[str]) -> list[str]:
    """Return overrides without the first ones, which ``as_hydra_overrides`` added."""
    starts = [i for i in range(len(overrides)) if as_hydra_overrides(overrides[i:]) == [*overrides]]
    return list(overrides[max(starts, default=0) :])


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
        name, is_removed = key.lstrip("~+"), key.startswith("~")
        group = name.partition("@")[0]
        if is_removed and group not in groups:
            raise ValueError(f"{override}: a setting cannot be removed. Set a value, or null if allowed: {name}=null.")
        if group == "experiment" and not is_removed and (value := argument_text(override)) not in ("", "null"):
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


def argument_text(argument: str) -> str:
    """Return the value of ``name=value`` as text, without the quotes and escapes of ``with_literal_text``."""
    return unquote(argument.partition("=")[2]).replace(r"\${", "${")


def argument_values(arguments: Iterable[str]) -> dict[str, str]:
    """Return the text of each ``name=value`` argument, see ``argument_text``, by name."""
    return {argument.partition("=")[0]: argument_text(argument) for argument in arguments if "=" in argument}


def names_a_run(arguments: Sequence[str], setting: str) -> bool:
    """Return True if ``setting``, such as ``resume``, names a run folder, so that its stored config is used."""
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{setting}=")]
    return any(value not in ("", "null") for value in values)


def is_sweep(arguments: Sequence[str]) -> bool:
    """Return True for a sweep (``-m``) that evorl runs itself: in one process, without Hydra options except folders."""
    flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
    of_hydra = (argument for argument in arguments if argument.startswith(("hydra/", "hydra.")))
    others = any(not argument.startswith(f"{SWEEP}=") for argument in of_hydra)
    return (
        bool(flags & set(SWEEP_FLAGS)) and flags <= {*SWEEP_FLAGS, *FOLDER_FLAGS} and not others and not process_info()
    )


def is_launched_sweep(arguments: Sequence[str]) -> bool:
    """Return True for a sweep (``-m``) that satisfies ``is_sweep`` except for the settings of a Hydra launcher."""
    others = [argument for argument in arguments if not is_of_launcher(argument)]
    return len(others) < len(arguments) and is_sweep(others)


def is_of_launcher(argument: str) -> bool:
    """Return True for a setting of a Hydra launcher."""
    return argument.lstrip("+").startswith(("hydra/launcher=", "hydra.launcher."))


def with_literal_text(arguments: Sequence[str]) -> list[str]:
    """Return the arguments; in overrides, paths and text that Hydra cannot parse are quoted.

    A path is literal, except that Hydra interprets an empty value, ``null``, a boolean as ``compilation_cache`` and, if
    no such file exists, a quoted string, an interpolation (``${...}``) and a mapping as ``init_from``. In a sweep, a
    path with commas is a list of paths, unless such a file exists or the setting is in ``RUN_PATHS`` or
    ``HYDRA_PATHS``. Values of other settings are quoted only if Hydra cannot parse them, such as ``title=Größe``.
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


def refuse_unknown_flags(arguments: Sequence[str]) -> None:
    """Raise ``ValueError`` for unknown or conflicting flags, and for arguments that are not ``name=value``."""
    known = (*FLAGS_WITH_VALUE, *_OTHERS, *SWEEP_FLAGS, PLAN)
    unnamed: list[str] = []
    for previous, argument, following in zip(["", *arguments], arguments, [*arguments[1:], ""], strict=False):
        flag = argument.partition("=")[0]
        if previous in FLAGS_WITH_VALUE or (previous in ("--info", "-i") and "=" not in argument):
            continue
        if argument.startswith("-"):
            abbreviated = len(flag) > 3 and any(name.startswith(flag) for name in known)
            if (flag not in known and not abbreviated) or argument.startswith("--run="):
                raise ValueError(f"{argument} is not a flag. A setting is written {as_setting(argument, following)}")
        elif "=" not in argument and not argument.startswith(("~", "+")):
            if previous in ("--run", "-r"):
                raise ValueError(f"{previous} is a Hydra flag. To name a run: {as_setting('--run', argument)}")
            unnamed.append(argument)
    if unnamed:
        raise ValueError(f"{' '.join(map(repr, unnamed))}: settings are name=value, {_meant(unnamed)}.")
    _refuse_two_outputs({argument.partition("=")[0] for argument in arguments})


def _meant(unnamed: Sequence[str]) -> str:
    """Return the end of an error message: settings with the words as values, or an example if that is impossible."""
    folder = config_folder()
    groups = {group: config_names(folder / group) for group in _GROUPS}
    settings = {next((group for group in _GROUPS if word in groups[group]), ""): word for word in unnamed}
    if "" in settings or len(settings) < len(unnamed):
        return "such as agent=ppo env=cartpole seed=3"
    return f"here {as_arguments(settings)}"


def _refuse_two_outputs(flags: set[str]) -> None:
    """Raise ``ValueError`` for ``--cfg`` together with ``--plan`` or ``-m``."""
    if not flags & set(_CFG):
        return
    if PLAN in flags:
        raise ValueError(f"--cfg job prints the settings of a run, and {PLAN} its memory and files: use one of them.")
    if flags & set(SWEEP_FLAGS):
        raise ValueError("--cfg job prints the settings of one run: remove -m, and set each setting to one value.")
