"""Folder, title and tuned settings of a run, from the config groups and Hydra settings of the command line.

Hydra's own settings ``hydra.run.dir`` and ``hydra.sweep.dir`` name the folder of a run or sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import OmegaConf

from evorl.cli.arguments import RUN, SWEEP, SWEEP_FLAGS, argument_text
from evorl.cli.config_tree import AGENT_PARTS, config_folder, is_own_file, recorded_result, settings_file
from evorl.config.command_lines import as_arguments, user_path
from evorl.envs.libraries import short_title
from evorl.runs.recorder import algorithm_name, run_title
from evorl.runs.spec import RunKind, RunSpec

SUBDIR, OUTPUT = "hydra.sweep.subdir", "hydra.output_subdir"
_OF_A_SWEEP = ("hydra/sweeper", "hydra/launcher", "hydra.sweeper", "hydra.launcher")
# Hydra settings that users mistake for the name of a run, with the options to use instead.
_INSTEAD = {"hydra.job.name": "title", "hydra.runtime.output_dir": RUN, "hydra.job.chdir": RUN}
_NAMED = {"title": "title", RUN: "folder"}
_UNTUNED = "General defaults"
_composed: ContextVar[Any] = ContextVar("composed", default=None)  # Hydra's settings in ``evorl.train``, per thread


@contextmanager
def composed_by(hydra: Any) -> Iterator[None]:
    """Context manager in which ``hydra_settings`` returns ``hydra`` in this thread."""
    token = _composed.set(hydra)
    try:
        yield
    finally:
        _composed.reset(token)


def hydra_settings() -> Any:
    """Return Hydra's settings of the composed config, ``hydra.*``; ``None`` if Hydra composed no config."""
    return _composed.get() or (HydraConfig.get() if HydraConfig.initialized() else None)


def folder_of_runs(runs_folder: str, chosen: Mapping[str, Any]) -> Path:
    """Return the parent folder of all runs of this agent in this environment, such as ``runs/ppo-cartpole``."""
    agent, env = (str(chosen.get(*choice)).replace("/", "-") for choice in (("agent", "run"), ("env", "env")))
    return Path(runs_folder) / f"{agent}-{env}"


def title_of(spec: RunSpec, chosen: Mapping[str, Any]) -> str:
    """Return the run's title, by default its algorithm, environment and seeds: ``PPO on CartPole-v1, seed 0``.

    If the agent's config file is named differently from its class, the title contains the file name: ``ddpg on ...``.
    """
    if spec.title:
        return spec.title
    algorithm = algorithm_name(str(spec.workflow.get("workflow")))
    name = str(chosen.get("agent", algorithm)).rpartition("/")[2]
    if name.replace("_", "") != algorithm.lower():
        algorithm = name
    env = spec.workflow.get("env")
    if isinstance(env, Mapping):
        names = [str(env[key]) for key in ("library", "name") if env.get(key)]
        env = short_title("/".join(names) or str(env.get("factory")))
    return run_title(algorithm, str(env), spec.seed, spec.num_seeds)


def origin_of_settings(chosen: Mapping[str, Any]) -> str | None:
    """Describe the origin of the settings: tuned for the environment, for its family, or general defaults.

    The recorded result of shipped settings is added, except for settings of a part of the agent, such as the members
    of a population. ``None`` if ``chosen``, the options of the config groups, contains no agent.
    """
    if "agent" not in chosen:
        return None
    folders = [Path(source.path) for source in hydra_settings().runtime.config_sources if source.schema == "file"]
    groups = [f"experiment@{part}" for part in AGENT_PARTS] + ["experiment"]
    pairs = [str(chosen[group]) for group in groups if chosen.get(group)]
    names = {settings_file(pair, folder, folders) for pair in pairs for folder in folders}
    home = {n: folder for n in names for folder in folders if (folder / "experiment" / f"{n}.yaml").is_file()}
    tuned = sorted(home)
    are_own = all(any(is_own_file(name, pair, folder) for pair in pairs for folder in folders) for name in tuned)
    if tuned and are_own:
        of_agent = settings_file(str(chosen.get("experiment")), config_folder(), folders)
        is_shipped = tuned == [of_agent] and home[of_agent] == config_folder()
        result = recorded_result(of_agent) if is_shipped else None
        return f"Tuned settings: {', '.join(tuned)}{f' ({result})' if result else ''}."
    origin = f"Settings of similar tasks, {', '.join(tuned)}" if tuned else _UNTUNED
    return f"{origin}: there are no settings tuned for {chosen['agent']} in {chosen.get('env')}."


