"""Positions and velocities (MuJoCo's ``qpos`` and ``qvel``) of the bodies in a saved episode."""

from __future__ import annotations

import numpy as np

from evorl.envs.env import Env
from evorl.episodes.saved_episode import SavedEpisode

PHYSICS = (("qpos", "qvel"), ("q", "qd"))  # MuJoCo's names, and brax's, of positions and velocities


def physics_of(episode: SavedEpisode) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions ``[T + 1, nq]`` and velocities ``[T + 1, nv]`` of an episode; ``None`` if it lacks them."""
    arrays = episode.arrays
    return next(((arrays[q], arrays[v]) for q, v in PHYSICS if q in arrays and v in arrays), None)


def physics_in(episode: SavedEpisode, env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and velocities of an episode's bodies, checked against the environment's model.

    Raises:
        ValueError: the episode has no positions and velocities, or ``env`` has no MuJoCo model of these sizes.
    """
    physics, model = physics_of(episode), env.mujoco_model
    if physics is None or model is None:
        raise ValueError(
            "A replay needs positions of bodies in the episode, and a MuJoCo model of the environment (brax, mjx, "
            f"Playground, host, MuJoCo in Gymnasium). Missing: {'the positions' if physics is None else 'the model'}."
        )
    qpos, qvel = physics
    if qpos.shape[1:] != (model.nq,) or qvel.shape[1:] != (model.nv,):
        raise ValueError(
            f"The episode has coordinates of shape {list(qpos.shape)} and velocities of shape {list(qvel.shape)}, but "
            f"the model of its environment has {model.nq} coordinates and {model.nv} velocities: the episode was saved "
            "with another version of the environment."
        )
    return qpos, qvel
