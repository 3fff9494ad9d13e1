"""Small sizes of the measured programs, for a dry run on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SMALL: Mapping[str, int] = {
    "num_envs": 8,
    "rollout_length": 4,
    "num_epochs": 1,
    "num_minibatches": 2,
    "num_seeds": 2,
    "updates_per_iteration": 2,
    "batch_size": 16,
    "learning_starts": 16,
    "replay_capacity": 256,
    "pop_size": 4,
    "generation_interval": 32,
    "settings": 2,
    # rejax
    "num_steps": 4,
    "buffer_size": 256,
    # brax
    "unroll_length": 4,
    "num_updates_per_batch": 1,
    # evosax
    "episode_length": 10,
}
_LISTS: Mapping[str, list[int]] = {"torso": [8], "hidden_layer_sizes": [8], "hidden_sizes": [8], "bins": [4, 4]}


def shrunk(program: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a side with small sizes; ``program`` as in ``benchmarks.gpu.measured``.

    The physics of brax is replaced by a pendulum, which compiles in seconds.
    """
    small = _shrunk(settings)
    if program == "brax":
        small |= {"env": "inverted_pendulum", "batch_size": 4}  # batch_size * num_minibatches = num_envs
    if program == "rejax" and settings["algorithm"] == "sac":
        small["config"] |= {"num_epochs": 2}
    env = small.get("env")
    if isinstance(env, dict) and env["library"] == "brax":
        small["env"] = {**env, "name": "inverted_pendulum"}
    if small.get("library") == "brax":
        small["env"] = "inverted_pendulum"
    return small


def shrunk_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides of a training run that ends after a few iterations."""
    chosen = [line for line in overrides if not line.startswith(("total_timesteps=", "eval_interval="))]
    return [*chosen, "total_timesteps=1024", "eval_interval=512", "eval_episodes=2"]


def _shrunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    small = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            small[name] = _shrunk(value)
        else:
            small[name] = _SMALL.get(name, _LISTS.get(name, value))
    return small
