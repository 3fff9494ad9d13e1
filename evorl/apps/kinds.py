"""The simulators that an app can be made with, what learns in each unless another is named, and by which settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A simulator that apps are made with.

    Attributes:
        does: what it is, for a person.
        script: its file, without ``.py``; a file of that name with ``.yaml`` is the section ``environment``.
        agent: that learns in it unless another is named.
        max_episodes: that are played.
        also: files that the script needs beside it.
        continuous: values of the section for agents that only act in boxes.
        packages: imported by its script, and not required by evorl.
    """

    does: str
    script: str
    agent: str
    max_episodes: int
    also: tuple[str, ...] = ()
    continuous: Mapping[str, str] = {"action_space": "{shape: [1], low: -1, high: 1}"}
    packages: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "bandit": Kind("four arms, one of which pays best", "bandit_app", "reinforce", 100),
    "gymnasium": Kind(
        "any environment of Gymnasium",
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
    # IMPALA weighs what older weights did, so pictures that take long to answer do no harm.
    "vizdoom": Kind("a scenario of ViZDoom", "vizdoom_app", "impala", 2000, ("app_frames",), packages=("vizdoom",)),
    "deepmind-lab": Kind("a level of DeepMind Lab", "lab_app", "impala", 2000, ("app_frames",)),
    "empty": Kind("a simulator of yours", "empty_app", "ppo", 1000),
}
OF_PICTURES = ("vizdoom", "deepmind-lab")

# Batches small enough for a bandit's hundred episodes of 64 pulls.
_SMALL_BATCHES: dict[str, dict[str, Any]] = {
    "reinforce": {"num_envs": 1, "rollout_length": 64},
    "ppo": {"num_envs": 1, "rollout_length": 64},
    "trpo": {"num_envs": 1, "rollout_length": 128},
    "pqn": {"num_envs": 4, "rollout_length": 16},
}
# Of 4,096 seeds none ends with a wrong arm by REINFORCE; at ten times its rate one of eight does.
_FAST = {"reinforce": 0.005, "ppo": 0.01, "a2c": 0.005, "impala": 0.003, "dqn": 0.005, "pqn": 0.01}


def usual_training(agent: str, kind: str, is_off_policy: bool) -> dict[str, Any]:
    """Settings of a training that differ from the agent's own for a kind of simulator, as ``app.yaml`` has them.

    Args:
        agent: as ``evorl train agent=`` has it.
        kind: one of ``KINDS``.
        is_off_policy: whether it learns from a replay buffer.
    """
    name = agent.rpartition("/")[2]
    if kind == "bandit":
        training: dict[str, Any] = {"total_timesteps": 100_000, "discount": 0.0, **_SMALL_BATCHES.get(name, {})}
        if is_off_policy:
            training |= {"learning_starts": 256, "batch_size": 64, "replay_capacity": 5_000}
        if not is_off_policy:  # of several bandits some rows come while others are learned from
            training["serve"] = {"max_policy_lag": 4}
        if name in _FAST:
            training["optimizer"] = {"learning_rate": _FAST[name]}
        return training
    if kind in OF_PICTURES:
        training = {"total_timesteps": 1_000_000, "env": {"history": 4}}
        if is_off_policy:
            training |= {"replay_capacity": 20_000}  # of pictures: 1.1 GB
        return training | {"agent": {"network": {"torso": "nature", "activation": "relu"}}}
    return {}
