"""Adapter for gymnax: classic control, MinAtar, bsuite and more. Imports only the modules of used environments.

Two differences from gymnax 1.0.1: the car of MountainCarContinuous-v0 stops at the left wall, as in Gymnasium, while in
gymnax it keeps its velocity; and observation bounds are infinite where observations exceed gymnax's declared bounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import LONGEST_AXIS, whole_number
from evorl.envs.env import EnvState, EnvWithSpaces, compiled
from evorl.envs.gymnax_import import load_environment_class
from evorl.envs.options import as_hashable, check_options, from_hashable, move_option, parameter_names, split_options
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

# Id -> (module below gymnax.environments, class). Listed here so that one environment is imported, not all of gymnax.
CLASSES = {
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
ENV_NAMES = tuple(CLASSES)
# Classes whose observations exceed their declared bounds (gymnax 1.0.1); here they are unbounded.
_WRONG_OBS_BOUNDS = ("GaussianBandit", "MemoryChain", "MetaMaze", "UmbrellaChain")
# Class name -> fields of the state with positions and velocities of bodies, which ``physics`` returns.
_BODIES = {
    "CartPole": ("x", "x_dot", "theta", "theta_dot"),
    "Pendulum": ("theta", "theta_dot"),
    "Acrobot": ("joint_angle1", "joint_angle2", "velocity_1", "velocity_2"),
    "MountainCar": ("position", "velocity"),
    "ContinuousMountainCar": ("position", "velocity"),
}
EXCLUDED = {"MNISTBandit-bsuite": "it downloads the MNIST data set when it is created"}


class GymnaxAdapter(EnvWithSpaces):
    """A gymnax environment as an ``Env``, without gymnax's own autoreset.

    Args:
        gymnax_env: an instance of gymnax's ``Environment`` (gymnax 1.0 or later).
        params: parameters of ``gymnax_env``; ``None`` for the default. ``max_steps_in_episode`` is the time limit.
        spec: hashable description of ``gymnax_env`` and ``params``; adapters with equal ``spec`` are equal. Without
            ``spec``, adapters are equal only if they share the same objects ``gymnax_env`` and ``params``.

    Raises:
        TypeError: the environment does not distinguish truncation from termination, as before gymnax 1.0.
    """

    def __init__(self, gymnax_env: Any, params: Any = None, spec: Any = None) -> None:
        if not hasattr(gymnax_env, "is_truncated"):
            raise TypeError(
                f"{type(gymnax_env).__name__} has no is_truncated: it is not a gymnax >= 1.0 environment, which is "
                "required to distinguish termination from truncation."
            )
        self.gymnax_env = gymnax_env
        self.params = gymnax_env.default_params if params is None else params
        self._spec, self._wrapped = spec, (gymnax_env, self.params)
        cls = type(gymnax_env)
        self._step_env: Callable[..., Any] = {cls.__name__: cls.step_env, **_CORRECTED_STEPS}[cls.__name__]
        with jax.ensure_compile_time_eval():  # an environment may be created inside a trace
            action_space, obs_space = gymnax_env.action_space(self.params), gymnax_env.observation_space(self.params)
            self._action_space = _space(action_space)
        state, obs, self._step_draws = self._traced()
        self._obs_space = _space(obs_space, obs)
        if type(gymnax_env).__name__ in _WRONG_OBS_BOUNDS:
            self._obs_space = Box(-np.inf, np.inf, self._obs_space.shape, self._obs_space.dtype)
        self._dtypes = jax.tree.map(lambda x: x.dtype, (state, self._obs_space.spec))

    @property
    def max_episode_steps(self) -> int:
        """Time limit in steps, ``max_steps_in_episode`` of the parameters."""
        return int(self.params.max_steps_in_episode)

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return positions and velocities of a classic control task, keyed by gymnax's names; empty for other tasks."""
        names = _BODIES.get(type(self.gymnax_env).__name__, ())
        return PyTreeDict({name: getattr(env_state.env_state, name) for name in names})

    @compiled
    def reset(self, key: Key) -> EnvState:
        key = as_typed_key(key)
        reset_key, episode_key = jax.random.split(key) if self._step_draws else (key, key)
        obs, state = self.gymnax_env.reset_env(reset_key, self.params)
        internal = PyTreeDict(key=episode_key) if self._step_draws else PyTreeDict()
        return self._env_state(obs, state, 0.0, jnp.asarray(False), jnp.asarray(False), internal)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        state, key, internal = env_state.env_state, jax.random.key(0), PyTreeDict()  # that key is never used
        if self._step_draws:
            internal = PyTreeDict(key=env_state._internal.key)
            key = jax.random.fold_in(internal.key, jnp.asarray(state.time, jnp.uint32))
        obs, state, reward, terminated, _ = self._step_env(self.gymnax_env, key, state, action, self.params)
        truncated = self.gymnax_env.is_truncated(state, self.params)
        return self._env_state(obs, state, reward, terminated, truncated, internal)

    def _env_state(
        self, obs: Any, state: Any, reward: Any, terminated: Any, truncated: Any, internal: PyTreeDict
    ) -> EnvState:
        # Some environments return Python numbers, or different dtypes after a step and after a reset.
        state, obs = jax.tree.map(jnp.asarray, (state, obs), self._dtypes)
        termination = jnp.asarray(terminated, jnp.bool_)
        truncation = jnp.asarray(truncated, jnp.bool_) & ~termination
        info = PyTreeDict(termination=termination, truncation=truncation, metrics=PyTreeDict())
        reward = jnp.asarray(reward, jnp.float32)
        return EnvState(state, obs, reward, termination | truncation, info, internal)

    def _traced(self) -> tuple[Any, Any, bool]:
        """Return shapes and dtypes of state and observation after a step, and a bool, true if a step uses its key.

        Most environments have deterministic steps; their ``EnvState`` then stores no key.
        """
        _, state = jax.eval_shape(self.gymnax_env.reset_env, jax.random.key(0), self.params)
        action = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self._action_space.spec)
        jaxpr, outcome = jax.make_jaxpr(
            lambda *args: self._step_env(self.gymnax_env, *args, action, self.params), return_shape=True
        )(jax.random.key(0), state)
        key = jaxpr.jaxpr.invars[0]
        return outcome[1], outcome[0], any(key is var for eqn in jaxpr.jaxpr.eqns for var in eqn.invars)

    def __repr__(self) -> str:
        return f"GymnaxAdapter({self.gymnax_env.name!r})"


