"""Simulators that ``evorl new`` offers, with their default agents and training settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A simulator for apps.

    Attributes:
        description: noun phrase for help texts and messages, such as "a ViZDoom scenario".
        script: file name without ``.py``; the ``.yaml`` file of the same name is the section ``environment``.
        agent: default agent.
        max_episodes: default number of episodes.
        further_files: names, without ``.py``, of other files that the script imports.
        continuous: YAML values, by key, that replace entries of the section for agents that support only Box actions.
        packages: packages that the script imports and evorl does not require.
    """

    description: str
    script: str
    agent: str
    max_episodes: int
    further_files: tuple[str, ...] = ()
    continuous: Mapping[str, str] = {"action_space": "{shape: [1], low: -1, high: 1}"}
    packages: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "bandit": Kind("a four-armed bandit", "bandit_app", "reinforce", 100),
    "gymnasium": Kind(
        "any Gymnasium environment",
        "gymnasium_app",
        "ppo",
        1000,
        ("app_frames",),
        {
            "name": "Pendulum-v1",
            "obs_space": "{shape: [3], dtype: float32}",
            "action_space": "{shape: [1], low: -2, high: 2}",
        },
    ),
    # IMPALA corrects for policy lag by importance sampling, so slow inference on images does no harm.
    "vizdoom": Kind("a ViZDoom scenario", "vizdoom_app", "impala", 2000, ("app_frames",), packages=("vizdoom",)),
    "deepmind-lab": Kind("a DeepMind Lab level", "lab_app", "impala", 2000, ("app_frames",)),
    "empty": Kind("your own simulator", "empty_app", "ppo", 1000),
}
IMAGE_KINDS = ("vizdoom", "deepmind-lab")

# Rollouts short enough for many updates during a bandit's hundred episodes of 64 pulls.
_SMALL_BATCHES: dict[str, dict[str, Any]] = {
    "reinforce": {"num_envs": 1, "rollout_length": 64},
    "ppo": {"num_envs": 1, "rollout_length": 64},
    "trpo": {"num_envs": 1, "rollout_length": 128},
    "pqn": {"num_envs": 4, "rollout_length": 16},
}
# With these learning rates REINFORCE converged to the best arm in all of 4,096 seeds; with rates ten times higher, one
# seed in eight ended with a wrong arm.
_FAST = {"reinforce": 0.005, "ppo": 0.01, "a2c": 0.005, "impala": 0.003, "dqn": 0.005, "pqn": 0.01}


def default_training(name: str, kind: str | None, is_off_policy: bool, own_critic_layers: bool) -> dict[str, Any]:
    """Return the section ``training`` of a new ``app.yaml``; empty if the agent's defaults suit this kind.

    Args:
        name: the agent's name, without its folder.
        kind: one of ``KINDS``; ``None`` for another simulator.
        is_off_policy: True if the agent learns from a replay buffer.
        own_critic_layers: True if the agent's critics have other hidden layers than its policy.
    """
    if kind == "bandit":
        training: dict[str, Any] = {"total_timesteps": 100_000, "discount": 0.0, **_SMALL_BATCHES.get(name, {})}
        if is_off_policy:
            training |= {"learning_starts": 256, "batch_size": 64, "replay_capacity": 5_000}
        if not is_off_policy:  # with several simulators, steps arrive during updates
            training["serve"] = {"max_policy_lag": 4}
        if name in _FAST:
            training["optimizer"] = {"learning_rate": _FAST[name]}
        return training
    if kind in IMAGE_KINDS:
        training = {"total_timesteps": 1_000_000, "env": {"history": 4}}
        if is_off_policy:
            training |= {"replay_capacity": 20_000}  # 1.1 GB of images
        critics = {"critic_network": {"torso": None}} if own_critic_layers else {}  # the layers of the policy
        return training | {"agent": {"network": {"torso": "nature", "activation": "relu"}} | critics}
    return {}
