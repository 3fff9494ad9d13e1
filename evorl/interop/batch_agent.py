"""Base class of the agents of a ``Batcher``. Only ``update`` may change attributes of an agent."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class BatchAgent(abc.ABC):
    """Agent that acts in all B environments of a worker at once, using NumPy, PyTorch, JAX or any other framework.

    Each worker creates its own instance.

    Attributes:
        wants_history: if True, the agent is called with ``history``, a list with a dict for each step so far in the
            current episodes or slice: the outputs of the agent, and the entries of a transition except ``dones``.
    """

    wants_history: ClassVar[bool] = False

    def initial_state(self, agent_info: Any, num_rows: int) -> Any:
        """Return the state at the start of episodes: a tree of arrays ``[num_rows, ...]``; ``None`` by default."""
        return None

    @abc.abstractmethod
    def __call__(
        self, state: Any, obs: Any, agent_info: Any, history: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Mapping[str, Any], Any]:
        """Return the actions in all environments, and the next state of the agent.

        All environments are stepped until every episode, or the slice, ends; data after an episode's end is discarded.

        Args:
            state: result of ``initial_state``, or state returned by the last call.
            obs: observations, leaves ``[B, ...]``.
            agent_info: information on the policy in each environment, leaves ``[B, ...]``; ``None`` if not passed.
            history: see ``wants_history``; not passed if that is False.

        Returns:
            A dict of ``actions`` and other data to store with the step, leaves ``[B, ...]``; and the next state.
        """

    def update(self, info: Any) -> None:
        """Update the agent with complete information, such as all weights: a new worker gets only the last update.

        Raises:
            ValueError: this agent does not support updates.
        """
        raise ValueError(f"{type(self).__name__} does not support updates: define a method update.")
