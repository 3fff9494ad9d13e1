"""Adapter for EnvPool, which steps batches of environments in C++ threads. Imports EnvPool on first use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.gate import admit_arguments
from evorl.config.names import explain_missing_package, no_such
from evorl.config.values import check_names, positive
from evorl.envs.gymnasium_spaces import action_space_of, space_of
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.envs.space import Box, DictSpace, Space
from evorl.types import PyTreeDict

ENV_NAMES: tuple[str, ...] = ()  # EnvPool has more than a thousand environments, and its import takes seconds
_SET_BY_EVORL = {
    *("num_envs", "batch_size", "seed", "env_seed", "base_path", "gym_reset_return_info", "max_num_players"),
    *("max_episode_steps", "reward_threshold"),
}
_NO_LIMIT = 2**31 - 1


class EnvPoolTask:
    """An EnvPool task: its spaces, and a factory of simulator pools.

    Args:
        name: id of the task, such as ``Pong-v5``.
        max_episode_steps: time limit in steps; ``None`` for the registered limit.
        metrics: entries of EnvPool's ``info`` for ``info.metrics``, such as ``lives``.
        options: options of the task, such as ``frame_skip``.

    Attributes:
        obs_space: observation space, with float64 and int64 converted to 32 bits, and channels of images last.
        action_space: action space, with a Box of integers converted to ``MultiDiscrete``.
        max_episode_steps: time limit in steps; ``None`` for no limit.

    Raises:
        ValueError: the task, option or metric does not exist; EnvPool cannot create the task; or the task has several
            players, unsupported observations, or actions that are neither an array nor a number.
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
            raise ValueError(no_such("EnvPool environment", name, envpool.list_all_envs()))
        self.name = name
        self._options: dict[str, Any] = {}
        option_names = set(self._create(envpool.make_spec).config._fields)
        admit_arguments(options or {})  # some options are programs that EnvPool starts
        self._options |= options or {}
        check_names(self._options, {*option_names - _SET_BY_EVORL, "render_mode"}, f"option of envpool/{name}")
        if max_episode_steps is not None:
            self._options["max_episode_steps"] = positive(max_episode_steps, "env.max_episode_steps")
        spec = self._create(envpool.make_spec)
        if spec.config.max_num_players != 1:
            raise ValueError(f"{name} has {spec.config.max_num_players} players: choose a task with one player.")
        try:
            self.obs_space = _with_channels_last(space_of(_quietly(spec, "observation_space")))
        except ValueError as error:  # for example an observation called ``items``
            raise ValueError(f"the observations of {name} cannot be used: {error}") from error
        self.pool_action_space = _supported_action_space(name, _quietly(spec, "action_space"))
        self.action_space, self.pool_actions = action_space_of(self.pool_action_space)
        self.pool_action_dtype = spec.action_array_spec["action"].dtype
        limit = getattr(spec.config, "max_episode_steps", 0)
        self.max_episode_steps = limit if 0 < limit < _NO_LIMIT else None
        arrays = {name.removeprefix("info:"): x for name, x in spec.state_array_spec.items() if "info:" in name}
        numbers = [name for name, x in arrays.items() if list(x.shape) == [-1] and "env_id" not in name]
        check_names(metrics, numbers, f"metric of envpool/{name}")
        self.info_spec = dict.fromkeys(metrics, ((), np.float32))

    def make_pool(self, seeds: np.ndarray, **sizes: int) -> Any:
        """Create a pool of N simulators. ``seeds``, uint64 ``[N]``, are folded to 31 bits; ``sizes`` are pool options.

        Raises:
            ValueError: EnvPool cannot create the simulators.
        """
        seed = fold_seeds(seeds).tolist()
        pool = self._create(_envpool().make_gymnasium, num_envs=len(seeds), seed=seed, **sizes)
        _quietly(pool, "observation_space")  # computed here: the pool caches it, and reads it at every step
        return pool

    def _create(self, make: Callable[..., Any], **sizes: Any) -> Any:
        try:
            return make(self.name, **self._options, **sizes)
        except Exception as error:  # EnvPool raises AssertionError and types specific to its families
            raise ValueError(f"EnvPool cannot create {self.name} with {self._options}: {error}") from error

    def observed(self, obs: Any) -> Any:
        """Convert a batch of EnvPool's observations ``[B, ...]``, NumPy or JAX arrays, to elements of ``obs_space``."""
        return _converted(self.obs_space, obs)

    def metrics(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of EnvPool's ``info`` named by the argument ``metrics``, float32 ``[B]`` by name."""
        return {name: info[name].astype(np.float32) for name in self.info_spec}


class EnvPoolVectorEnv(HostVectorEnv):
    """B simulators of a task in one pool.

    EnvPool is seeded when a pool is created. Therefore ``reset`` creates a new pool, while ``partial_reset`` ignores
    its seeds and continues the simulators' random streams: equal reset seeds and actions give equal results, but the
    start of a single episode cannot be recomputed. As in EnvPool, an episode that terminates at the last step of the
    time limit counts as truncated.

    Args:
        task: the task to simulate.
        num_envs: number of simulators B.
        num_threads: number of threads of the pool; 0 for EnvPool's default.
        reseed: true if every ``reset`` creates a new pool, which takes 0.1 seconds per Atari simulator. If false, only
            the first ``reset`` creates a pool; later calls reset the simulators of that pool, and ignore the seeds.
    """

    has_channels_last = True

    def __init__(self, task: EnvPoolTask, num_envs: int, num_threads: int = 0, reseed: bool = True) -> None:
        self.num_envs = positive(num_envs, "num_envs")
        self.obs_space, self.action_space = task.obs_space, task.action_space
        self.max_episode_steps, self.info_spec = task.max_episode_steps, task.info_spec
        self._task, self._num_threads, self._reseed = task, num_threads, reseed
        self._pool: Any = None

    def reset(self, seeds: np.ndarray) -> Any:
        if self._pool is None or self._reseed:
            self._pool = self._task.make_pool(seeds, num_threads=self._num_threads)
        return self._task.observed(self._pool.reset()[0])

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step all simulators; see ``HostVectorEnv.step``. Raises ``HostEnvError`` before the first ``reset``."""
        obs, reward, termination, truncation, info = self._started("step").step(self._task.pool_actions(actions))
        return self._task.observed(obs), reward, termination, truncation, self._task.metrics(info)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Restart simulators where ``mask`` is True; the seeds are ignored. Raises ``HostEnvError`` before a reset."""
        obs, info = self._started("partial_reset").reset(np.flatnonzero(mask).astype(np.int32))
        return _spread(self._task.observed(obs), info["env_id"], self.num_envs)

    def _started(self, method: str) -> Any:
        """Return the pool. Raises ``HostEnvError``, which names the called ``method``, before the first ``reset``."""
        if self._pool is None:
            raise HostEnvError(f"{self._task.name} got {method} before the first reset: call reset first.")
        return self._pool

    def render(self) -> np.ndarray | None:
        """Return an image ``[H, W, 3]`` of environment 0; ``None`` before a reset or without ``render_mode``."""
        if self._pool is None or self._pool.render_mode is None:
            return None
        return self._pool.render()[0]

    def close(self) -> None:
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
    """Create EnvPool environments as simulators on the host.

    Args:
        name: id of the task, such as ``Pong-v5`` or ``Hopper-v5``.
        num_envs: number of environments.
        max_episode_steps: time limit in steps; ``None`` for the registered limit.
        metrics: entries of EnvPool's ``info`` for ``info.metrics``, such as ``lives``.
        num_threads: number of threads of the pool; 0 for EnvPool's default.
        reseed: see ``EnvPoolVectorEnv``.
        **options: options of the task.

    Raises:
        ValueError: the task, option or metric does not exist, or EnvPool cannot create the task.
        ImportError: EnvPool is not installed.
    """
    return EnvPoolVectorEnv(EnvPoolTask(name, max_episode_steps, metrics, options), num_envs, num_threads, reseed)


@functools.cache
def _envpool() -> Any:
    with explain_missing_package("EnvPool environments", "envpool"):
        import envpool
    return envpool


def _quietly(pool: Any, space: str) -> Any:
    """Return the attribute ``space`` of ``pool``; suppress Gymnasium's warning that bounds lose precision."""
    with warnings.catch_warnings():
        # Only the bounds lose precision: actions are converted to float64 before a step.
        warnings.filterwarnings("ignore", message=".*precision lowered")
        return getattr(pool, space)


def _supported_action_space(name: str, space: Any) -> Any:
    """Return ``space``, Discrete or Box; a Box of integers becomes MultiDiscrete. Raises ``ValueError`` for others."""
    import gymnasium.spaces as spaces

    if not isinstance(space, spaces.Discrete | spaces.Box):
        raise ValueError(f"actions must be a number or an array, but {name} has the action space {space}.")
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
    if obs.shape[1:] != space.shape:  # an image with channels first
        obs = obs.transpose(0, 2, 3, 1)
    return obs.astype(space.dtype)


def _spread(obs: Any, rows: np.ndarray, num_envs: int) -> Any:
    """Return a batch of ``num_envs`` observations: ``obs`` at the indices ``rows``, and zeros elsewhere."""
    if isinstance(obs, Mapping):
        return PyTreeDict({name: _spread(member, rows, num_envs) for name, member in obs.items()})
    batch = np.zeros((num_envs, *obs.shape[1:]), obs.dtype)
    batch[rows] = obs
    return batch
