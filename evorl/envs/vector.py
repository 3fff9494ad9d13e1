"""Vector environments: B environments stepped together, with four autoreset modes.

In the modes ``NORMAL`` and ``ENVPOOL``, episode n of environment i starts from ``env.reset(fold_in(key_i, n))``, where
``key_i`` is the key of environment i. This is a pure function of (key_i, n), so the start may be computed at any time,
together with the starts of any other environments. Every environment stores one precomputed start for its next episode.
When an environment needs a start and has used its stored start, new starts of all environments are computed in one
batch. Every episode has a new start, but the batch of resets runs about once per episode, not once per step.
Accelerators compute cheap starts at every step instead, see ``evorl.envs.starts``.

Each row of a batch is computed independently of the other rows: any block of rows may be stepped separately. An
environment with several agents has one row per agent. The rows of such a copy are consecutive, start and end together,
and use the key of the copy's first row; here the smallest independent block is one copy.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.config.values import positive
from evorl.envs.env import AutoresetMode, Env, EnvState, EnvWrapper, compiled, freeze_ended
from evorl.envs.goals.setting import goals_of_rows
from evorl.envs.starts import StartPolicy, start_policy
from evorl.ops.collectives import joined_under_vmap, joining_vmap, local_indices, over_agents
from evorl.ops.random import as_typed_key
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, PyTreeDict

_fold_rows = jax.vmap(jax.random.fold_in)


class VectorEnv(EnvWrapper):
    """Copies of one environment, B rows in total; the spaces describe a row. Each ``AutoresetMode`` has a subclass.

    Args:
        env: a single environment.
        num_envs: number of rows B, one per agent of each copy. On a device mesh, the total over all devices.
        goal_setter: a ``GoalSetter`` that chooses the goals; ``None`` keeps the goals of the environment.

    Raises:
        TypeError: ``env`` is not a single ``Env``; or is a ``OneEpisodeWrapper``, but the mode starts new episodes.
        ValueError: ``num_envs`` is not positive or not a multiple of the agents per copy; or ``goal_setter`` is set in
            the mode ``ENVPOOL`` or for an environment without goals.
    """

    autoreset_mode: ClassVar[AutoresetMode]
    _stores_starts: ClassVar[bool] = False  # true if each environment stores the start of its next episode
    # Policy for computing episode starts; ``None`` chooses by platform and cost, see ``evorl.envs.starts``.
    starts: StartPolicy | None = None
    # Library and name, such as ``brax/hopper``, or the name of a user's function; set by ``create_env``.
    title: str | None = None
    # True for simulators on the host: their states are valid only in this process, and on one device.
    steps_on_host: ClassVar[bool] = False
    # True for simulators that connect over the network: ``step`` raises an error.
    is_remote: bool = False

    def __init__(self, env: Env, num_envs: int, goal_setter: Any = None) -> None:
        if not isinstance(env, Env) or isinstance(env, VectorEnv):
            raise TypeError(f"{type(self).__name__} needs a single evorl Env, got {type(env).__name__}.")
        if getattr(env, "is_outermost", False) and self.autoreset_mode is not AutoresetMode.DISABLED:
            raise TypeError(
                f"{type(self).__name__} starts new episodes, but {type(env).__name__} would freeze them all: remove "
                f"{type(env).__name__}, or use VmapWrapper for one episode per environment."
            )
        self.env = env
        self.num_envs = positive(num_envs, "num_envs")
        self._num_agents = env.num_agents
        if self.num_envs % self._num_agents:
            raise ValueError(
                f"{env.unwrapped} has {self._num_agents} agents, each a row of the batch: num_envs (per actor in async "
                f"mode), or episodes_per_individual, must be a multiple of {self._num_agents}, got {num_envs} rows."
            )
        vmap = joining_vmap if env.unwrapped.joins_batches else jax.vmap
        self._over_rows = vmap if self._num_agents == 1 else functools.partial(over_agents, num_agents=self._num_agents)
        if goal_setter is not None and self.autoreset_mode is AutoresetMode.ENVPOOL:
            raise ValueError("env.goal_setter does not support autoreset_mode=envpool: use another autoreset_mode.")
        self.goal_setter = goal_setter
        self._goals: Any = None if goal_setter is None else goals_of_rows(goal_setter, env)
        self._action_specs = jax.tree.leaves(env.action_space.spec)

    def _identity(self) -> Any:
        return self.env, self.num_envs, self.goal_setter, self.starts

    @compiled
    def reset(self, key: Key) -> EnvState:
        """Return the first states of B episodes.

        Args:
            key: a scalar key, into which the (global) index of each row is folded; or unchanged keys ``[B]`` of rows.
        """
        key = as_typed_key(key)
        if key.ndim == 0:
            env_id = local_indices(self.num_envs)
            state = self._start(jax.vmap(jax.random.fold_in, (None, 0))(key, env_id), env_id)
        else:
            state = self._start(key, jnp.arange(key.shape[0], dtype=jnp.int32))
        return state if self._goals is None else self._goals.begin(state)

    def at_random_steps(self, env_state: EnvState, key: Key) -> EnvState:
        """Set the step counters of first states to random values below the time limit; not for host simulators."""
        limit, internal = self.max_episode_steps, env_state._internal
        assert limit is not None, "random steps below the time limit need a time limit"
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, internal.env_id // self._num_agents)
        steps = jax.vmap(lambda key: jax.random.randint(key, (), 0, limit))(keys)
        return env_state.replace(_internal=internal.replace(inner=internal.inner.replace(episode_steps=steps)))

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Step every environment; ``action`` has a leading axis B. Raises ``ValueError`` for other shapes or dtypes."""
        self._check_action(env_state, action)
        stepped = self.step_copies(env_state.replace(_internal=env_state._internal.inner), action)
        return self._continue(env_state, stepped) if self._goals is None else self._steered(env_state, action, stepped)

    def _steered(self, env_state: EnvState, action: Action, stepped: EnvState) -> EnvState:
        """Return the next state, with goals of the setter, which may also change the reward or end the episode."""
        restarts = self.autoreset_mode is not AutoresetMode.DISABLED
        is_running = jnp.ones_like(env_state.done) if restarts else ~env_state.done
        stepped, step, remembered = self._goals.steer(env_state, action, stepped, is_running)
        starts = stepped.done if restarts else jnp.zeros_like(stepped.done)
        return self._goals.go_on(self._continue(env_state, stepped), step, remembered, starts)

    def step_copies(self, inner: EnvState, action: Action) -> EnvState:
        """Step the environments without autoreset; ``inner`` is the batched state of ``env``."""
        return self._over_rows(self.env.step)(inner, action)

    def starts_of(self, keys: jax.Array, episode: jax.Array) -> EnvState:
        """Return the start states of the episodes numbered ``episode`` ``[B]``, for environment keys ``[B]``."""
        return self._over_rows(self.env.reset)(_fold_rows(keys, episode))

    @property
    def observes_goals(self) -> bool:
        """True if observations have the entries ``achieved_goal`` and ``desired_goal``, in the shape of a goal."""
        spaces = getattr(self.obs_space, "spaces", None)
        if self.goal_task is None or not isinstance(spaces, dict):
            return False
        shapes = [spaces[name].shape for name in ("achieved_goal", "desired_goal") if name in spaces]
        return shapes == [self.goal_task.goal_space.shape] * 2

    def close(self) -> None:
        """Release the resources of the environments. JAX environments have no resources."""

    def show_physics(self) -> None:
        """Store the data of ``physics`` in later states. States of JAX environments always contain these data."""

    @compiled
    def partial_reset(self, env_state: EnvState, mask: jax.Array, key: Key) -> EnvState:
        """Restart each environment i where ``mask[i]`` is True, with the key ``fold_in(key, i)``; keep the others.

        With several agents per copy, a copy restarts if the mask of any of its agents is True.

        Raises:
            ValueError: ``mask`` is not a bool array with one entry per row.
        """
        keys, mask = self._restart_keys(env_state, mask, key)
        fresh = self._start(keys, env_state._internal.env_id)
        if self._goals is not None:
            internal = fresh._internal | {"goals": env_state._internal.goals}
            fresh = self._goals.start(fresh.replace(_internal=internal), mask)
        return tree_where(mask, fresh, env_state)

    def _check_action(self, env_state: EnvState, action: Action) -> None:
        shapes = [(*env_state.done.shape, *spec.shape) for spec in self._action_specs]
        if [x.shape for x in jax.tree.leaves(action)] != shapes:
            raise ValueError(f"step expects actions of shape {shapes}, got {jax.tree.map(jnp.shape, action)}.")
        for x, spec in zip(jax.tree.leaves(action), self._action_specs, strict=True):
            if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(spec.dtype, jnp.integer):
                raise ValueError(f"step expects {spec.dtype} actions, got {x.dtype}: use astype({spec.dtype}).")

    def _restart_keys(self, env_state: EnvState, mask: Any, key: Key) -> tuple[jax.Array, jax.Array]:
        """Return keys ``[B]`` and mask of a partial reset, as arrays. Raises ``ValueError`` for an invalid mask."""
        env_id, mask = env_state._internal.env_id, jnp.asarray(mask)
        if mask.shape != env_id.shape or mask.dtype != jnp.bool_:
            raise ValueError(
                f"partial_reset expects a mask bool{list(env_id.shape)}, true where an environment restarts; got "
                f"{mask.dtype}{list(mask.shape)}."
            )
        if self._num_agents > 1:
            mask = jnp.repeat(mask.reshape(-1, self._num_agents).any(axis=1), self._num_agents)
        return jax.vmap(jax.random.fold_in, (None, 0))(as_typed_key(key), env_id), mask

    def _start(self, keys: jax.Array, env_id: jax.Array) -> EnvState:
        """Return the start of episode 0 of every environment. ``keys`` and ``env_id`` are ``[B]``."""
        episode = jnp.zeros_like(env_id)
        inner = self.starts_of(keys, episode)
        internal = PyTreeDict(env_id=env_id, key=keys, episode=episode, inner=inner._internal)
        return outer_state(inner, inner.obs, jnp.zeros_like(inner.done), self._remember(internal, inner))

    def _remember(self, internal: PyTreeDict, start: EnvState) -> PyTreeDict:
        """Return ``internal``, extended by entries for the first start if the autoreset mode needs them."""
        # The start is marked as consumed: the first end of an episode triggers the computation of all starts.
        stale = {"next_start": _start_of(start), "next_is_fresh": jnp.zeros_like(start.done)}
        return internal | stale if self._stores_starts else internal

    @abc.abstractmethod
    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        """Return the next state in this autoreset mode; ``stepped`` is the raw result of a step from ``env_state``."""

    def _with_new_episodes(
        self, internal: PyTreeDict, stepped: EnvState, starts_now: jax.Array, next_start: PyTreeDict
    ) -> tuple[EnvState, PyTreeDict]:
        """Start the next episode where ``starts_now`` ``[B]`` is true; return the state and its new ``_internal``."""
        start = tree_where(starts_now, next_start, _start_of(stepped))
        internal = internal.replace(episode=internal.episode + starts_now, inner=start.inner)
        return stepped.replace(env_state=start.env_state, obs=start.obs), internal

    def _next_starts(self, internal: PyTreeDict, starts_now: jax.Array) -> tuple[PyTreeDict, PyTreeDict]:
        """Return starts, valid where ``starts_now`` ``[B]`` is true, and ``internal`` with these marked as consumed."""
        if start_policy(self) == "every_step":
            # The stored starts are unchanged, so a loop over steps does not copy them.
            start = _start_of(self.starts_of(internal.key, internal.episode + 1))
            return jax.lax.stop_gradient(start), internal.replace(next_is_fresh=internal.next_is_fresh & ~starts_now)
        args = (starts_now, internal.next_start, internal.next_is_fresh, internal.key, internal.episode + 1)
        next_start, is_fresh = joined_under_vmap(self._renew_all_if_one_needs_it)(*jax.lax.stop_gradient(args))
        return next_start, internal.replace(next_start=next_start, next_is_fresh=is_fresh & ~starts_now)

    def _renew_all_if_one_needs_it(
        self, needed: jax.Array, next_start: PyTreeDict, is_fresh: jax.Array, keys: jax.Array, number: jax.Array
    ) -> tuple[PyTreeDict, jax.Array]:
        def is_missing(carry: tuple) -> jax.Array:
            return jnp.any(needed & ~carry[1])

        def renew(carry: tuple) -> tuple:
            return _start_of(self.starts_of(keys, carry[2])), jnp.ones_like(carry[1]), carry[2] + 1

        # A loop of at most one iteration replaces a ``cond``, which would run both branches under vmap. Each iteration
        # changes ``number``; otherwise the compiler would hoist the reset out of the loop and run it at every step.
        return jax.lax.while_loop(is_missing, renew, (next_start, is_fresh, number))[:2]