def has_general_defaults(origin: str | None) -> bool:
    """Return True if ``origin_of_settings`` found no settings of the agent for the environment or similar ones."""
    return origin is not None and origin.startswith(_UNTUNED)


def refuse_other_names(arguments: Sequence[str], names_a_run: bool) -> None:
    """Reject Hydra settings without effect here, for example in a stored run, and one folder for all runs of a sweep.

    Raises:
        ValueError: a setting is rejected; the message suggests the option to use instead, or to remove the setting.
    """
    in_sweep = any(argument in SWEEP_FLAGS for argument in arguments)
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        key, value = key.lstrip("+~"), argument_text(argument)
        if not equals or not key.startswith("hydra"):
            continue
        if not in_sweep and key.startswith(_OF_A_SWEEP):
            raise ValueError(f"{key}={value} applies only to sweeps: add -m, or remove it.")
        if key == OUTPUT and value.lower() != "null":
            raise ValueError(f"{key}={value} has no effect here: a run's files are in its folder. Remove it.")
        if key == SUBDIR and in_sweep and "${" not in value:
            raise ValueError(
                f"{key}={value} would be the folder of every run of the sweep: give each run a folder, "
                f"{key}='{value}-${{hydra.job.num}}'."
            )
        if names_a_run and key in (RUN, SWEEP, SUBDIR):
            raise ValueError(f"{key}={value} has no effect, because a stored run stays in its folder: remove {key}.")
        if key in _INSTEAD and value.lower() != "false":
            other = _INSTEAD[key]
            shown = as_arguments({other: "NAME" if other == "title" else "FOLDER"})
            raise ValueError(f"{key}={value} has no effect here: {shown} names the run's {_NAMED[other]}.")
        if key == RUN and in_sweep:
            raise ValueError(
                f"{key}={value} applies only to single runs: use {as_arguments({SWEEP: value})} for a sweep."
            )
        if key in (SWEEP, SUBDIR) and not in_sweep:
            run = value if key == SWEEP else "FOLDER"
            raise ValueError(
                f"{key}={value} applies only to sweeps (-m): use {as_arguments({RUN: run})} for a single run."
            )


def place_of_run(spec: RunSpec) -> tuple[Path, str | None]:
    """Return the parent folder of a new run, and the run's name; ``None`` to name the run by the current time.

    ``hydra.run.dir`` is the folder of the run itself. In a sweep by a Hydra sweeper, ``hydra.sweep.dir`` with
    ``hydra.sweep.subdir`` is the folder of the run, and ``hydra.sweep.dir`` alone replaces ``runs_folder``.
    The name of the parent folder of a sweep or search ends with its kind, as in ``ppo-cartpole-sweep``.
    """
    runs_folder = spec.stored.runs_folder
    if hydra := hydra_settings():
        if hydra.mode is RunMode.MULTIRUN:
            if hydra.sweep.subdir != ".":
                folder = Path(hydra.sweep.dir) / hydra.sweep.subdir
                return folder.parent, folder.name
            runs_folder = hydra.sweep.dir
        elif hydra.run.dir != ".":
            folder = user_path(hydra.run.dir).resolve()
            return folder.parent, folder.name
    runs = folder_of_runs(runs_folder, hydra.runtime.choices if hydra else {})
    is_whole = spec.kind in (RunKind.SWEEP, RunKind.SEARCH)
    return (runs.with_name(f"{runs.name}-{spec.kind.value}") if is_whole else runs), None


def named_folder(overrides: Sequence[str], key: str) -> tuple[Path | None, list[str]]:
    """Split overrides into the folder that ``key``, ``RUN`` or ``SWEEP``, names (or ``None``), and the rest.

    Interpolations such as ``${now:%Y-%m-%d}`` are resolved.
    """
    folders = [argument_text(override) for override in overrides if override.startswith(f"{key}=")]
    others = [override for override in overrides if not override.startswith(f"{key}=")]
    if not folders:
        return None, others
    setup_globals()
    folder = folders[-1]
    resolved = OmegaConf.create({key: folder})[key] if not Path(folder).exists() else folder
    return user_path(str(resolved)).resolve(), others
