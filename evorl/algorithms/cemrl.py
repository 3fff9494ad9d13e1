"""CEM-RL (Pourchot & Sigaud 2019, https://arxiv.org/abs/1810.01222).

The cross-entropy method samples a generation of policies around a mean. Before the generation is evaluated, some of its
policies (half in the paper) take gradient steps on the value of a critic, which learns from every transition of every
generation. The mean then moves towards the elites, the fittest policies; all others are discarded.
"""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp

from evorl.fields import Within
from evorl.ops.trees import row_of
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, pytree_field
from evorl.workflows.evolution_guided import EvolutionGuidedState, EvolutionGuidedWorkflow
from evorl.workflows.nested_learner import learn_in_blocks
from evorl.workflows.policy_improvement import improved_policies


class CEMRLWorkflow(EvolutionGuidedWorkflow):
    """CEM-RL: evaluates a generation, then updates the critics and improves part of the next generation by gradients.

    Attributes:
        improved_share: fraction of each generation improved by gradients, rounded to whole individuals.
    """

    improved_share: Annotated[float, Within("(0, 1]")] = pytree_field(static=True, default=0.5)

    def __post_init__(self) -> None:
        if self.learner.prioritized:
            raise ValueError("CEM-RL needs learner.prioritized=false: policies and critics sample separate batches.")
        super().__post_init__()

    @property
    def num_injected(self) -> int:
        """Number of individuals improved by gradients, H, at least 1."""
        return max(1, round(self.improved_share * self.pop_size))

    @property
    def improved_rows(self) -> jax.Array:
        """Indices of these individuals, int32 ``[H]``, evenly spaced in the replaceable part of the generation."""
        limit = self.optimizer.num_replaceable
        return self.pop_size - limit + jnp.arange(self.num_injected, dtype=jnp.int32) * limit // self.num_injected

    def guide(
        self, state: EvolutionGuidedState, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, EvolutionGuidedState]:
        """Update the critics with each of the H selected policies in turn, then update these policies in parallel.

        The selected policies are evenly spaced, so that a selected half has one policy of each mirrored pair. In
        the paper's algorithm 1, each policy learns before the critics are updated with the next policy; here all
        policies learn from the same critics.
        """
        critic_key, policy_key = jax.random.split(key)
        rows = self.improved_rows
        policies = jax.tree.map(lambda x: x[rows], self.optimizer.ask(state.ec_state))
        losses, learner_state = self._train_critics(state, policies, critic_key, num_updates)
        state = state.replace(learners=jax.tree.map(lambda x: x[None], learner_state))
        progress, agent_state = self.progress(state), row_of(state.learners.agent_state)
        learner: Any = self.learner  # every learner with a policy has an actor_optimizer

        def draw(key: Key, num: int) -> SampleBatch:
            return learner.replace(updates_per_iteration=num).draw_batches(state, key, progress)[0]

        options = {"key": policy_key, "optimizer": learner.actor_optimizer, "progress": progress}
        policies, policy_losses = improved_policies(learner, agent_state, policies, draw, num_updates, **options)
        losses.actor_loss = policy_losses.mean()
        rows = jnp.where(num_updates > 0, rows, self.pop_size)
        return losses, state.replace(ec_state=self.optimizer.inject(state.ec_state, policies, rows))

    def _train_critics(
        self, state: EvolutionGuidedState, policies: Params, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, PyTreeDict]:
        """Make ``num_updates`` updates, split evenly over ``policies`` ``[H, ...]``; return mean losses and learner."""
        num_policies, progress = self.num_injected, self.progress(state)

        def train(learner: PyTreeDict, numbered: tuple[jax.Array, Params]) -> tuple[PyTreeDict, PyTreeDict]:
            i, policy = numbered
            names = [name for name in ("policy", "target_policy") if name in learner.agent_state.params]
            params = learner.agent_state.params.replace(**dict.fromkeys(names, policy))
            learner = learner.replace(agent_state=learner.agent_state.replace(params=params))
            updates = (num_updates + i) // num_policies
            inputs = (state.replay_state, jax.random.fold_in(key, i), updates, progress)
            losses, learner, _ = learn_in_blocks(self.learner, learner, *inputs)
            return learner, jax.tree.map(lambda x: x * updates, losses)

        numbered = (jnp.arange(num_policies), policies)
        learner, losses = jax.lax.scan(train, row_of(state.learners), numbered)
        return jax.tree.map(lambda x: x.sum(axis=0) / jnp.maximum(num_updates, 1), losses), learner
