"""Base agent of off-policy actor-critics: a policy, and an ensemble of critics of observations and actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, shipped_agents
from evorl.agents.observations import observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import CriticEnsembleSettings, differing_torso
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks.heads import PolicyNetwork, apply_network
from evorl.networks.q_networks import EnsembleQNetwork
from evorl.networks.torsos import build_torso
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.trees import polyak_update
from evorl.types import Action, Key, Observation, Params, PyTreeDict, PyTreeNode, pytree_field


class CriticEnsembleAgent(Agent):
    """Policy and ensemble of critics; target networks are stored as parameters ``target_<name>``.

    Subclasses define ``actor_loss(policy_params, agent_state, batch, keys)``, which returns a loss and its metrics. It
    reads ``obs`` and ``actions``, ``[N, ...]``, and ``extras.weights`` ``[N]`` from ``batch``. ``policy_params`` may
    belong to a policy other than the agent's own, because this loss also improves the policies of populations.

    Attributes:
        policy_network: maps an observation to the parameters ``[..., M]`` of the policy.
        critic_network: maps observation and action to values ``[K, ...]``, or an observation to values of all discrete
            actions ``[K, ..., A]``; with one more axis for distributions of returns.
        policy_obs_key: entry of a dict observation that the policy reads.
        value_obs_key: entry of a dict observation that the critics read.
    """

    policy_network: nn.Module = pytree_field(static=True)
    critic_network: nn.Module = pytree_field(static=True)
    policy_obs_key: str | None = pytree_field(static=True, default=None, kw_only=True)
    value_obs_key: str | None = pytree_field(static=True, default=None, kw_only=True)

    improves_policies: ClassVar[bool] = True
    part_settings: ClassVar[PyTreeNode] = CriticEnsembleSettings()
    # Names of the networks that have target networks.
    target_names: ClassVar[tuple[str, ...]] = ("critic",)
    # True if the algorithm keeps running statistics of its networks.
    keeps_statistics: ClassVar[bool] = False

    @classmethod
    def build_networks(
        cls, settings: dict[str, Any], env: Env, num_policy_outputs: int, num_atoms: int | None = None
    ) -> dict[str, Any]:
        """Build the networks from the settings ``network``, ``critic_network`` (differences) and ``num_critics``."""
        options, differences, keeps = settings.pop("network"), settings.pop("critic_network"), cls.keeps_statistics
        ndims = {name: observation_ndim(env.obs_space, settings.get(f"{name}_obs_key")) for name in ("policy", "value")}
        num_actions = env.action_space.n if isinstance(env.action_space, Discrete) else None
        return {
            "policy_network": PolicyNetwork(
                build_torso(options, keeps_statistics=keeps), num_policy_outputs, ndims["policy"]
            ),
            "critic_network": EnsembleQNetwork(
                differing_torso(options, differences, keeps_statistics=keeps),
                settings.pop("num_critics"),
                num_actions,
                ndims["value"],
                num_atoms=num_atoms,
            ),
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Return fresh parameters of each network, from separate keys; target networks start as copies."""
        policy_key, critic_key = jax.random.split(key)
        params = PyTreeDict(
            policy=self.policy_network.init(policy_key, one_observation(obs_space, self.policy_obs_key)),
            critic=self.init_critics(self.critic_network, obs_space, action_space, critic_key),
        )
        return params | {f"target_{name}": jax.tree.map(jnp.copy, params[name]) for name in self.target_names}

    def init_critics(self, network: nn.Module, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Return fresh parameters of a network with the inputs of ``critic_network``."""
        action = () if isinstance(action_space, Discrete) else (action_space.zeros()[None],)
        return network.init(key, one_observation(obs_space, self.value_obs_key), *action)

    def policy_statistics(self, agent_state: AgentState) -> Any:
        """Return the policy's state apart from its parameters; it has no leaves if the policy can be evolved."""
        return agent_state.extra_state

    def policy_outputs(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        """Return the outputs of the policy network for observations ``[N, ...]``, ``[N, M]``."""
        return apply_network(self.policy_network, policy_params, preprocess(agent_state, obs, self.policy_obs_key))

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """Return the outputs of all critics for actions ``[N, ...]``, ``[K, N, *]``; ``None`` for all discrete actions.

        Args:
            agent_state: state whose statistics normalize the observations.
            params: parameters of the critics or of their target networks.
            obs: ``[N, ...]``.
            actions: ``[N, ...]``, or ``None`` for ``[K, N, A]``.
            network: another ensemble over observations and actions; defaults to ``critic_network``.
        """
        network = self.critic_network if network is None else network
        obs = preprocess(agent_state, obs, self.value_obs_key)
        if network.num_actions is None:
            return apply_network(network, params, obs, actions)
        outputs = apply_network(network, params, obs)  # [K, N, A]
        return outputs if actions is None else jnp.take_along_axis(outputs, actions[None, :, None], axis=-1)[..., 0]


def update_part(
    name: str,
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    loss_fn: Callable[..., tuple[jax.Array, PyTreeDict]],
    optimizer: Optimizer,
    progress: jax.Array,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """Take one gradient step on one group of the agent's parameters; see ``gradient_step``.

    Args:
        name: name of the parameters, and of their optimizer's state.
        agent_state: state of the agent.
        opt_state: optimizer states by name.
        *args: further arguments of the loss.
        loss_fn: ``loss_fn(params, *args) -> (loss, metrics)``.
        optimizer: optimizer of these parameters.
        progress: completed fraction of training in [0, 1].

    Returns:
        The agent state and optimizer states with that group updated, and the metrics of the loss.
    """
    params, part_state, losses = gradient_step(
        loss_fn, optimizer, agent_state.params[name], opt_state[name], *args, progress=progress
    )
    agent_state = agent_state.replace(params=agent_state.params.replace(**{name: params}))
    return agent_state, opt_state.replace(**{name: part_state}), losses


def with_target_networks(params: PyTreeDict, tau: jax.Array | float) -> PyTreeDict:
    """Update all target networks: parameters ``target_<name>`` move towards ``<name>``.

    Args:
        params: parameters by name.
        tau: Polyak step size of the target networks.
    """
    targets = [name for name in params if name.startswith("target_")]
    return params.replace(**{x: polyak_update(params[x], params[x.removeprefix("target_")], tau) for x in targets})


def policy_improvers() -> list[str]:
    """Return the names of evorl's algorithms whose agents improve any policy of their kind, sorted.

    The algorithms are found by the files in ``configs/agent``.
    """
    return sorted({agent.__module__.rpartition(".")[2] for agent in shipped_agents() if agent.improves_policies})
