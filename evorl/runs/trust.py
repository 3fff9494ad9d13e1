"""What the config of a stored run may say: plain data, and code of this package only.

A run folder may come from a stranger. Whoever evaluates it or goes on with it does what its config says, so the config
is read as data (no tags, no aliases, no interpolation, which could look up the environment's secrets), and what it
would have imported or executed must be of this package, unless the user says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from evorl.runs.files import RunFolderError

MAX_DEPTH = 50
_PACKAGE = __name__.partition(".")[0]


def read_stored_config(path: Path) -> Any:
    """A stored config as an OmegaConf node.

    Raises:
        RunFolderError: it cannot be read, is no YAML, no mapping, or more than plain data; in words.
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
                    f"{path}, line {line}: tags (!), aliases (*) and settings {MAX_DEPTH} levels deep are not read: "
                    "write plain values."
                )
        config = OmegaConf.create(text)
    except RunFolderError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error
    except Exception as error:  # the YAML reader's errors share no base class with OmegaConf's
        raise RunFolderError(f"{path} is no valid YAML: {error}.") from error
    if not OmegaConf.is_dict(config):
        raise RunFolderError(f"{path} is no mapping from settings to values: it is not the config of a run.")
    for place, value in _leaves(OmegaConf.to_container(config)):
        if "${" in f"{place}{value}":
            raise RunFolderError(
                f"{path}: {place} is {value!r}. Nothing is looked up for a stored run: write the value itself."
            )
    return config


def foreign_names(config: Any) -> dict[str, str]:
    """What a config would have executed that this package does not hold, by the setting that names it.

    These are ``workflow`` and ``factory`` at any depth, and a folder of compiled programs.
    """
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    names = {}
    for place, value in _leaves(plain):
        key = place.rpartition(".")[2]
        is_name = key == "factory" or (key == "workflow" and not str(value).startswith(f"{_PACKAGE}."))
        if isinstance(value, str) and (is_name or place == "compilation_cache"):
            names[place] = value
    return names


def refuse_foreign_code(config: Any, folder: Path, overrides: Collection[str] = ()) -> None:
    """Refuse what a stored config would have executed, unless the user gave it.

    Args:
        config: of the run, with what the command line changed.
        folder: the run's, for the message.
        overrides: settings that the command line set, dotted.

    Raises:
        RunFolderError: the config names code from outside this package.
    """
    names = {
        place: name
        for place, name in foreign_names(config).items()
        if not any(f"{place}.".startswith(f"{key}.") for key in overrides)
    }
    if names:
        raise RunFolderError(
            f"The config in {folder} would have code executed that is not of {_PACKAGE}: {as_arguments(names)}. "
            f"If you trust it, give {as_arguments(names)} with the command, or trust=true for all that it names "
            "(in Python: load_config(trust=True))."
        )


def as_arguments(settings: Mapping[str, str]) -> str:
    """Settings as a command line gives them."""
    return " ".join(shlex.quote(f"{place}={value}") for place, value in settings.items())


def _leaves(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted places and values of nested mappings and lists."""
    if isinstance(node, Mapping | list | tuple):
        entries = node.items() if isinstance(node, Mapping) else enumerate(node)
        for key, value in entries:
            yield from _leaves(value, f"{place}.{key}" if place else str(key))
        if not node:
            yield place, None
    else:
        yield place, node
