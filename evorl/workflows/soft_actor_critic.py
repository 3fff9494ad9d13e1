"""The order of updates that soft actor-critics share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax

from evorl.agent import AgentState
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.random import split_rows
from evorl.ops.target_update import polyak_update
from evorl.sample_batch import SampleBatch
from evorl.soft_actor_critic import SoftActorCriticAgent
from evorl.types import Key, PyTreeDict, PyTreeNode


class SoftActorCriticUpdates(PyTreeNode):
    """Critics, actor and temperature in turn, then the slow copies follow. Goes before ``OffPolicyWorkflow``.

    Attributes:
        agent: the agent, whose losses are learned from.
        actor_optimizer: of the policy.
        critic_optimizer: of the critics.
        temperature_optimizer: of the logarithm of the temperature.
        tau: share of the new parameters in the slow ones after each update.
    """

    agent: SoftActorCriticAgent
    actor_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    temperature_optimizer: Optimizer = Optimizer()
    tau: float = 0.005

    ranges: ClassVar[Mapping[str, str]] = {"tau": "[0, 1]"}
    loss_names: ClassVar[tuple[str, ...]] = ("critic_loss", "q_value", "actor_loss", "entropy", "temperature")

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        """One state for each group of parameters, by its name."""
        params = agent_state.params
        return PyTreeDict(
            critic=self.critic_optimizer.init(params.critic),
            policy=self.actor_optimizer.init(params.policy),
            log_temperature=self.temperature_optimizer.init(params.log_temperature),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """One update of each part."""
        critic_keys, actor_keys = split_rows(keys)
        agent_state, opt_state, losses = self.update_critics(agent_state, opt_state, batch, critic_keys, progress)
        agent_state, opt_state, actor_losses = self.update_actor(agent_state, opt_state, batch, actor_keys, progress)
        losses.td_errors = losses.td_errors.mean(axis=0)  # of all critics
        return self.with_slow_copies(agent_state), opt_state, losses | actor_losses

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """One update of the critics."""
        part = ("critic", self.agent.critic_loss, self.critic_optimizer)
        return update_part(part, agent_state, opt_state, agent_state, batch, keys, progress=progress)

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """One update of the policy, with the new critics, and of the temperature."""
        part = ("policy", self.agent.actor_loss, self.actor_optimizer)
        agent_state, opt_state, losses = update_part(
            part, agent_state, opt_state, agent_state, batch, keys, progress=progress
        )
        part = ("log_temperature", self.agent.temperature_loss, self.temperature_optimizer)
        adapted, opt_state, temperature = update_part(part, agent_state, opt_state, losses.entropy, progress=progress)
        return (adapted if self.agent.adaptive_temperature else agent_state), opt_state, losses | temperature

    def with_slow_copies(self, agent_state: AgentState) -> AgentState:
        """The agent whose slow copies have followed: parameters ``target_<name>`` those called ``<name>``."""
        params = agent_state.params
        slow = [name for name in params if name.startswith("target_")]
        followed = {x: polyak_update(params[x], params[x.removeprefix("target_")], self.tau) for x in slow}
        return agent_state.replace(params=params.replace(**followed))


def update_part(
    part: tuple[str, Callable[..., tuple[jax.Array, PyTreeDict]], Optimizer],
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    progress: jax.Array,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """One gradient step of some of the agent's parameters; see ``gradient_step``.

    Args:
        part: the name of the parameters, ``loss_fn(params, *args) -> (loss, what it reports)``, and the optimizer.
        agent_state: the agent.
        opt_state: the optimizers' states by name.
        *args: of the loss.
        progress: the share of the training that is over.

    Returns:
        The agent and the optimizers' states with that part changed, and what the loss reports.
    """
    name, loss_fn, optimizer = part
    params, part_state, losses = gradient_step(
        loss_fn, optimizer, agent_state.params[name], opt_state[name], *args, progress=progress
    )
    agent_state = agent_state.replace(params=agent_state.params.replace(**{name: params}))
    return agent_state, opt_state.replace(**{name: part_state}), losses
