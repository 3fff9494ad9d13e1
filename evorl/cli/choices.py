"""Folder name, title and tuned settings of a run, derived from the config groups chosen on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from evorl.cli.config_tree import AGENT_PARTS, as_filed
from evorl.runs.recorder import algorithm_name, run_title
from evorl.runs.spec import RunSpec


def choices() -> Mapping[str, Any]:
    """Return the chosen option of each config group; empty if Hydra composed no config, as in a notebook."""
    return HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}


def folder_of_runs(runs_folder: str, chosen: Mapping[str, Any]) -> Path:
    """Return the folder for all runs of this agent in this environment: ``runs/ppo-cartpole``."""
    agent, env = (str(chosen.get(*choice)).replace("/", "-") for choice in (("agent", "run"), ("env", "env")))
    return Path(runs_folder) / f"{agent}-{env}"


def title_of(spec: RunSpec, chosen: Mapping[str, Any]) -> str:
    """Return the run's title, by default algorithm, environment and seeds: ``PPO on CartPole-v1, seed 0``.

    The algorithm has the name of its config file if that differs from its class: ``ddpg on Pendulum-v1, seed 0``.
    """
    if spec.title:
        return spec.title
    algorithm = algorithm_name(str(spec.workflow.get("workflow")))
    name = str(chosen.get("agent", algorithm)).rpartition("/")[2]
    if name.replace("_", "") != algorithm.lower():
        algorithm = name
    env = spec.workflow.get("env")
    if isinstance(env, Mapping):
        env = env.get("name") or env.get("factory")
    return run_title(algorithm, str(env), spec.seed, spec.num_seeds)


def origin_of_settings(chosen: Mapping[str, Any]) -> str | None:
    """Describe whether the settings are tuned for this agent and environment; ``None`` if no agent was chosen."""
    if "agent" not in chosen:
        return None
    folders = [Path(source.path) for source in HydraConfig.get().runtime.config_sources if source.schema == "file"]
    groups = [f"experiment@{part}" for part in AGENT_PARTS] + ["experiment"]
    names = {as_filed(str(chosen[group]), folder) for group in groups if chosen.get(group) for folder in folders}
    tuned = sorted(n for n in names if any((folder / "experiment" / f"{n}.yaml").is_file() for folder in folders))
    if tuned:
        return f"Tuned settings: {', '.join(tuned)}."
    return f"General defaults: there are no settings tuned for {chosen['agent']} in {chosen.get('env')}."
