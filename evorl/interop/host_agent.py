"""Base class of agents of any framework: the methods that collectors and runners call; by default, random actions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from evorl.agents.random_actions import random_actions
from evorl.envs.space import ACTION_MASK, Space
from evorl.ops.trees import stack_trees


class HostAgent:
    """Uniformly random agent; subclasses override methods, using NumPy, PyTorch, JAX or any other framework.

    Random discrete actions exclude the actions that an entry ``action_mask`` of the observation masks.

    In a single environment, observations and actions belong to one step. In a ``HostVectorEnv``, all arguments and
    results have the leading axis B of its environments.

    Args:
        action_space: action space of one environment, of evorl or of Gymnasium.
        seed: seed of the random actions.
        num_envs: number of environments B; ``None`` for a single environment.

    Attributes:
        agent_info: latest ``agent_info`` passed to ``collect``, such as an exploration rate or the index of a policy;
            leaves ``[B, ...]`` in a vector environment; ``None`` before the first one.
        gives_agent_actions: True if actions are in the format of evorl's agents (``evorl.envs.action_conversion``):
            they are stored unchanged, and converted for the environment. Otherwise they are the environment's actions.
        wants_history: True if ``step`` has a keyword ``history``: the transitions so far in this call of ``collect``.
    """

    agent_info: Any = None
    gives_agent_actions: ClassVar[bool] = False
    wants_history: ClassVar[bool] = False

    def __init__(self, action_space: Any, seed: int = 0, num_envs: int | None = None) -> None:
        self._sample = _sampler(action_space, seed, num_envs)

    def step(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the action for an observation, and other data to store with the step, by name."""
        return self._sample(obs), {}

    def view(self, transition: Mapping[str, Any], extras: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data to store with a step, given its outcome; by default the data that ``step`` returned.

        Args:
            transition: ``obs, actions, rewards, next_obs, termination, truncation`` of the step.
            extras: data that ``step`` returned.
        """
        return extras

    def terminal(self, ended: Any = True) -> None:
        """Handle the end of an episode, or an error in it.

        Args:
            ended: mask of the environments of a vector environment, bool ``[B]``; True for a single environment.
        """

    def eval_step(self, obs: Any) -> Any:
        """Return the action for an observation in an evaluation; by default the action of ``step``."""
        return self.step(obs)[0]

    def eval_start(self, started: Any = True) -> None:
        """Handle the start of an evaluation episode; in a vector environment, where ``started``, ``[B]``, is True."""

    def update(self, batch: Any) -> Any:
        """Learn from a batch, or from a list of batches if the runner samples several.

        Returns:
            Metrics, numbers by name; or a tuple of metrics and a dict of changes for ``ReplayMemory.update``:
            ``indices`` of transitions, with ``errors`` that set their priorities or with new values of entries.
        """
        return {}


def _sampler(action_space: Any, seed: int, num_envs: int | None) -> Callable[[Any], Any]:
    """Return a function that samples actions, given the observations."""
    if isinstance(action_space, Space):
        key, calls = jax.random.key(seed), iter(range(2**32))

        def sample(obs: Any) -> Any:
            masks = _masks(action_space, obs, num_envs)
            rows = _random_rows(action_space, key, np.uint32(next(calls)), num_envs or 1, masks)
            return jax.tree.map(lambda x: np.asarray(x) if num_envs else np.asarray(x)[0], rows)

        return sample
    space = copy.deepcopy(action_space)  # leaves the random state of the environment's space unchanged
    space.seed(seed)

    def sample_each(obs: Any) -> Any:
        masks = _masks(space, obs, num_envs).get(ACTION_MASK)
        actions = [space.sample(*([] if masks is None else [masks[i]])) for i in range(num_envs or 1)]
        return actions[0] if num_envs is None else stack_trees(actions)

    return sample_each


def _masks(action_space: Any, obs: Any, num_envs: int | None) -> dict[str, np.ndarray]:
    """Return the mask of discrete actions, int8 ``[B, n]``, of observations that contain one, by name."""
    if type(action_space).__name__ != "Discrete" or not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return {}
    mask = (np.asarray(obs[ACTION_MASK]) != 0).astype(np.int8)
    return {ACTION_MASK: mask if num_envs else mask[None]}


@functools.partial(jax.jit, static_argnames=("action_space", "num_rows"))
def _random_rows(
    action_space: Space, key: jax.Array, call: np.uint32, num_rows: int, masks: dict[str, np.ndarray]
) -> Any:
    return random_actions(action_space, jax.random.fold_in(key, call), num_rows, masks)
