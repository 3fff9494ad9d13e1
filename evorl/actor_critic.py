"""The agent that on-policy algorithms share: a stochastic policy and a value function.

An algorithm adds its loss and the numbers in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution, observation_ndim, preprocess
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks import (
    FeatureNetwork,
    MemoryNetwork,
    PolicyNetwork,
    ValueNetwork,
    apply_network,
    assemble,
    build_cell,
    build_torso,
)
from evorl.networks.torsos import build_layers
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import standardize
from evorl.ops.returns import gae
from evorl.sample_batch import SampleBatch
from evorl.suggestions import no_such
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field


class Estimates(NamedTuple):
    """What an actor-critic makes of observations.

    Attributes:
        policy: the (unsquashed) action distributions, of batch shape ``[...]``.
        values: ``[...]``; ``None`` for an agent without a value function.
        memory: what is remembered after each observation, leaves ``[..., *]``; empty without a memory.
    """

    policy: Any
    values: Any
    memory: PyTreeDict


class ActorCriticAgent(Agent):
    """A stochastic policy and a value function, with networks of their own or heads on a shared one.

    Discrete actions are categorical. Box actions are drawn from a normal distribution whose standard deviation does not
    depend on the observation, and squashed into (-1, 1) by tanh; log-probabilities are those of the unsquashed sample:
    ratios of two policies and gradients are the same.

    Attributes:
        policy_network: parameters of the action distribution from an observation, or from the shared features.
        value_network: value of an observation, or of the shared features; ``None`` for an agent without.
        distribution: the (unsquashed) action distribution.
        shared_network: features that both read; ``None`` where each network reads the observation itself.
        normalize_obs: whether observations are normalised by running statistics.
        policy_obs_key: the entry of a dict observation that the policy sees.
        value_obs_key: the entry that the value function sees.
    """

    policy_network: nn.Module = pytree_field(static=True)
    value_network: nn.Module | None = pytree_field(static=True)
    distribution: ActionDistribution = pytree_field(static=True)
    shared_network: nn.Module | None = pytree_field(static=True, default=None)
    normalize_obs: bool = False
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that ``network`` in the settings describes, for the spaces of ``env``."""
        options = dict(settings.pop("network", {}))
        shared, cell = options.pop("shared", False), build_cell(options.pop("memory", None))
        heads = options.pop("heads", None) or {}
        heads = {name: build_layers(layers, f"heads.{name}") for name, layers in heads.items()}
        torso = build_torso(options, torso=(64, 64))
        distribution = action_distribution(env.action_space, cls.__name__.removesuffix("Agent"), squashed=False)
        keys = {name: settings.get(f"{name}_obs_key") for name in ("policy", "value")}
        _check_network(shared, heads, keys)

        def network(name: str, head: Callable[[nn.Module, int], nn.Module]) -> nn.Module:
            layers = heads.get(name, ())
            if shared:
                return head(torso.clone(layers=layers), 1)
            return assemble(torso, cell, layers, head, observation_ndim(env.obs_space, keys[name]))

        def policy_head(torso: nn.Module, ndim: int) -> nn.Module:
            size = distribution.num_parameters
            return PolicyNetwork(torso, size, ndim, state_independent_std=not distribution.is_discrete)

        parts = {
            "policy_network": network("policy", policy_head),
            "value_network": network("value", ValueNetwork),
            "distribution": distribution,
        }
        if shared:
            ndim = observation_ndim(env.obs_space, keys["policy"])
            parts["shared_network"] = assemble(torso, cell, (), FeatureNetwork, ndim)
        return parts

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The networks by the names of their parameters, the shared one first."""
        networks = {"shared": self.shared_network, "policy": self.policy_network, "value": self.value_network}
        return {name: network for name, network in networks.items() if network is not None}

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on earlier observations of the episode."""
        return any(isinstance(network, MemoryNetwork) for network in self.networks.values())

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key."""
        policy_key, value_key, shared_key = jax.random.split(key, 3)
        keys: dict[str, Key] = {"policy": policy_key, "value": value_key, "shared": shared_key}
        params, memory = PyTreeDict(), PyTreeDict()

        def fresh(name: str, network: nn.Module, x: Any) -> jax.Array:
            if not isinstance(network, MemoryNetwork):
                output, params[name] = network.init_with_output(keys[name], x)
                return output
            memory[name] = network.initial_state()
            (output, _), params[name] = network.init_with_output(keys[name], x, network.initial_state((1,)))
            return output

        self._outputs(AgentState(params=params), jax.tree.map(lambda x: x[None], obs_space.zeros()), fresh)
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics, memory=memory or None)

    def _outputs(
        self, agent_state: AgentState, obs: Observation, apply: Callable[[str, nn.Module, Any], jax.Array]
    ) -> dict[str, jax.Array]:
        """What each network gives, by name: heads on a shared network read its features."""
        outputs = {}
        for name, network in self.networks.items():
            obs_key = self.value_obs_key if name == "value" else self.policy_obs_key
            x = outputs["shared"] if "shared" in outputs else preprocess(agent_state, obs, obs_key)
            outputs[name] = apply(name, network, x)
        return outputs

    def estimates(
        self,
        agent_state: AgentState,
        params: Params,
        obs: Observation,
        memory: Any = None,
        starts: jax.Array | None = None,
    ) -> Estimates:
        """Policy and values in observations ``[..., *observation]``.

        Args:
            agent_state: whose statistics normalise the observations.
            params: of the networks.
            obs: observations, each on its own; or, with ``starts``, sequences ``[T, B]``.
            memory: of an agent with a memory: what it remembers before each observation, leaves ``[..., *]``; or before
                each sequence, ``[B, *]``.
            starts: ``[T, B]``, the observations with which an episode starts and nothing is remembered.
        """
        after = PyTreeDict()

        def apply(name: str, network: nn.Module, x: Any) -> jax.Array:
            if not isinstance(network, MemoryNetwork):
                return apply_network(network, params[name], x)
            if starts is None:
                output, after[name] = network.apply(params[name], x, memory[name])
            else:
                output, after[name] = network.apply(params[name], x, memory[name], starts, method="unroll")
            return output

        outputs = self._outputs(agent_state, obs, apply)
        return Estimates(self.distribution(outputs["policy"]), outputs.get("value"), after)

    def estimates_along(self, agent_state: AgentState, params: Params, batch: SampleBatch) -> Estimates:
        """Policy and values in the observations of a batch ``[...]``.

        With a memory they are sequences ``[T, B]``, with ``dones``, and ``extras.memory`` ``[1, B, *]`` is what was
        remembered before them.
        """
        if not self.has_memory:
            return self.estimates(agent_state, params, batch.obs)
        starts = jnp.concatenate([jnp.zeros_like(batch.dones[:1]), batch.dones[:-1]])
        memory = jax.tree.map(lambda x: x[0], batch.extras.memory)
        return self.estimates(agent_state, params, batch.obs, memory, starts)

    def next_values(
        self, agent_state: AgentState, params: Params, batch: SampleBatch, estimates: Estimates
    ) -> jax.Array:
        """Values of the true successors of a batch, ``[...]``, after its ``estimates_along``."""
        return self.estimates(agent_state, params, batch.next_obs, estimates.memory).values

    def policy(self, agent_state: AgentState, params: Params, obs: Observation) -> Any:
        """The (unsquashed) action distributions in observations ``[..., *observation]``, without a memory."""
        return self.estimates(agent_state, params, obs).policy

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Values of observations, ``[...]``, without a memory."""
        return self.estimates(agent_state, params, obs).values

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Any, PolicyExtras]:
        """The policy, and what is remembered after the observations."""
        memory = sample_batch.extras.memory if self.has_memory else None
        estimates = self.estimates(agent_state, agent_state.params, sample_batch.obs, memory)
        return estimates.policy, PyTreeDict(memory=estimates.memory) if self.has_memory else PyTreeDict()

    def _squash(self, raw_actions: jax.Array) -> Action:
        return raw_actions if self.distribution.is_discrete else jnp.tanh(raw_actions)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy; remembers the unsquashed sample and its log-probability."""
        policy, extras = self._act(agent_state, sample_batch)
        raw, log_prob = policy.sample_and_log_prob(key)
        return self._squash(raw), extras | {"raw_action": raw, "log_prob": log_prob}

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        policy, extras = self._act(agent_state, sample_batch)
        return self._squash(policy.mode()), extras

    def with_advantages(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        discount: jax.Array | float,
        gae_lambda: jax.Array | float,
    ) -> SampleBatch:
        """What losses need of a trajectory ``[T, B]``: that of ``remembered``, with ``advantages`` and value
        ``targets`` by GAE, and ``old_values``, those at collection.
        """
        estimates = self.estimates_along(agent_state, agent_state.params, trajectory)
        next_values = self.next_values(agent_state, agent_state.params, trajectory, estimates)
        termination = trajectory.extras.env_extras.termination
        advantages, targets = gae(
            trajectory.rewards, estimates.values, next_values, termination, trajectory.dones, discount, gae_lambda
        )
        return self.remembered(trajectory, advantages=advantages, targets=targets, old_values=estimates.values)

    def remembered(self, trajectory: SampleBatch, **beside: jax.Array) -> SampleBatch:
        """Of a trajectory ``[T, B]`` what losses read: ``obs``, and in ``extras.policy_extras`` what the policy
        remembered of its actions and what is given ``beside``. For an agent with a memory also ``dones`` and the first
        memory.
        """
        extras = PyTreeDict(policy_extras=trajectory.extras.policy_extras | beside)
        if not self.has_memory:
            return SampleBatch(obs=trajectory.obs, extras=extras)
        return SampleBatch(
            obs=trajectory.obs, dones=trajectory.dones, extras=extras | {"memory": trajectory.extras.memory}
        )


def with_standardized_advantages(batch: SampleBatch) -> SampleBatch:
    """A batch of ``with_advantages`` whose advantages have mean 0 and variance 1, by its ``weights`` if it has some."""
    remembered = batch.extras.policy_extras
    standardized = remembered | {"advantages": standardize(remembered.advantages, remembered.get("weights", 1.0))}
    return batch.replace(extras=batch.extras.replace(policy_extras=standardized))


def _check_network(shared: Any, heads: dict[str, Any], keys: dict[str, str | None]) -> None:
    if not isinstance(shared, bool):
        raise ValueError(f"agent.network.shared must be true or false, got {shared!r}.")
    for name in heads:
        if name not in keys:
            raise ValueError(no_such("head", name, keys))
    if shared and keys["policy"] != keys["value"]:
        raise ValueError(
            "agent.network.shared=true reads one observation, and agent.policy_obs_key and agent.value_obs_key "
            f"name two, {keys['policy']!r} and {keys['value']!r}: choose the same, or separate networks."
        )
