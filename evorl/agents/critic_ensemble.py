"""Base agents of off-policy actor-critics: a policy, and an ensemble of critics of observations and actions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import CriticEnsembleSettings, differing_torsos, pop_deviation_bounds
from evorl.config.values import checked_num_atoms
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks.heads import PolicyNetwork, apply_network
from evorl.networks.q_networks import EnsembleQNetwork
from evorl.ops import collectives
from evorl.ops.exploration import NoiseRepetition
from evorl.ops.loops import when_due
from evorl.ops.losses import td_error
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.trees import polyak_update
from evorl.ops.value_distributions import categorical_losses
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class CriticEnsembleAgent(Agent):
    """A policy and an ensemble of critics; the parameters of target networks are named ``target_<name>``.

    Subclasses define ``actor_loss(policy_params, agent_state, batch, keys)``, which returns a loss and its metrics. The
    loss reads ``obs`` and ``actions``, ``[N, ...]``, and ``extras.weights`` ``[N]`` from ``batch``. ``policy_params``
    may belong to a policy other than the agent's own, because this loss also improves the policies of populations.

    Attributes:
        policy_network: maps an observation to outputs ``[..., M]``, which determine the action or its distribution.
        critic_network: maps observation and action to values ``[K, ...]``, or an observation to values of all discrete
            actions ``[K, ..., A]``; with one more axis for distributions of returns.
        policy_obs_key: entry of a dict observation that the policy reads; ``None`` for the whole observation.
        value_obs_key: entry of a dict observation that the critics read; ``None`` for the whole observation.
        support_low: lowest return in the support of distributions, if the critics estimate distributions of returns.
        support_high: highest return in the support of distributions.
    """

    policy_network: nn.Module = pytree_field(static=True)
    critic_network: nn.Module = pytree_field(static=True)
    policy_obs_key: str | None = pytree_field(static=True, default=None, kw_only=True)
    value_obs_key: str | None = pytree_field(static=True, default=None, kw_only=True)
    support_low: float = pytree_field(default=-10.0, kw_only=True, setting=False)
    support_high: float = pytree_field(default=10.0, kw_only=True, setting=False)

    improves_policies: ClassVar[bool] = True
    part_settings: ClassVar[PyTreeNode] = CriticEnsembleSettings()
    # Names of the networks that have target networks.
    target_names: ClassVar[tuple[str, ...]] = ("critic",)
    # True if the algorithm tracks running statistics of its networks.
    keeps_statistics: ClassVar[bool] = False

    @classmethod
    def build_networks(
        cls, settings: dict[str, Any], env: Env, num_policy_outputs: int, num_atoms: int | None = None
    ) -> dict[str, Any]:
        """Remove the network settings from ``settings``; return ``policy_network`` and ``critic_network`` by name."""
        options, differences, keeps = settings.pop("network"), settings.pop("critic_network"), cls.keeps_statistics
        ndims = {name: observation_ndim(env.obs_space, settings.get(f"{name}_obs_key")) for name in ("policy", "value")}
        num_actions = env.action_space.n if isinstance(env.action_space, Discrete) else None
        torso, critic_torso = differing_torsos(options, differences, keeps=keeps)
        scale = settings.pop("policy_output_scale", 0.01)
        return {
            "policy_network": PolicyNetwork(torso, num_policy_outputs, ndims["policy"], scale),
            "critic_network": EnsembleQNetwork(
                critic_torso, settings.pop("num_critics"), num_actions, ndims["value"], num_atoms=num_atoms
            ),
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Return initial parameters of each network, from separate keys; target networks start as copies."""
        policy_key, critic_key = jax.random.split(key)
        params = PyTreeDict(
            policy=self.policy_network.init(policy_key, one_observation(obs_space, self.policy_obs_key)),
            critic=self.init_critics(self.critic_network, obs_space, action_space, critic_key),
        )
        return params | {f"target_{name}": jax.tree.map(jnp.copy, params[name]) for name in self.target_names}

    def init_critics(self, network: nn.Module, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Return initial parameters of ``network``, which must have the inputs of ``critic_network``."""
        action = () if isinstance(action_space, Discrete) else (action_space.zeros()[None],)
        return network.init(key, one_observation(obs_space, self.value_obs_key), *action)

    def policy_statistics(self, agent_state: AgentState) -> Any:
        """Return the policy's state other than its parameters; a policy can be evolved only if it has no such state."""
        return agent_state.extra_state

    def policy_outputs(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        """Return the outputs ``[N, M]`` of the policy network for observations ``[N, ...]``."""
        return apply_network(self.policy_network, policy_params, preprocess(agent_state, obs, self.policy_obs_key))

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """Return the outputs ``[K, N, *]`` of all critics for actions ``[N, ...]``, or for all discrete actions.

        Args:
            agent_state: state whose statistics normalize the observations.
            params: parameters of the critics or of their target networks.
            obs: observations, ``[N, ...]``.
            actions: actions, ``[N, ...]``, or ``None`` for all discrete actions: the outputs are then ``[K, N, A]``.
            network: another ensemble over observations and actions; defaults to ``critic_network``.
        """
        network = self.critic_network if network is None else network
        obs = preprocess(agent_state, obs, self.value_obs_key)
        if network.num_actions is None:
            return apply_network(network, params, obs, actions)
        outputs = apply_network(network, params, obs)  # [K, N, A]
        return outputs if actions is None else jnp.take_along_axis(outputs, actions[None, :, None], axis=-1)[..., 0]

    def recyclable_networks(self) -> dict[str, nn.Module]:
        """Return the networks whose dormant units can be recycled, keyed by their parameters' names."""
        return {"policy": self.policy_network, "critic": self.critic_network}

    def recyclable_inputs(self, agent_state: AgentState, batch: SampleBatch) -> dict[str, tuple[Any, ...]]:
        """Return the inputs ``[N, ...]`` of the ``recyclable_networks`` for a batch of transitions, by name."""
        policy_obs, obs = (preprocess(agent_state, batch.obs, x) for x in (self.policy_obs_key, self.value_obs_key))
        actions = (batch.actions,) if self.critic_network.num_actions is None else ()
        return {"policy": (policy_obs,), "critic": (obs, *actions)}

    @classmethod
    def pop_num_atoms(cls, settings: dict[str, Any], env: Env) -> int | None:
        """Remove ``values`` and ``num_atoms`` from settings; return the number of atoms, ``None`` for expected values.

        Raises:
            ValueError: ``checked_num_atoms`` rejects a setting, or ``values`` is categorical for discrete actions.
        """
        support = [settings.get(name, getattr(cls, name)) for name in ("support_low", "support_high")]
        values = settings.pop("values", "expected")
        if values == "categorical" and isinstance(env.action_space, Discrete):
            raise ValueError(
                "agent.values=categorical needs continuous actions, but the action space is "
                f"{env.action_space}: set agent.values=expected and agent.num_atoms=null."
            )
        return checked_num_atoms(settings.pop("num_atoms", None), values, *support)

    @property
    def support(self) -> jax.Array:
        """Support of the critics' categorical return distributions: the returns of the atoms, ``[M]``."""
        return jnp.linspace(self.support_low, self.support_high, self.critic_network.num_atoms)

    def expected(self, outputs: jax.Array) -> jax.Array:
        """Return the expected values ``[...]`` of the critics' outputs: values ``[...]`` or logits ``[..., M]``."""
        return outputs if self.critic_network.num_atoms is None else jax.nn.softmax(outputs) @ self.support

    def least(self, outputs: jax.Array) -> jax.Array:
        """Return per row the outputs of the critic with the smallest expected value: ``[N, *]`` from ``[K, N, *]``."""
        minimum = jnp.argmin(self.expected(outputs), axis=0)  # [N]
        return outputs[minimum, jnp.arange(outputs.shape[1])]

    def value_losses(
        self, outputs: jax.Array, rewards: jax.Array, discounts: jax.Array, next_outputs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return losses against ``r + discount * V(s')`` for ``outputs`` ``[K, N, *]`` and ``next_outputs`` ``[N, *]``.

        Returns:
            Squared errors and TD errors, or cross-entropies and KL divergences of distributions, all ``[K, N]``.
        """
        if self.critic_network.num_atoms is None:
            errors = td_error(outputs, rewards, discounts, next_outputs)
            return jnp.square(errors), errors
        return categorical_losses(outputs, rewards, discounts, jax.nn.softmax(next_outputs), self.support)

    def soft_bellman_loss(
        self, outputs: jax.Array, next_outputs: jax.Array, next_costs: jax.Array, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the loss against targets ``r + discount * (next_outputs - next_costs)``, summed over critics.

        This is half the squared error of values, or the cross-entropy of distributions with atoms shifted by the costs.

        Args:
            outputs: critics' outputs for ``(s, a)``, ``[K, N, *]``.
            next_outputs: values ``[N]`` of the next states; or logits ``[K, N, M]``, which are reduced by ``least``.
            next_costs: cost ``alpha log pi`` of the next action, ``[N]``.
            batch: transitions ``[N, ...]``; ``extras.weights`` are the weights of transitions, ``[N]``, or separate
                weights for each critic, ``[K, N]``.

        Returns:
            The loss, and the metrics ``critic_loss`` (not halved), ``q_value`` and ``td_errors`` ``[K, N]``.
        """
        rewards, discounts, half = batch.rewards, batch.extras.discounts, 0.5
        if self.critic_network.num_atoms is None:
            next_outputs = next_outputs - next_costs
        else:
            next_outputs, rewards, half = self.least(next_outputs), rewards - discounts * next_costs, 1.0
        losses, errors = self.value_losses(outputs, rewards, discounts, next_outputs)
        loss, q_value = (batch.extras.weights * losses).mean(axis=-1).sum(), self.expected(outputs).mean()
        return half * loss, PyTreeDict(critic_loss=loss, q_value=q_value, td_errors=errors)


class StochasticPolicyAgent(Agent):
    """Agent with a stochastic policy; together with ``CriticEnsembleAgent``, the base of soft actor-critics.

    Attributes:
        distribution: action distribution: categorical, or normal, squashed by tanh in bounded dimensions.
        noise_repetition: repetition of exploration noise over several steps; for Box actions only.
    """

    distribution: ActionDistribution = pytree_field(static=True)
    noise_repetition: NoiseRepetition = pytree_field(default=NoiseRepetition(), kw_only=True)

    @classmethod
    def pop_distribution(cls, settings: dict[str, Any], env: Env) -> ActionDistribution:
        """Remove the distribution's options from the settings; return the distribution for the action space.

        Raises:
            ValueError: ``noise_repetition`` is enabled, but the actions are discrete.
        """
        distribution = action_distribution(env.action_space, **pop_deviation_bounds(settings))
        if distribution.is_discrete and settings["noise_repetition"]["max_steps"] > 1:
            raise ValueError(
                f"agent.noise_repetition.max_steps={settings['noise_repetition']['max_steps']} needs Box actions, but "
                f"the action space is {env.action_space}: set it to 1."
            )
        return distribution

    @abstractmethod
    def policy_outputs(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        """Return the parameters ``[N, M]`` of the action distributions for observations ``[N, ...]``."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the agent; with repeated noise, ``recurrent_state`` is the initial state of the noise."""
        state = super().init(obs_space, action_space, key)
        if self.noise_repetition.max_steps == 1:
            return state
        return state.replace(recurrent_state=self.noise_repetition.initial_state(self.distribution.size))

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """Return the action distributions for observations ``[N, ...]``."""
        outputs = self.policy_outputs(agent_state, policy_params, obs)
        is_masked = isinstance(obs, Mapping) and self.distribution.is_discrete
        return self.distribution(allowed_only(outputs, obs) if is_masked else outputs)

    def exploring_policy(self, agent_state: AgentState, obs: Observation) -> Any:
        """Return the distributions of exploratory actions for observations ``[N, ...]``; by default, ``policy``."""
        return self.policy(agent_state, agent_state.params.policy, obs)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Sample exploratory actions; with repeated noise, the extras contain its next ``recurrent_state``."""
        policy = self.exploring_policy(agent_state, sample_batch.obs)
        if agent_state.recurrent_state is None:
            return policy.sample(key), PyTreeDict()
        noise, recurrent_state = self.noise_repetition.next_noise(key, sample_batch.extras.recurrent_state)
        actions = self.distribution.squash(policy.loc + policy.scale * noise)
        return actions, PyTreeDict(recurrent_state=recurrent_state)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the mode of the policy, and the extras of ``sample_batch`` unchanged."""
        actions = self.policy(agent_state, agent_state.params.policy, sample_batch.obs).mode()
        return actions, PyTreeDict(sample_batch.extras or {})


def update_part(
    name: str,
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    loss_fn: Callable[..., tuple[jax.Array, PyTreeDict]],
    optimizer: Optimizer,
    progress: jax.Array,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """Take one gradient step on one group of the agent's parameters; return both states and the metrics of the loss.

    Args:
        name: name of the parameters, and of their optimizer's state.
        agent_state: state of the agent.
        opt_state: optimizer states by name.
        *args: additional arguments of the loss.
        loss_fn: ``loss_fn(params, *args) -> (loss, metrics)``.
        optimizer: optimizer of these parameters.
        progress: completed fraction of training in [0, 1].
    """
    params, part_state, losses = gradient_step(
        loss_fn, optimizer, agent_state.params[name], opt_state[name], *args, progress=progress
    )
    agent_state = agent_state.replace(params=agent_state.params.replace(**{name: params}))
    return agent_state, opt_state.replace(**{name: part_state}), losses


def with_target_networks(params: PyTreeDict, tau: jax.Array | float) -> PyTreeDict:
    """Return ``params`` with each ``target_<name>`` moved towards ``<name>`` by the Polyak step size ``tau``."""
    targets = [name for name in params if name.startswith("target_")]
    return params.replace(**{x: polyak_update(params[x], params[x.removeprefix("target_")], tau) for x in targets})


def with_projections(agent_state: AgentState, **optimizers: Optimizer) -> AgentState:
    """Return the state after projecting each network named in ``optimizers``, and its target network, if any."""
    params = agent_state.params
    names = [name for part in optimizers for name in (part, f"target_{part}") if name in params]
    projected = {name: optimizers[name.removeprefix("target_")].projected(params[name]) for name in names}
    return agent_state.replace(params=params.replace(**projected))


def update_if_due(
    update: Callable[[AgentState, PyTreeDict], tuple[AgentState, PyTreeDict, PyTreeDict]],
    delay: int,
    agent_state: AgentState,
    opt_state: PyTreeDict,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """Apply ``update`` if the count of calls in ``opt_state`` is a multiple of ``delay``, else return the last metrics.

    Args:
        update: ``(agent_state, opt_state) -> (agent_state, opt_state, metrics)``.
        delay: number of calls per update.
        agent_state: state of the agent.
        opt_state: optimizer states by name; for a delay above 1, also the entries of ``delay_state``.
    """
    if delay == 1:
        return update(agent_state, opt_state)

    def delayed(states: tuple[AgentState, PyTreeDict]) -> tuple[AgentState, PyTreeDict]:
        agent_state, opt_state, losses = update(*states)
        return agent_state, opt_state.replace(actor_losses=collectives.mean_over_shares(losses))

    is_due = opt_state.num_updates % delay == 0
    agent_state, opt_state = when_due(is_due, delayed, (agent_state, opt_state))
    return agent_state, opt_state.replace(num_updates=opt_state.num_updates + 1), opt_state.actor_losses


def delay_state(delay: int, *loss_names: str) -> PyTreeDict:
    """Return a count of calls and zero metrics, which ``update_if_due`` reads from ``opt_state``; empty for delay 1."""
    if delay == 1:
        return PyTreeDict()
    losses = PyTreeDict({name: jnp.zeros(()) for name in loss_names})
    return PyTreeDict(num_updates=jnp.zeros((), jnp.int32), actor_losses=losses)
