"""Adapter from an evorl ``Agent`` and its state to ``HostAgent``, the interface of host collectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import Agent, AgentState
from evorl.interop.host_agent import HostAgent
from evorl.ops.trees import zeros_where
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict

UpdateFn = Callable[[AgentState, Any, Key], tuple[Mapping[str, Any], AgentState]]
_TRAINING, _EVALUATION, _LEARNING = range(3)  # each has a stream of keys; the first two have a recurrent state


class JaxHostAgent(HostAgent):
    """Host agent that acts by one compiled call per step, and holds the agent's state, random keys and recurrent state.

    The policy extras of ``agent`` are stored with each step; for a recurrent agent, also the
    ``recurrent_state`` before the step. The agent gets ``agent_info`` as ``sample_batch.extras.agent_info``.

    Args:
        agent: evorl agent.
        agent_state: state of the agent.
        seed: seed of the random keys.
        num_envs: number of environments B; ``None`` for a single environment.
        explores: if True, ``step`` calls ``compute_actions``, otherwise ``evaluate_actions``, as in evaluations.
        update_fn: ``(agent_state, batch, key) -> (metrics, agent_state)``; ``None`` if the agent does not learn.

    Attributes:
        agent_state: current state of the agent.
    """

    gives_agent_actions = True

    def __init__(
        self,
        agent: Agent,
        agent_state: AgentState,
        *,
        seed: int = 0,
        num_envs: int | None = None,
        explores: bool = True,
        update_fn: UpdateFn | None = None,
    ) -> None:
        self.agent = agent
        self.agent_state = agent_state
        self._is_single = num_envs is None
        self._num_rows = num_envs or 1
        self._keys = jax.random.split(jax.random.key(seed), 3)
        self._calls = [0, 0, 0]
        self._explores = explores
        self._update_fn = update_fn
        self._recurrent_states = [self._zeros(), self._zeros()]

    def step(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        return self._act(obs, _TRAINING, evaluate=not self._explores)

    def terminal(self, ended: Any = True) -> None:
        """Reset the recurrent state to zeros where ``ended`` is True, see ``HostAgent.terminal``."""
        self._recurrent_states[_TRAINING] = self._forget(self._recurrent_states[_TRAINING], ended)

    def eval_step(self, obs: Any) -> Any:
        return self._act(obs, _EVALUATION, evaluate=True)[0]

    def eval_start(self, started: Any = True) -> None:
        self._recurrent_states[_EVALUATION] = self._forget(self._recurrent_states[_EVALUATION], started)

    def update(self, batch: Any) -> Mapping[str, Any]:
        """Update the agent's state by ``update_fn``, and return the metrics; ``{}`` if ``update_fn`` is ``None``."""
        if self._update_fn is None:
            return {}
        self._calls[_LEARNING] += 1
        key = jax.random.fold_in(self._keys[_LEARNING], self._calls[_LEARNING])
        metrics, self.agent_state = self._update_fn(self.agent_state, batch, key)
        return metrics

    def _act(self, obs: Any, number: int, *, evaluate: bool) -> tuple[Any, PyTreeDict]:
        before = self._recurrent_states[number]
        call = np.uint32(self._calls[number])
        self._calls[number] += 1
        actions, extras = _act(
            self.agent,
            self.agent_state,
            obs,
            self._keys[number],
            call,
            agent_info=self.agent_info,
            recurrent_state=before,
            evaluate=evaluate,
            is_single=self._is_single,
        )
        if before is None:
            return jax.tree.map(np.asarray, (actions, extras))
        self._recurrent_states[number] = extras.pop("recurrent_state")
        stored = jax.tree.map(lambda x: x[0], before) if self._is_single else before
        return jax.tree.map(np.asarray, (actions, extras | {"recurrent_state": stored}))

    def _zeros(self) -> Any:
        state = self.agent_state.recurrent_state
        return jax.tree.map(lambda x: jnp.zeros((self._num_rows, *x.shape), x.dtype), state)

    def _forget(self, recurrent_state: Any, where: Any) -> Any:
        if recurrent_state is None:
            return None
        return zeros_where(jnp.broadcast_to(jnp.asarray(where), (self._num_rows,)), recurrent_state)


@functools.partial(jax.jit, static_argnames=("evaluate", "is_single"))
def _act(
    agent: Agent,
    agent_state: AgentState,
    obs: Any,
    key: Key,
    call: np.uint32,
    *,
    agent_info: Any,
    recurrent_state: Any,
    evaluate: bool,
    is_single: bool,
) -> tuple[Any, PyTreeDict]:
    if is_single:
        obs, agent_info = jax.tree.map(lambda x: jnp.asarray(x)[None], (obs, agent_info))
    entries = {"agent_info": agent_info, "recurrent_state": recurrent_state}
    extras = PyTreeDict({name: value for name, value in entries.items() if value is not None})
    act = agent.evaluate_actions if evaluate else agent.compute_actions
    actions, policy_extras = act(agent_state, SampleBatch(obs=obs, extras=extras), jax.random.fold_in(key, call))
    if is_single:  # the recurrent state keeps its leading axis for the next call
        recurrent = {name: value for name, value in policy_extras.items() if name == "recurrent_state"}
        actions, policy_extras = jax.tree.map(lambda x: x[0], (actions, policy_extras))
        policy_extras = policy_extras | recurrent
    return actions, policy_extras
