"""Config tree of the command line: its folder, the names of its files, and the short names of environments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

# Parts of a config that are complete agents.
AGENT_PARTS = ("inner", "learner")


def config_folder() -> Path:
    """Return the config tree: inside an installed package, or at the root of the source tree."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_names(folder: Path) -> list[str]:
    """Return the names of the config files below the folder of a config group."""
    return [file.relative_to(folder).with_suffix("").as_posix() for file in sorted(folder.rglob("[!_]*.yaml"))]


@functools.cache
def long_names(folder: Path) -> Mapping[str, str]:
    """Return the long names of environments by their short names: ``{"hopper": "brax/hopper"}``."""
    files: dict[str, Any] = {path.stem: OmegaConf.load(path) for path in sorted(folder.glob("env/[!_]*.yaml"))}
    defaults = {name: list(file.get("defaults", [])) for name, file in files.items() if set(file) == {"defaults"}}
    return {name: found[0] for name, found in defaults.items() if len(found) == 1}


def as_filed(experiment: str, folder: Path) -> str:
    """Return the file name of an experiment: ``ppo/hopper`` for ``ppo/hopper`` and ``ppo/brax/hopper``."""
    files, names = folder / "experiment", long_names(folder).items()
    if (files / f"{experiment}.yaml").is_file():
        return experiment
    others = {f"/{name}": f"/{other}" for pair in names for name, other in (pair, pair[::-1])}
    called = [experiment.removesuffix(name) + other for name, other in others.items() if experiment.endswith(name)]
    return next((name for name in called if (files / f"{name}.yaml").is_file()), experiment)
