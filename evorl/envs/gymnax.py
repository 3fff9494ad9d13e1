"""Environments of gymnax: classic control, MinAtar, bsuite and more. gymnax itself is imported when it is used."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.env import AutoresetMode, Env, EnvState, compiled, strongly_typed
from evorl.envs.gymnax_import import load_environment_class
from evorl.envs.naming import check_options, frozen, nearest_name, parameter_names, thawed
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

# Id -> (module below gymnax.environments, class). Written out so that one environment is imported, not all of gymnax.
GYMNAX_CLASSES = {
    "CartPole-v1": ("classic_control.cartpole", "CartPole"),
    "Pendulum-v1": ("classic_control.pendulum", "Pendulum"),
    "Acrobot-v1": ("classic_control.acrobot", "Acrobot"),
    "MountainCar-v0": ("classic_control.mountain_car", "MountainCar"),
    "MountainCarContinuous-v0": ("classic_control.continuous_mountain_car", "ContinuousMountainCar"),
    "Asterix-MinAtar": ("minatar.asterix", "MinAsterix"),
    "Breakout-MinAtar": ("minatar.breakout", "MinBreakout"),
    "Freeway-MinAtar": ("minatar.freeway", "MinFreeway"),
    "Seaquest-MinAtar": ("minatar.seaquest", "MinSeaquest"),
    "SpaceInvaders-MinAtar": ("minatar.space_invaders", "MinSpaceInvaders"),
    "Catch-bsuite": ("bsuite.catch", "Catch"),
    "DeepSea-bsuite": ("bsuite.deep_sea", "DeepSea"),
    "MemoryChain-bsuite": ("bsuite.memory_chain", "MemoryChain"),
    "UmbrellaChain-bsuite": ("bsuite.umbrella_chain", "UmbrellaChain"),
    "DiscountingChain-bsuite": ("bsuite.discounting_chain", "DiscountingChain"),
    "SimpleBandit-bsuite": ("bsuite.bandit", "SimpleBandit"),
    "FourRooms-misc": ("misc.rooms", "FourRooms"),
    "MetaMaze-misc": ("misc.meta_maze", "MetaMaze"),
    "PointRobot-misc": ("misc.point_robot", "PointRobot"),
    "BernoulliBandit-misc": ("misc.bernoulli_bandit", "BernoulliBandit"),
    "GaussianBandit-misc": ("misc.gaussian_bandit", "GaussianBandit"),
    "Reacher-misc": ("misc.reacher", "Reacher"),
    "Swimmer-misc": ("misc.swimmer", "Swimmer"),
    "Pong-misc": ("misc.pong", "Pong"),
    "FrozenLake-misc": ("misc.frozen_lake", "FrozenLake"),
}
GYMNAX_ENV_NAMES = tuple(GYMNAX_CLASSES)
# Classes whose observations leave the bounds they declare (gymnax 1.0.1): here they have none.
_WRONG_OBS_BOUNDS = ("GaussianBandit", "MemoryChain", "MetaMaze", "UmbrellaChain")
GYMNAX_EXCLUDED = {"MNISTBandit-bsuite": "it downloads the MNIST data set when it is made"}


class GymnaxAdapter(Env):
    """A gymnax environment as an ``Env``, without gymnax's own autoreset.

    Args:
        gymnax_env: an instance of gymnax's ``Environment`` (gymnax 1.0 or later).
        params: its parameters, by default its ``default_params``; ``max_steps_in_episode`` is its time limit.
        spec: what it was built from, hashable: adapters of equal spec are equal. Without it, only those of the very
            same ``gymnax_env`` and ``params``.

    Raises:
        TypeError: the environment does not tell truncation from termination, as before gymnax 1.0.
    """

    def __init__(self, gymnax_env: Any, params: Any = None, spec: Any = None) -> None:
        if not hasattr(gymnax_env, "is_truncated"):
            raise TypeError(
                f"{type(gymnax_env).__name__} has no is_truncated: it is no environment of gymnax >= 1.0, which is "
                "needed to tell termination from truncation."
            )
        self.gymnax_env = gymnax_env
        self.params = gymnax_env.default_params if params is None else params
        self._spec = spec
        with jax.ensure_compile_time_eval():  # an environment may be made inside a trace
            action_space, obs_space = gymnax_env.action_space(self.params), gymnax_env.observation_space(self.params)
            self._action_space = _space(action_space)
        state, obs, self._step_draws = self._traced()
        self._state_dtypes = jax.tree.map(lambda x: x.dtype, state)
        self._obs_space = _space(obs_space, obs)
        if type(gymnax_env).__name__ in _WRONG_OBS_BOUNDS:
            self._obs_space = Box(-np.inf, np.inf, self._obs_space.shape, self._obs_space.dtype)

    @property
    def obs_space(self) -> Space:
        """The library's bounds; shapes and dtypes as it really returns them."""
        return self._obs_space

    @property
    def action_space(self) -> Space:
        """The library's action space."""
        return self._action_space

    @property
    def max_episode_steps(self) -> int:
        """The ``max_steps_in_episode`` of the parameters."""
        return int(self.params.max_steps_in_episode)

    @compiled
    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        key = as_typed_key(key)
        reset_key, episode_key = jax.random.split(key) if self._step_draws else (key, key)
        obs, state = self.gymnax_env.reset_env(reset_key, self.params)
        internal = PyTreeDict(key=episode_key) if self._step_draws else PyTreeDict()
        zero = jnp.zeros((), jnp.bool_)
        return self._env_state(obs, state, jnp.zeros(()), zero, zero, internal)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = env_state.env_state
        if self._step_draws:
            key = jax.random.fold_in(env_state._internal.key, jnp.asarray(state.time, jnp.uint32))
        else:
            key = jax.random.key(0)  # never looked at
        obs, state, reward, terminated, _ = self.gymnax_env.step_env(key, state, action, self.params)
        truncated = self.gymnax_env.is_truncated(state, self.params)
        internal = PyTreeDict(key=env_state._internal.key) if self._step_draws else PyTreeDict()
        return self._env_state(obs, state, reward, terminated, truncated, internal)

    def _env_state(
        self, obs: Any, state: Any, reward: Any, terminated: Any, truncated: Any, internal: PyTreeDict
    ) -> EnvState:
        state = jax.tree.map(lambda x, dtype: jnp.asarray(x, dtype), state, self._state_dtypes)
        termination = jnp.asarray(terminated, jnp.bool_)
        truncation = jnp.asarray(truncated, jnp.bool_) & ~termination
        env_state = EnvState(
            env_state=state,
            obs=jax.tree.map(lambda x, spec: jnp.asarray(x, spec.dtype), obs, self._obs_space.spec),
            reward=jnp.asarray(reward, jnp.float32),
            done=termination | truncation,
            info=PyTreeDict(termination=termination, truncation=truncation, metrics=PyTreeDict()),
        )
        return strongly_typed(env_state).replace(_internal=internal)

    def _traced(self) -> tuple[Any, Any, bool]:
        """Abstract state and observation after a step, and whether a step draws random numbers at all.

        Most do not, and their key need not be carried along.
        """
        _, state = jax.eval_shape(self.gymnax_env.reset_env, jax.random.key(0), self.params)
        action = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self._action_space.spec)
        jaxpr, outcome = jax.make_jaxpr(
            lambda key, state: self.gymnax_env.step_env(key, state, action, self.params), return_shape=True
        )(jax.random.key(0), state)
        key = jaxpr.jaxpr.invars[0]
        return outcome[1], outcome[0], any(key is var for eqn in jaxpr.jaxpr.eqns for var in eqn.invars)

    def _identity(self) -> Any:
        return self._spec if self._spec is not None else (id(self.gymnax_env), id(self.params))

    def __repr__(self) -> str:
        return f"GymnaxAdapter({self.gymnax_env.name!r})"


