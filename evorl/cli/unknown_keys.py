"""Suggestions for unknown config keys: agents that have the key, evorl's name for it, or the closest valid key."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from evorl.assembly import complete_config, workflow_class
from evorl.cli.arguments import argument_values, own_folders
from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_names
from evorl.cli.settings import commented_settings, run_comments
from evorl.config.command_lines import shell_word
from evorl.config.names import no_such
from evorl.config.synonyms import names_for_synonym
from evorl.config.values import dotted_keys, plain
from evorl.config.yaml_text import inline_yaml

_MAX_AGENTS = 8
_GROUPS = {"agent", "env", "experiment", "inner", "learner", "evolution", "replay", "parameters"}


def describe_unknown_key(key: str, error: BaseException | None, folder: Path) -> str:
    """Return the error message for an unknown key, with suggestions.

    If the composition error ``error`` does not refer to the config, or is ``None``, the config is composed again.
    """
    if (argument := _mapping_with_own_name(key)) is not None:
        return f"settings of your own class are added with a plus: {shell_word(f'+{argument}')}"
    config = _composed(key, error)
    if (off := _setting_without_entries(key, config)) is not None:
        value = functools.reduce(lambda node, name: (node or {}).get(name), off.split("."), plain(_chosen(key)))
        return f"there is no setting {key}: {off} is {inline_yaml(value)}. {_example(off, key, folder)}"
    if (argument := _argument_of_factory(key, config.get("env"))) is not None:
        return argument
    keys = dotted_keys(config)
    if key.endswith(".name") and ":" in (name := argument_values(sys.argv[1:]).get(key, "")):
        return f"unknown config key {key!r}. A class of your own is added with a plus: +{key}={name}"
    is_near = names_for_synonym(key, keys) or any(known.endswith(f".{key}") for known in keys)
    agents = () if is_near else tuple(_agents_with(key, folder))
    if not agents:
        return no_such("config key", key, keys)
    named = ", ".join(agents[:_MAX_AGENTS]) + (" ..." if len(agents) > _MAX_AGENTS else "")
    yours = "evorl train agent=... --cfg job lists the settings of your agent."
    return f"unknown config key {key!r}. It is a setting of other agents ({named}). {yours}"


def _mapping_with_own_name(key: str) -> str | None:
    """Return the argument ``x={name: module:Class, ...}`` of the command line for the key ``x.name``, or ``None``."""
    above, _, name = key.rpartition(".")
    pattern = re.compile(rf"{re.escape(above)}=\{{.*\bname:\s*['\"]?[\w.]+:\w+", re.DOTALL)
    arguments = sys.argv[1:] if above and name == "name" else []
    return next((argument for argument in arguments if pattern.match(argument)), None)


def _argument_of_factory(key: str, env: Any) -> str | None:
    """Return the message for a key that may be an argument of ``env.factory``; ``None`` if it resembles an option."""
    name = key.removeprefix("env.")
    if name == key or "." in name or not isinstance(env, Mapping) or "factory" not in env:
        return None
    if difflib.get_close_matches(name, list(env), n=1, cutoff=0.75):
        return None
    return f"unknown config key {key!r}. An argument of env.factory is added with a plus: +{key}=..."


def _composed(key: str, error: BaseException | None) -> Mapping[str, Any]:
    """Return the config in which a key was not found; if composition failed earlier, compose it without the key."""
    while error is not None and getattr(error, "parent_node", None) is None:
        error = error.__cause__ or error.__context__
    root: Any = error.parent_node._get_root() if error else _chosen(key)  # pyright: ignore[reportAttributeAccessIssue]
    return {name: value for name, value in plain(root, resolve=False).items() if name != "hydra"}


def _chosen(key: str) -> Any:
    """Compose the config of this command line's config groups without the key; a sweep uses its first values."""
    settings = (argument.partition("=") for argument in sys.argv[1:])
    overrides = [f"{name}={value.split(',')[0]}" for name, _, value in settings if value and name in _GROUPS - {key}]
    folders = [f"file://{folder.absolute()}" for folder in own_folders(sys.argv[1:])]
    search = [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []
    try:
        return compose_config([*search, *overrides])
    except HydraException:  # another choice is invalid as well
        return compose_config()


def _setting_without_entries(key: str, node: Any) -> str | None:
    """Return the parent setting of the key if it is a single value or null, without entries; else ``None``.

    An empty mapping also counts: Hydra replaces a single value with an empty mapping while it resolves the key.
    """
    path: list[str] = []
    for name in key.split(".")[:-1]:
        if not isinstance(node, Mapping) or name not in node:
            return None
        path.append(name)
        node = node[name]
    return ".".join(path) if path and node in (None, {}) else None


def _example(off: str, key: str, folder: Path) -> str:
    """Return an example that sets ``off``, a setting without entries, to a mapping, and the description of ``off``."""
    name = key.removeprefix(f"{off}.")
    whole = f"Set {off} as a whole, as in {off}='{{{name}: ...}}'"
    options = folder / "env" / "_options.yaml"
    text = options.read_text(encoding="utf-8") if options.is_file() else ""
    comments = run_comments() | {path: comment for path, _, comment in commented_settings(text) if comment}
    return f"{whole}: {comments[off]}." if off in comments else f"{whole}."


def _agents_with(key: str, folder: Path) -> Iterable[str]:
    """Yield the agents that have a setting with this path."""
    for name in config_names(folder / "agent"):
        file = plain(OmegaConf.load(folder / "agent" / f"{name}.yaml"), resolve=False)
        if "workflow" in file:
            file.pop("defaults", None)
            if key in dotted_keys(complete_config(workflow_class(file["workflow"]), file)):
                yield name