class VmapWrapper(VectorEnv):
    """Vector environment in the mode ``DISABLED``: an ended environment freezes, with reward 0 and ``done`` true."""

    autoreset_mode = AutoresetMode.DISABLED

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        state = freeze_ended(env_state.replace(_internal=env_state._internal.inner), stepped)
        internal = env_state._internal.replace(inner=state._internal)
        return outer_state(state, state.obs, jnp.zeros_like(state.done), internal)


class VmapAutoResetWrapper(VectorEnv):
    """Vector environment in the mode ``NORMAL``: the step that ends an episode starts the next, from a new reset."""

    autoreset_mode = AutoresetMode.NORMAL
    _stores_starts = True

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        next_start, internal = self._next_starts(env_state._internal, stepped.done)
        state, internal = self._with_new_episodes(internal, stepped, stepped.done, next_start)
        return outer_state(state, stepped.obs, jnp.zeros_like(stepped.done), internal)


class FastVmapAutoResetWrapper(VectorEnv):
    """Vector environment in the mode ``FAST``: all episodes of an environment start from the state of its first reset.

    Steps of different episodes still draw different random numbers: ``fold_in`` adds the episode number to stored keys.
    """

    autoreset_mode = AutoresetMode.FAST

    def _remember(self, internal: PyTreeDict, start: EnvState) -> PyTreeDict:
        return internal | {"next_start": _start_of(start)}

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        internal = env_state._internal
        next_start = _fold_keys(internal.next_start, internal.episode + 1)
        state, internal = self._with_new_episodes(internal, stepped, stepped.done, next_start)
        return outer_state(state, stepped.obs, jnp.zeros_like(stepped.done), internal)


