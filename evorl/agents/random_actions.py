"""Random actions, and the agent that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import Agent, AgentState
from evorl.agents.observations import allowed_only
from evorl.distributions import Categorical
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.space import ACTION_MASK, Discrete, Space
from evorl.ops.random import as_typed_key
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeData, PyTreeDict, pytree_field


class RandomAgent(Agent):
    """Baseline that samples actions by ``Space.sample`` (uniform in bounded spaces) and learns nothing."""

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.ANY
    learns: ClassVar[bool] = False

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        return PyTreeDict()

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=PyTreeDict(), extra_state=_ActionSpace(action_space))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        space, obs = agent_state.extra_state.space, sample_batch.obs
        num_rows = jax.tree.leaves(obs)[0].shape[0]
        return random_actions(space, as_typed_key(key), num_rows, obs), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.compute_actions(agent_state, sample_batch, key)


class _ActionSpace(PyTreeData):
    """Action space inside an agent state: static, so that the state remains a pytree of arrays."""

    space: Space = pytree_field(static=True)


def random_actions(action_space: Space, key: Key, num_rows: int, obs: Observation = None) -> Action:
    """Sample actions ``[num_rows, ...]``, without discrete actions that ``obs`` masks; ``key``: one, or one per row."""
    keys = jax.random.split(key, num_rows) if key.ndim == 0 else key
    if isinstance(action_space, Discrete) and isinstance(obs, Mapping) and ACTION_MASK in obs:
        return Categorical(allowed_only(jnp.zeros((*keys.shape, action_space.n)), obs)).sample(keys)
    return jax.vmap(action_space.sample)(keys)
