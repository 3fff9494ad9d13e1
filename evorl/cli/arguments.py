"""Normalizes command-line arguments for Hydra, and rejects overrides that Hydra would silently ignore."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from evorl.cli.config_tree import config_names
from evorl.cli.override_text import with_literal_text
from evorl.config.names import no_such
from evorl.ops.terminal_text import sentence

# Hydra flags that take a value.
_FLAGS_WITH_VALUE = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c")
_FLAGS_WITH_VALUE += ("--package", "-p", "--experimental-rerun")


def overrides_first(arguments: list[str]) -> list[str]:
    """Return the arguments in the order that Hydra expects: overrides, then flags with their values.

    ``experiment=null`` becomes ``~experiment``, since Hydra rejects null for an optional config group, and
    ``init_from=<run>`` is short for ``init_from.run=<run>``. Paths are quoted for Hydra, see ``with_literal_text``.
    """
    overrides, flags = [], []
    for previous, argument in zip(["", *arguments], with_literal_text(arguments), strict=False):
        is_value = previous in _FLAGS_WITH_VALUE  # a value may contain an equals sign, as a folder name can
        (overrides if _is_override(argument) and not is_value else flags).append(argument)
    return [*map(_spelled_out, overrides), *flags]


def _spelled_out(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if name == "init_from" and equals and not value.startswith("{"):
        return f"init_from.run={value}"
    return "~experiment" if argument == "experiment=null" else argument


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith(("~", "+")))


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
        key, _, value = override.partition("=")
        name = key.lstrip("~+")
        if key.startswith("~") and name.partition("@")[0] not in groups:
            raise ValueError(f"{override}: a setting cannot be removed. Give it a value, such as {name}=null.")
        if name == "experiment" and value not in ("", "null") and not key.startswith("~"):
            known = [option for folder in folders for option in config_names(folder / "experiment")]
            if value not in known:
                raise ValueError(sentence(no_such("experiment", value, known)))
