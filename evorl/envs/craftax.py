"""Adapter for Craftax and Craftax-Classic with symbolic observations. Imports the package on first use.

The library ends an episode after ``max_timesteps`` without distinguishing truncation from termination. Here this limit
is disabled, and ``EpisodeWrapper`` reports a truncation after the same number of steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import explain_missing_package, no_such
from evorl.envs.env import EnvState, EnvWithSpaces, compiled
from evorl.envs.options import as_hashable, check_options, from_hashable, split_options
from evorl.envs.space import Box, Discrete
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = ("Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1")
EXCLUDED = {
    f"Craftax-{kind}Pixels-v1": f"its observations are images; use Craftax-{kind}Symbolic-v1"
    for kind in ("", "Classic-")
}
_NO_LIMIT = 2**31 - 1


class CraftaxAdapter(EnvWithSpaces):
    """A Craftax environment as an ``Env``, without a time limit.

    At every step, ``info.metrics`` has 1 for each achievement that the episode has reached so far, and 0 for the other
    achievements. The library reports them only in the last step, in percent.

    Args:
        craftax_env: an environment of the library without autoreset.
        params: parameters of ``craftax_env``; ``None`` for the default. Their ``max_timesteps`` is ignored.
        spec: hashable description of ``craftax_env`` and ``params``; adapters with equal ``spec`` are equal. Without
            ``spec``, adapters are equal only if they share the same objects ``craftax_env`` and ``params``.
    """

    def __init__(self, craftax_env: Any, params: Any = None, spec: Any = None) -> None:
        self.craftax_env = craftax_env
        self._spec = spec
        with jax.ensure_compile_time_eval():  # an environment may be created inside a trace
            params = craftax_env.default_params if params is None else params
            self._wrapped = (craftax_env, params)
            self.params = params.replace(max_timesteps=_NO_LIMIT)
            self._action_space = Discrete(craftax_env.num_actions)
        # Not in ``ensure_compile_time_eval``, where JAX would compile and execute each operation.
        key, action = jax.eval_shape(lambda: (jax.random.key(0), jnp.zeros((), jnp.int32)))
        obs, state = jax.eval_shape(craftax_env.reset_env, key, self.params)
        self._obs_space = Box(0.0, 1.0, obs.shape, obs.dtype)  # the map, the inventory and the player's condition
        state = jax.eval_shape(craftax_env.step_env, key, state, action, self.params)[1]
        # Some leaves have different dtypes after a step and after a reset.
        self._dtypes = jax.tree.map(lambda x: x.dtype, state)
        achievements = importlib.import_module(type(craftax_env).__module__).Achievement
        self._achievements = {f"Achievements/{member.name.lower()}": member.value for member in achievements}

    @compiled
    def reset(self, key: Key) -> EnvState:
        reset_key, episode_key = jax.random.split(as_typed_key(key))
        obs, state = self.craftax_env.reset_env(reset_key, self.params)
        return self._env_state(obs, state, 0.0, False, episode_key)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        key, state = env_state._internal.key, env_state.env_state
        step_key = jax.random.fold_in(key, jnp.asarray(state.timestep, jnp.uint32))
        obs, state, reward, done, _ = self.craftax_env.step_env(step_key, state, action, self.params)
        return self._env_state(obs, state, reward, done, key)

    def _env_state(self, obs: Any, state: Any, reward: Any, done: Any, key: Key) -> EnvState:
        state, done = jax.tree.map(jnp.asarray, state, self._dtypes), jnp.asarray(done, jnp.bool_)
        reached = jnp.asarray(state.achievements, jnp.float32)
        metrics = PyTreeDict({name: reached[i] for name, i in self._achievements.items()})
        info = PyTreeDict(termination=done, truncation=jnp.zeros_like(done), metrics=metrics)
        obs = jnp.asarray(obs, self._obs_space.dtype)
        return EnvState(state, obs, jnp.asarray(reward, jnp.float32), done, info, PyTreeDict(key=key))

    def __repr__(self) -> str:
        return f"CraftaxAdapter({self.craftax_env.name!r})"


def create_wrapped_craftax_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vectorized Craftax environment.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``, where ``max_episode_steps`` is the library's ``max_timesteps`` by
            default; all others are parameters of the environment (``day_length`` ...).

    Raises:
        ValueError: the environment or an option is unknown, or a value is invalid.
        ImportError: Craftax is not installed.
    """
    shared, arguments = split_options(options)
    env, limit = _make_adapter(env_name, as_hashable(arguments))
    return wrap_env(env, limit=limit, **shared)


@functools.lru_cache(maxsize=16)
def _make_adapter(env_name: str, arguments: tuple) -> tuple[CraftaxAdapter, int]:
    """Return the adapter, and the library's default time limit in steps."""
    if env_name in EXCLUDED:
        raise ValueError(f"craftax {env_name} is not available here: {EXCLUDED[env_name]}.")
    if env_name not in ENV_NAMES:
        raise ValueError(no_such("Craftax environment", env_name, ENV_NAMES))
    options = from_hashable(arguments)
    # The library imports the environment here and prints messages about loaded textures.
    with jax.ensure_compile_time_eval(), contextlib.redirect_stdout(io.StringIO()):
        env = _craftax_env_module().make_craftax_env_from_name(env_name, auto_reset=False)
        params = env.default_params
        names = {field.name for field in dataclasses.fields(params)} - {"max_timesteps"}
        check_options(f"craftax {env_name}", options, names)
    with contextlib.redirect_stdout(io.StringIO()):
        adapter = CraftaxAdapter(env, params.replace(**options), ("craftax", env_name, arguments))
    return adapter, int(params.max_timesteps)


@functools.cache
def _craftax_env_module() -> Any:
    """Import and return the library's module that creates environments."""
    with explain_missing_package("Craftax environments", "craftax"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from its plotting imports
        from craftax import craftax_env
    return craftax_env
