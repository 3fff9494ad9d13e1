"""Adapter for Jumanji: puzzles, packing and routing, most with action masks. Imports Jumanji on first use.

Observations are dicts; the entry ``action_mask``, if present, marks the allowed actions. Differences from Jumanji:

- Jumanji's environments report a termination after ``time_limit`` steps. Here this limit is disabled, and
  ``EpisodeWrapper`` reports a truncation after the same number of steps.
- Agents choose among all combinations of the components of an action, see ``evorl.envs.action_conversion``. This needs
  a mask of complete actions, or no mask; environments with one mask per component are not supported.
- Integer observations bounded by the time limit in Jumanji have no upper bound here.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import explain_missing_package, no_such
from evorl.config.values import check_names
from evorl.envs.env import EnvState, EnvWithSpaces, compiled
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.space import ACTION_MASK, Box, DictSpace, Discrete, Space
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, Observation, PyTreeDict, is_entry_name

ENV_NAMES = (
    *("BinPack-v2", "CVRP-v1", "FlatPack-v0", "Game2048-v1", "GraphColoring-v1", "Knapsack-v1", "Maze-v0"),
    *("Minesweeper-v0", "PacMan-v1", "RubiksCube-v0", "RubiksCube-partly-scrambled-v0"),
    *("SlidingTilePuzzle-v0", "Snake-v1", "Sudoku-v0", "Sudoku-very-easy-v0", "TSP-v1", "Tetris-v0"),
)
_MULTI_AGENT = "it has several agents that act together, which evorl does not support for Jumanji"
EXCLUDED = {
    **dict.fromkeys(("Cleaner-v0", "Connector-v3", "LevelBasedForaging-v0", "MMST-v0"), _MULTI_AGENT),
    **dict.fromkeys(("MultiCVRP-v0", "RobotWarehouse-v0", "SearchAndRescue-v0"), _MULTI_AGENT),
    "JobShop-v0": "an action has a masked component per machine: 21^10 combinations cannot be enumerated",
    "Sokoban-v0": "it downloads its levels when it is created",
}
_NO_LIMIT = 2**31 - 1


class JumanjiAdapter(EnvWithSpaces):
    """A Jumanji environment as an ``Env``, without an added time limit and without Jumanji's autoreset.

    Args:
        jumanji_env: an instance of Jumanji's ``Environment``; a last step with a nonzero discount is a truncation.
        spec: hashable description of ``jumanji_env``; adapters with equal ``spec`` are equal. Without ``spec``,
            adapters are equal only if they share the same ``jumanji_env`` object.

    Raises:
        ValueError: rewards are not scalars, actions are not discrete, or components of an action have separate masks.
    """

    def __init__(self, jumanji_env: Any, spec: Any = None) -> None:
        self.jumanji_env = jumanji_env
        self._spec, self._wrapped = spec, (jumanji_env,)
        with jax.ensure_compile_time_eval():  # an environment may be created inside a trace
            action_spec, observation_spec = jumanji_env.action_spec, jumanji_env.observation_spec
        # Not in ``ensure_compile_time_eval``, where JAX would compile and execute each operation.
        state, first = jax.eval_shape(lambda: jumanji_env.reset(jax.random.key(0)))
        observation = _as_dict(first.observation)
        mask = observation.get(ACTION_MASK) if isinstance(observation, Mapping) else None
        with jax.ensure_compile_time_eval():
            parts = _parts_of(jumanji_env, None if mask is None else mask.shape)
            dtype = action_spec.dtype
            self._action_space: Space = (
                Discrete(action_spec.num_values) if parts is None else MultiDiscrete(parts, dtype=dtype)
            )
        if first.reward.shape:
            raise ValueError(f"{jumanji_env!r} has rewards of shape {first.reward.shape}: {_MULTI_AGENT}.")
        step = jax.eval_shape(lambda at: jumanji_env.step(at, self._action_space.zeros()), state)
        self._has_metrics = jax.tree.structure(first.extras) == jax.tree.structure(step[1].extras)
        # Some leaves have different dtypes after a step and after a reset.
        self._dtypes = jax.tree.map(lambda x: x.dtype, (step[0], step[1].observation, step[1].extras))
        with jax.ensure_compile_time_eval():
            space = _space(observation_spec, _as_dict(step[1].observation))
        if mask is not None and isinstance(space, DictSpace):
            masks = Box(False, True, (math.prod(mask.shape),), jnp.bool_)
            space = DictSpace({**space.spaces, ACTION_MASK: masks})
        self._obs_space = space

    @compiled
    def reset(self, key: Key) -> EnvState:
        state, timestep = self.jumanji_env.reset(as_typed_key(key))
        return self._env_state(state, timestep.replace(reward=jnp.zeros(()), discount=jnp.ones(())))

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self._env_state(*self.jumanji_env.step(env_state.env_state, action))

    def _env_state(self, state: Any, timestep: Any) -> EnvState:
        outcome = (state, timestep.observation, timestep.extras if self._has_metrics else {})
        dtypes = (*self._dtypes[:2], self._dtypes[2] if self._has_metrics else {})
        state, obs, extras = jax.tree.map(jnp.asarray, outcome, dtypes)
        done = jnp.asarray(timestep.last(), jnp.bool_)
        termination = done & (timestep.discount == 0.0)
        info = PyTreeDict(termination=termination, truncation=done & ~termination, metrics=PyTreeDict(extras))
        return EnvState(state, self._observed(obs), jnp.asarray(timestep.reward, jnp.float32), done, info)

    def _observed(self, obs: Any) -> Observation:
        obs = _as_dict(obs)
        if isinstance(obs, PyTreeDict) and ACTION_MASK in obs:
            return obs | {ACTION_MASK: obs[ACTION_MASK].reshape(-1).astype(jnp.bool_)}
        return obs

    def __repr__(self) -> str:
        return f"JumanjiAdapter({type(self.jumanji_env).__name__})"


def _parts_of(env: Any, mask_shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the number of choices of each component of an action; ``None`` if an action is a single integer."""
    spec = env.action_spec
    if not hasattr(spec, "num_values"):
        raise ValueError(f"actions of {env!r} must be discrete, but are {spec!r}: use another environment.")
    if not spec.shape:
        return None
    parts = tuple(int(n) for n in np.ravel(spec.num_values))
    if mask_shape is not None and mask_shape != parts:
        raise ValueError(
            f"an action of {type(env).__name__} has {len(parts)} components with separate masks of shape {mask_shape}, "
            "which evorl does not support: it needs one mask over all combinations."
        )
    return parts


