"""The learning agent: networks and losses as methods, parameters outside in an ``AgentState``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from evorl.distributions import ActionDistribution, distribution_for
from evorl.envs.env import Env
from evorl.envs.space import Box, Discrete, Space
from evorl.networks.inputs import select_observation
from evorl.ops.normalization import RunningStatistics, normalize
from evorl.ops.random import as_typed_key
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeData, PyTreeDict, PyTreeNode, pytree_field


class AgentState(PyTreeData):
    """What an agent learns.

    Attributes:
        params: network parameters, by network name.
        obs_preprocessor_state: running statistics of the observations; ``None`` where they are used as they come.
        extra_state: whatever else acting needs.
        memory: zeros like what is remembered of one episode, leaves ``[*]``; ``None`` for agents without a memory.
    """

    params: Params
    obs_preprocessor_state: RunningStatistics | None = None
    extra_state: Any = None
    memory: Any = None


class Agent(PyTreeNode):
    """How to act, and the losses by which acting improves. Methods are pure; ``AgentState`` carries what changes."""

    # Settings that ``parts`` takes, and what they have to be: it is given none that is not.
    part_settings: ClassVar[Mapping[str, Any]] = {"network": Mapping}

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Fields that a config's ``agent`` describes, above all networks, built for the spaces of ``env``.

        What is described is taken out of ``settings``; what is left are values of the other fields.

        Raises:
            ValueError: the algorithm cannot act in the action space, or a description makes no sense; in words.
        """
        return {}

    @abstractmethod
    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh parameters for these spaces."""

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """The state that explores when this share of the training is over, for exploration that changes with it."""
        return agent_state

    @abstractmethod
    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Exploring actions for ``sample_batch.obs`` ``[B, ...]``, and what the learner wants to remember of them.

        An agent with a memory reads what it remembers in ``sample_batch.extras.memory``, and gives what it will
        remember as ``memory`` among the extras.

        ``key`` is one key for the batch, or one per row ``[B]``.
        """

    @abstractmethod
    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The actions the agent is most confident of; the same arguments and results as ``compute_actions``."""


def preprocess(agent_state: AgentState, obs: Observation, obs_key: str | None = None) -> jax.Array:
    """The array a network reads: observations normalised by the agent's statistics, then the entry ``obs_key``.

    This is the one place where observations are normalised, for acting, for losses and for evaluation.

    Raises:
        ValueError: the observation has no such entry.
    """
    if agent_state.obs_preprocessor_state is not None:
        obs = normalize(agent_state.obs_preprocessor_state, obs)
    return select_observation(obs, obs_key)


def action_distribution(action_space: Space, algorithm: str, squashed: bool = True) -> ActionDistribution:
    """The distribution of a stochastic policy in this space: categorical, or normal, squashed by tanh if bounded.

    Raises:
        ValueError: the space is neither ``Discrete`` nor a flat ``Box``; it says so in words.
    """
    if isinstance(action_space, Discrete):
        return distribution_for(num_actions=action_space.n)
    if isinstance(action_space, Box) and len(action_space.shape) == 1:
        return distribution_for(action_size=action_space.shape[0], squashed=squashed and action_space.is_bounded)
    raise ValueError(
        f"{algorithm} acts in Discrete spaces and in flat Boxes, and this environment's action space is "
        f"{action_space!r}. RandomAgent acts in any space."
    )


def observation_ndim(obs_space: Space, obs_key: str | None) -> int:
    """The number of axes of one observation, or of its entry ``obs_key``.

    Raises:
        ValueError: the observation has no such entry, or has several and none is named.
    """
    obs = select_observation(obs_space.zeros(), obs_key)
    if not isinstance(obs, jax.Array):
        raise ValueError(
            f"observations here have several parts, {obs_space!r}, and a network reads one: name it by "
            "agent.policy_obs_key and agent.value_obs_key, or set env.flatten_obs=true."
        )
    return obs.ndim


class RandomAgent(Agent):
    """Acts uniformly at random in its action space. It has nothing to learn: the baseline and the warm-up."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=PyTreeDict(), extra_state=_ActionSpace(action_space))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        num_rows = jax.tree.leaves(sample_batch.obs)[0].shape[0]
        return random_actions(agent_state.extra_state.space, as_typed_key(key), num_rows), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.compute_actions(agent_state, sample_batch, key)


class _ActionSpace(PyTreeData):
    """A space inside an agent state: static, so the state stays a pytree of arrays."""

    space: Space = pytree_field(static=True)


def random_actions(action_space: Space, key: Key, num_rows: int) -> Action:
    """Uniform actions ``[num_rows, ...]``; ``key`` is one for all or one per row."""
    if key.ndim == 0:
        key = jax.random.split(key, num_rows)
    return jax.vmap(action_space.sample)(key)
