"""Environments of brax: continuous control on four physics backends. brax itself is imported when it is used."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import AutoresetMode, Env, EnvState, compiled, strongly_typed
from evorl.envs.naming import check_options, frozen, nearest_name, parameter_names, thawed
from evorl.envs.space import Box, DictSpace, Space
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

BRAX_ENV_NAMES = (
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
BRAX_BACKENDS = ("generalized", "positional", "spring", "mjx")


class BraxAdapter(Env):
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

    @compiled
    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        return _env_state(strongly_typed(self.brax_env.reset(as_typed_key(key))))

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        # brax environments write new metrics into the dict of the state they are given: give them a copy.
        old = env_state.env_state
        given = old.replace(metrics=dict(old.metrics), info=dict(old.info))
        new = self.brax_env.step(given, action)
        # Some of them return python numbers or other dtypes than their reset does.
        new = jax.tree.map(lambda x, before: jnp.asarray(x, before.dtype), new, old)
        return _env_state(strongly_typed(new))

    def _identity(self) -> Any:
        return self._spec if self._spec is not None else id(self.brax_env)

    def __repr__(self) -> str:
        return f"BraxAdapter({type(self.brax_env).__name__}, backend={self.brax_env.backend!r})"


def create_wrapped_brax_env(
    env_name: str,
    *,
    episode_length: int | None = 1000,
    parallel: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NORMAL,
    backend: str | None = None,
    action_repeat: int = 1,
    frame_stack: int = 1,
    reward_scale: float | None = None,
    sparse_reward_interval: int | None = None,
    flatten_obs: bool = False,
    observed: Sequence[int] | None = None,
    **env_kwargs: Any,
) -> VectorEnv:
    """A vector env of a brax environment.

    Args:
        env_name: one of ``BRAX_ENV_NAMES``, or registered with brax.
        episode_length: the time limit, in steps of the environment; ``None`` for none.
        parallel: number of environments B.
        autoreset_mode: see ``AutoresetMode``.
        backend: ``"generalized"`` (default), ``"positional"``, ``"spring"`` or ``"mjx"``; swimmer has only the first.
        action_repeat: apply each action that many times; ``info.steps`` counts decisions.
        frame_stack: observe the last so many observations.
        reward_scale: factor of the reward (``info.episode_return`` stays unscaled).
        sparse_reward_interval: pay the summed reward every so many steps and at the end only.
        flatten_obs: make one vector of the observation.
        observed: the components of a flat observation that are seen; ``None`` for all.
        **env_kwargs: arguments of the brax environment (``reset_noise_scale``, ``ctrl_cost_weight`` ...).

    Raises:
        ValueError: unknown environment or backend, or an argument out of range.
        ImportError: brax is not installed.
    """
    env = _make_adapter(env_name, backend, frozen(env_kwargs))
    return wrap_env(
        env,
        max_episode_steps=episode_length,
        parallel=parallel,
        autoreset_mode=autoreset_mode,
        action_repeat=action_repeat,
        frame_stack=frame_stack,
        reward_scale=reward_scale,
        sparse_reward_interval=sparse_reward_interval,
        flatten_obs=flatten_obs,
        observed=observed,
    )


@functools.lru_cache(maxsize=16)
def _make_adapter(env_name: str, backend: str | None, env_kwargs: tuple) -> BraxAdapter:
    registry = _brax_envs()._envs
    if env_name not in registry:
        raise ValueError(f"brax has no environment {env_name!r}{nearest_name(env_name, sorted(registry))}")
    backend = backend or "generalized"
    if backend not in BRAX_BACKENDS:
        raise ValueError(f"brax has no backend {backend!r}{nearest_name(backend, BRAX_BACKENDS)}")
    if env_name == "swimmer":
        if backend != "generalized":
            raise ValueError(f"brax swimmer runs on the backend 'generalized' only, got {backend!r}.")
        _repair_fluid_forces()
    spec, options = ("brax", env_name, backend, env_kwargs), thawed(env_kwargs)
    check_options(f"brax {env_name}", options, parameter_names(registry[env_name]) | {"n_frames", "debug"})
    with warnings.catch_warnings(), jax.ensure_compile_time_eval():
        warnings.filterwarnings("ignore", message="Brax System, piplines")
        brax_env = registry[env_name](backend=backend, **options)
    return BraxAdapter(brax_env, spec)


@functools.cache
def _brax_envs() -> Any:
    """The module ``brax.envs``. Its first import prints that an optional renderer is missing: not of interest here."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import brax.envs
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "brax":
            raise ImportError("brax environments need the package brax: pip install brax") from error
        raise
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
