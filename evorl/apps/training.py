"""Training settings of an app as arguments of ``evorl serve``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from evorl.apps.app_config import APP_FILE, AppConfig
from evorl.config.command_lines import as_arguments, as_override
from evorl.runs.trust import foreign_names, refuse_composed_code, settable

# Keys that an override sets to a name, as in ``optimizer=sgd``: each entry of their mapping is a separate override.
_CHOSEN = re.compile(r"agent|env|replay|evolution|inner|learner|(?:\w+\.)*(?:\w*optimizer|archive)")
# Mappings with unchecked keys: keyword arguments of a library.
_FREE = re.compile(r"(?:\w+\.)*\w*optimizer\.options")

_USE_COMMAND_LINE = "Pass the setting on the command line, as in evorl run all key=value."


def training_words(app: AppConfig) -> list[str]:
    """Return the arguments of ``evorl serve`` for the training of an app, without addresses.

    Raises:
        RunFolderError: a setting is not a plain ``key=value``, see ``refuse_composed_code``.
    """
    spaces = [
        f"env.{name}={as_override(app.environment.get(name))}"
        for name in ("obs_space", "action_space")
        if app.environment.get(name) is not None
    ]
    overrides = [f"agent={app.agent}", "env=remote", *spaces, *as_overrides(app.training)]
    refuse_composed_code(map(_without_sign, overrides), APP_FILE, _USE_COMMAND_LINE)
    return overrides


def refuse_named_code(app: AppConfig, extra: Collection[str]) -> None:
    """Reject training settings that name code outside evorl, unless the app has an ``algorithm`` folder.

    Args:
        app: the app, possibly from an untrusted source.
        extra: arguments of the user's command; settings that the user gives there are accepted.

    Raises:
        ValueError: a setting names code from outside evorl.
    """
    names = foreign_names(app.training) if app.algorithm is None else {}
    set_by_user = {word.partition("=")[0].lstrip("+") for word in extra}
    if names := {path: name for path, name in names.items() if settable(path) not in set_by_user}:
        raise ValueError(
            f"training in {APP_FILE} would run code outside evorl: {as_arguments(names)}. If you "
            f"trust it, {_USE_COMMAND_LINE[0].lower()}{_USE_COMMAND_LINE[1:]}"
        )


def _without_sign(word: str) -> str:
    """Return an override without the ``++`` that ``as_overrides`` adds before keyword arguments of a library."""
    plain = word.removeprefix("++")
    return plain if _FREE.match(plain) else word


def own_configs(app: AppConfig) -> list[str]:
    """Return the option ``--config-dir`` for the folder of the app's own algorithms; an empty list without one."""
    return [] if app.algorithm is None else ["--config-dir", str((app.folder / app.algorithm).resolve())]


def as_overrides(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield settings as overrides ``key=value`` for Hydra; ``above`` is the prefix of the keys.

    A mapping becomes a single override, which changes only the entries that it names. For a key that accepts a name, as
    in ``optimizer=sgd``, and for options of an optimizer, each entry becomes a separate override.
    """
    for name, value in settings.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping) and _CHOSEN.fullmatch(path):
            yield from as_overrides(value, f"{path}.")
        elif isinstance(value, Mapping) and _FREE.fullmatch(path):
            yield from (f"++{path}.{key}={as_override(each)}" for key, each in value.items())
        else:
            yield f"{path}={as_override(value)}"