def create_wrapped_gymnax_env(
    env_name: str,
    *,
    episode_length: int | None = None,
    parallel: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NORMAL,
    action_repeat: int = 1,
    frame_stack: int = 1,
    reward_scale: float | None = None,
    sparse_reward_interval: int | None = None,
    flatten_obs: bool | None = None,
    observed: Sequence[int] | None = None,
    **env_kwargs: Any,
) -> VectorEnv:
    """A vector env of a gymnax environment.

    Actions of bounded boxes are given in ``[-1, 1]``.

    Args:
        env_name: one of ``GYMNAX_ENV_NAMES``.
        episode_length: the time limit, in steps of the environment; ``None`` for its own.
        parallel: number of environments B.
        autoreset_mode: see ``AutoresetMode``.
        action_repeat: apply each action that many times; ``info.steps`` counts decisions.
        frame_stack: observe the last so many observations.
        reward_scale: factor of the reward (``info.episode_return`` stays unscaled).
        sparse_reward_interval: pay the summed reward every so many steps and at the end only.
        flatten_obs: make one vector of the observation; by default only where it is an integer (one-hot).
        observed: the components of a flat observation that are seen; ``None`` for all.
        **env_kwargs: parameters of the environment (``gravity`` ...) or arguments of its class.

    Raises:
        ValueError: unknown environment, parameter, or an argument out of range.
        ImportError: gymnax is not installed, or older than 1.0.
    """
    if episode_length is not None:
        env_kwargs["max_steps_in_episode"] = episode_length
    env = _make_adapter(env_name, frozen(env_kwargs))
    return wrap_env(
        env,
        parallel=parallel,
        autoreset_mode=autoreset_mode,
        action_repeat=action_repeat,
        frame_stack=frame_stack,
        reward_scale=reward_scale,
        sparse_reward_interval=sparse_reward_interval,
        flatten_obs=isinstance(env.obs_space, Discrete) if flatten_obs is None else flatten_obs,
        observed=observed,
    )


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, env_kwargs: tuple) -> GymnaxAdapter:
    if env_name in GYMNAX_EXCLUDED:
        raise ValueError(f"gymnax {env_name} is not available here: {GYMNAX_EXCLUDED[env_name]}.")
    if env_name not in GYMNAX_CLASSES:
        raise ValueError(f"gymnax has no environment {env_name!r}{nearest_name(env_name, GYMNAX_ENV_NAMES)}")
    env_class = load_environment_class(*GYMNAX_CLASSES[env_name])
    options = thawed(env_kwargs)
    limit = options.get("max_steps_in_episode")
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise ValueError(f"The time limit must be at least 1 step, got {limit!r}.")
    with jax.ensure_compile_time_eval():
        names = {field.name for field in dataclasses.fields(env_class().default_params)}
        check_options(f"gymnax {env_name}", options, names | parameter_names(env_class))
        env = env_class(**{name: value for name, value in options.items() if name not in names})
        default = env.default_params
        given = {name: _like(getattr(default, name), value) for name, value in options.items() if name in names}
        params = default.replace(**given)
    return GymnaxAdapter(env, params, ("gymnax", env_name, env_kwargs))


def _like(default: Any, value: Any) -> Any:
    """A whole number given for a parameter that is a float is one too."""
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def _space(space: Any, obs: Any = None) -> Space:
    """A gymnax space as one of ours; ``obs`` says what the library really returns where that differs."""
    if hasattr(space, "n"):
        return Discrete(space.n)
    if hasattr(space, "spaces"):
        members = space.spaces
        if isinstance(members, dict):
            return DictSpace({k: _space(s, None if obs is None else obs[k]) for k, s in members.items()})
        return TupleSpace([_space(s, None if obs is None else obs[i]) for i, s in enumerate(members)])
    shape = space.shape if obs is None else obs.shape
    # Some say integers and return floats, or the other way round: then it is floats.
    dtype = space.dtype if obs is None or np.dtype(space.dtype) == obs.dtype else jnp.float32
    return Box(_finite_or_inf(space.low), _finite_or_inf(space.high), shape, dtype)


def _finite_or_inf(bound: Any) -> np.ndarray:
    """A bound at the end of the float range is none."""
    bound = np.asarray(bound, np.float64)
    return np.where(np.abs(bound) >= np.finfo(np.float32).max * 0.99, np.copysign(np.inf, bound), bound)
