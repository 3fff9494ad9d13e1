"""Reads configs that may come from an untrusted source as plain data, and rejects names of code outside evorl.

Evaluating or resuming a stored run builds the objects in its config. Therefore the config is read without tags, aliases
and interpolations, which could read secrets from the environment. Names are checked twice: here, before anything is
built, and by the gate where they would be imported (``evorl.config.gate``). Stored command lines may only
contain plain ``key=value``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from evorl.config.command_lines import as_arguments, is_address
from evorl.config.gate import is_granted, is_of, leaves, names_code, names_file
from evorl.config.names import SHIPPED_WORKFLOWS
from evorl.config.values import plain
from evorl.config.yaml_text import MAX_DEPTH, read_yaml
from evorl.runs.files import RunFolderError
from evorl.runs.spec import RunSpec

_TRUST = "If you trust it, set trust=true."
_SHOWN = 80  # maximum number of characters of an argument in a message
# Keys of the section ``env`` that name the environment; their values are not files.
_NAMES_OF_ENVS = frozenset(("name", "library"))
# A plain setting of a stored command line: no group of another package, no flag, nothing added or removed.
_PLAIN_OVERRIDE = re.compile(r"(?!hydra\b)[A-Za-z_]\w*(\.\w+)*=.*", re.DOTALL)
# The setting that may name a data set, ``minari:<id>``. It names no code: only numbers are read from the data set.
_DATA_SET = re.compile(r"(?:.*\.)?replay\.load")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENTRY = re.compile(r"\.\d+(?:\.|$)")  # index of a list entry, in a path
_UPWARDS = re.compile(r"\.\.[/\\]|[/\\]\.\.")  # in a path that leaves the config tree


def read_stored_config(path: Path) -> Any:
    """Return a stored config as an OmegaConf node.

    Raises:
        RunFolderError: the file cannot be read, is not YAML, is not a mapping, or contains more than plain data.
    """
    import yaml
    from omegaconf import OmegaConf

    try:
        text = path.read_text(encoding="utf-8")
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            is_plain = not isinstance(event, yaml.AliasEvent) and getattr(event, "tag", None) is None
            if not is_plain or depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else "?"
                raise RunFolderError(
                    f"{path}, line {line}: tags (!), aliases (*) and nesting beyond {MAX_DEPTH} levels are not "
                    "allowed: write plain values."
                )
        config = OmegaConf.create(text)
    except RunFolderError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error
    except Exception as error:  # the YAML reader's errors share no base class with OmegaConf's
        raise RunFolderError(f"{path} is not valid YAML: {' '.join(str(error).split()).rstrip('.')}.") from error
    if not OmegaConf.is_dict(config):
        raise RunFolderError(f"{path} is not a mapping from settings to values, so it is not a run config.")
    for setting, value in leaves(plain(config, resolve=False)):
        if "${" in f"{setting}{value}":
            raise RunFolderError(
                f"{path}: {setting} is {value!r}, but a stored config must not contain interpolations: write the value "
                "itself."
            )
        if _SURROGATE.search(f"{setting}{value}"):
            raise RunFolderError(
                f"{path}: {setting} is {value!r}, which contains an invalid character (a surrogate): replace it."
            )
    return config


def foreign_names(config: Any) -> dict[str, str]:
    """Return the values in a config that would use code, files or servers outside evorl, by dotted path.

    These are names of the form ``module:name`` and values of ``factory`` at any depth, files that an environment would
    read, workflows outside evorl's algorithms, a folder of compiled programs, and the address of an MLflow server. The
    modules that load code reject the same values, and others that only they can detect.
    """
    texts = ((path, value) for path, value in leaves(plain(config, resolve=False)) if isinstance(value, str))
    return {path: value for path, value in texts if _is_foreign(path, value)}


def confirmation(names: dict[str, str]) -> dict[str, str]:
    """Return command-line settings that allow ``foreign_names``: these names, or ``trust=true`` if one is in a list."""
    return names if all(path == settable(path) for path in names) else {"trust": "true"}


def settable(path: str) -> str:
    """Return the name by which a command line sets the value at ``path``; for an entry of a list, the list's name."""
    return _ENTRY.split(path, maxsplit=1)[0]


