"""Environments of EnvPool, stepped together by its threads in C++. EnvPool itself is imported when it is used."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.gate import admit_arguments
from evorl.config.names import missing_in_words, no_such
from evorl.config.values import check_names, positive
from evorl.envs.gymnasium_spaces import action_space_of, space_of
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.envs.space import Box, DictSpace, Space
from evorl.types import PyTreeDict

ENV_NAMES: tuple[str, ...] = ()  # EnvPool has more than a thousand, and importing it to ask takes seconds
_OURS = {
    *("num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"),
    *("max_episode_steps", "reward_threshold"),
}
_NO_LIMIT = 2**31 - 1


class EnvPoolTask:
    """A task of EnvPool: its spaces, and pools of simulators for it.

    Args:
        name: such as ``Pong-v5``.
        max_episode_steps: another time limit than the registered one.
        metrics: numbers in EnvPool's info that are reported, such as ``lives``.
        options: of the task, such as ``frame_skip``.

    Attributes:
        obs_space: float64 as float32, and pictures with their channels last.
        action_space: of the pool, whole numbers within bounds as choices.
        max_episode_steps: ``None`` where there is no limit.

    Raises:
        ValueError: there is no such task, option or metric; EnvPool cannot make it; it has several players, or an
            action that is neither an array nor a number.
        ImportError: EnvPool is not installed.
    """

    def __init__(
        self,
        name: str,
        max_episode_steps: int | None = None,
        metrics: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        envpool = _envpool()
        if name not in envpool.list_all_envs():
            raise ValueError(no_such("environment of EnvPool", name, envpool.list_all_envs()))
        self.name = name
        self._options: dict[str, Any] = {}
        known = set(self._made(envpool.make_spec).config._fields)
        admit_arguments(options or {}, "env")  # among them are programs that EnvPool starts
        self._options |= options or {}
        check_names(self._options, {*known - _OURS, "render_mode"}, f"option of envpool/{name}")
        if max_episode_steps is not None:
            self._options["max_episode_steps"] = positive(max_episode_steps, "max_episode_steps")
        spec = self._made(envpool.make_spec)
        if spec.config.max_num_players != 1:
            raise ValueError(f"{name} has {spec.config.max_num_players} players; here an environment has one agent.")
        try:
            self.obs_space = _with_channels_last(space_of(_quietly(spec, "observation_space")))
        except ValueError as error:  # an observation called ``items``, for example
            raise ValueError(f"the observations of {name} cannot be used: {error}") from error
        self.pool_action_space = _one_kind(name, _quietly(spec, "action_space"))
        self.action_space, self.pool_actions = action_space_of(self.pool_action_space)
        self.pool_action_dtype = spec.action_array_spec["action"].dtype
        limit = getattr(spec.config, "max_episode_steps", 0)
        self.max_episode_steps = limit if 0 < limit < _NO_LIMIT else None
        arrays = {name.removeprefix("info:"): x for name, x in spec.state_array_spec.items() if "info:" in name}
        numbers = [name for name, x in arrays.items() if list(x.shape) == [-1] and "env_id" not in name]
        check_names(metrics, numbers, f"metric of envpool/{name}")
        self.info_spec = dict.fromkeys(metrics, ((), np.float32))

    def make_pool(self, seeds: np.ndarray, **sizes: int) -> Any:
        """Make simulators, one for each of ``seeds``, uint64 ``[N]``, of which EnvPool takes 31 bits.

        Raises:
            ValueError: EnvPool cannot make them.
        """
        seed = fold_seeds(seeds).tolist()
        pool = self._made(_envpool().make_gymnasium, num_envs=len(seeds), seed=seed, **sizes)
        _quietly(pool, "observation_space")  # which it keeps, and asks for at every step
        return pool

    def _made(self, make: Callable[..., Any], **sizes: Any) -> Any:
        try:
            return make(self.name, **self._options, **sizes)
        except Exception as error:  # EnvPool asserts, and its families have errors of their own
            raise ValueError(f"EnvPool cannot make {self.name} with {self._options}: {error}") from error

    def observed(self, obs: Any) -> Any:
        """Observations ``[B, ...]`` of EnvPool, numpy or JAX arrays, as ``obs_space`` has them."""
        return _converted(self.obs_space, obs)

    def metrics(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The reported numbers, float32 ``[B]``."""
        return {name: info[name].astype(np.float32) for name in self.info_spec}


