"""Adapter for Gymnasium: steps environments in this process or in worker processes. Imports Gymnasium on first use."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.gate import admit, admit_arguments
from evorl.config.names import no_such
from evorl.config.values import check_names, checked_list, checked_mapping, checked_value
from evorl.envs.gymnasium_answers import CheckedAnswers
from evorl.envs.gymnasium_atari import with_lives_as_episodes
from evorl.envs.gymnasium_goals import ROBOTICS, goal_task_of, register_robotics
from evorl.envs.gymnasium_repeat import with_repeated_actions
from evorl.envs.gymnasium_spaces import action_space_of, batch_rows, space_of
from evorl.envs.host import answers
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds

ENV_NAMES: tuple[str, ...] = ()  # users can extend Gymnasium's registry, and its import is slow
VECTORIZATIONS = ("in_process", "async")
SEED_BITS = "seed_bits"  # entry of an environment's ``metadata``: number of bits of its seeds, 31 by default
# Names with these prefixes -> the package that registers them with Gymnasium, and its extra.
_REGISTERED_BY = {"ALE/": ("ale_py", "atari"), "dm_control/": ("shimmy", "dm_control")}
_ASYNC_TIMEOUT = 60.0  # seconds to wait for the response of a worker process


def make_gymnasium_simulators(
    name: str,
    num_envs: int,
    *,
    vectorization: str = "in_process",
    wrappers: Sequence[str | Mapping[str, Any]] = (),
    obs_key: str | None = None,
    metrics: Sequence[str] = (),
    goal_task: str | None = None,
    terminal_on_life_loss: bool = False,
    max_episode_steps: int | None = None,
    action_repeat: int = 1,
    **kwargs: Any,
) -> HostVectorEnv:
    """Create Gymnasium environments as simulators on the host.

    Args:
        name: an id such as ``ALE/Pong-v5`` or ``dm_control/walker-walk-v0``; ``package:Id-v0`` imports ``package``.
        num_envs: number of environments.
        vectorization: ``in_process`` steps environments sequentially; ``async`` steps each in its own process, which is
            faster if a step takes much longer than a millisecond.
        wrappers: names of ``gymnasium.wrappers``, innermost first, or mappings with a ``name`` and arguments.
        obs_key: only entry of dict observations to use; ``None`` uses the whole observation.
        metrics: entries of the environment's ``info`` for ``info.metrics``: numbers that every step must return.
        goal_task: argument ``function`` of ``goal_task_of``, ``package.module:function`` or ``None``.
        terminal_on_life_loss: true ends episodes of Atari games at a lost life, see ``with_lives_as_episodes``.
        max_episode_steps: time limit in environment steps; ``None`` for the registered limit.
        action_repeat: number of environment steps per action.
        **kwargs: arguments of the environment.

    Raises:
        ValueError: the environment, wrapper or vectorization does not exist or has invalid arguments.
        ForeignCodeError: an argument names code or a file, and comes from an untrusted source.
        ImportError: a package that the environment needs is not installed.
    """
    if ":" in name:  # Gymnasium imports the part before the colon
        admit(name, "env.name")
    admit_arguments({**kwargs, "wrappers": wrappers})
    if vectorization not in VECTORIZATIONS:
        raise ValueError(no_such("value of env.vectorization", vectorization, VECTORIZATIONS))
    wrappers = checked_list(wrappers, "env.wrappers", "TimeAwareObservation")
    metrics = [checked_value(each, str, "env.metrics") for each in checked_list(metrics, "env.metrics", "success")]
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    make = functools.partial(_make_one, name, wrappers, {**kwargs, **limit}, terminal_on_life_loss, action_repeat)
    cls = AsyncGymnasiumEnv if vectorization == "async" else InProcessGymnasiumEnv
    simulators = cls(make, num_envs, obs_key, metrics, goal_task)
    simulators.action_repeat = action_repeat
    return simulators


def _make_one(
    name: str, wrappers: Sequence[Any], kwargs: Mapping[str, Any], terminal_on_life_loss: bool, action_repeat: int
) -> Any:
    import gymnasium

    if name.startswith(ROBOTICS):
        register_robotics()
    package, extra = next((by for prefix, by in _REGISTERED_BY.items() if name.startswith(prefix)), ("", "gymnasium"))
    try:
        if package:
            gymnasium.register_envs(importlib.import_module(package))
        env = gymnasium.make(name, **{"disable_env_checker": True, **kwargs})  # evorl.envs.host checks results
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        if ":" in name:
            advice = "Install the module, or add its folder to PYTHONPATH"
            raise ValueError(f"env.name={name} cannot be imported: {error}. {advice}.") from error
        extra = "box2d" if "Box2D" in str(error) else extra
        raise ImportError(f"{name} needs a package that is missing (install the extra {extra}): {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(
            f"{no_such('Gymnasium environment', name, list(gymnasium.registry))} Gymnasium's error: {error}"
        ) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise ValueError(f"Gymnasium cannot make {name} with {dict(kwargs)}: {error}") from error
    for wrapper in wrappers:
        named = {"name": wrapper} if isinstance(wrapper, str) else wrapper
        arguments = dict(checked_mapping(named, "an entry of env.wrappers"))
        wrapper_name = arguments.pop("name", None)
        names = [key for key in dir(gymnasium.wrappers) if key[0].isupper()]
        if wrapper_name not in names:
            raise ValueError(no_such("Gymnasium wrapper in env.wrappers", wrapper_name, names))
        try:
            env = getattr(gymnasium.wrappers, wrapper_name)(env, **arguments)
        except (TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"Gymnasium's {wrapper_name} cannot wrap {name} with {arguments}: {error}") from error
    return with_repeated_actions(with_lives_as_episodes(env) if terminal_on_life_loss else env, action_repeat)


class _GymnasiumEnv(HostVectorEnv):
    """Base class of both vectorizations: converts the spaces, and selects entries of observations and ``info``."""

    def __init__(
        self, single: Any, num_envs: int, obs_key: str | None, metrics: Sequence[str], goal_task: str | None
    ) -> None:
        self.num_envs = num_envs
        self._obs_key = obs_key
        space = single.observation_space
        if obs_key is not None:
            entries = getattr(space, "spaces", None)
            if not isinstance(entries, Mapping):
                raise ValueError(f"env.obs_key={obs_key} selects an entry of a dict, not of {space}: remove it.")
            check_names([obs_key], entries, "value of env.obs_key")
            space = entries[obs_key]
        self.obs_space = space_of(space)
        self.goal_task = goal_task_of(single, self.obs_space, goal_task)
        self.action_space, self._convert_actions = action_space_of(single.action_space)
        spec = single.spec
        self.max_episode_steps = _own_limit(single) if spec is None else spec.max_episode_steps
        self._metrics = tuple(metrics)
        self.info_spec = dict.fromkeys(self._metrics, ((), np.float32))
        self.seed_bits = int((single.metadata or {}).get(SEED_BITS, self.seed_bits))

    def _observed(self, obs: Any) -> Any:
        return obs if self._obs_key is None else obs[self._obs_key]


def _own_limit(env: Any) -> int | None:
    """Return the time limit of an environment without a spec, from wrappers or an attribute; ``None`` without one."""
    limits = [getattr(env.unwrapped, "max_episode_steps", None)]
    while env is not env.unwrapped:
        limits.append(getattr(env, "_max_episode_steps", None))  # set by Gymnasium's TimeLimit
        env = env.env
    numbers = (limit for limit in limits if isinstance(limit, int | float) and 0 < limit < math.inf)
    return min(map(int, numbers), default=None)


class InProcessGymnasiumEnv(_GymnasiumEnv):
    """Gymnasium environments that are stepped sequentially in this process.

    Args:
        make: function that creates one environment.
        num_envs: number of environments.
        obs_key, metrics, goal_task: see ``make_gymnasium_simulators``.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        obs_key: str | None = None,
        metrics: Sequence[str] = (),
        goal_task: str | None = None,
    ) -> None:
        self._envs = [make() for _ in range(num_envs)]
        self._arguments: Mapping[str, np.ndarray] = {}
        super().__init__(self._envs[0], num_envs, obs_key, metrics, goal_task)

    def stateful_objects(self) -> list[Any]:
        return [env.unwrapped for env in self._envs]

    def set_arguments(self, arguments: Mapping[str, np.ndarray]) -> None:
        """Set the ``options`` of later resets, arrays ``[B, ...]`` by name; environment i receives entry i of each."""
        self._arguments = arguments

    def reset(self, seeds: np.ndarray) -> Any:
        return self._restarted(range(self.num_envs), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        return self._restarted(np.flatnonzero(mask), seeds)

    def _restarted(self, numbers: Any, seeds: np.ndarray) -> Any:
        batch = answers.blank_observations(self.obs_space, self.num_envs)
        seeds = fold_seeds(seeds, self.seed_bits)
        for i in numbers:
            try:
                options = {name: copy.deepcopy(value[i]) for name, value in self._arguments.items()} or None
                start = answers.as_start(self._envs[i].reset(seed=int(seeds[i]), options=options))
                answers.put_observation(self.obs_space, batch, i, self._observed(start))
            except BaseException as error:
                raise answers.failure_of(f"environment {i}", "reset", error) from error
        return batch

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        num_envs, converted = self.num_envs, batch_rows(self.action_space, self._convert_actions(actions))
        batch = answers.blank_observations(self.obs_space, num_envs)
        reward = np.zeros(num_envs, np.float32)
        termination, truncation = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        metrics = {name: np.zeros(num_envs, np.float32) for name in self._metrics}
        for i, env in enumerate(self._envs):
            try:
                obs, own_reward, terminated, truncated, info = answers.as_step(env.step(converted[i]))
                answers.put_observation(self.obs_space, batch, i, self._observed(obs))
                reward[i] = answers.as_reward(own_reward)
                termination[i] = answers.as_flag(terminated, "terminated")
                truncation[i] = answers.as_flag(truncated, "truncated")
                for name in self._metrics:
                    metrics[name][i] = answers.as_metric(info, name)
            except BaseException as error:
                raise answers.failure_of(f"environment {i}", "step", error) from error
        return batch, reward, termination, truncation, metrics

    def physics(self) -> dict[str, np.ndarray]:
        """Return ``qpos`` and ``qvel`` of MuJoCo environments, ``[B, k]``; empty for other environments."""
        rows = [bodies_of(env) for env in self._envs]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    @property
    def mujoco_model(self) -> Any:
        return self._envs[0].unwrapped.model if bodies_of(self._envs[0]) else None

    def render(self) -> np.ndarray | None:
        """Return an image ``[H, W, 3]`` of the first environment; ``None`` without ``render_mode: rgb_array``.

        Raises:
            ImportError: a package required for rendering is not installed.
        """
        import gymnasium

        try:
            return self._envs[0].render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise ImportError(
                f"images require an additional package: pip install 'gymnasium[classic-control,mujoco]'. {error}"
            ) from error

    def close(self) -> None:
        for env in self._envs:
            env.close()


class AsyncGymnasiumEnv(_GymnasiumEnv):
    """Gymnasium environments that are each stepped in their own process, with observations in shared memory.

    It takes the arguments of ``InProcessGymnasiumEnv``; ``make`` is pickled for the worker processes.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        obs_key: str | None = None,
        metrics: Sequence[str] = (),
        goal_task: str | None = None,
    ) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode

        single = make()
        super().__init__(single, num_envs, obs_key, metrics, goal_task)
        single.close()
        # Workers are spawned, because forking a process with JAX's threads can hang.
        # Any: Gymnasium's types allow only its own wrappers.
        makes: Any = functools.partial(CheckedAnswers, make, obs_key, tuple(metrics))
        self._env = AsyncVectorEnv(
            [makes] * num_envs, shared_memory=True, context="spawn", autoreset_mode=AutoresetMode.DISABLED
        )

    def reset(self, seeds: np.ndarray) -> Any:
        return self._observed(self._called("reset", seed=self._as_seeds(seeds))[0])

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        options = {"reset_mask": mask}
        return self._observed(self._called("reset", seed=self._as_seeds(seeds), options=options)[0])

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        obs, reward, termination, truncation, info = self._called("step", self._convert_actions(actions))
        reward = np.asarray(reward, np.float32)
        return self._observed(obs), reward, termination, truncation, {name: info[name] for name in self._metrics}

    def _as_seeds(self, seeds: np.ndarray) -> list[int]:
        return fold_seeds(seeds, self.seed_bits).tolist()

    def _called(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Gymnasium warns before it raises
                getattr(self._env, f"{method}_async")(*args, **kwargs)
                return getattr(self._env, f"{method}_wait")(timeout=_ASYNC_TIMEOUT)
        except Exception as error:
            reason = (str(error).strip() or "no answer").splitlines()[0]
            ended = [i for i, process in enumerate(self._env.processes) if not process.is_alive()]
            subject = f"the process of environment {ended[0]}" if ended else "a Gymnasium worker"
            status = f" (it ended with status {self._env.processes[ended[0]].exitcode})" if ended else ""
            raise HostEnvError(f"{subject} failed in {method}: {type(error).__name__}: {reason}{status}") from error

    def render(self) -> np.ndarray | None:
        """Return an image ``[H, W, 3]`` of the first environment; ``None`` without ``render_mode: rgb_array``."""
        pictures = self._env.render()
        return np.asarray(pictures[0]) if pictures else None

    def close(self) -> None:
        self._env.close(terminate=True)


def bodies_of(env: Any) -> dict[str, np.ndarray]:
    """Return ``qpos`` and ``qvel`` of a Gymnasium environment on MuJoCo; an empty dict for other environments."""
    data = getattr(getattr(env, "unwrapped", env), "data", None)
    return {name: getattr(data, name).copy() for name in ("qpos", "qvel") if hasattr(data, name)}


def is_drawn_by_mujoco(name: str) -> bool:
    """Return True if MuJoCo renders the Gymnasium environment with the id ``name``, judged by its entry point."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    return any(word in str(spec and spec.entry_point).lower() for word in ("mujoco", "robotics"))
