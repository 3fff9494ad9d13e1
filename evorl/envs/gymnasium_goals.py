"""Reward functions of Gymnasium's goal environments in JAX, so that compiled updates can recompute rewards.

The environments' own ``compute_reward`` uses NumPy. This module has the distance-based tasks of Gymnasium-Robotics:
Fetch, HandReach, PointMaze and AntMaze. Rewards that depend only on goals are first compared with ``compute_reward``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import explain_missing_package, load_named
from evorl.envs.goals.sparse import Within
from evorl.envs.goals.task import GoalTask, RewardFn, is_goal_space
from evorl.envs.gymnasium_spaces import action_space_of
from evorl.envs.space import Box, DictSpace, Space
from evorl.types import Action, Observation

# Prefixes of the ids of Gymnasium-Robotics, which are registered only when the package is imported.
ROBOTICS = ("Fetch", "HandReach", "HandManipulate", "PointMaze", "AntMaze", "AdroitHand", "FrankaKitchen")
_MAZE_RADIUS = 0.45  # meters, hard-coded in Gymnasium-Robotics
_NUM_COMPARED = 32


@dataclasses.dataclass(frozen=True)
class DistanceReward:
    """Reward as a function of the distance to the goal.

    Attributes:
        kind: ``away``: -1 beyond ``threshold``, else 0. ``within``: 1 up to ``threshold``, else 0. ``minus``: the
            negative distance. ``near``: the exponential of the negative distance.
        threshold: distance in the unit of the goals; has no effect for ``minus`` and ``near``.
    """

    kind: str
    threshold: float

    def __call__(self, achieved: jax.Array, desired: jax.Array, action: Action, observation: Observation) -> jax.Array:
        distance = jnp.linalg.norm(achieved - desired)
        if self.kind == "away":
            return -(distance > self.threshold).astype(jnp.float32)
        if self.kind == "within":
            return (distance <= self.threshold).astype(jnp.float32)
        return -distance if self.kind == "minus" else jnp.exp(-distance)


def register_robotics() -> None:
    """Register the environments of Gymnasium-Robotics. Raises ``ImportError`` if the package is not installed."""
    import gymnasium

    requirement = ("environments of robots and mazes with goals", "gymnasium_robotics", "gymnasium-robotics>=1.4")
    # Redirection suppresses notices of other packages.
    with explain_missing_package(*requirement), contextlib.redirect_stderr(io.StringIO()):
        import gymnasium_robotics
    gymnasium.register_envs(gymnasium_robotics)


def goal_task_of(env: Any, obs_space: Space, function: str | None = None) -> GoalTask | None:
    """Return the goal task of a Gymnasium environment; ``None`` if it has no goals, or its task is unknown.

    Args:
        env: a Gymnasium environment.
        obs_space: its observation space, as an evorl space.
        function: ``package.module:function`` of the user, which is called with ``env`` and returns a ``GoalTask``.
            ``None`` uses the environment's attribute ``goal_task``, or else the known task of Gymnasium-Robotics.

    Raises:
        ValueError: ``function`` is set without goals in observations; goals are not vectors, end episodes, or change
            within an episode; or the goal task has a wrong type or shape, or its rewards differ from the environment's.
    """
    if not isinstance(obs_space, DictSpace) or not is_goal_space(obs_space):
        if function is not None:
            raise ValueError(
                f"env.goal_task={function} rewards goals, but observations have no goal: {obs_space}. Remove goal_task."
            )
        return None
    goal_space = obs_space.spaces["desired_goal"]
    if not isinstance(goal_space, Box) or len(goal_space.shape) != 1:
        raise ValueError(f"goals must be vectors, but desired_goal is {goal_space}: flatten it with a wrapper.")
    single = env.unwrapped
    task = load_named(function, "env.goal_task")(env) if function is not None else getattr(single, "goal_task", None)
    task = _known_task(single, goal_space) if task is None else task
    if task is None:
        return None
    if not isinstance(task, GoalTask):
        raise ValueError(f"goal_task must be a GoalTask, or a function that returns one; got {type(task).__name__}.")
    if task.goal_space.shape != goal_space.shape:
        raise ValueError(
            f"goals have shape {goal_space.shape}, but the GoalTask has {task.goal_space.shape}: correct the GoalTask."
        )
    if task.terminate_on_success or getattr(single, "continuing_task", True) is False:
        raise ValueError(
            "the simulator ends episodes at its own goal, which evorl cannot replace: let episodes continue "
            "until the time limit (continuing_task=true, or a GoalTask without terminate_on_success)."
        )
    if getattr(single, "reset_target", False) is True:
        raise ValueError(
            "env.reset_target=true lets the simulator move its goal during an episode, but the goal must not "
            "change within an episode: remove env.reset_target."
        )
    _compare(task, env, obs_space.spaces["observation"])
    return task


def _known_task(single: Any, goal_space: Box) -> GoalTask | None:
    kind = getattr(single, "reward_type", None)
    if kind not in ("sparse", "dense") or not hasattr(single, "compute_reward"):
        return None
    if hasattr(single, "continuing_task"):
        reward: RewardFn = DistanceReward("within" if kind == "sparse" else "near", _MAZE_RADIUS)
        return GoalTask(goal_space, reward, Within(_MAZE_RADIUS))
    threshold = getattr(single, "distance_threshold", None)
    if threshold is None or hasattr(single, "rotation_threshold"):
        return None
    return GoalTask(goal_space, DistanceReward("away" if kind == "sparse" else "minus", threshold), Within(threshold))


def _compare(task: GoalTask, env: Any, observation_space: Space) -> None:
    """Raise ``ValueError`` if the task's rewards for sampled goals differ from ``env.compute_reward``, if it exists.

    Rewards that depend on the action or the observation are not compared, because ``compute_reward`` gets neither.
    """
    compute_reward = getattr(env.unwrapped, "compute_reward", None)
    if compute_reward is None:
        return
    rng = np.random.default_rng(0)
    desired = rng.uniform(-1.0, 1.0, (_NUM_COMPARED, *task.goal_space.shape))
    away = rng.normal(size=desired.shape)
    away *= np.geomspace(1e-3, 3.0, _NUM_COMPARED)[:, None] / np.linalg.norm(away, axis=1, keepdims=True)
    achieved, blank = desired + away, (action_space_of(env.action_space)[0].zeros(), observation_space.zeros())
    rewards_of = jax.vmap(task.reward_fn, (0, 0, None, None))
    goals = jnp.asarray(achieved, jnp.float32), jnp.asarray(desired, jnp.float32)
    task_rewards, others = (
        np.asarray(rewards_of(*goals, *rest)) for rest in (blank, jax.tree.map(jnp.ones_like, blank))
    )
    if not np.array_equal(task_rewards, others, equal_nan=True):
        return
    theirs = np.asarray([float(compute_reward(a, d, {})) for a, d in zip(achieved, desired, strict=True)])
    if not np.allclose(task_rewards, theirs, rtol=1e-4, atol=1e-5):
        worst = int(np.abs(task_rewards - theirs).argmax())
        raise ValueError(
            f"{env.spec.id if env.spec else type(env.unwrapped).__name__} gives the reward {theirs[worst]:.4g} at a "
            f"distance of {np.linalg.norm(away[worst]):.3g} from the goal, but its GoalTask gives "
            f"{task_rewards[worst]:.4g}: set env.goal_task to the name of a function that returns the right GoalTask."
        )
