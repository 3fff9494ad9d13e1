"""PQN for continuous actions (Gallici et al. 2024, https://arxiv.org/abs/2407.04811, and their code purejaxql, 2025).

A deterministic policy maximizes the mean of several critics, without target networks or replay. Targets are
SARSA(lambda) returns of the noisy actions of each trajectory. A penalty limits the policy's change per trajectory.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import update_part
from evorl.agents.part_settings import CriticEnsembleSettings, TorsoDifferences, TorsoSettings
from evorl.algorithms.pqn import PQNWorkflow
from evorl.algorithms.td3 import TD3Agent
from evorl.envs.action_spaces import num_outputs
from evorl.envs.env import Env
from evorl.fields import Within
from evorl.ops.exploration import ActionNoise
from evorl.ops.losses import squared_error
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import lambda_return
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode, pytree_field


class PQNContinuousAgent(TD3Agent):
    """Deterministic policy and critics, exploring as TD3 does; both should have layer normalization (the default).

    Attributes:
        penalty: weight of the distance between the policy's actions before and after updates on a trajectory.
        penalty_threshold: mean absolute distance over action dimensions above which the penalty applies.
    """

    noise: ActionNoise = ActionNoise(scale=Schedule(1.0, 0.15))
    penalty: Annotated[float, Within("[0, inf)")] = 10.0
    penalty_threshold: Annotated[float, Within("[0, inf)")] = 0.15
    target_noise: float = pytree_field(default=0.0, setting=False)
    target_noise_bound: float = pytree_field(default=0.0, setting=False)
    support_low: float = pytree_field(default=-10.0, kw_only=True, setting=False)
    support_high: float = pytree_field(default=10.0, kw_only=True, setting=False)

    improves_policies: ClassVar[bool] = False  # the loss reads the trajectory's policy
    target_names: ClassVar[tuple[str, ...]] = ()
    part_settings: ClassVar[PyTreeNode] = CriticEnsembleSettings(
        network=TorsoSettings(torso=(512, 256, 128), activation="relu", layer_norm=True),
        critic_network=TorsoDifferences(torso=(1024, 512, 256)),
    )

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        return cls.build_networks(settings, env, num_outputs(env.action_space))

    def batch_with_targets(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        discount: jax.Array | float,
        q_lambda: jax.Array | float,
        keys: Key,
    ) -> SampleBatch:
        """Return inputs of the losses for a trajectory ``[T, B]``; ``extras`` are ``targets`` and ``old_actions``.

        ``G_t = r_t + discount (1 - termination_t) [lambda G_{t+1} + (1 - lambda) Q(s_{t+1}, a_{t+1})]``, where Q is the
        critics' mean. Where an episode or the trajectory ends, lambda is 0 and ``a_{t+1}`` is a new noisy action.

        Args:
            agent_state: state that collected the trajectory.
            trajectory: ``[T, B, ...]``.
            discount: discount factor.
            q_lambda: lambda of the returns.
            keys: keys of the new actions, ``[T, B]``.
        """
        later = jnp.concatenate([trajectory.actions[1:], jnp.zeros_like(trajectory.actions[:1])])
        is_last = jnp.arange(len(trajectory.rewards)) == len(trajectory.rewards) - 1
        is_cut = is_last[:, None] | trajectory.dones.astype(jnp.bool_)
        after = SampleBatch(obs=trajectory.next_obs, extras=_recurrent_state(agent_state, is_cut.shape))
        new_actions, _ = self.compute_actions(agent_state, after, keys)
        next_actions = jnp.where(is_cut[..., None], new_actions, later)
        next_values = self.critics(agent_state, agent_state.params.critic, trajectory.next_obs, next_actions)
        termination = trajectory.extras.env_extras.termination
        steps = (trajectory.rewards, next_values.mean(axis=0), termination, trajectory.dones)
        old_actions = self.policy_actions(agent_state, agent_state.params.policy, trajectory.obs)
        extras = PyTreeDict(targets=lambda_return(*steps, discount, q_lambda), old_actions=old_actions)
        return SampleBatch(obs=trajectory.obs, actions=trajectory.actions, extras=extras)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the mean squared error to the targets of a minibatch ``[N, ...]``, summed over critics, and metrics.

        ``keys`` are unused, here and in ``actor_loss``: the losses are deterministic.
        """
        values = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        loss = squared_error(values, jnp.broadcast_to(batch.extras.targets, values.shape)).mean(axis=1).sum()
        return loss, PyTreeDict(critic_loss=loss, q_value=values.mean())

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the negated mean value of the policy's actions plus a penalty on their distance from old actions.

        If ``mean |a - a_old|`` exceeds ``penalty_threshold``, the penalty is ``penalty`` times the mean Huber loss.
        """
        actions = self.policy_actions(agent_state, policy_params, batch.obs)
        values = self.critics(agent_state, agent_state.params.critic, batch.obs, actions).mean(axis=0)
        is_far = jnp.abs(actions - batch.extras.old_actions).mean(axis=-1) > self.penalty_threshold
        distance = optax.huber_loss(actions, batch.extras.old_actions).mean(axis=-1)
        loss = (jnp.where(is_far, self.penalty * distance, 0.0) - values).mean()
        return loss, PyTreeDict(actor_loss=loss, penalized=is_far.mean(dtype=jnp.float32))


class PQNContinuousWorkflow(PQNWorkflow):
    """PQN for continuous actions: for each minibatch, updates the critics, then the policy.

    ``optimizer`` updates the policy and, with a separate state, the critics.
    """

    agent: PQNContinuousAgent  # pyright: ignore[reportIncompatibleVariableOverride]  # another kind of agent
    total_timesteps: float = 5e7
    optimizer: Optimizer = Optimizer(name="radam", learning_rate=Schedule(1e-4, 5e-7), max_grad_norm=1.0)
    discount: Annotated[float, Within("[0, 1]")] = 0.995
    q_lambda: Annotated[float, Within("[0, 1]")] = 0.7
    num_minibatches: int = 32

    default_num_envs: ClassVar[int] = 1024

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        return PyTreeDict({name: self.optimizer.init(agent_state.params[name]) for name in ("critic", "policy")})

    def batch_of(
        self, agent_state: AgentState, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[SampleBatch, Key]:
        key, noise_key = jax.random.split(key)
        inputs = (self.discount, self.q_lambda, self.step_keys(noise_key))
        return self.agent.batch_with_targets(self.agent.at_progress(agent_state, progress), trajectory, *inputs), key

    def update_from(
        self, agent_state: AgentState, opt_state: Any, minibatch: SampleBatch, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Update the critics once, then the policy; return the states of agent and optimizers, and the losses."""
        losses = PyTreeDict()
        for name, loss_fn in (("critic", self.agent.critic_loss), ("policy", self.agent.actor_loss)):
            step = {"loss_fn": loss_fn, "optimizer": self.optimizer, "progress": progress}
            agent_state, opt_state, metrics = update_part(name, agent_state, opt_state, agent_state, minibatch, **step)
            losses |= metrics
        return agent_state, opt_state, losses


def _recurrent_state(agent_state: AgentState, rows: tuple[int, ...]) -> PyTreeDict:
    """Return extras with the noise's initial state, broadcast to leading axes ``rows``; empty for stateless noise."""
    state = agent_state.recurrent_state
    if state is None:
        return PyTreeDict()
    return PyTreeDict(recurrent_state=jax.tree.map(lambda x: jnp.broadcast_to(x, (*rows, *x.shape)), state))
