"""Applies the standard wrappers, in the same order for every library."""

from __future__ import annotations

from typing import Any

from evorl.envs.action_conversion import action_conversion
from evorl.envs.env import Env, as_autoreset_mode
from evorl.envs.env_check import check_env
from evorl.envs.goals.setters import make_goal_setter
from evorl.envs.options import EnvOptions, check_options
from evorl.envs.vector import VECTOR_ENVS, VectorEnv
from evorl.envs.wrappers.action import ActionConversionWrapper, ActionRepeatWrapper
from evorl.envs.wrappers.clock import EpisodeWrapper
from evorl.envs.wrappers.encoding import ChannelsLastWrapper, ObsOneHotWrapper, has_choices
from evorl.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper, ObsSelectWrapper
from evorl.envs.wrappers.randomization import randomized
from evorl.envs.wrappers.reward import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardTransformWrapper,
    SparseRewardWrapper,
)
from evorl.envs.wrappers.skill import SkillWrapper


def wrap_env(env: Env, *, limit: int | None = None, **options: Any) -> VectorEnv:
    """Apply the standard wrappers to ``env``, and return a vector environment.

    From inside to outside: physics randomization, skills, action conversion (unless agents act in the environment's own
    space), action repeat, episode counters and time limit, channels last, one-hot encoding or flattening, selection of
    components, frame stack, reward transform, reward clip, sparse reward, reward scale, vmap with autoreset. Hence
    ``info.episode_return`` is the original return of the environment, and ``info.steps`` counts actions.

    Args:
        env: a single environment without standard wrappers.
        limit: default of ``max_episode_steps``, in environment steps; ``None`` for no limit.
        **options: the fields of ``EnvOptions``; ``None`` means the default.

    Raises:
        TypeError: ``env`` is a vector environment, or a ``OneEpisodeWrapper``.
        ValueError: an option is unknown, invalid or not supported by ``env``; or ``env`` violates ``Env``'s contract.
    """
    check_options("wrap_env", options, ())
    chosen = EnvOptions(**dict[str, Any](max_episode_steps=limit) | {k: v for k, v in options.items() if v is not None})
    if isinstance(env, Env) and not type(env).__module__.startswith("evorl."):  # tests check evorl's own environments
        check_env(env)
    cls = VECTOR_ENVS[as_autoreset_mode(chosen.autoreset_mode)]
    setter = None if chosen.goal_setter is None else make_goal_setter(chosen.goal_setter)
    if chosen.randomization is not None:
        env = randomized(env, chosen.randomization)
    if chosen.skills is not None or chosen.skill is not None:
        env = _with_skills(env, chosen)
    return cls(put_wrappers(env, chosen), chosen.parallel, setter)


def _with_skills(env: Env, chosen: EnvOptions) -> Env:
    if chosen.skills is None:
        raise ValueError(f"env.skill={chosen.skill} needs env.skills, the number of skills: set env.skills too.")
    if chosen.observed is not None:
        raise ValueError("env.observed would also select from the one-hot skill of env.skills: remove one of them.")
    if chosen.history > 1:
        raise ValueError(
            f"env.history={chosen.history} would also stack the one-hot skill of env.skills: set env.history=1, or use "
            "a recurrent agent."
        )
    return SkillWrapper(env, chosen.skills, chosen.skill)


def put_wrappers(env: Env, chosen: EnvOptions) -> Env:
    """Apply all wrappers of ``chosen`` except randomization and skills."""
    if action_conversion(env.action_space) is not None:
        env = ActionConversionWrapper(env)
    if chosen.action_repeat > 1:
        env = ActionRepeatWrapper(env, chosen.action_repeat, chosen.max_episode_steps)
    env = EpisodeWrapper(env, chosen.max_episode_steps and -(-chosen.max_episode_steps // chosen.action_repeat))
    if chosen.channels == "first":
        env = ChannelsLastWrapper(env)
    if chosen.flatten_obs:
        env = ObsFlattenWrapper(env)
    elif chosen.flatten_obs is None and has_choices(env.obs_space):
        env = ObsOneHotWrapper(env)
    if chosen.observed is not None:
        env = ObsSelectWrapper(env, chosen.observed)
    if chosen.history > 1:
        env = FrameStackWrapper(env, chosen.history)
    if chosen.reward_transform is not None:
        env = RewardTransformWrapper(env, chosen.reward_transform)
    if chosen.reward_clip is not None:
        env = RewardClipWrapper(env, chosen.reward_clip)
    if chosen.sparse_reward_interval is not None:
        env = SparseRewardWrapper(env, chosen.sparse_reward_interval)
    if chosen.reward_scale is not None and chosen.reward_scale != 1:
        env = RewardScaleWrapper(env, chosen.reward_scale)
    return env
