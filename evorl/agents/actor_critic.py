"""Base agent of on-policy actor-critics: a stochastic policy, a value function, and the batches that losses read.

An algorithm adds its loss and hyperparameters.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import ActorCriticSettings
from evorl.config.values import check_names, checked_mapping, checked_value, positive
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks.heads import FeatureNetwork, PolicyNetwork, ValueNetwork
from evorl.networks.recurrent import RecurrentNetwork, assemble, build_cell
from evorl.networks.torsos import Layer, build_layers, build_torso
from evorl.ops.optimization import standardize
from evorl.ops.platform import on_cpu
from evorl.ops.returns import gae
from evorl.ops.trees import flatten_leading_axes
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeData, PyTreeDict, pytree_field

_PARTS = ("shared", "policy", "value")
ROWS_AT_ONCE = 2**14  # observations per forward pass on an accelerator: the size of a large minibatch


class Estimates(NamedTuple):
    """Outputs of an actor-critic for a batch of observations.

    Attributes:
        policy: (unsquashed) action distributions, of batch shape ``[...]``.
        values: values of the observations, ``[...]``; ``None`` for an agent without a value function.
        recurrent_state: recurrent state after each observation, leaves ``[..., *]``; empty for non-recurrent agents.
        quantiles: quantiles of the return, ``[..., N]``, with mean ``values``; ``None`` if the network outputs values.
    """

    policy: Any
    values: Any
    recurrent_state: PyTreeDict
    quantiles: Any = None


class ActorCriticBatch(PyTreeData):
    """Inputs of a loss: a trajectory ``[T, B]`` or single steps ``[N]``.

    Attributes:
        obs: observations, ``[..., *observation]``.
        raw_actions: unsquashed actions, ``[...]`` or ``[..., A]``.
        log_probs: log-probabilities of these actions under the behavior policy, ``[...]``.
        targets: value targets, ``[...]``; ``None`` before they are computed.
        advantages: advantages of the actions, ``[...]``; ``None`` before they are computed.
        values: values at collection, ``[...]``; ``None`` if the loss does not need them.
        weights: weights of the steps, with mean 1, ``[...]``; ``None`` for equal weights.
        dones: for recurrent agents, True where an episode ends, ``[T, B]``; otherwise ``None``.
        recurrent_state: for recurrent agents, the state before the first step, ``[1, B, *]``; otherwise ``None``.
        policy: (unsquashed) action distributions at collection, ``[...]``; ``None`` if the loss does not need them.
    """

    obs: Observation
    raw_actions: Action
    log_probs: jax.Array
    targets: Any = None
    advantages: Any = None
    values: Any = None
    weights: Any = None
    dones: Any = None
    recurrent_state: Any = None
    policy: Any = None

    def flatten(self) -> ActorCriticBatch:
        """Merge ``[T, B, ...]`` into single steps ``[T * B, ...]``."""
        return flatten_leading_axes(self, 2)

    def with_standardized_advantages(self) -> ActorCriticBatch:
        """Return the batch with advantages scaled to weighted mean 0 and variance 1, over all devices."""
        return self.replace(advantages=standardize(self.advantages, 1.0 if self.weights is None else self.weights))


class ActorCriticNetwork(nn.Module):
    """Policy and value networks: separate networks, or heads on a shared one.

    Attributes:
        policy: maps observations, or shared features, to the parameters of the action distribution.
        value: maps observations, or shared features, to values; ``None`` for an actor without a critic.
        shared: maps observations to features for both heads; ``None`` if each network reads the observation itself.
        num_quantiles: number N of quantiles that the value network outputs, ``[..., N]``; ``None`` for values.
    """

    policy: nn.Module
    value: nn.Module | None = None
    shared: nn.Module | None = None
    num_quantiles: int | None = None

    def __call__(
        self, policy_obs: jax.Array, value_obs: jax.Array, recurrent_state: Any = None, starts: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None, PyTreeDict]:
        """Return distribution parameters ``[..., M]``, values (quantiles, or ``None``), and recurrent states by part.

        Args:
            policy_obs: observations of the policy (and of a shared network), ``[..., *observation]``.
            value_obs: observations of the value function; unused with a shared network.
            recurrent_state: state of each recurrent part by name, before each observation ``[..., *]``; or, with
                ``starts``, before each sequence, ``[B, *]``. Unused without recurrent parts.
            starts: True where a step of a sequence is the first of an episode, ``[T, B]``; ``None`` for single steps.
        """
        after = PyTreeDict()

        def read(name: str, x: jax.Array) -> jax.Array:
            part = getattr(self, name)
            if not isinstance(part, RecurrentNetwork):
                return part(x)
            state = recurrent_state[name]
            output, after[name] = part(x, state) if starts is None else part.unroll(x, state, starts)
            return output

        if self.shared is not None:
            policy_obs = value_obs = read("shared", policy_obs)
        parameters = read("policy", policy_obs)
        return parameters, None if self.value is None else read("value", value_obs), after

    def initial_state(self) -> PyTreeDict:
        """Return the recurrent states at the start of an episode, leaves ``[*]``; empty without recurrent parts."""
        parts = {name: getattr(self, name) for name in _PARTS}
        recurrent = {name: part for name, part in parts.items() if isinstance(part, RecurrentNetwork)}
        return PyTreeDict({name: part.initial_state() for name, part in recurrent.items()})

    def init_params(self, key: Key, policy_obs: jax.Array, value_obs: jax.Array) -> PyTreeDict:
        """Return initial parameters by name of the part; observations have shape ``[1, *observation]``."""
        policy_key, value_key, shared_key = jax.random.split(key, 3)
        keys: dict[str, Key] = {"policy": policy_key, "value": value_key, "shared": shared_key}
        params = PyTreeDict()

        def fresh(name: str, x: jax.Array) -> jax.Array:
            part, state = getattr(self, name), ()
            if isinstance(part, RecurrentNetwork):
                state = (part.initial_state((1,)),)
            output, variables = part.init_with_output(keys[name], x, *state)
            params[name] = variables["params"]
            return output[0] if state else output

        if self.shared is not None:
            policy_obs = value_obs = fresh("shared", policy_obs)
        fresh("policy", policy_obs)
        if self.value is not None:
            fresh("value", value_obs)
        return params


class ActorCriticAgent(Agent):
    """Stochastic policy and value function.

    Discrete actions are categorical. Box actions are drawn from a normal distribution whose standard deviation does not
    depend on the observation, and bounded dimensions are squashed into (-1, 1) by tanh. Log-probabilities are those
    of the unsquashed samples. Squashing changes neither their gradients nor probability ratios.

    Attributes:
        network: maps observations to parameters of the action distribution and to values.
        distribution: (unsquashed) action distribution.
        policy_obs_key: entry of a dict observation that the policy reads; ``None`` for the whole observation.
        value_obs_key: entry of a dict observation that the value function reads; ``None`` for the whole observation.
    """

    network: ActorCriticNetwork = pytree_field(static=True)
    distribution: ActionDistribution = pytree_field(static=True)
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    part_settings: ClassVar[Any] = ActorCriticSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build networks and distribution from the entry ``network`` of the settings, for the spaces of ``env``."""
        distribution = action_distribution(env.action_space, squashed=False)
        obs_ndims = {
            name: observation_ndim(env.obs_space, settings.get(f"{name}_obs_key")) for name in ("policy", "value")
        }
        options = settings.pop("network")
        if options.get("shared") and settings.get("policy_obs_key") != settings.get("value_obs_key"):
            raise ValueError(
                "agent.network.shared=true requires one observation, but agent.policy_obs_key and agent.value_obs_key "
                f"differ, {settings.get('policy_obs_key')!r} and {settings.get('value_obs_key')!r}: set them to the "
                "same entry, or use separate networks."
            )
        num_quantiles = options.pop("num_quantiles") if hasattr(cls.part_settings.network, "num_quantiles") else None
        return {"network": build_network(options, distribution, obs_ndims, num_quantiles), "distribution": distribution}

    @property
    def is_recurrent(self) -> bool:
        """True if actions depend on earlier observations of the episode."""
        return any(isinstance(getattr(self.network, name), RecurrentNetwork) for name in _PARTS)

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        obs = (one_observation(obs_space, obs_key) for obs_key in (self.policy_obs_key, self.value_obs_key))
        return self.network.init_params(key, *obs)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Return the initial state, including the recurrent state at the start of an episode."""
        state = super().init(obs_space, action_space, key)
        return state.replace(recurrent_state=self.network.initial_state() or None)

    def estimates(
        self,
        agent_state: AgentState,
        params: Params,
        obs: Observation,
        recurrent_state: Any = None,
        starts: jax.Array | None = None,
    ) -> Estimates:
        """Return policy and values; ``recurrent_state`` and ``starts`` are as for ``ActorCriticNetwork.__call__``."""
        policy_obs = value_obs = preprocess(agent_state, obs, self.policy_obs_key)
        if self.value_obs_key != self.policy_obs_key:
            value_obs = preprocess(agent_state, obs, self.value_obs_key)
        outputs: Any = self.network.apply({"params": params}, policy_obs, value_obs, recurrent_state, starts)
        is_masked = isinstance(obs, Mapping) and self.distribution.is_discrete
        policy = self.distribution(allowed_only(outputs[0], obs) if is_masked else outputs[0])
        if self.network.num_quantiles is None:
            return Estimates(policy, *outputs[1:])
        return Estimates(policy, *outputs[1:])._replace(values=outputs[1].mean(axis=-1), quantiles=outputs[1])

    def policy(self, agent_state: AgentState, params: Params, obs: Observation) -> Any:
        """Return the (unsquashed) action distributions for ``[..., *observation]``; only for non-recurrent agents."""
        return self.estimates(agent_state, params, obs).policy

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Return the values of observations, ``[...]``; only for non-recurrent agents."""
        values: Any = self.estimates(agent_state, params, obs).values
        return values

    def estimates_of_batch(self, agent_state: AgentState, params: Params, batch: ActorCriticBatch) -> Estimates:
        """Return policy and values for the observations of a batch; recurrent agents unroll sequences ``[T, B]``."""
        if batch.dones is None:
            return self.estimates(agent_state, params, batch.obs)
        starts = jnp.concatenate([jnp.zeros_like(batch.dones[:1]), batch.dones[:-1]])
        first = jax.tree.map(lambda x: x[0], batch.recurrent_state)
        return self.estimates(agent_state, params, batch.obs, first, starts)

    def estimates_of_trajectory(
        self, agent_state: AgentState, params: Params, trajectory: SampleBatch
    ) -> tuple[Estimates, Any]:
        """Return policy and values for a trajectory ``[T, B]``, and the values of its next observations, ``[T, B]``."""
        estimates = self.estimates_of_batch(agent_state, params, self.batch_of(trajectory))
        return estimates, self.estimates(agent_state, params, trajectory.next_obs, estimates.recurrent_state).values

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Sample actions; the extras are ``raw_action`` (unsquashed), its ``log_prob`` and any ``recurrent_state``."""
        policy, extras = self._policy_and_extras(agent_state, sample_batch)
        raw, log_prob = policy.sample_and_log_prob(key)
        return self.distribution.squash(raw), extras | {"raw_action": raw, "log_prob": log_prob}

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the mode of the policy, squashed if bounded; the extras are any ``recurrent_state``."""
        policy, extras = self._policy_and_extras(agent_state, sample_batch)
        return self.distribution.squash(policy.mode()), extras

    def _policy_and_extras(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Any, PolicyExtras]:
        recurrent_state = (sample_batch.extras or {}).get("recurrent_state")
        policy, _, after, _ = self.estimates(agent_state, agent_state.params, sample_batch.obs, recurrent_state)
        return policy, PyTreeDict(recurrent_state=after) if after else PyTreeDict()

    def batch_with_advantages(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        discount: jax.Array | float,
        gae_lambda: jax.Array | float,
    ) -> ActorCriticBatch:
        """Return the batch of a trajectory ``[T, B]``, with advantages and value targets by GAE."""
        values, next_values = self._values_of_trajectory(agent_state, trajectory)
        termination = trajectory.extras.env_extras.termination
        steps = (trajectory.rewards, values, next_values, termination, trajectory.dones)
        advantages, targets = gae(*steps, discount=discount, gae_lambda=gae_lambda)
        return self.batch_of(trajectory, targets=targets, advantages=advantages, values=values)

    def _values_of_trajectory(self, agent_state: AgentState, trajectory: SampleBatch) -> tuple[jax.Array, jax.Array]:
        """Return the values of the observations and of the next observations of a trajectory, both ``[T, B]``."""
        num_steps, num_envs = trajectory.dones.shape
        at_once = max(1, ROWS_AT_ONCE // num_envs)
        if on_cpu() or self.is_recurrent or at_once >= num_steps:
            estimates, next_values = self.estimates_of_trajectory(agent_state, agent_state.params, trajectory)
            return estimates.values, next_values

        def of_step(obs: tuple[Observation, Observation]) -> list[jax.Array]:
            return [self.values(agent_state, agent_state.params, x) for x in obs]

        values, next_values = jax.lax.map(of_step, (trajectory.obs, trajectory.next_obs), batch_size=at_once)
        return values, next_values

    def batch_of(self, trajectory: SampleBatch, **computed: Any) -> ActorCriticBatch:
        """Return the batch of a trajectory ``[T, B]``; ``computed`` are additional fields of ``ActorCriticBatch``."""
        extras = trajectory.extras
        if self.is_recurrent:
            computed |= {"dones": trajectory.dones, "recurrent_state": extras.recurrent_state}
        actions = {"raw_actions": extras.policy_extras.raw_action, "log_probs": extras.policy_extras.log_prob}
        return ActorCriticBatch(obs=trajectory.obs, **actions, **computed)


def build_network(
    options: dict[str, Any], distribution: ActionDistribution, obs_ndims: dict[str, int], num_quantiles: Any
) -> ActorCriticNetwork:
    """Build the network that ``agent.network`` describes.

    Args:
        options: fields of ``ActorCriticNetworkSettings``; entries are removed from this dict.
        distribution: action distribution.
        obs_ndims: number of axes of one observation, for ``policy`` and for ``value``.
        num_quantiles: number of quantiles that the value network outputs; ``None`` for values.

    Raises:
        ValueError: an option is unknown, or a value is invalid.
    """
    recurrent = options.pop("recurrent")
    cell = None if recurrent is None else build_cell(recurrent)
    shared = checked_value(options.pop("shared"), bool, "agent.network.shared")
    log_std = checked_value(options.pop("initial_log_std"), float, "agent.network.initial_log_std", "[-20, 2]")
    heads = checked_mapping(options.pop("heads"), "agent.network.heads")
    check_names(heads, obs_ndims, "key of agent.network.heads")
    num_quantiles = None if num_quantiles is None else positive(num_quantiles, "agent.network.num_quantiles")
    torso = build_torso(options)

    def policy_head(torso: nn.Module, ndim: int) -> nn.Module:
        std = {"state_independent_std": not distribution.is_discrete, "initial_log_std": log_std}
        return PolicyNetwork(torso, distribution.num_parameters, ndim, **std)

    def part(name: str, head: Any) -> nn.Module:
        layers = build_layers(heads.get(name, ()), f"agent.network.heads.{name}")
        return head(torso.clone(layers=layers), 1) if shared else whole(name, head, layers)

    def whole(name: str, head: Any, layers: tuple[Layer, ...] = ()) -> nn.Module:
        if cell is None:
            return head(torso.clone(layers=torso.layers + layers), obs_ndims[name])
        return assemble(torso, cell, layers, head, obs_ndims[name])

    value_head = functools.partial(ValueNetwork, num_quantiles=num_quantiles)
    features = whole("policy", FeatureNetwork) if shared else None
    return ActorCriticNetwork(part("policy", policy_head), part("value", value_head), features, num_quantiles)
