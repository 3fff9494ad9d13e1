"""The one place where wrappers are put together, the same way for every library."""

from __future__ import annotations

from collections.abc import Sequence

from evorl.envs.env import AutoresetMode, Env
from evorl.envs.naming import nearest_name
from evorl.envs.space import Box
from evorl.envs.wrappers.action import ActionRepeatWrapper, ActionSquashWrapper
from evorl.envs.wrappers.episode import EpisodeWrapper
from evorl.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper, ObsSelectWrapper
from evorl.envs.wrappers.reward import RewardScaleWrapper, SparseRewardWrapper
from evorl.envs.wrappers.vector import VECTOR_ENVS, VectorEnv
from evorl.envs.wrappers.wrapper import positive_int


def wrap_env(
    env: Env,
    *,
    max_episode_steps: int | None = None,
    parallel: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NORMAL,
    action_repeat: int = 1,
    frame_stack: int = 1,
    reward_scale: float | None = None,
    sparse_reward_interval: int | None = None,
    flatten_obs: bool = False,
    observed: Sequence[int] | None = None,
) -> VectorEnv:
    """A vector env of ``env``, a bare adapter.

    From the inside out: squash (bounded boxes other than [-1, 1]), action repeat, episode clock, flatten, select, frame
    stack, sparse reward, reward scale, vmap with autoreset. So ``info.episode_return`` is what the environment paid,
    and ``info.steps`` counts decisions.

    Args:
        env: a single environment.
        max_episode_steps: the time limit, in steps of ``env``; with action repeat an episode has that many divided by
            ``action_repeat`` decisions, rounded up. ``None`` keeps the environment's own.
        parallel: number of environments B.
        autoreset_mode: an ``AutoresetMode`` or its name.
        action_repeat: see ``ActionRepeatWrapper``.
        frame_stack: see ``FrameStackWrapper``.
        reward_scale: see ``RewardScaleWrapper``.
        sparse_reward_interval: see ``SparseRewardWrapper``.
        flatten_obs: see ``ObsFlattenWrapper``.
        observed: see ``ObsSelectWrapper``; ``None`` for all components.

    Raises:
        ValueError: an argument is out of range or names no mode.
    """
    vector_env = VECTOR_ENVS[as_autoreset_mode(autoreset_mode)]
    if isinstance(env.action_space, Box) and _needs_squash(env.action_space):
        env = ActionSquashWrapper(env)
    action_repeat = positive_int(action_repeat, "action_repeat")
    if action_repeat > 1:
        env = ActionRepeatWrapper(env, action_repeat)
    limit = None
    if max_episode_steps is not None:
        limit = -(-positive_int(max_episode_steps, "max_episode_steps") // action_repeat)
    env = EpisodeWrapper(env, limit)
    if flatten_obs:
        env = ObsFlattenWrapper(env)
    if observed is not None:
        env = ObsSelectWrapper(env, observed)
    if positive_int(frame_stack, "frame_stack") > 1:
        env = FrameStackWrapper(env, frame_stack)
    if sparse_reward_interval is not None:
        env = SparseRewardWrapper(env, sparse_reward_interval)
    if reward_scale is not None and reward_scale != 1:
        env = RewardScaleWrapper(env, reward_scale)
    return vector_env(env, positive_int(parallel, "parallel"))


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """An ``AutoresetMode`` from itself or its name in any case. Raises ``ValueError`` for another name."""
    if isinstance(mode, AutoresetMode):
        return mode
    names = {member.name.lower(): member for member in AutoresetMode}
    if str(mode).lower() not in names:
        raise ValueError(f"There is no autoreset mode {mode!r}{nearest_name(mode, (m.name for m in AutoresetMode))}")
    return names[str(mode).lower()]


def _needs_squash(space: Box) -> bool:
    return space.is_bounded and not (bool((space.low == -1).all()) and bool((space.high == 1).all()))