class EnvPoolVectorEnv(HostVectorEnv):
    """B simulators of a task.

    EnvPool is seeded where a pool is made. So ``reset`` makes a new one, and ``partial_reset`` takes what is next in
    the row's own stream of random numbers, whatever its seeds are: equal seeds of the reset and equal actions give
    equal numbers, but where an episode started cannot be computed again. An end in the very last step that the clock
    allows counts as one by the clock, as EnvPool has it.

    Args:
        task: what they simulate.
        num_envs: B.
        num_threads: of the pool; 0 for as many as EnvPool thinks right.
        reseed: whether later calls of ``reset`` make a new pool too, of which Atari needs a tenth of a second for each
            row; if not they are a ``partial_reset`` of all rows.
    """

    def __init__(self, task: EnvPoolTask, num_envs: int, num_threads: int = 0, reseed: bool = True) -> None:
        self.num_envs = positive(num_envs, "num_envs")
        self.obs_space, self.action_space = task.obs_space, task.action_space
        self.max_episode_steps, self.info_spec = task.max_episode_steps, task.info_spec
        self._task, self._num_threads, self._reseed = task, num_threads, reseed
        self._pool: Any = None

    def reset(self, seeds: np.ndarray) -> Any:
        """See ``HostVectorEnv.reset``."""
        if self._pool is None or self._reseed:
            self._pool = self._task.make_pool(seeds, num_threads=self._num_threads)
        return self._task.observed(self._pool.reset()[0])

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """See ``HostVectorEnv.step``. Raises ``RuntimeError`` before the first ``reset``."""
        if self._pool is None:
            raise RuntimeError(f"{self._task.name} was stepped before it was reset.")
        obs, reward, termination, truncation, info = self._pool.step(self._task.pool_actions(actions))
        return self._task.observed(obs), reward, termination, truncation, self._task.metrics(info)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """See ``HostVectorEnv.partial_reset``; the seeds are not used."""
        del seeds
        obs, info = self._pool.reset(np.flatnonzero(mask).astype(np.int32))
        rows = info["env_id"]
        return _spread(self._task.observed(obs), rows, self.num_envs)

    def render(self) -> np.ndarray | None:
        """A picture of the first environment, of a pool with ``render_mode: rgb_array``."""
        if self._pool is None or self._pool.render_mode is None:
            return None
        return self._pool.render()[0]

    def close(self) -> None:
        """See ``HostVectorEnv.close``."""
        self._pool = None


def make_envpool_simulators(
    name: str,
    num_envs: int,
    *,
    max_episode_steps: int | None = None,
    metrics: Sequence[str] = (),
    num_threads: int = 0,
    reseed: bool = True,
    **options: Any,
) -> EnvPoolVectorEnv:
    """Environments of EnvPool as simulators.

    Args:
        name: such as ``Pong-v5`` or ``Hopper-v5``.
        num_envs: how many.
        max_episode_steps: another time limit than the registered one.
        metrics: numbers in EnvPool's info that are reported, such as ``lives``.
        num_threads: 0 for as many as EnvPool thinks right.
        reseed: see ``EnvPoolVectorEnv``.
        **options: of the task.

    Raises:
        ValueError: there is no such task, option or metric, or EnvPool cannot make it; in words.
        ImportError: EnvPool is not installed.
    """
    return EnvPoolVectorEnv(EnvPoolTask(name, max_episode_steps, metrics, options), num_envs, num_threads, reseed)


@functools.cache
def _envpool() -> Any:
    with missing_in_words("environments of EnvPool", "envpool"):
        import envpool
    return envpool


def _quietly(pool: Any, space: str) -> Any:
    """A space of Gymnasium's, which says that EnvPool's bounds are float64 where arrays are float32."""
    with warnings.catch_warnings():
        # Only the bounds lose digits: actions are cast to float64 before a step.
        warnings.filterwarnings("ignore", message=".*precision lowered")
        return getattr(pool, space)


def _one_kind(name: str, space: Any) -> Any:
    """The space of actions; whole numbers within bounds are choices."""
    import gymnasium.spaces as spaces

    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise ValueError(f"agents act by a number or an array, and the actions of {name} are {space}.")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        return spaces.MultiDiscrete(space.high - space.low + 1, dtype=np.int32, start=space.low)
    return space


def _with_channels_last(space: Space) -> Space:
    if isinstance(space, DictSpace):
        return DictSpace({name: _with_channels_last(member) for name, member in space.spaces.items()})
    if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return space
    if space.shape[0] >= min(space.shape[1:]):
        return space
    return Box(np.moveaxis(space.low, 0, -1), np.moveaxis(space.high, 0, -1), dtype=np.uint8)


def _converted(space: Space, obs: Any) -> Any:
    if isinstance(space, DictSpace):
        return PyTreeDict({name: _converted(member, obs[name]) for name, member in space.spaces.items()})
    if obs.shape[1:] != space.shape:  # a picture with its channels first
        obs = obs.transpose(0, 2, 3, 1)
    return obs.astype(space.dtype)


def _spread(obs: Any, rows: np.ndarray, num_envs: int) -> Any:
    """Observations of some rows as those of all, zeros elsewhere."""
    if isinstance(obs, Mapping):
        return PyTreeDict({name: _spread(member, rows, num_envs) for name, member in obs.items()})
    everything = np.zeros((num_envs, *obs.shape[1:]), obs.dtype)
    everything[rows] = obs
    return everything
