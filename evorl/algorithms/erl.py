"""Evolutionary reinforcement learning (ERL, Khadka & Tumer 2018, https://arxiv.org/abs/1805.07917).

A population of policies is evolved by the return of whole episodes, and an off-policy learner learns from every step
that the population takes. Now and then the learner's policy takes the place of an individual: what it has learned
spreads if it is fit, and is selected away if it is not. The paper's evolutionary part is a genetic algorithm; any
optimizer that individuals can be given to will do, such as evolution strategies or the cross-entropy method.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.values import require_positive
from evorl.metrics import EvaluationMetrics
from evorl.types import Key, Params, PyTreeDict, State
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from evorl.workflows.nested_learner import learn_in_blocks, row_of


class ERLWorkflow(EvolutionGuidedWorkflow):
    """ERL: episodes of population and learners, updates of the learners, the next generation, injection if it is due.

    Attributes:
        num_rl_agents: learners K; all learn from the same buffer, by draws of their own.
        exploration_episodes: episodes in which each of them explores in a generation.
        injection_period: generations between two in which their policies take the places of the last K individuals.
    """

    num_rl_agents: int = 1
    exploration_episodes: int = 1
    injection_period: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "num_rl_agents", "exploration_episodes", "injection_period")
        if self.num_rl_agents > 1 and self.learner.prioritized:
            raise ValueError(
                f"num_rl_agents={self.num_rl_agents} needs learner.prioritized=false: priorities are those of one."
            )
        super().__post_init__()

    @property
    def num_learners(self) -> int:
        """``num_rl_agents``."""
        return self.num_rl_agents

    @property
    def num_explorations(self) -> int:
        """Those of all learners."""
        return self.num_rl_agents * self.exploration_episodes

    @property
    def num_injected(self) -> int:
        """A policy of each learner."""
        return self.num_rl_agents

    def guide(self, state: State, key: Key, num_updates: jax.Array) -> tuple[PyTreeDict, State]:
        """Updates of every learner; their policies take part in the coming generation if it is time.

        The population that was evaluated is gone by then, its worst first: who makes room are the last of the coming
        generation, with a genetic algorithm children that nobody knows the fitness of.
        """
        losses, state = self._learn(state, key, num_updates)
        is_due = (num_updates > 0) & ((state.iterations.low + 1) % self.injection_period == 0)
        last = self.pop_size - self.num_injected + jnp.arange(self.num_injected, dtype=jnp.int32)
        rows = jnp.where(is_due, last, self.pop_size)
        policies = state.learners.agent_state.params.policy
        return losses, state.replace(ec_state=self.optimizer.inject(state.ec_state, policies, rows))

    def _learn(self, state: State, key: Key, num_updates: jax.Array) -> tuple[PyTreeDict, State]:
        progress = self.progress(state)

        def one_learner(learned: PyTreeDict, key: Key) -> tuple[PyTreeDict, PyTreeDict, Any]:
            return learn_in_blocks(self.learner, learned, state.replay_state, key, num_updates, progress)

        if self.num_rl_agents == 1:
            losses, learned, replay_state = one_learner(row_of(state.learners), key)
            learners = jax.tree.map(lambda x: x[None], learned)
            return losses, state.replace(learners=learners, replay_state=replay_state)
        keys = jax.random.split(key, self.num_rl_agents)
        losses, learners, _ = jax.vmap(one_learner, out_axes=(0, 0, None))(state.learners, keys)
        return jax.tree.map(lambda x: x.mean(axis=0), losses), state.replace(learners=learners)

    def evaluation(self, state: State) -> PyTreeDict:
        """Of what the optimizer has found; ``rl_episode_return`` is the mean return of the learners' own policies.

        All play the same episodes.
        """
        evolved, learned = state.agent_state.params.policy, state.learners.agent_state.params.policy
        policies = jax.tree.map(lambda x, rows: jnp.concatenate([x[None], rows]), evolved, learned)

        def ask(first: jax.Array | int, count: int) -> Params:
            return jax.tree.map(lambda x: jnp.take(x, first + jnp.arange(count), axis=0, mode="clip"), policies)

        evaluator = self.evaluator(env=self.eval_env, num_episodes=self.eval_episodes, common_random_numbers=True)
        key = jax.random.fold_in(state.eval_key, state.iterations.low)
        outcomes = evaluator.evaluate(self.agent, state.agent_state, ask, 1 + self.num_rl_agents, key)
        summary = EvaluationMetrics(episode_returns=outcomes.returns[0], episode_lengths=outcomes.lengths[0]).summary()
        return summary | {"rl_episode_return": outcomes.returns[1:].mean()}
