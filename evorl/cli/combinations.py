"""Combinations of the values of a sweep (``-m``): the overrides of each run."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from evorl.cli.arguments import FOLDER_FLAGS, SWEEP_FLAGS, is_of_launcher
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import describe_config_error, is_of_config
from evorl.config.command_lines import describe_setting
from evorl.envs.libraries import HOST_LIBRARIES
from evorl.execution.multiprocess import train_command
from evorl.sweeps.sweep_settings import is_shared

# Overrides that ``sweep=`` rejects, and agents whose settings it trains one after another.
_NOT_IN_SWEEP = re.compile(
    r"\+*(init_from|actors|stop|render_interval|recorders\.(wandb|mlflow|own))\b|agent=(ec|qd|erl)/"
)


def split_launcher(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the settings of a Hydra launcher, and all others.

    If the last launcher setting is ``hydra/launcher=basic``, they are all dropped, and evorl trains the runs.
    """
    of_launcher = [argument for argument in arguments if is_of_launcher(argument)]
    others = [argument for argument in arguments if not is_of_launcher(argument)]
    return [] if of_launcher[-1:] == ["hydra/launcher=basic"] else of_launcher, others


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into overrides, and flags with their folders; the sweep flag (``-m``) is dropped."""
    overrides, flags = [], []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in FOLDER_FLAGS:
            flags += [argument, next(remaining, "")]
        elif argument.startswith("-"):
            flags += [] if argument in SWEEP_FLAGS else [argument]
        else:
            overrides.append(argument)
    return overrides, flags


def combinations(overrides: Sequence[str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the overrides of each run, and its varied settings with their values; the last setting varies fastest.

    Raises:
        ValueError: an override is an interval, which cannot be enumerated.
    """
    choices: dict[str, list[str]] = {}
    varied = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [override.input_line or ""]
        elif not override.is_discrete_sweep():
            raise ValueError(
                f"{override.input_line}: an interval cannot be enumerated. List its values, {key}=1,2,3, or choose "
                "a Hydra sweeper that samples from intervals (hydra/sweeper=optuna, if it is installed)."
            )
        else:
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            varied.append(key)
    for chosen in itertools.product(*choices.values()):
        by_key = dict(zip(choices, chosen, strict=True))
        yield list(chosen), {key.lstrip("+"): _shown(by_key[key].partition("=")[2]) for key in varied}


def _shown(value: str) -> str:
    """Return a value of Hydra's grammar for display, without the backslashes that escape characters."""
    return value if value[:1] in ("'", '"') else re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", value)


def describe_parallel_runs(runs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> str | None:
    """Return a hint with a command that trains all ``runs`` in one program; ``None`` for one run, or if impossible."""
    overrides, varied = runs[0]
    texts = {name: list(dict.fromkeys(chosen[name] for _, chosen in runs)) for name in varied}
    values = {name: list(OmegaConf.create(f"[{', '.join(of_one)}]")) for name, of_one in texts.items()}
    flat = [value for of_one in values.values() for value in of_one]
    if len(runs) == 1 or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in flat):
        return None
    seeds = values.pop("seed", [])
    is_range = not seeds or seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    if not is_range or _steps_outside_jax(overrides) or any(map(is_shared, values)):
        return None
    if any(re.match(r"\+*(num_seeds|sweep|search)\b", text) for text in overrides):
        return None  # each run already trains several seeds or settings
    if values and any(_NOT_IN_SWEEP.match(text) for text in overrides):
        return None
    arguments = [text for text in overrides if text.partition("=")[0].lstrip("+") not in varied]
    arguments += [f"seed={seeds[0]}"] if seeds and seeds[0] else []
    arguments += [f"num_seeds={len(seeds)}"] if len(seeds) > 1 else []
    settings = [f"{name}: [{', '.join(texts[name])}]" for name in values]
    arguments += [f"sweep={{{', '.join(settings)}}}"] if settings else []
    return (
        "These runs differ only in seeds and numbers. This command trains all runs of the same structure in parallel "
        f"in one program, in a fraction of the time: {train_command()} {shlex.join(arguments)}"
    )


def _steps_outside_jax(overrides: Sequence[str]) -> bool:
    """Return True if the environment of a command line runs, or may run, outside JAX."""
    libraries = {"env": (*HOST_LIBRARIES, "atari", "user"), "env.library": HOST_LIBRARIES}
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return any(key == "env.factory" or value.partition("/")[0] in libraries.get(key, ()) for key, _, value in pairs)


@contextmanager
def naming_setting(setting: Mapping[str, str]) -> Iterator[None]:
    """Context manager that raises Hydra's errors, ``ValueError`` and ``OSError`` as ``ValueError`` with ``setting``."""
    try:
        yield
    except Exception as error:
        if not (of_config := is_of_config(error)) and not isinstance(error, ValueError | OSError):
            raise
        text = describe_config_error(error, config_folder()) if of_config else str(error)
        raise ValueError(": ".join(filter(None, (describe_setting(setting), text)))) from error
