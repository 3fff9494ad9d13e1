"""CEM-RL (Pourchot & Sigaud 2019, https://arxiv.org/abs/1810.01222).

The cross-entropy method samples a generation of policies around a mean. Before they are evaluated a part of them, half
in the paper, climbs the value of a critic that learns from every step of every generation. If that was good for them
they are among the best, and the mean moves along; if it was not, they are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, State, pytree_field
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from evorl.workflows.nested_learner import learn_in_blocks, row_of
from evorl.workflows.policy_improvement import improved_policies


class CEMRLWorkflow(EvolutionGuidedWorkflow):
    """CEM-RL: episodes of the generation, its fitness, updates of the critics, then of a part of the next generation.

    Attributes:
        improved_share: of the individuals of a generation that climb the critics' value, rounded to whole ones.
    """

    improved_share: float = pytree_field(static=True, default=0.5)

    ranges: ClassVar[Mapping[str, str]] = {"improved_share": "(0, 1]"}

    def __post_init__(self) -> None:
        if self.learner.prioritized:
            raise ValueError("CEM-RL needs learner.prioritized=false: policies and critics draw for themselves.")
        super().__post_init__()

    @property
    def num_injected(self) -> int:
        """Individuals H that are improved, at least 1."""
        return max(1, round(self.improved_share * self.pop_size))

    def guide(self, state: State, key: Key, num_updates: jax.Array) -> tuple[PyTreeDict, State]:
        """The critics learn with each of the chosen policies in turn, then all of these with the critics, side by side.

        They are spread evenly over the generation, so that of mirrored pairs one each is improved. In algorithm 1 of
        the paper a policy learns before the critics go on to the next one; here all see the same critics.
        """
        critic_key, policy_key = jax.random.split(key)
        rows = jnp.arange(self.num_injected, dtype=jnp.int32) * self.pop_size // self.num_injected
        policies = jax.tree.map(lambda x: x[rows], self.optimizer.ask(state.ec_state))
        losses, learned = self._train_critics(state, policies, critic_key, num_updates)
        state = state.replace(learners=jax.tree.map(lambda x: x[None], learned))
        progress, agent_state = self.progress(state), row_of(state.learners.agent_state)
        learner: Any = self.learner  # every learner with a policy has an actor_optimizer

        def draw(key: Key, num: int) -> SampleBatch:
            return learner.replace(updates_per_iteration=num).draw_batches(state, key, progress)[0]

        policies, policy_losses = improved_policies(
            learner, agent_state, policies, draw, num_updates, policy_key, learner.actor_optimizer, progress
        )
        losses.actor_loss = policy_losses.mean()
        rows = jnp.where(num_updates > 0, rows, self.pop_size)
        return losses, state.replace(ec_state=self.optimizer.inject(state.ec_state, policies, rows))

    def _train_critics(
        self, state: State, policies: Params, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, PyTreeDict]:
        """Updates of the learner, as many with each policy ``[H, ...]``; what becomes of the policy is left behind."""
        num_policies, progress = self.num_injected, self.progress(state)

        def with_one(learned: PyTreeDict, turn: tuple[jax.Array, Params]) -> tuple[PyTreeDict, PyTreeDict]:
            i, policy = turn
            learner = learned.replace(agent_state=_with_policies(learned.agent_state, policy))
            updates = (num_updates + i) // num_policies
            losses, learner, _ = learn_in_blocks(
                self.learner, learner, state.replay_state, jax.random.fold_in(key, i), updates, progress
            )
            return learner, jax.tree.map(lambda x: x * updates, losses)

        turns = (jnp.arange(num_policies), policies)
        learned, losses = jax.lax.scan(with_one, row_of(state.learners), turns)
        return jax.tree.map(lambda x: x.sum(axis=0) / jnp.maximum(num_updates, 1), losses), learned


def _with_policies(agent_state: AgentState, policy: Params) -> AgentState:
    """An agent whose policy, and the target network of it if there is one, is another."""
    params = agent_state.params
    names = [name for name in ("policy", "target_policy") if name in params]
    return agent_state.replace(params=params.replace(**dict.fromkeys(names, policy)))