def _step_mountain_car_continuous(env: Any, key: Key, state: Any, action: Action, params: Any) -> tuple:
    """Step MountainCarContinuous; the car stops at the left wall, as in Gymnasium. In gymnax it keeps its velocity."""
    _, state, reward, terminated, info = env.step_env(key, state, action, params)
    hits_wall = (state.position <= params.min_position) & (state.velocity < 0)
    state = state.replace(velocity=jnp.where(hits_wall, 0.0, state.velocity))
    return env.get_obs(state), state, reward, terminated, info


_CORRECTED_STEPS = {"ContinuousMountainCar": _step_mountain_car_continuous}  # by class name


def create_wrapped_gymnax_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vectorized gymnax environment.

    If the environment's actions are a bounded Box, agents act in ``[-1, 1]``.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``; all others are parameters of the environment (``gravity`` ...) or
            arguments of its class.

    Raises:
        ValueError: the environment or an option is unknown, or a value is out of range.
        ImportError: gymnax is not installed, or older than 1.0.
    """
    shared, arguments = split_options(options)
    move_option(shared, arguments, "max_episode_steps", "max_steps_in_episode")  # instead of a second time limit
    return wrap_env(_make_adapter(env_name, as_hashable(arguments)), **shared)


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, arguments: tuple) -> GymnaxAdapter:
    if env_name in EXCLUDED:
        raise ValueError(f"gymnax {env_name} is not available here: {EXCLUDED[env_name]}.")
    if env_name not in CLASSES:
        raise ValueError(no_such("gymnax environment", env_name, ENV_NAMES))
    env_class = load_environment_class(*CLASSES[env_name])
    options = from_hashable(arguments)
    with jax.ensure_compile_time_eval():
        names = {field.name for field in dataclasses.fields(env_class().default_params)}
        check_options(f"gymnax {env_name}", options, names | parameter_names(env_class))
        env = env_class(**{name: value for name, value in options.items() if name not in names})
        default = env.default_params
        changes = {name: _like(getattr(default, name), value, name) for name, value in options.items() if name in names}
        params = default.replace(**changes)
    return GymnaxAdapter(env, params, ("gymnax", env_name, arguments))


def _like(default: Any, value: Any, name: str) -> Any:
    """Return ``value`` in the type of ``default``; raise ``ValueError`` for other kinds of numbers."""
    if type(default) is int:
        return whole_number(value, f"env.{name}", 1 if name == "max_steps_in_episode" else -LONGEST_AXIS, LONGEST_AXIS)
    if isinstance(default, float | int) and not isinstance(value, float | int | np.generic | np.ndarray | jax.Array):
        raise ValueError(f"env.{name} must be a number, got {value!r}.")
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def _space(space: Any, obs: Any = None) -> Space:
    """Convert a gymnax space. ``obs``: shapes and dtypes of returned observations, which may differ from ``space``."""
    if hasattr(space, "n"):
        return Discrete(space.n)
    if hasattr(space, "spaces"):
        members = space.spaces
        if isinstance(members, dict):
            return DictSpace({k: _space(s, None if obs is None else obs[k]) for k, s in members.items()})
        return TupleSpace([_space(s, None if obs is None else obs[i]) for i, s in enumerate(members)])
    shape = space.shape if obs is None else obs.shape
    # Some environments declare integers and return floats, or vice versa: use floats.
    dtype = space.dtype if obs is None or np.dtype(space.dtype) == obs.dtype else jnp.float32
    return Box(_finite_or_inf(space.low), _finite_or_inf(space.high), shape, dtype)


def _finite_or_inf(bound: Any) -> np.ndarray:
    """Replace bounds near the limits of float32 by infinity; gymnax uses such bounds for unbounded numbers."""
    bound = np.asarray(bound, np.float64)
    return np.where(np.abs(bound) >= np.finfo(np.float32).max * 0.99, np.copysign(np.inf, bound), bound)
