"""Registry of evorl's goal environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from evorl.config.names import load, no_such
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.envs.wrappers.goal import GoalWrapper

# Name -> factory function, and default time limit in steps; ``None`` stands for the number of bits.
_MAKERS: dict[str, tuple[str, int | None]] = {
    "bit_flip": ("evorl.envs.goals.bit_flip:make_bit_flip", None),
    "point_maze": ("evorl.envs.goals.point_maze:make_point_maze", 100),
    "reacher": ("evorl.envs.goals.reacher:make_reacher", 100),
}
ENV_NAMES = tuple(_MAKERS)


def create_wrapped_goal_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vector environment of one of evorl's goal environments.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``, with a default of 100 for ``max_episode_steps`` (the number of bits for
            ``bit_flip``); all others are arguments of the function that creates the environment.

    Raises:
        ValueError: the environment or an option is unknown, or a value is invalid.
    """
    if env_name not in _MAKERS:
        raise ValueError(no_such("goal environment", env_name, ENV_NAMES))
    shared, arguments = split_options(options)
    path, limit = _MAKERS[env_name]
    function = load(path)
    check_options(f"goal/{env_name}", arguments, parameter_names(function))
    env = _make(function, as_hashable(arguments))
    return wrap_env(env, limit=limit or env.obs_space.spaces["observation"].shape[0], **shared)


@functools.lru_cache(maxsize=16)
def _make(function: Callable[..., GoalWrapper], arguments: tuple) -> GoalWrapper:
    return function(**from_hashable(arguments))
