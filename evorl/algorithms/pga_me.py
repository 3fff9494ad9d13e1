"""PGA-MAP-Elites (Nilsson & Cully 2021, https://dl.acm.org/doi/10.1145/3449639.3459304).

Combines MAP-Elites with an off-policy learner. The transitions of all individuals go to the learner's replay buffer.
Some offspring are elites improved by gradients of the learner's critics, the others are made by variation; one is the
learner's own policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp

from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.fields import Within
from evorl.ops.optimization import Optimizer
from evorl.types import Key, Params, PyTreeDict, pytree_field
from evorl.workflows.learner_emitter import LearnerEmitter
from evorl.workflows.nested_learner import read_config_with_learner, require_room_for
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.quality_diversity import QualityDiversityState, QualityDiversityWorkflow


class PGAMEWorkflow(QualityDiversityWorkflow):
    """PGA-MAP-Elites: offspring by variation, and by gradients of a learner that learns from all transitions.

    Attributes:
        learner: off-policy workflow whose critics improve a policy (algorithm 2), TD3 in the paper; it makes its
            ``updates_per_iteration`` in each generation.
        gradient_share: fraction of the offspring made by gradients, including the learner's own policy.
        policy_optimizer: optimizer of these offspring (algorithm 4), whose state starts fresh for each.
        policy_updates: number of gradient steps per offspring.
        policy_batch_size: number of transitions per gradient step.
    """

    learner: OffPolicyWorkflow = pytree_field(kw_only=True)
    gradient_share: Annotated[float, Within("(0, 1]")] = pytree_field(static=True, default=0.5)
    policy_optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    policy_updates: int = 10
    policy_batch_size: int = 256

    foreign_keys: ClassVar[tuple[str, ...]] = (*QualityDiversityWorkflow.foreign_keys, "agent")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.emitter.check()
        if self.num_by_gradients < 2:
            raise ValueError(
                f"gradient_share={self.gradient_share} of pop_size={self.pop_size} is less than 2 offspring, of which "
                "the learner's own policy is one: raise either."
            )
        require_room_for(self.max_timesteps_per_iteration, self.learner)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the workflow, and its learner from ``learner``, a config with a ``workflow`` key; its agent is shared.

        Raises:
            ValueError: a key is unknown (the message suggests the closest valid key), or a value is invalid.
        """
        if config.get("agent"):
            raise ValueError("agent is the learner's here: give learner.agent instead.")
        return cls(**read_config_with_learner(cls, config))

    @property
    def emitter(self) -> LearnerEmitter:
        """Makes the offspring by gradients."""
        return LearnerEmitter(self.learner, self.policy_optimizer, self.policy_updates, self.policy_batch_size)

    @property
    def num_by_gradients(self) -> int:
        """Number of offspring made by gradients, including the learner's policy."""
        return round(self.gradient_share * self.pop_size)

    @property
    def recorded_entries(self) -> tuple[str, ...]:
        """Entries of ``info`` that the replay buffer needs."""
        return LearnerEmitter.recorded_entries

    def setup(self, key: Key) -> QualityDiversityState:
        """Initialise the policies, an empty archive and the learner."""
        key, learner_key = jax.random.split(key)
        state = super().setup(key)
        state.learner = self.emitter.init(learner_key)
        return state

    def update(self, state: QualityDiversityState, batch: EpisodeOutcomes) -> tuple[PyTreeDict, QualityDiversityState]:
        """Store all transitions and train the learner, then update the archive and breed, as in the base class."""
        key, sample_key, learn_key = jax.random.split(state.key, 3)
        progress = self.progress(state)
        losses, learner = self.emitter.learn(state.learner, batch, sample_key, learn_key, progress)
        metrics, state = super().update(state.replace(key=key, learner=learner), batch)
        return metrics | losses, state

    def offspring(self, state: QualityDiversityState, key: Key) -> Params:
        """Return the offspring by variation, those by gradients, and the learner's policy, in this order."""
        variation_key, gradient_key = jax.random.split(key)
        varied = self.vary(state, variation_key, self.pop_size - self.num_by_gradients)
        parent_key, climb_key = jax.random.split(gradient_key)
        parents = self.archive.sample(state.archive_state, parent_key, self.num_by_gradients - 1)
        by_gradients = self.emitter.emit(state.learner, parents, climb_key, self.progress(state))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), varied, by_gradients)
