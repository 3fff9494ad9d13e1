"""Rollouts: steps of agents in vectorized environments, for training, evaluation and rendering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.names import did_you_mean
from evorl.envs.env import EnvState
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key, unrolled
from evorl.ops.trees import Packed, pack, zeros_where
from evorl.padded_batch import PaddedBatch
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, PolicyExtras, PyTreeData, PyTreeDict, State

EnvFn = Callable[[EnvState, Action], EnvState]
ActionFn = Callable[[AgentState, SampleBatch, Key], tuple[Action, PolicyExtras]]
_RECURRENT_STATE = "recurrent_state"  # key of the agent's recurrent state in ``EnvState._internal``


def rollout(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    key: Key,
    rollout_length: int,
    *,
    env_extra_fields: Sequence[str] = (),
    env_chunk: int | None = None,
) -> tuple[SampleBatch, EnvState]:
    """Run an agent in (vectorized) environments for a fixed number of steps.

    Each environment has its own stream of keys, folded from ``key`` and its global index. The trajectory therefore
    does not depend on how environments are split over devices or chunks.

    Args:
        env_fn: ``env.step``.
        action_fn: ``agent.compute_actions`` or ``agent.evaluate_actions``.
        env_state: state of B environments.
        agent_state: state of the agent.
        key: a single key.
        rollout_length: number of steps T.
        env_extra_fields: entries of ``env_state.info`` to record in ``extras.env_extras``; ``ValueError`` if missing.
        env_chunk: maximum number of environments that are stepped together through all T steps, so that their state
            stays in the processor's cache; ``None`` steps all of them together. The result is the same.

    Returns:
        The trajectory, leaves ``[T, B, ...]``, and the last environment state. ``next_obs`` is the true successor of
        ``obs``, also where the episode ended and the environment was reset. ``extras.recurrent_state`` is the agent's
        recurrent state before each step; the environment state has the recurrent state after the last step.
    """
    _check_fields(env_state.info, env_extra_fields)
    key = as_typed_key(key)
    env_state = with_recurrent_state(env_state, agent_state)

    def block(block_state: EnvState) -> tuple[EnvState, SampleBatch]:
        keys = step_keys(key, block_state, jnp.arange(rollout_length))

        def one_step(env_state: EnvState, step_key: Key) -> tuple[EnvState, Packed[SampleBatch]]:
            env_state, transition = env_step(env_fn, action_fn, env_state, agent_state, step_key, env_extra_fields)
            return env_state, pack(transition, env_state.done.ndim)

        block_state, packed = jax.lax.scan(one_step, block_state, keys)
        return block_state, packed.unpack()

    size = block_size(env_state.done.size, env_chunk)
    env_state, trajectory = block(env_state) if size == env_state.done.size else _in_blocks(block, env_state, size)
    return trajectory, env_state


def _in_blocks(
    block: Callable[[EnvState], tuple[EnvState, SampleBatch]], env_state: EnvState, size: int
) -> tuple[EnvState, SampleBatch]:
    """Return ``block(env_state)``, computed for ``size`` environments at a time."""
    num_envs = env_state.done.size
    blocks = jax.tree.map(lambda x: x.reshape(num_envs // size, size, *x.shape[1:]), env_state)
    blocks, trajectories = jax.lax.map(block, blocks)  # trajectories: [blocks, T, size, ...]
    env_state = jax.tree.map(lambda x: x.reshape(num_envs, *x.shape[2:]), blocks)
    return env_state, jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], num_envs, *x.shape[3:]), trajectories
    )


def env_step(
    env_fn: EnvFn,
    action_fn: ActionFn,
    env_state: EnvState,
    agent_state: AgentState,
    key: Key,
    env_extra_fields: Sequence[str] = (),
) -> tuple[EnvState, SampleBatch]:
    """Step the agent and its environments once; return the next state and the transition, leaves ``[B, ...]``.

    The environment state includes the agent's recurrent state, which the agent reads from ``extras.recurrent_state``.
    The agent returns the next recurrent state in its extra outputs; zeros replace it where an episode ended or starts.
    """
    actions, policy_extras = choose_actions(action_fn, env_state, agent_state, key)
    next_state = env_fn(without_recurrent_state(env_state), actions)
    return transition_after(env_state, actions, policy_extras, next_state, env_extra_fields)


def choose_actions(
    action_fn: ActionFn, env_state: EnvState, agent_state: AgentState, key: Key
) -> tuple[Action, PolicyExtras]:
    """Return the agent's actions ``[B, ...]`` and its extra outputs; the first half of ``env_step``."""
    return action_fn(agent_state, SampleBatch(obs=env_state.obs, extras=_acting_extras(env_state)), key)


