"""Evolutionary reinforcement learning (ERL, Khadka & Tumer 2018, https://arxiv.org/abs/1805.07917).

A population of policies evolves by its episode returns, and an off-policy learner learns from every transition of the
population. Periodically the learner's policy replaces an individual: selection keeps the policy if its fitness is high,
and removes it otherwise. The paper uses a genetic algorithm; here any optimizer that accepts injected individuals
works, such as evolution strategies or the cross-entropy method.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.values import require_positive
from evorl.metrics import EvaluationMetrics
from evorl.ops.trees import row_of
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.evolution_guided import EvolutionGuidedState, EvolutionGuidedWorkflow
from evorl.workflows.nested_learner import learn_in_blocks


class ERLWorkflow(EvolutionGuidedWorkflow):
    """ERL: plays episodes, breeds the next generation, updates the learners and, if due, injects their policies.

    Attributes:
        num_rl_agents: number of learners K, which sample separate minibatches from one shared replay buffer.
        exploration_episodes: number of episodes that each learner plays per generation with exploratory actions.
        injection_period: number of generations between injections, which replace the last K individuals by the
            learners' policies.
    """

    num_rl_agents: int = 1
    exploration_episodes: int = 1
    injection_period: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "num_rl_agents", "exploration_episodes", "injection_period")
        if self.num_rl_agents > 1 and self.learner.prioritized:
            raise ValueError(
                f"num_rl_agents={self.num_rl_agents} needs learner.prioritized=false, not true: the learners share one "
                "replay buffer, which can hold the priorities of only one. Set num_rl_agents=1 or "
                "learner.prioritized=false."
            )
        super().__post_init__()

    @property
    def num_learners(self) -> int:
        return self.num_rl_agents

    @property
    def num_explorations(self) -> int:
        """Number of exploration episodes per generation, over all learners."""
        return self.num_rl_agents * self.exploration_episodes

    @property
    def num_injected(self) -> int:
        return self.num_rl_agents

    def guide(
        self, state: EvolutionGuidedState, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, EvolutionGuidedState]:
        """Update every learner and, if due, inject the learners' policies into the next generation.

        The injected policies replace the last individuals of the next generation, which has already been generated;
        with a genetic algorithm these are children that have not been evaluated.
        """
        losses, state = self._learn(state, key, num_updates)
        is_due = (num_updates > 0) & ((state.iterations.low + 1) % self.injection_period == 0)
        last = self.pop_size - self.num_injected + jnp.arange(self.num_injected, dtype=jnp.int32)
        rows = jnp.where(is_due, last, self.pop_size)
        policies = state.learners.agent_state.params.policy
        return losses, state.replace(ec_state=self.optimizer.inject(state.ec_state, policies, rows))

    def _learn(
        self, state: EvolutionGuidedState, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, EvolutionGuidedState]:
        progress = self.progress(state)

        def train(learner: PyTreeDict, key: Key) -> tuple[PyTreeDict, PyTreeDict, Any]:
            return learn_in_blocks(self.learner, learner, state.replay_state, key, num_updates, progress)

        if self.num_rl_agents == 1:
            losses, learner, replay_state = train(row_of(state.learners), key)
            learners = jax.tree.map(lambda x: x[None], learner)
            return losses, state.replace(learners=learners, replay_state=replay_state)
        keys = jax.random.split(key, self.num_rl_agents)
        losses, learners, _ = jax.vmap(train, out_axes=(0, 0, None))(state.learners, keys)
        return jax.tree.map(lambda x: x.mean(axis=0), losses), state.replace(learners=learners)

    def evaluation(self, state: EvolutionGuidedState) -> PyTreeDict:
        """Evaluate the optimizer's solution and the learners' policies, on the same episodes.

        ``rl_episode_return`` is the learners' mean return; all other metrics describe the solution.
        """
        solution, learner_policies = state.agent_state.params.policy, state.learners.agent_state.params.policy
        policies = jax.tree.map(lambda x, rows: jnp.concatenate([x[None], rows]), solution, learner_policies)

        def ask(first: jax.Array | int, count: int) -> Params:
            return jax.tree.map(lambda x: jnp.take(x, first + jnp.arange(count), axis=0, mode="clip"), policies)

        settings = {"env": self.eval_env, "num_episodes": self.eval_episodes, "common_random_numbers": True}
        has_goals = self.eval_env.goal_task is not None
        evaluator = self.evaluator(**settings, env_fields=("is_success",) if has_goals else ())
        key = jax.random.fold_in(state.eval_key, state.iterations.low)
        outcomes = evaluator.evaluate(self.agent, state.agent_state, ask, 1 + self.num_rl_agents, key)
        successes = [x.is_success[0] > 0 for x in (outcomes.last, outcomes.totals)] if has_goals else []
        summary = EvaluationMetrics(outcomes.returns[0], outcomes.lengths[0], *successes).summary()
        return summary | {"rl_episode_return": outcomes.returns[1:].mean()}
