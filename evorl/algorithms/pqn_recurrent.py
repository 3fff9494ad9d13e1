"""PQN with memory (Gallici et al. 2024, https://arxiv.org/abs/2407.04811, section 5.3): recurrent Q-learning without
replay or target network.

Minibatches are whole trajectories of some environments. Each update unrolls the network along the trajectories from the
recurrent state with which their first action was chosen. The same current parameters compute the Q(lambda) targets.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, update_params
from evorl.agents.action_value import values_of_actions_along
from evorl.agents.part_settings import CellSettings, RecurrentHeads, RecurrentNetworkSettings, RecurrentValueSettings
from evorl.agents.recurrent_value import RecurrentValueAgent
from evorl.algorithms.pqn import PQNWorkflow
from evorl.ops.losses import squared_error
from evorl.ops.returns import lambda_return
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode


class PQNRecurrentAgent(RecurrentValueAgent):
    """Recurrent values of discrete actions; the network should have layer normalization (the default)."""

    is_recurrent: ClassVar[bool] = True

    part_settings: ClassVar[PyTreeNode] = RecurrentValueSettings(
        network=RecurrentNetworkSettings(
            torso=(128,),
            activation="relu",
            layer_norm=True,
            orthogonal=False,
            recurrent=CellSettings(name="gru", size=128),
            heads=RecurrentHeads(dueling=False),
        )
    )

    def batch_of(self, trajectory: SampleBatch) -> SampleBatch:
        """Return the inputs of ``loss`` for a trajectory ``[T, B]``; ``extras.recurrent_state`` is ``[1, B, *]``."""
        dones = trajectory.dones
        extras = PyTreeDict(
            recurrent_state=trajectory.extras.recurrent_state,
            starts=jnp.concatenate([jnp.zeros_like(dones[:1]), dones[:-1]]),
            termination=trajectory.extras.env_extras.termination,
        )
        return trajectory.replace(extras=extras)

    def loss(
        self,
        params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        burn_in: int,
        discount: jax.Array | float,
        q_lambda: jax.Array | float,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return half the mean squared error to Q(lambda) returns after the burn-in of ``[T, N, ...]``, and metrics."""
        first = jax.tree.map(lambda x: x[0], batch.extras.recurrent_state)
        batch = batch.replace(extras=batch.extras.replace(recurrent_state=first))
        values, next_values = self.values_after_burn_in(agent_state, params, batch, burn_in)
        ends = (batch.extras.termination[burn_in:], batch.dones[burn_in:])
        targets = lambda_return(batch.rewards[burn_in:], next_values.max(axis=-1), *ends, discount, q_lambda)
        chosen = values_of_actions_along(values, batch.actions[burn_in:])
        loss = 0.5 * squared_error(chosen, jax.lax.stop_gradient(targets)).mean()
        return loss, PyTreeDict(td_loss=loss, q_value=chosen.mean())


class PQNRecurrentWorkflow(PQNWorkflow):
    """PQN with memory: trains for several epochs of minibatches of whole trajectories.

    Attributes:
        burn_in: number of initial steps of each trajectory without loss: they recompute the recurrent state with the
            current parameters. ``None`` means 0.
    """

    agent: PQNRecurrentAgent  # pyright: ignore[reportIncompatibleVariableOverride]  # another kind of agent
    rollout_length: int = 64
    burn_in: int | None = 4

    by_trajectory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.burn_in or 0) >= self.rollout_length:
            raise ValueError(
                f"burn_in={self.burn_in} leaves none of the rollout_length={self.rollout_length} steps of a trajectory "
                "for the loss: decrease it, or use longer rollouts."
            )

    def batch_of(
        self, agent_state: AgentState, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[SampleBatch, Key]:
        return self.agent.batch_of(trajectory), key

    def update_from(
        self, agent_state: AgentState, opt_state: Any, minibatch: SampleBatch, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        inputs = (agent_state, opt_state, minibatch, self.burn_in or 0, self.discount, self.q_lambda)
        return update_params(self.agent.loss, self.optimizer, *inputs, progress=progress)
