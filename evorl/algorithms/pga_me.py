"""PGA-MAP-Elites (Nilsson & Cully 2021, https://dl.acm.org/doi/10.1145/3449639.3459304).

MAP-Elites beside an off-policy learner. All that individuals live through goes into its replay buffer, and its critics
pay back with gradients: some offspring are elites that climb them, the others are made by variation. The learner's own
policy is one of the offspring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.ops.optimization import Optimizer
from evorl.types import Key, Params, PyTreeDict, State, pytree_field
from evorl.workflows.learner_emitter import LearnerEmitter
from evorl.workflows.nested_learner import read_config_with_learner, require_room_for
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.quality_diversity import QualityDiversityWorkflow


class PGAMEWorkflow(QualityDiversityWorkflow):
    """Offspring by variation and by the gradients of a learner that learns from the transitions of all.

    Attributes:
        learner: an off-policy workflow with critics of which a policy learns (algorithm 2), TD3 in the paper. It makes
            as many updates in each iteration as it is set to.
        gradient_share: share of the offspring made by gradients, the learner's own policy being one of them.
        policy_optimizer: of these offspring (algorithm 4), begun anew for each.
        policy_updates: gradient steps to make one.
        policy_batch_size: transitions in each step.
    """

    learner: OffPolicyWorkflow = pytree_field(kw_only=True)
    gradient_share: float = pytree_field(static=True, default=0.5)
    policy_optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    policy_updates: int = 10
    policy_batch_size: int = 256

    ranges: ClassVar[Mapping[str, str]] = {"gradient_share": "(0, 1]"}
    foreign_keys: ClassVar[tuple[str, ...]] = (*QualityDiversityWorkflow.foreign_keys, "agent")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.emitter.check()
        if self.num_by_gradients < 2:
            raise ValueError(
                f"gradient_share={self.gradient_share} of pop_size={self.pop_size} is less than 2 offspring, of which "
                "the learner's own policy is one: raise either."
            )
        require_room_for(self.most_timesteps_per_iteration, self.learner)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build it, and the learner, which ``learner`` describes with a ``workflow`` key; its agent acts for all.

        Raises:
            ValueError: a key is unknown, with the nearest valid name; or a value cannot work, in words.
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
        """Offspring that are made by gradients, the learner's policy among them."""
        return round(self.gradient_share * self.pop_size)

    @property
    def recorded_entries(self) -> tuple[str, ...]:
        """What the replay buffer wants."""
        return LearnerEmitter.recorded_entries

    def setup(self, key: Key) -> State:
        """Fresh policies, an empty archive and a fresh learner."""
        key, learner_key = jax.random.split(key)
        state = super().setup(key)
        state.learner = self.emitter.init(learner_key)
        return state

    def update(self, state: State, batch: EpisodeOutcomes) -> tuple[PyTreeDict, State]:
        """Store all transitions and train the learner; then as every archive's workflow."""
        key, sample_key, learn_key = jax.random.split(state.key, 3)
        progress = self.progress(state)
        losses, learner = self.emitter.learn(state.learner, batch, sample_key, learn_key, progress)
        metrics, state = super().update(state.replace(key=key, learner=learner), batch)
        return metrics | losses, state

    def offspring(self, state: State, key: Key) -> Params:
        """By variation, by gradients, and the learner's policy: in this order."""
        variation_key, gradient_key = jax.random.split(key)
        varied = self.vary(state, variation_key, self.pop_size - self.num_by_gradients)
        parent_key, climb_key = jax.random.split(gradient_key)
        parents = self.archive.sample(state.archive_state, parent_key, self.num_by_gradients - 1)
        by_gradients = self.emitter.emit(state.learner, parents, climb_key, self.progress(state))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), varied, by_gradients)
