"""Adapter for brax: continuous control on four physics backends. Imports brax on first use."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import explain_missing_package, no_such
from evorl.envs.env import EnvState, EnvWithSpaces, PhysicsEnv, strongly_typed
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.space import Box, DictSpace, Space
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = (
    *("ant", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum"),
    *("inverted_pendulum", "pusher", "reacher", "swimmer", "walker2d"),
)
BACKENDS = ("generalized", "positional", "spring", "mjx")


class BraxAdapter(EnvWithSpaces, PhysicsEnv):
    """A brax environment as an ``Env``.

    Actions are ``Box(-1, 1)``, observations are unbounded, and brax's metrics are in ``info.metrics``. brax
    environments have no time limit: wrap them in an ``EpisodeWrapper``, or use ``create_wrapped_brax_env``.

    Args:
        brax_env: an instance of ``brax.envs.Env``, not wrapped by brax's training wrappers.
        spec: hashable description of ``brax_env``; adapters with equal ``spec`` are equal. Without ``spec``, adapters
            are equal only if they share the same ``brax_env`` object.
    """

    def __init__(self, brax_env: Any, spec: Any = None) -> None:
        self.brax_env = brax_env
        self._spec, self._wrapped = spec, (brax_env,)
        self._action_space = Box(-1.0, 1.0, (brax_env.action_size,))
        self._obs_space = _unbounded(jax.eval_shape(self.reset, jax.random.key(0)).obs)

    @property
    def physics_model(self) -> Any:
        """The environment's ``brax.base.System``; ``None`` if the environment has no attribute ``sys``."""
        return getattr(self.brax_env, "sys", None)

    def reset_in(self, model: Any, key: Key) -> EnvState:
        return _env_state(strongly_typed(self._brax_env_on(model).reset(as_typed_key(key))))

    def step_in(self, model: Any, env_state: EnvState, action: Action) -> EnvState:
        # brax environments modify the metrics dict of the state passed to them: pass a copy.
        old = env_state.env_state
        new = self._brax_env_on(model).step(old.replace(metrics=dict(old.metrics), info=dict(old.info)), action)
        # The steps of some environments return Python numbers, or other dtypes than their resets.
        return _env_state(jax.tree.map(lambda x, before: jnp.asarray(x, before.dtype), new, old))

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return the generalized positions ``q`` and velocities ``qd``, called ``qpos`` and ``qvel`` in MuJoCo."""
        bodies = env_state.env_state.pipeline_state
        return PyTreeDict(q=bodies.q, qd=bodies.qd)

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` from which brax built its system."""
        return self.brax_env.sys.mj_model

    def _brax_env_on(self, system: Any) -> Any:
        """Return the brax environment, or a copy with another ``system`` as its attribute ``sys``."""
        if system is self.physics_model:
            return self.brax_env
        other = copy.copy(self.brax_env)
        other.sys = system
        return other

    def __repr__(self) -> str:
        return f"BraxAdapter({type(self.brax_env).__name__}, backend={self.brax_env.backend!r})"


def create_wrapped_brax_env(env_name: str, *, backend: str | None = None, **options: Any) -> VectorEnv:
    """Create a vectorized brax environment.

    Args:
        env_name: one of ``ENV_NAMES``, or a name that the user registered with brax.
        backend: ``"generalized"`` (default), ``"positional"``, ``"spring"`` or ``"mjx"``; ``swimmer`` supports only
            ``"generalized"``.
        **options: the fields of ``EnvOptions``, where ``max_episode_steps`` is 1000 by default, and ``None`` for no
            limit; all others are arguments of the brax environment (``reset_noise_scale`` ...).

    Raises:
        ValueError: the environment, backend or an option is unknown, or a value is out of range.
        ImportError: brax is not installed.
    """
    shared, arguments = split_options(options)
    adapter = make_brax_adapter(env_name, backend, as_hashable(arguments))
    return wrap_env(adapter, **{"max_episode_steps": 1000, **shared})


@functools.lru_cache(maxsize=16)
def make_brax_adapter(env_name: str, backend: str | None = None, arguments: tuple = ("dict", ())) -> BraxAdapter:
    """Create a cached ``BraxAdapter``, see ``create_wrapped_brax_env``; ``arguments`` are ``as_hashable`` options."""
    registry = _brax_envs()._envs
    if env_name not in registry:
        raise ValueError(no_such("brax environment", env_name, sorted(registry)))
    backend = backend or "generalized"
    if backend not in BACKENDS:
        raise ValueError(no_such("value of env.backend", backend, BACKENDS))
    if env_name == "swimmer":
        if backend != "generalized":
            raise ValueError(f"env.backend={backend} does not support brax swimmer: set env.backend=generalized.")
        _repair_fluid_forces()
    spec, options = ("brax", env_name, backend, arguments), from_hashable(arguments)
    check_options(f"brax {env_name}", options, parameter_names(registry[env_name]) | {"backend", "n_frames", "debug"})
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.filterwarnings("ignore", message="Brax System, piplines")
        brax_env = registry[env_name](backend=backend, **options)
    return BraxAdapter(brax_env, spec)


@functools.cache
def _brax_envs() -> Any:
    """Import and return ``brax.envs``; suppress its printed message about a missing optional renderer."""
    with explain_missing_package("brax environments", "brax"), contextlib.redirect_stdout(io.StringIO()):
        import brax.envs
    return brax.envs


@functools.cache
def _repair_fluid_forces() -> None:
    """Fix brax's fluid forces, which only swimmer uses, for JAX versions in which ``clip`` has no argument ``a_min``.

    brax 0.14.2 calls ``jax.numpy.clip(x, a_min=...)`` in ``brax.fluid``; JAX 0.10 removed that argument. Only the name
    ``jp`` of that module is replaced, and only if the call fails.
    """
    import brax.fluid

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            brax.fluid.jp.clip(jnp.zeros(1), a_min=0.0)
    except TypeError:
        brax.fluid.jp = _NumpyWithOldClip()


class _NumpyWithOldClip:
    """Module ``jax.numpy``, with the old argument names of ``clip``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def clip(x: jax.Array, a_min: Any = None, a_max: Any = None) -> jax.Array:
        return jnp.clip(x, a_min, a_max)


def _env_state(state: Any) -> EnvState:
    done = state.done.astype(jnp.bool_)
    metrics = PyTreeDict({str(k): v for k, v in state.metrics.items()})
    info = PyTreeDict(termination=done, truncation=jnp.zeros_like(done), metrics=metrics)
    obs = PyTreeDict(state.obs) if isinstance(state.obs, Mapping) else state.obs
    return EnvState(env_state=state, obs=obs, reward=state.reward.astype(jnp.float32), done=done, info=info)


def _unbounded(obs: Any) -> Space:
    if isinstance(obs, Mapping):
        return DictSpace({name: _unbounded(member) for name, member in obs.items()})
    return Box(-jnp.inf, jnp.inf, obs.shape, obs.dtype)