def _is_foreign(path: str, value: str) -> bool:
    *above, key = path.split(".")
    if path in ("compilation_cache", "recorders.mlflow.uri"):  # holds programs, receives the metrics
        return True
    if (above or [key])[0] in RunSpec.keys("names_no_code") and not path.startswith("recorders.own."):
        return False
    if key == "workflow":
        return not is_of(value, SHIPPED_WORKFLOWS)
    if value.startswith("minari:") and _DATA_SET.fullmatch(path):
        return False
    is_file_of_env = "env" in above and key not in _NAMES_OF_ENVS and names_file(value)
    return names_code(value) or is_file_of_env or key == "factory"


def refuse_foreign_code(
    config: Any, folder: Path | str, overrides: Collection[str] = (), can_be_overridden: bool = True
) -> None:
    """Reject a stored config that would execute code outside evorl, except code that the user named.

    Args:
        config: config of the run, with the changes of the command line.
        folder: the run folder, for messages.
        overrides: dotted names of the settings that the command line changed.
        can_be_overridden: for the message: True if the user can pass settings of the run to the command.

    Raises:
        RunFolderError: the config names code outside evorl, other than in ``overrides`` or passed to ``gate.grant``.
    """
    names = {
        path: name
        for path, name in foreign_names(config).items()
        if not is_granted(name) and not any(f"{path}.".startswith(f"{key}.") for key in overrides)
    }
    if names:
        allowed = {settable(path): name if settable(path) == path else "[...]" for path, name in names.items()}
        advice = f"add {as_arguments(allowed)} to the command, or trust=true to allow all of it"
        raise RunFolderError(
            f"The config in {folder} would execute code, or use files or servers, outside evorl: {as_arguments(names)}."
            f" If you trust it, {advice if can_be_overridden else 'set trust=true'} (Python: load_config(trust=True))."
        )


def refuse_composed_code(arguments: Iterable[Any], source: str, advice: str = _TRUST) -> None:
    """Reject arguments of a stored command line that are more than ``key=value``, because Hydra composes them.

    Such arguments can make Hydra execute callbacks and other targets, read files, and look up environment variables.

    Args:
        arguments: arguments of the command line.
        source: the file that stores them, for messages.
        advice: sentence that ends the message and suggests a fix.

    Raises:
        RunFolderError: an argument is not plain, contains a value that Hydra reads as ``${...}``, or leads out of the
            folder of configs.
    """
    for argument in arguments:
        if not isinstance(argument, str) or not is_plain_override(argument):
            raise RunFolderError(
                f"{source} contains {str(argument)[:_SHOWN]!r}, but only settings such as seed=1 are allowed there: "
                f"no flags, no settings of hydra, no + or ~, no ${{...}}, no .. in paths. {advice}"
            )


def is_plain_override(word: str) -> bool:
    """Return True for a plain setting ``key=value``, which ``refuse_composed_code`` accepts."""
    unescaped = word.replace("\\", "")  # Hydra reads $\{x\} as ${x}, which OmegaConf looks up
    leads_out = _UPWARDS.search(word) or _UPWARDS.search(unescaped)
    return _PLAIN_OVERRIDE.fullmatch(word) is not None and "${" not in unescaped and not leads_out


def needs_trust(word: str) -> bool:
    """Return True if a stored command line with this argument is accepted only with ``trust=true``.

    The argument is not plain, names code, files or servers outside evorl, or downloads the initial parameters.
    """
    key, _, text = word.partition("=")
    try:
        config = {key: read_yaml(text, word)}
    except ValueError:
        return True
    downloads = is_address(str(dict(leaves(config)).get("init_from.run")))
    return downloads or not is_plain_override(word) or bool(foreign_names(config))
