"""Errors of the command line: one clear sentence, the nearest valid name, a non-zero exit."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TRACEBACK_VARIABLE = "EVORL_TRACEBACK"


@contextmanager
def errors_in_words(config_folder: Path) -> Iterator[None]:
    """Print an expected error as a sentence and exit with status 1.

    With the environment variable ``EVORL_TRACEBACK`` set the traceback is shown too.
    """
    try:
        yield
    except Exception as error:
        # First, since some of these are ValueErrors or OSErrors as well.
        if type(error).__module__.startswith(("hydra.", "omegaconf.", "antlr4.")):
            _exit(error, _config_error_in_words(error, config_folder))
        if not isinstance(error, (ValueError, ArithmeticError, OSError, ImportError)):
            raise
        _exit(error, str(error))


def _exit(error: Exception, text: str) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    print(f"Error: {text}", file=sys.stderr)
    sys.exit(1)


def _config_error_in_words(error: Exception, config_folder: Path) -> str:
    """Hydra's complaint as one sentence, with the nearest name that exists."""
    text = str(error)
    missing = re.search(r"Could not find '([^'/]+)/([^']+)'", text)
    if missing:
        group, name = missing.groups()
        folder = config_folder / group
        options = [str(file.relative_to(folder).with_suffix("")) for file in sorted(folder.rglob("*.yaml"))]
        return f"There is no {group} {name!r}.{nearest(name, options, folded=True)}"
    key = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if key:
        name = key.group(1)
        return f"There is no config key {name!r}.{nearest(name, known_keys(config_folder))}"
    return " ".join(text.split())


def known_keys(config_folder: Path) -> list[str]:
    """Every key of every config file, dotted."""
    from omegaconf import OmegaConf

    keys: set[str] = set()
    for file in config_folder.rglob("*.yaml"):
        config = OmegaConf.to_container(OmegaConf.load(file))
        if isinstance(config, dict):
            config.pop("defaults", None)
            config.pop("hydra", None)
            keys.update(dotted_keys(config))
    return sorted(keys)


def dotted_keys(config: Any, prefix: str = "") -> list[str]:
    """Every key of a nested mapping, with those above it before a dot."""
    keys = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def nearest(name: str, valid: Iterable[str], folded: bool = False) -> str:
    """`` Did you mean ...?`` for the nearest valid name, or the list of those beside it if none is near."""
    valid = list(valid)
    by_name = {option.lower(): option for option in valid} if folded else {option: option for option in valid}
    near = difflib.get_close_matches(name.lower() if folded else name, by_name, n=1)
    if not near:  # the last part alone may be misplaced: torso for agent.network.torso
        last = [option for option in valid if option.rpartition(".")[2] == name.rpartition(".")[2]]
        beside = [option for option in valid if option.rpartition(".")[0] == name.rpartition(".")[0]]
        return f" Did you mean {last[0]!r}?" if last else f" There are: {', '.join(beside or valid)}."
    return f" Did you mean {by_name[near[0]]!r}?"
