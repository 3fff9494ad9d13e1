"""Environments of brax: continuous control on four physics backends. brax itself is imported when it is used."""

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

from evorl.config.names import missing_in_words, no_such
from evorl.envs.env import EnvState, PhysicsEnv, strongly_typed
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.space import Box, DictSpace, Space
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = (
    "ant",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)
BACKENDS = ("generalized", "positional", "spring", "mjx")


class BraxAdapter(PhysicsEnv):
    """A brax environment as an ``Env``.

    Actions are ``Box(-1, 1)``, observations unbounded, brax's own metrics are in ``info.metrics``. brax environments
    have no clock: put an ``EpisodeWrapper`` around, or use ``create_wrapped_brax_env``.

    Args:
        brax_env: an instance of ``brax.envs.Env``, not wrapped by brax's training wrappers.
        spec: what it was built from, hashable: adapters of equal spec are equal. Without it, only those of the very
            same ``brax_env``.
    """

    def __init__(self, brax_env: Any, spec: Any = None) -> None:
        self.brax_env = brax_env
        self._spec = spec
        self._action_space = Box(-1.0, 1.0, (brax_env.action_size,))
        self._obs_space = _unbounded(jax.eval_shape(self.reset, jax.random.key(0)).obs)

    @property
    def obs_space(self) -> Space:
        """Unbounded, of the shape brax says; a ``DictSpace`` for environments with named observations."""
        return self._obs_space

    @property
    def action_space(self) -> Box:
        """``Box(-1, 1)``."""
        return self._action_space

    @property
    def physics_model(self) -> Any:
        """The environment's ``brax.base.System``; ``None`` where it has none."""
        return getattr(self.brax_env, "sys", None)

    def reset_in(self, model: Any, key: Key) -> EnvState:
        """See ``PhysicsEnv.reset_in``."""
        return _env_state(strongly_typed(self._brax_env_on(model).reset(as_typed_key(key))))

    def step_in(self, model: Any, env_state: EnvState, action: Action) -> EnvState:
        """See ``PhysicsEnv.step_in``."""
        # brax environments write new metrics into the dict of the state that they get: hand over a copy.
        old = env_state.env_state
        new = self._brax_env_on(model).step(old.replace(metrics=dict(old.metrics), info=dict(old.info)), action)
        # Some of them return python numbers or other dtypes than their reset does.
        return _env_state(jax.tree.map(lambda x, before: jnp.asarray(x, before.dtype), new, old))

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """``q`` and ``qd``, which on every backend are MuJoCo's ``qpos`` and ``qvel``."""
        bodies = env_state.env_state.pipeline_state
        return PyTreeDict(q=bodies.q, qd=bodies.qd)

    @property
    def mujoco_model(self) -> Any:
        """What brax made its system of."""
        return self.brax_env.sys.mj_model

    def _brax_env_on(self, system: Any) -> Any:
        """The environment on a system, by default its own: brax environments look it up in themselves."""
        if system is self.physics_model:
            return self.brax_env
        other = copy.copy(self.brax_env)
        other.sys = system
        return other

    def _identity(self) -> Any:
        return self._spec if self._spec is not None else id(self.brax_env)

    def __repr__(self) -> str:
        return f"BraxAdapter({type(self.brax_env).__name__}, backend={self.brax_env.backend!r})"


def create_wrapped_brax_env(env_name: str, *, backend: str | None = None, **options: Any) -> VectorEnv:
    """A vector env of a brax environment.

    Args:
        env_name: one of ``ENV_NAMES``, or registered with brax.
        backend: ``"generalized"`` (default), ``"positional"``, ``"spring"`` or ``"mjx"``; swimmer has only the first.
        **options: the fields of ``EnvOptions``, of which ``max_episode_steps`` is 1000 by default and ``None`` for no
            limit; every other one is an argument of the brax environment (``reset_noise_scale`` ...).

    Raises:
        ValueError: unknown environment, backend or option, or a value out of range.
        ImportError: brax is not installed.
    """
    shared, arguments = split_options(options)
    return wrap_env(
        make_brax_adapter(env_name, backend, as_hashable(arguments)), **{"max_episode_steps": 1000, **shared}
    )


@functools.lru_cache(maxsize=16)
def make_brax_adapter(env_name: str, backend: str | None = None, arguments: tuple = ("dict", ())) -> BraxAdapter:
    """A brax environment, one and unwrapped; ``arguments`` as ``as_hashable`` gives them."""
    registry = _brax_envs()._envs
    if env_name not in registry:
        raise ValueError(no_such("environment of brax", env_name, sorted(registry)))
    backend = backend or "generalized"
    if backend not in BACKENDS:
        raise ValueError(no_such("backend of brax", backend, BACKENDS))
    if env_name == "swimmer":
        if backend != "generalized":
            raise ValueError(f"brax swimmer runs on the backend 'generalized' only, got {backend!r}.")
        _repair_fluid_forces()
    spec, options = ("brax", env_name, backend, arguments), from_hashable(arguments)
    check_options(f"brax {env_name}", options, parameter_names(registry[env_name]) | {"backend", "n_frames", "debug"})
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.filterwarnings("ignore", message="Brax System, piplines")
        brax_env = registry[env_name](backend=backend, **options)
    return BraxAdapter(brax_env, spec)


@functools.cache
def _brax_envs() -> Any:
    """The module ``brax.envs``. Its first import prints that an optional renderer is missing: not of interest here."""
    with missing_in_words("brax environments", "brax"), contextlib.redirect_stdout(io.StringIO()):
        import brax.envs
    return brax.envs


@functools.cache
def _repair_fluid_forces() -> None:
    """Let brax's fluid forces, which only swimmer has, run on a JAX whose ``clip`` has no argument ``a_min``.

    brax 0.14.2 calls ``jax.numpy.clip(x, a_min=...)`` in ``brax.fluid``; JAX 0.10 has dropped that name. Only the
    name ``jp`` of that one module is exchanged, and only if the call fails.
    """
    import brax.fluid

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            brax.fluid.jp.clip(jnp.zeros(1), a_min=0.0)
    except TypeError:
        brax.fluid.jp = _NumpyWithOldClip()


class _NumpyWithOldClip:
    """``jax.numpy``, with the old argument names of ``clip``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def clip(x: jax.Array, a_min: Any = None, a_max: Any = None) -> jax.Array:
        return jnp.clip(x, a_min, a_max)


def _env_state(state: Any) -> EnvState:
    done = state.done.astype(jnp.bool_)
    info = PyTreeDict(
        termination=done,
        truncation=jnp.zeros_like(done),
        metrics=PyTreeDict({str(k): v for k, v in state.metrics.items()}),
    )
    obs = PyTreeDict(state.obs) if isinstance(state.obs, Mapping) else state.obs
    return EnvState(env_state=state, obs=obs, reward=state.reward.astype(jnp.float32), done=done, info=info)


def _unbounded(obs: Any) -> Space:
    if isinstance(obs, Mapping):
        return DictSpace({name: _unbounded(member) for name, member in obs.items()})
    return Box(-jnp.inf, jnp.inf, obs.shape, obs.dtype)