def transition_after(
    env_state: EnvState,
    actions: Action,
    policy_extras: PolicyExtras,
    next_state: EnvState,
    env_extra_fields: Sequence[str] = (),
) -> tuple[EnvState, SampleBatch]:
    """Return next state and transition, the second half of ``env_step``; pops ``policy_extras.recurrent_state``."""
    extras = _acting_extras(env_state)
    if extras:
        starts = next_state.done | next_state.info.get("is_reset_step", False)
        next_state = _remembering(next_state, zeros_where(starts, policy_extras.pop("recurrent_state")))
    env_extras = PyTreeDict({name: next_state.info[name] for name in env_extra_fields})
    transition = SampleBatch(
        obs=env_state.obs,
        actions=actions,
        rewards=next_state.reward,
        next_obs=next_state.info.get("next_obs", next_state.obs),
        dones=next_state.done,
        extras=extras | {"policy_extras": policy_extras, "env_extras": env_extras},
    )
    return next_state, transition


def _acting_extras(env_state: EnvState) -> PyTreeDict:
    recurrent_state = recurrent_state_of(env_state)
    return PyTreeDict() if recurrent_state is None else PyTreeDict(recurrent_state=recurrent_state)


def act_again(
    action_fn: ActionFn, agent_state: AgentState, batch: PaddedBatch[SampleBatch], key: Key
) -> tuple[Action, PolicyExtras]:
    """Return an agent's actions and extra outputs ``[B, T, ...]`` for recorded observations, computed step by step.

    In every row, a recurrent state starts as ``batch.info.recurrent_state``, or as zeros if missing, and is reset to
    zeros after steps at which ``batch.data.dones`` is True; for steps in the mode ``ENVPOOL``, these must include the
    reset steps (``info.is_reset_step``). Gradients flow through all steps.

    Args:
        action_fn: ``agent.compute_actions`` or ``agent.evaluate_actions``.
        agent_state: state of the agent.
        batch: recorded steps, leaves ``[B, T, ...]``; only ``obs``, ``dones`` and the recurrent state are used.
        key: a single key, from which a key is derived for each step of each row.
    """
    key = as_typed_key(key)
    recurrent_state = None
    if agent_state.recurrent_state is not None:
        rows = (batch.num_rows,)
        recurrent_state = jax.tree.map(lambda x: jnp.zeros((*rows, *x.shape), x.dtype), agent_state.recurrent_state)
        if isinstance(batch.info, Mapping):
            recurrent_state = batch.info.get(_RECURRENT_STATE, recurrent_state)

    def one_step(recurrent_state: Any, step: Any) -> tuple[Any, tuple[Action, PolicyExtras]]:
        obs, dones, number = step
        extras = PyTreeDict() if recurrent_state is None else PyTreeDict(recurrent_state=recurrent_state)
        keys = jax.random.split(jax.random.fold_in(key, number), batch.num_rows)
        actions, policy_extras = action_fn(agent_state, SampleBatch(obs=obs, extras=extras), keys)
        if recurrent_state is not None:
            after = policy_extras.pop("recurrent_state")
            recurrent_state = after if dones is None else zeros_where(dones, after)
        return recurrent_state, (actions, policy_extras)

    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.data.obs, batch.data.dones))
    _, acted = jax.lax.scan(one_step, recurrent_state, (*steps, jnp.arange(batch.num_steps)))
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), acted)


def with_recurrent_state(env_state: EnvState, agent_state: AgentState) -> EnvState:
    """Return the environment state; for a recurrent agent, a missing recurrent state is added, as zeros."""
    if agent_state.recurrent_state is None or recurrent_state_of(env_state) is not None:
        return env_state
    rows = env_state.done.shape
    fresh = jax.tree.map(lambda x: jnp.zeros((*rows, *x.shape), x.dtype), agent_state.recurrent_state)
    return _remembering(env_state, fresh)


