"""The one place where wrappers are put together, the same way for every library."""

from __future__ import annotations

from typing import Any

from evorl.config.names import load
from evorl.envs.action_conversion import action_conversion
from evorl.envs.env import Env
from evorl.envs.options import EnvOptions, as_autoreset_mode, check_options
from evorl.envs.vector import VECTOR_ENVS, VectorEnv
from evorl.envs.wrappers.action import ActionConversionWrapper, ActionRepeatWrapper
from evorl.envs.wrappers.clock import EpisodeWrapper
from evorl.envs.wrappers.encoding import ChannelsLastWrapper, ObsOneHotWrapper, has_choices
from evorl.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper, ObsSelectWrapper
from evorl.envs.wrappers.reward import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardTransformWrapper,
    SparseRewardWrapper,
)
from evorl.envs.wrappers.skill import SkillWrapper


def wrap_env(env: Env, **options: Any) -> VectorEnv:
    """A vector env of ``env``, a bare adapter.

    From the inside out: randomised physics, skills, action conversion (where agents do not act in the environment's own
    space), action repeat, episode clock, channels last, one-hot encoding or flatten, select, frame stack, reward
    transform, reward clip, sparse reward, reward scale, vmap with autoreset. So ``info.episode_return`` is what the
    environment paid, and ``info.steps`` counts decisions.

    Args:
        env: a single environment.
        **options: the fields of ``EnvOptions``.

    Raises:
        ValueError: there is no such option, or its value cannot work; or an environment of the user does not keep the
            contract of ``Env``, in words.
    """
    check_options("wrap_env", options, ())
    chosen = EnvOptions(**options)
    if isinstance(env, Env) and not type(env).__module__.startswith("evorl."):  # ours are tested
        load("evorl.envs.env_check:check_env")(env)
    limit = None if chosen.max_episode_steps is None else -(-chosen.max_episode_steps // chosen.action_repeat)
    cls = VECTOR_ENVS[as_autoreset_mode(chosen.autoreset_mode)]
    setter = chosen.goal_setter
    if setter is not None:  # loaded where it is asked for
        setter = load("evorl.envs.goals.setters:make_goal_setter")(setter)
    if chosen.randomization is not None:  # likewise
        env = load("evorl.envs.wrappers.randomization:randomized")(env, chosen.randomization)
    if chosen.skills is not None:
        if chosen.observed is not None:
            raise ValueError("env.observed and env.skills exclude one another: the skill would be selected, too.")
        env = SkillWrapper(env, chosen.skills, chosen.skill)
    elif chosen.skill is not None:
        raise ValueError(f"env.skill={chosen.skill} chooses one of env.skills, which is not set: give their number.")
    return cls(put_wrappers(env, chosen, limit), chosen.parallel, setter)


def put_wrappers(env: Env, chosen: EnvOptions, limit: int | None) -> Env:
    """``env``, a bare adapter, in the wrappers that options ask for; ``limit`` is the clock's, in decisions."""
    if action_conversion(env.action_space) is not None:
        env = ActionConversionWrapper(env)
    if chosen.action_repeat > 1:
        env = ActionRepeatWrapper(env, chosen.action_repeat, chosen.max_episode_steps)
    env = EpisodeWrapper(env, limit)
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
