"""Agents of any framework: what a collector and a runner ask of one, and the uniformly random one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from evorl.agents.random_actions import random_actions
from evorl.envs.space import Space
from evorl.ops.trees import stack_trees


class HostAgent:
    """Acts uniformly at random; subclasses override what concerns them, with NumPy, PyTorch, JAX or anything else.

    In a single environment observations and actions are those of one step. In a ``HostVectorEnv`` all that is handed
    over and given back leads with the axis B of its rows.

    Args:
        action_space: of one environment, of evorl or of Gymnasium.
        seed: of the random actions.
        num_envs: B; ``None`` for a single environment.

    Attributes:
        agent_info: which policy acts, as an exploration rate or the number of a policy, if ``collect`` was told;
            leaves ``[B, ...]`` in a vector environment.
        gives_agent_actions: whether actions are those of agents of evorl (``evorl.envs.action_conversion``): stored
            unchanged, and converted before the environment is stepped. Otherwise they are the environment's own.
        wants_history: whether ``step`` is called with ``history``, the transitions of this call of ``collect`` so far.
    """

    agent_info: Any = None
    gives_agent_actions: ClassVar[bool] = False
    wants_history: ClassVar[bool] = False

    def __init__(self, action_space: Any, seed: int = 0, num_envs: int | None = None) -> None:
        self._sample = _sampler(action_space, seed, num_envs)

    def step(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        """The action for an observation, and what else is to be stored with the step, by name."""
        return self._sample(), {}

    def view(self, transition: Mapping[str, Any], extras: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is stored with a step after all, now that it is known what came of it.

        Args:
            transition: ``obs, actions, rewards, next_obs, termination, truncation`` of the step.
            extras: what ``step`` gave.
        """
        return extras

    def terminal(self, ended: Any = True) -> None:
        """An episode has ended; in a vector environment, those of the rows where ``ended``, bool ``[B]``, holds."""

    def eval_step(self, obs: Any) -> Any:
        """The action for an observation in an evaluation; by default that of ``step``."""
        return self.step(obs)[0]

    def eval_start(self, started: Any = True) -> None:
        """Episodes of an evaluation start, in a vector environment those where ``started``, bool ``[B]``, holds."""

    def update(self, batch: Any) -> Any:
        """Learn from a batch, or from a list of them if the runner draws several.

        Returns:
            Metrics by name, numbers. Or these and what changes in the replay memory, as ``ReplayMemory.update`` takes
            it: ``indices`` and, for these transitions, ``errors`` (priorities) or new values of entries.
        """
        return {}


def _sampler(action_space: Any, seed: int, num_envs: int | None) -> Callable[[], Any]:
    if isinstance(action_space, Space):
        key, calls = jax.random.key(seed), iter(range(2**32))

        def sample() -> Any:
            rows = _random_rows(action_space, key, np.uint32(next(calls)), num_envs or 1)
            return jax.tree.map(lambda x: np.asarray(x) if num_envs else np.asarray(x)[0], rows)

        return sample
    space = copy.deepcopy(action_space)  # the environment's own goes on drawing what it would
    space.seed(seed)
    return space.sample if num_envs is None else lambda: stack_trees([space.sample() for _ in range(num_envs)])


@functools.partial(jax.jit, static_argnames=("action_space", "num_rows"))
def _random_rows(action_space: Space, key: jax.Array, call: np.uint32, num_rows: int) -> Any:
    return random_actions(action_space, jax.random.fold_in(key, call), num_rows)
