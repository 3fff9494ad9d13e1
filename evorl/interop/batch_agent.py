"""Base class of the agents of a ``Batcher``; only ``update`` changes their attributes."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class BatchAgent(abc.ABC):
    """Agent that acts in all environments at once, using NumPy, PyTorch, JAX or any other framework.

    Each worker creates its own instance.

    Attributes:
        wants_history: if True, the agent is called with ``history``: the steps of this acquisition so far, a list of
            dicts with observations, outputs of the agent and results, leaves ``[B, ...]``.
    """

    wants_history: ClassVar[bool] = False

    def initial_state(self, agent_info: Any, num_rows: int) -> Any:
        """Return the state at the start of episodes in all environments: arrays ``[B, ...]``, by default none."""
        return None

    @abc.abstractmethod
    def __call__(
        self, state: Any, obs: Any, agent_info: Any, history: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Mapping[str, Any], Any]:
        """Act.

        An environment whose episode has ended plays another, whose data is discarded, until all episodes have ended.

        Args:
            state: result of ``initial_state``, or state returned by the last call.
            obs: observations, leaves ``[B, ...]``.
            agent_info: information on the policy in each environment, leaves ``[B, ...]``; ``None`` without any.
            history: see ``wants_history``; ``None`` if that is False.

        Returns:
            ``actions`` and other data to store with the step, by name, leaves ``[B, ...]``; and the next state.
        """

    def update(self, info: Any) -> None:
        """Update the agent with ``info``, which must be complete, such as all weights of a network.

        Raises:
            ValueError: this agent does not support updates.
        """
        raise ValueError(f"{type(self).__name__} does not support updates: define a method update.")