class EnvPoolVmapAutoResetWrapper(VectorEnv):
    """Vector environment in the mode ``ENVPOOL``: the step after the end starts the next episode.

    That step ignores its action, has reward 0 and ``info.is_reset_step``, and is not ``done``. It is not a transition
    of the environment: exclude it from training data.
    """

    autoreset_mode = AutoresetMode.ENVPOOL
    _stores_starts = True

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        is_reset_step = env_state.done
        outcome = (stepped.reward, stepped.done, stepped.info)
        reward, done, info = tree_where(is_reset_step, jax.tree.map(jnp.zeros_like, outcome), outcome)
        stepped = stepped.replace(reward=reward, done=done, info=info)
        next_start, internal = self._next_starts(env_state._internal, is_reset_step)
        state, internal = self._with_new_episodes(internal, stepped, is_reset_step, next_start)
        return outer_state(state, state.obs, is_reset_step, internal)


VECTOR_ENVS: dict[AutoresetMode, type[VectorEnv]] = {
    cls.autoreset_mode: cls
    for cls in (VmapWrapper, VmapAutoResetWrapper, FastVmapAutoResetWrapper, EnvPoolVmapAutoResetWrapper)
}


def outer_state(inner: EnvState, next_obs: Any, is_reset_step: jax.Array, internal: PyTreeDict) -> EnvState:
    """Return ``inner`` with ``internal`` as ``_internal``, and with ``next_obs`` and ``is_reset_step`` in ``info``."""
    info = inner.info | {"next_obs": next_obs, "is_reset_step": is_reset_step}
    return inner.replace(info=info, _internal=internal)