def _remembering(env_state: EnvState, recurrent_state: Any) -> EnvState:
    """Return the environment state with this recurrent state of the agent, leaves ``[B, ...]``."""
    return env_state.replace(_internal=env_state._internal | {_RECURRENT_STATE: recurrent_state})


def recurrent_state_of(env_state: EnvState) -> Any:
    """Return the agent's recurrent state in the running episodes, leaves ``[B, ...]``; ``None`` if not recurrent."""
    return env_state._internal.get(_RECURRENT_STATE) if isinstance(env_state._internal, Mapping) else None


def with_fresh_recurrent_state(env_state: EnvState, where: jax.Array) -> EnvState:
    """Return the environment state with a recurrent state of zeros in the rows where ``where`` is True."""
    recurrent_state = recurrent_state_of(env_state)
    return env_state if recurrent_state is None else _remembering(env_state, zeros_where(where, recurrent_state))


def without_recurrent_state(env_state: EnvState) -> EnvState:
    """Return the environment state without the agent's recurrent state."""
    if recurrent_state_of(env_state) is None:
        return env_state
    internal = PyTreeDict({name: value for name, value in env_state._internal.items() if name != _RECURRENT_STATE})
    return env_state.replace(_internal=internal)


def block_size(num_envs: int, env_chunk: int | None) -> int:
    """Return the largest divisor of ``num_envs`` up to ``env_chunk``; ``num_envs`` if ``env_chunk`` is ``None``."""
    if env_chunk is None or env_chunk >= num_envs:
        return num_envs
    return next(size for size in range(max(env_chunk, 1), 0, -1) if num_envs % size == 0)


def step_keys(key: Key, env_state: EnvState, steps: jax.Array) -> Key:
    """Return the keys for the steps with indices ``steps`` ``[T]`` of a rollout, for use inside a loop.

    The shape of the keys is ``[T, B]`` for vectorized environments, ``[T]`` for a single environment.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, steps)
    env_id = env_state._internal.get("env_id") if isinstance(env_state._internal, Mapping) else None
    if env_id is None:
        return unrolled(keys)
    return unrolled(jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, env_id))


def _check_fields(info: PyTreeDict, names: Sequence[str]) -> None:
    for name in names:
        if name not in info:
            raise ValueError(
                f"env_extra_fields names {name!r}, which is not in env_state.info; available: "
                f"{', '.join(sorted(info))}.{did_you_mean(name, info)}"
            )


class Acting(PyTreeData):
    """Inputs of an agent's policy for one rollout.

    Attributes:
        agent_state: state of the agent.
        key: key of the rollout.
        warming_up: bool scalar, True if actions are random; ``None`` for workflows without warm-up.
    """

    agent_state: AgentState
    key: Key
    warming_up: Any = None


S = TypeVar("S", bound=State)


class ActsInRollouts(Protocol[S]):
    """Workflow that learns from rollouts of fixed length, which record the entries ``env_fields`` of ``info``."""

    env_fields: ClassVar[tuple[str, ...]]

    @property
    def env(self) -> VectorEnv:
        """The training environments."""
        ...

    @property
    def rollout_length(self) -> int:
        """Number of steps T of a rollout."""
        ...

    @property
    def env_chunk(self) -> int | None:
        """Maximum number of environments that are stepped together, see ``rollout``; ``None`` for all."""
        ...

    def acting(self, state: S) -> tuple[Acting, S]:
        """Return the policy inputs of the next rollout, and the state with a new key."""
        ...

    def action_fn(self, acting: Acting) -> ActionFn:
        """Return the function that computes actions with these inputs, such as ``agent.compute_actions``."""
        ...

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """Return the part of a rollout that is used for learning."""
        ...


def collect_rollout(workflow: ActsInRollouts[S], state: S) -> tuple[SampleBatch, S]:
    """Run a rollout in this device's environments; return the trajectory ``[T, B, ...]`` and the workflow's state."""
    acting, state = workflow.acting(state)
    trajectory, env_state = rollout(
        workflow.env.step,
        workflow.action_fn(acting),
        state.env_state,
        acting.agent_state,
        acting.key,
        workflow.rollout_length,
        env_extra_fields=workflow.env_fields,
        env_chunk=workflow.env_chunk,
    )
    return workflow.collected(trajectory), state.replace(env_state=env_state)
