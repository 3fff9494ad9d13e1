"""Plays the policy of a run in a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from evorl.assembly import TRAINING_OPTIONS
from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.options import split_options
from evorl.envs.space import Box, Discrete, Space, leaf_spaces
from evorl.export.stored_policy import LoadedPolicy, StoredPolicy

LIBRARY = "gymnasium"
# Gymnasium environments that gymnax reimplements.
_OF_GYMNAX = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def environment_of(stored: StoredPolicy, asked: str | None) -> tuple[str, dict[str, Any]]:
    """Return the id of the Gymnasium environment to play in, and its options.

    If ``asked`` is an id, with or without ``gymnasium/``, the options are empty. If ``asked`` is ``None``, both
    are as in the run's evaluations; a gymnax environment has the id of its Gymnasium original, and only a time limit.

    Raises:
        ValueError: the run's environment is not available in Gymnasium, and ``asked`` is ``None``.
    """
    library, _, name = stored.title.partition("/")
    shared, options = split_options(stored.env_config)
    if asked is not None:
        library, _, name = asked.partition("/") if asked.startswith(f"{LIBRARY}/") else (LIBRARY, "/", asked)
        shared = options = {}
    elif library != LIBRARY:
        options = {}
    options = {**options, "max_episode_steps": shared.get("max_episode_steps")}
    left_out = {"library", "name", "host", "vectorization", *TRAINING_OPTIONS}
    options = {key: value for key, value in options.items() if key not in left_out and value is not None}
    if library == LIBRARY or (library == "gymnax" and name in _OF_GYMNAX):
        return name, options
    raise ValueError(
        f"{stored.title} is not a Gymnasium environment: set env to one with the same observations and actions, as in "
        "env=gymnasium/CartPole-v1. To draw episodes in the environment of the run, use evorl render run=..."
    )


def simulators_of(name: str, options: dict[str, Any], render_mode: str) -> HostVectorEnv:
    """Create a single Gymnasium simulator; ``name`` and ``options`` are results of ``environment_of``."""
    return make_gymnasium_simulators(name, num_envs=1, **{**options, "render_mode": render_mode})


def check_fits(stored: StoredPolicy, simulators: HostVectorEnv, name: str) -> None:
    """Raise ``ValueError`` if spaces of the policy and of ``simulators`` differ: in shape, choices or action bounds."""
    ours, theirs = stored.policy, simulators
    for kind, expected, other in (
        ("observations", ours.obs_space, theirs.obs_space),
        ("actions", ours.action_space, theirs.action_space),
    ):
        shapes = [jax.tree.map(lambda spec: spec.shape, space.spec) for space in (expected, other)]
        are_choices = any(isinstance(space, Discrete | MultiDiscrete) for space in (expected, other))
        is_other = shapes[0] != shapes[1] or (are_choices and expected != other)
        if is_other or (kind == "actions" and not all(map(np.allclose, _bounds(expected), _bounds(other)))):
            raise ValueError(
                f"the policy of {stored.title} does not fit {name}: its {kind} are {expected}, but {name} has {other}. "
                "Choose another env."
            )


def _bounds(space: Space) -> list[np.ndarray]:
    return [np.stack([box.low, box.high]) for box in leaf_spaces(space) if isinstance(box, Box)]


def play_episode(
    policy: LoadedPolicy, simulators: HostVectorEnv, seed: int, max_steps: int, frames: list[np.ndarray] | None = None
) -> tuple[int, float]:
    """Play one episode in a single simulator; return its length in environment steps, and its return.

    Args:
        policy: the policy.
        simulators: a single simulator.
        seed: seed of the episode.
        max_steps: number of environment steps after which the episode is stopped.
        frames: receives images, uint8 ``[height, width, 3]``, of the start and of each step; ``None`` renders nothing.

    Raises:
        HostEnvError: the environment fails, or renders no images although ``frames`` is a list.
    """
    policy.reset()
    obs = simulators.reset(np.asarray([seed], np.uint64))
    length, total = 0, 0.0
    _keep(simulators, frames)
    ended = False
    while not ended and length < max_steps:
        action = policy(obs)
        for _ in range(policy.action_repeat):
            obs, reward, termination, truncation, _ = simulators.step(action)
            length, total = length + 1, total + float(reward[0])
            _keep(simulators, frames)
            ended = bool(termination[0] or truncation[0])
            if ended or length >= max_steps:
                break
    return length, total


def _keep(simulators: HostVectorEnv, frames: list[np.ndarray] | None) -> None:
    if frames is None:
        return
    picture = simulators.render()
    if picture is None:
        raise HostEnvError("this environment does not render images (render_mode rgb_array): set screen=true.")
    frames.append(np.array(picture))  # a copy: the environment may reuse the array
