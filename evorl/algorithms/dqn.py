"""Deep Q-networks (Mnih et al. 2015, https://doi.org/10.1038/nature14236) with the components of Rainbow (Hessel et al.
2018, https://arxiv.org/abs/1710.02298) as independent options.

The options are double Q-learning (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step returns,
prioritized replay (Schaul et al. 2016), noisy networks (Fortunato et al. 2018), Munchausen targets (Vieillard et al.
2020), and distributional values: categorical (C51, Bellemare et al. 2017, https://arxiv.org/abs/1707.06887), quantiles
(QR-DQN, Dabney et al. 2018, https://arxiv.org/abs/1710.10044) or implicit quantiles (IQN, Dabney et al. 2018,
https://arxiv.org/abs/1806.06923).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from evorl.agent import AgentState
from evorl.agents.action_value import (
    ActionValueAgent,
    init_online_optimizer,
    update_online_and_target,
    values_of_actions,
)
from evorl.agents.observations import allowed_only, preprocess
from evorl.agents.part_settings import DQNSettings
from evorl.config.values import check_names, checked_mapping, checked_num_atoms, checked_value
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.implicit_quantiles import implicit, sample_fractions
from evorl.ops.losses import td_error
from evorl.ops.munchausen import Munchausen
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from evorl.ops.value_distributions import categorical_losses, quantile_huber
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Observation, Params, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow


class DQNAgent(ActionValueAgent):
    """Action values, or distributions of returns, of discrete actions, with a target network.

    Attributes:
        network: maps an observation to values ``[..., A]``, or to parameters ``[..., A, M]`` of distributions.
        values: output of the network: ``expected`` values, logits of ``categorical`` distributions on a fixed support,
            quantiles of returns (``quantile``), or ``implicit`` quantiles at sampled fractions.
        support_low: lowest return in the support of categorical distributions.
        support_high: highest return in the support of categorical distributions.
        double: select the bootstrap action with the online instead of the target network (double Q-learning).
        absolute_errors: use the absolute instead of the squared TD error as loss of expected values.
        huber_delta: error at which the Huber loss of expected values or quantiles turns linear; ``None`` uses squared
            errors, for expected values only: quantiles need a number.
        munchausen: add the scaled log-probability of the action, under a softmax of the target network's values, to the
            reward, and bootstrap from soft values, without double Q-learning; ``None`` disables it.
    """

    values: Literal["expected", "categorical", "quantile", "implicit"] = pytree_field(static=True, default="expected")
    support_low: float = 0.0
    support_high: float = 100.0
    double: bool = True
    absolute_errors: bool = False
    huber_delta: Annotated[float | None, Within("(0, inf)")] = None
    munchausen: Munchausen | None = None

    part_settings: ClassVar[PyTreeNode] = DQNSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        options = settings.pop("network")
        heads = checked_mapping(options.pop("heads"), "agent.network.heads")
        check_names(heads, ("dueling", "noisy"), "key of agent.network.heads")
        heads = {name: checked_value(value, bool, f"agent.network.heads.{name}") for name, value in heads.items()}
        support = [settings.get(name, getattr(cls, name)) for name in ("support_low", "support_high")]
        num_atoms = checked_num_atoms(settings.pop("num_atoms"), settings.get("values", cls.values), *support)
        options = {**settings, "network": options}
        if num_atoms is not None and settings.get("values", cls.values) == "implicit":
            return {"network": implicit(cls.build_network(options, env, **heads), num_atoms)}
        return {"network": cls.build_network(options, env, num_atoms=num_atoms, **heads)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absolute_errors and (self.values != "expected" or self.huber_delta is not None):
            raise ValueError(
                "agent.absolute_errors=true needs agent.values=expected and agent.huber_delta=null, not "
                f"agent.values={self.values} and agent.huber_delta={self.huber_delta}: change these two settings, or "
                "set absolute_errors to false."
            )
        if self.munchausen is not None and self.values == "categorical":
            raise ValueError(
                "agent.munchausen does not support agent.values=categorical, whose grid is fixed: use expected, "
                "quantile or implicit values, or set munchausen to null."
            )
        if self.values in ("quantile", "implicit") and self.huber_delta is None:
            raise ValueError(
                f"agent.values={self.values} needs a number for agent.huber_delta, not null: use 1.0, or a small "
                "value to approximate the plain quantile loss."
            )

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize the online network; the target network starts as a copy."""
        online = super().init_params(obs_space, action_space, key)
        return PyTreeDict(online=online, target=jax.tree.map(jnp.copy, online))

    def recyclable_networks(self) -> dict[str, nn.Module]:
        """Return the network whose dormant units can be recycled, keyed by its parameters' name; empty if noisy."""
        return {} if self.network.noisy else {"online": self.network}

    def recyclable_inputs(self, agent_state: AgentState, batch: SampleBatch) -> dict[str, tuple[Any, ...]]:
        """Return the inputs ``[N, ...]`` of the recyclable network for a batch of transitions, by name."""
        return {"online": (preprocess(agent_state, batch.obs, self.obs_key),)}

    def acting_params(self, params: Params) -> Params:
        return params.online

    @property
    def support(self) -> jax.Array:
        """Support of the categorical return distribution (C51): the returns of its atoms, ``[M]``."""
        return jnp.linspace(self.support_low, self.support_high, self.network.num_atoms)

    def _expected(self, outputs: jax.Array) -> jax.Array:
        if self.values == "categorical":
            return jax.nn.softmax(outputs) @ self.support
        return outputs if self.values == "expected" else outputs.mean(axis=-1)

    def q_values(self, agent_state: AgentState, params: Params, obs: Observation, key: Key | None = None) -> jax.Array:
        """Return the expected returns of all actions, ``[..., A]``; noisy networks add noise only with a key."""
        return self._expected(self.outputs(agent_state, params, obs, key))

    def loss(
        self, params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the temporal-difference loss of a batch ``[N, ...]`` with one key per transition, and its metrics.

        Truncated episodes bootstrap from the value of their last observation.
        """
        fractions = next_fractions = None
        if self.values == "implicit":
            keys, fractions, next_fractions = sample_fractions(keys, self.network.num_fractions)
        noise, next_noise, target_noise = jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, 3))(keys), 1, 0)
        outputs = self.outputs(agent_state, params, batch.obs, noise, fractions)
        target = agent_state.params.target
        next_outputs = choosing = self.outputs(agent_state, target, batch.next_obs, target_noise, next_fractions)
        if self.double and self.munchausen is None:
            choosing = jax.lax.stop_gradient(self.outputs(agent_state, params, batch.next_obs, next_noise))
        chosen = values_of_actions(outputs, batch.actions)
        next_q_values, rewards = allowed_only(self._expected(choosing), batch.next_obs), batch.rewards
        if self.munchausen is None:
            next_chosen = values_of_actions(next_outputs, jnp.argmax(next_q_values, axis=-1))
        else:
            q_values = allowed_only(self.q_values(agent_state, target, batch.obs), batch.obs)
            rewards += self.munchausen.bonus(q_values, batch.actions)
            next_chosen = self.munchausen.soft_values(next_outputs, next_q_values)
        losses, errors = self._losses(chosen, rewards, batch.extras.discounts, next_chosen, fractions)
        loss = (batch.extras.weights * losses).mean()
        return loss, PyTreeDict(td_loss=loss, q_value=self._expected(chosen).mean(), td_errors=errors)

    def _losses(
        self,
        chosen: jax.Array,
        rewards: jax.Array,
        discounts: jax.Array,
        next_chosen: jax.Array,
        fractions: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the losses, and the TD errors (KL divergences if categorical) that set priorities, both ``[N]``."""
        if self.values == "expected":
            errors = td_error(chosen, rewards, discounts, next_chosen)
            if self.absolute_errors:
                return jnp.abs(errors), errors
            if self.huber_delta is None:
                return 0.5 * jnp.square(errors), errors
            return optax.huber_loss(errors, delta=self.huber_delta), errors
        if self.values == "categorical":
            return categorical_losses(chosen, rewards, discounts, jax.nn.softmax(next_chosen), self.support)
        targets = jax.lax.stop_gradient(rewards[:, None] + discounts[:, None] * next_chosen)
        errors = targets.mean(axis=-1) - chosen.mean(axis=-1)
        assert self.huber_delta is not None, "checked when the agent is built"
        return quantile_huber(chosen, targets, self.huber_delta, fractions), errors


class DQNWorkflow(OffPolicyWorkflow):
    """DQN: one gradient step per batch, with periodic hard or Polyak updates of the target network.

    Attributes:
        optimizer: optimizer of the network.
        target_update_interval: number of gradient steps between two updates of the target network.
        tau: Polyak step size of a target update; 1 copies the online network.
    """

    agent: DQNAgent
    total_timesteps: float = 2e5
    rollout_length: int = 8
    updates_per_iteration: float = pytree_field(static=True, default=4)
    batch_size: int = 128
    replay_capacity: int = 50_000
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(2e-3, 0.0), max_grad_norm=10.0)
    target_update_interval: int = 100
    tau: Annotated[float, Within("[0, 1]")] = 1.0

    default_num_envs: ClassVar[int] = 4
    loss_names: ClassVar[tuple[str, ...]] = ("td_loss", "q_value")

    def init_optimizers(self, agent_state: AgentState) -> Any:
        return init_online_optimizer(self.optimizer, agent_state)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        step = {"progress": progress, "tau": self.tau, "interval": self.target_update_interval}
        states = (agent_state, opt_state)
        return update_online_and_target(self.agent.loss, self.optimizer, *states, batch, keys, **step)