def create_wrapped_jumanji_env(
    env_name: str, *, generator: Mapping[str, Any] | None = None, **options: Any
) -> VectorEnv:
    """Create a vectorized Jumanji environment.

    Args:
        env_name: one of ``ENV_NAMES``.
        generator: arguments of the environment's problem generator, such as ``{"num_rows": 5, "num_cols": 5}`` for
            ``Maze-v0``, including all arguments without a default; ``None`` for the default generator.
        **options: the fields of ``EnvOptions``, where ``max_episode_steps`` is Jumanji's ``time_limit`` by default; all
            others are arguments of the environment's class (``num_rows`` of ``Snake-v1``).

    Raises:
        ValueError: the environment or an option is unknown, or the environment is not supported.
        ImportError: Jumanji is not installed.
    """
    shared, arguments = split_options(options)
    env, limit = _make_adapter(env_name, as_hashable(arguments), as_hashable(generator or {}))
    return wrap_env(env, limit=limit, **shared)


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, arguments: tuple, generator: tuple) -> tuple[JumanjiAdapter, int | None]:
    """Return the adapter, and Jumanji's time limit in steps, ``None`` if the environment has no limit."""
    if env_name in EXCLUDED:
        raise ValueError(f"jumanji {env_name} is not available here: {EXCLUDED[env_name]}.")
    jumanji = _jumanji()
    known = jumanji.registered_environments()
    if env_name not in known:
        raise ValueError(no_such("Jumanji environment", env_name, [n for n in sorted(known) if n not in EXCLUDED]))
    options, problem = from_hashable(arguments), from_hashable(generator)
    with jax.ensure_compile_time_eval():
        env = jumanji.make(env_name)
        names = parameter_names(type(env))
        check_options(f"jumanji {env_name}", options, names - {"generator", "viewer", "time_limit"})
        if problem:
            if "generator" not in names:
                raise ValueError(f"jumanji {env_name} has no problem generator: remove env.generator.")
            make_problem = type(env.generator)
            check_names(problem, parameter_names(make_problem), f"argument of {make_problem.__name__} (env.generator)")
            options["generator"] = make_problem(**problem)
        limit = getattr(jumanji.make(env_name, **options), "time_limit", None)
        env = jumanji.make(env_name, **options, **({} if limit is None else {"time_limit": _NO_LIMIT}))
    return JumanjiAdapter(env, ("jumanji", env_name, arguments, generator)), limit


@functools.cache
def _jumanji() -> Any:
    """Import and return the package ``jumanji``."""
    with explain_missing_package("Jumanji environments", "jumanji"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from its plotting imports
        import jumanji
    return jumanji


def _as_dict(obs: Any) -> Any:
    """Convert nested named tuples or dataclasses to dicts; a key that names a dict method gets a suffix: ``items_``."""
    names = getattr(obs, "_fields", ()) or getattr(obs, "__dataclass_fields__", ())
    if not names:
        return obs
    return PyTreeDict({name if is_entry_name(name) else f"{name}_": _as_dict(getattr(obs, name)) for name in names})


def _space(spec: Any, obs: Any) -> Space:
    """Return the space of observations, with the shapes and dtypes of ``obs`` and the bounds of Jumanji's ``spec``."""
    if isinstance(obs, Mapping):
        return DictSpace({name: _space(spec[name.removesuffix("_")], entry) for name, entry in obs.items()})
    if obs.dtype == jnp.bool_:
        return Box(False, True, obs.shape, obs.dtype)
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), obs.shape) for bound in (low, high))
    return Box(low, high, dtype=obs.dtype)
