"""Checks the settings of recorded evaluations, and adapts them to an environment."""

from __future__ import annotations

import dataclasses
import math

import jax

from evorl.envs.space import Box, DictSpace
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import DEFAULT_MAX_EPISODE_STEPS
from evorl.runs.spec_parts import EvaluationRecords

MAX_BYTES = 8 * 10**9  # size limit of the observations that an evaluation records step by step


def make_recording_options(
    keeping: EvaluationRecords, env: VectorEnv, num_episodes: int, plays_as_all: bool
) -> EvaluationRecords | None:
    """Adapt recording options to an environment; return ``None`` if nothing is recorded.

    Args:
        keeping: the options.
        env: evaluation environments; if episodes are saved, their states include the physics from now on.
        num_episodes: number of episodes per evaluation.
        plays_as_all: True if the workflow does not override ``Workflow.evaluation``; overrides record no episodes.

    Raises:
        ValueError: an option is not supported by the environment or the workflow.
    """
    for name in ("save_episodes", "plot_episodes"):
        number = getattr(keeping, name)
        if number is not None and number > num_episodes:
            raise ValueError(
                f"evaluation.{name}={number} exceeds eval_episodes={num_episodes}, the number of episodes of an "
                "evaluation: increase eval_episodes, or record fewer."
            )
        if number is not None and not plays_as_all:
            raise ValueError(
                f"evaluation.{name}={number}: this algorithm has a custom evaluation that does not record episodes. "
                f"Set evaluation.{name}=null."
            )
    if keeping.num_steps:
        _refuse_many_steps(keeping.num_steps, env)
    keeping = dataclasses.replace(keeping, goals=keeping.goals and plays_as_all and env.observes_goals)
    plotted = _plotted(keeping, env) if keeping.plot_episodes else (None, None)
    keeping = dataclasses.replace(keeping, plot_of=plotted[0], plot_dimensions=plotted[1])
    if keeping.save_episodes:
        env.show_physics()
    return keeping if keeping.goals or keeping.num_steps else None


def _refuse_many_steps(num_episodes: int, env: VectorEnv) -> None:
    """Raise ``ValueError`` if the observations of this many complete episodes exceed ``MAX_BYTES``."""
    bytes_of_step = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(env.obs_space.spec))
    length = env.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS  # connected simulators may have no limit
    num_bytes = num_episodes * length * bytes_of_step
    if num_bytes > MAX_BYTES:
        most = MAX_BYTES // (length * bytes_of_step)
        raise ValueError(
            f"evaluation.save_episodes or evaluation.plot_episodes={num_episodes}, with up to {length:,} steps each, "
            f"needs {num_bytes / 1e9:,.1f} GB, but at most {MAX_BYTES / 1e9:.0f} GB may be recorded: set them to "
            f"{f'{most:,} or fewer' if most else 'null'}."
        )


def _plotted(keeping: EvaluationRecords, env: VectorEnv) -> tuple[str, tuple[int, ...]]:
    quantity = keeping.plot_of or ("goal" if env.observes_goals else "observation")
    if quantity == "goal" and not env.observes_goals:
        raise ValueError("evaluation.plot_of=goal needs an environment that observes goals: set it to observation.")
    space = env.goal_task.goal_space if quantity == "goal" else env.obs_space
    if quantity == "observation" and isinstance(space, DictSpace):
        space = space.spaces.get("observation", space)
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(
            f"evaluation.plot_episodes plots components of a vector, but the {quantity} is {space}: set "
            "env.flatten_obs=true, or evaluation.plot_episodes=null."
        )
    (size,) = space.shape
    chosen = tuple(range(min(2, size))) if keeping.plot_dimensions is None else keeping.plot_dimensions
    if max(chosen) >= size:
        raise ValueError(
            f"evaluation.plot_dimensions must be one or two indices from 0 to {size - 1}, as in "
            f"{list(range(min(2, size)))}, the components of the {quantity}; got {chosen!r}."
        )
    return quantity, tuple(chosen)