def without_step_info(env_state: EnvState) -> EnvState:
    """Return a state without ``info.next_obs`` and ``info.is_reset_step``, which loops do not have to carry."""
    info = PyTreeDict({name: x for name, x in env_state.info.items() if name not in ("next_obs", "is_reset_step")})
    return env_state.replace(info=info)


def env_title(env: VectorEnv) -> str:
    """Return the title of an environment, such as ``brax/hopper``, or the name of its class if it has no title."""
    return getattr(env, "title", None) or type(env.unwrapped).__name__


def _start_of(state: EnvState) -> PyTreeDict:
    return PyTreeDict(env_state=state.env_state, obs=state.obs, inner=state._internal)


def _fold_keys(start: PyTreeDict, episode: jax.Array) -> PyTreeDict:
    """Fold the keys ``[B]`` of both states in ``start`` with ``episode`` ``[B]``; observations have no keys.

    Keys are typed, or legacy: leaves ``uint32[B, 2]`` of an ``env_state`` without typed keys.
    """

    def fold_typed(x: jax.Array) -> jax.Array:
        return _fold_rows(x, episode) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.ndim == 1 else x

    def fold_legacy(x: jax.Array) -> jax.Array:
        is_key = x.dtype == jnp.uint32 and x.shape[1:] == (2,)
        return jax.random.key_data(_fold_rows(jax.random.wrap_key_data(x), episode)) if is_key else x

    has_typed = any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(start.env_state))
    fold = fold_typed if has_typed else fold_legacy
    return start.replace(env_state=jax.tree.map(fold, start.env_state), inner=jax.tree.map(fold_typed, start.inner))
