"""Config tree of the command line: its folder, the names of its files, and the short names of environments."""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from evorl.config.values import plain

# Sections of a config that each contain a complete algorithm with its agent.
AGENT_PARTS = ("inner", "learner")
RESULTS_FILE = "experiment/_results.json"  # recorded results of the tuned settings, written by benchmarks/learning


def config_folder() -> Path:
    """Return the folder of the config tree: inside an installed package, or at the root of the source tree."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def config_names(folder: Path) -> list[str]:
    """Return the names of the config files in the folder of a group, at any depth, unless they begin with ``_``."""
    return [file.relative_to(folder).with_suffix("").as_posix() for file in sorted(folder.rglob("[!_]*.yaml"))]


@functools.cache
def long_names(folder: Path) -> Mapping[str, str]:
    """Return the long names of environments by their short names, such as ``{"hopper": "brax/hopper"}``."""
    files: dict[str, Any] = {path.stem: OmegaConf.load(path) for path in sorted(folder.glob("env/[!_]*.yaml"))}
    defaults = {name: list(file.get("defaults", [])) for name, file in files.items() if set(file) == {"defaults"}}
    return {name: found[0] for name, found in defaults.items() if len(found) == 1}


def as_filed(experiment: str, folder: Path) -> str:
    """Return an experiment's file name: ``ppo/hopper`` also for ``ppo/brax/hopper``; unchanged if no file exists."""
    names = [experiment, *_other_names(experiment, folder)]
    return next((name for name in names if (folder / "experiment" / f"{name}.yaml").is_file()), experiment)


def settings_file(experiment: str, folder: Path, others: Sequence[Path] = ()) -> str:
    """Return the file of an agent's settings for an environment: its own, or that of the environment's family.

    ``experiment/_families.yaml`` lists the environments of each family: ``ppo/brax/ant``, which has no file, has the
    settings of its family's file ``ppo/_brax``. Without such a file, a family uses the settings of the environment with
    the family's name: ``ppo/gymnasium/Pendulum-v1``, of the family ``pendulum``, has the settings of ``ppo/pendulum``.

    Args:
        experiment: agent and environment, ``ppo/ant``.
        folder: config tree.
        others: additional config trees; their files for the environment itself precede files of families.

    Returns:
        The name of the file in the folder ``experiment``, without suffix; ``experiment`` itself if none exists.
    """
    files = [(as_filed(experiment, tree), tree) for tree in (folder, *others)]
    if any((tree / "experiment" / f"{name}.yaml").is_file() for name, tree in files):
        return files[0][0]
    names = [experiment, *_other_names(experiment, folder)]
    of_family = (file for file, pattern in family_files(folder) if fnmatch.filter(names, pattern))
    return next(of_family, experiment)


def refuse_hidden_files(folder: Path) -> None:
    """Raise ``ValueError`` if Hydra would use a shipped file, see ``as_filed``, instead of one in the user's folder."""
    shipped = config_folder()
    if (top := folder / "config.yaml").is_file() and not top.samefile(shipped / "config.yaml"):
        raise ValueError(
            f"{top} would be ignored, because evorl has its own config.yaml: put the settings into an experiment, such "
            "as experiment/my_settings.yaml, and choose experiment=my_settings."
        )
    for file in sorted(file for group in shipped.iterdir() for file in (folder / group.name).rglob("*.yaml")):
        group, _, name = file.relative_to(folder).with_suffix("").as_posix().partition("/")
        other = shipped / group / f"{as_filed(name, shipped) if group == 'experiment' else name}.yaml"
        if other.is_file() and file.name != "_families.yaml" and not other.samefile(file):
            choice = f"{group}={Path(name).with_name(f'my_{file.stem}').as_posix()}"
            raise ValueError(
                f"{file} would be ignored, because evorl has a file for the same {group}, {other}. Rename it, for "
                f"example to my_{file.name}, and choose {choice}."
            )


def recorded_result(experiment: str) -> str | None:
    """Return the recorded result of the shipped settings of an experiment: ``-167 ± 20 over 5 seeds after 100k steps``.

    ``None`` if the file of results does not list the experiment.
    """
    path = config_folder() / RESULTS_FILE
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return entries.get(experiment, {}).get("summary")


def is_own_file(file: str, experiment: str, folder: Path) -> bool:
    """Return True if the file has the settings of the experiment itself, not of other environments of its family."""
    return file in (experiment, as_filed(experiment, folder))


def _other_names(experiment: str, folder: Path) -> list[str]:
    """Return the other names of an experiment, with the long or the short name of its environment."""
    others = {f"/{name}": f"/{other}" for pair in long_names(folder).items() for name, other in (pair, pair[::-1])}
    return [experiment.removesuffix(name) + other for name, other in others.items() if experiment.endswith(name)]


@functools.cache
def family_files(folder: Path) -> Sequence[tuple[str, str]]:
    """Return pairs of a family's file, such as ``ppo/_brax``, and a pattern of its experiments, such as ``ppo/brax/*``.

    The pairs are in the order of ``experiment/_families.yaml``: the first match is the family of an environment.
    """
    listed = folder / "experiment" / "_families.yaml"
    families = plain(OmegaConf.load(listed)) if listed.is_file() else {}
    files = []
    for family, envs in families.items():
        paths = {path.parent: path for name in (family, f"_{family}") for path in listed.parent.rglob(f"{name}.yaml")}
        named = [path.relative_to(listed.parent).with_suffix("") for path in sorted(paths.values())]
        files += [(str(file), f"{file.parent}/{env}") for file in named if str(file.parent) != "." for env in envs]
    return files
