"""Emitter of offspring improved by an off-policy learner, which learns from the episodes of all offspring."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.evaluators.episodes import EpisodeOutcomes, transition_rows
from evorl.ops.optimization import Optimizer
from evorl.ops.trees import split_leading_axis
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.off_policy_state import LearnerState
from evorl.workflows.policy_improvement import improved_policies


class LearnerEmitter(PyTreeNode):
    """An emitter for quality diversity with an off-policy learner whose agent ``improves_policies``.

    All episodes are stored in the learner's replay buffer. Its critics learn from them and improve elites by gradient
    steps; the learner's own policy is one of the offspring. With TD3, combined with offspring by variation, this is
    PGA-ME (Nilsson & Cully 2021). The state is that of ``OffPolicyWorkflow.init_learning``.

    Attributes:
        learner: off-policy algorithm; makes ``updates_per_iteration`` updates per generation.
        optimizer: optimizer of the improved elites, reinitialized for each.
        num_updates: gradient steps per elite.
        batch_size: transitions per gradient step.
    """

    learner: OffPolicyWorkflow
    optimizer: Optimizer
    num_updates: int = 10
    batch_size: int = 256

    # Entries of ``info`` that must be recorded with the episodes.
    recorded_entries: ClassVar[tuple[str, ...]] = ("termination",)

    def check(self) -> None:
        """Raise ``ValueError`` unless the number of updates per generation is an integer."""
        if self.learner.updates_per_iteration != self.learner.most_updates:
            raise ValueError(
                f"learner.updates_per_iteration={self.learner.updates_per_iteration:g} must be a whole number: the "
                "updates per generation."
            )

    def init(self, key: Key) -> LearnerState:
        """Return a new learner with an empty replay buffer."""
        return self.learner.init_learning(key)

    def learn(
        self, learned: LearnerState, outcomes: EpisodeOutcomes, sample_key: Key, learn_key: Key, progress: jax.Array
    ) -> tuple[PyTreeDict, LearnerState]:
        """Store the transitions of a generation, then update the learner.

        Args:
            learned: the learner's state.
            outcomes: episodes with their transitions, recorded with ``recorded_entries``.
            sample_key: random key for sampling from the buffer.
            learn_key: random key for the updates.
            progress: completed fraction of training.

        Returns:
            Means of the losses, and the learner's state.
        """
        learned = self.learner.store(learned, *transition_rows(outcomes))
        return self.learner.learn_repeatedly(learned, (sample_key, learn_key), self.learner.most_updates, progress)

    def emit(self, learned: LearnerState, parents: Params, key: Key, progress: jax.Array | float = 0.0) -> Params:
        """Return ``parents`` ``[P, ...]`` improved by the critics, and the learner's own policy: ``[P + 1, ...]``."""
        improved, _ = improved_policies(
            self.learner,
            learned.agent_state,
            parents,
            lambda key, num: self._draw(learned, key, num),
            self.num_updates,
            key=key,
            optimizer=self.optimizer,
            progress=progress,
        )
        policy = learned.agent_state.params.policy
        return jax.tree.map(lambda rows, x: jnp.concatenate([rows, x[None]]), improved, policy)

    def _draw(self, learned: LearnerState, key: Key, num_batches: int) -> SampleBatch:
        num_drawn = num_batches * self.batch_size
        drawn = self.learner.replay_buffer.sample(learned.replay_state, key, num_drawn)
        batch = SampleBatch(obs=drawn.obs, actions=drawn.actions, extras=PyTreeDict(weights=jnp.ones(num_drawn)))
        return split_leading_axis(batch, num_batches, self.batch_size)
