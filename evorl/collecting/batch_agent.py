"""Agents of a ``Batcher``: without a state of their own, but for what ``update`` tells them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class BatchAgent(abc.ABC):
    """Acts in all rows of simulators at once, with NumPy, PyTorch, JAX or anything else; made in each worker.

    Attributes:
        wants_history: whether it is called with ``history``: of each step of this acquisition so far what it saw, what
            it gave and what came of it, a list of dicts with leaves ``[B, ...]``.
    """

    wants_history: ClassVar[bool] = False

    def initial_state(self, agent_info: Any, num_rows: int) -> Any:
        """What it remembers when the episodes of all rows start: a tree of arrays ``[B, ...]``, by default none."""
        return None

    @abc.abstractmethod
    def __call__(
        self, state: Any, obs: Any, agent_info: Any, history: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Mapping[str, Any], Any]:
        """Act.

        A row whose episode has ended is shown another one until all have ended; nothing of that is kept.

        Args:
            state: of ``initial_state``, or what the last call returned.
            obs: leaves ``[B, ...]``.
            agent_info: who acts in each row, leaves ``[B, ...]``; ``None`` where ``execute`` was told nothing.
            history: see ``wants_history``; ``None`` for agents that do not want it.

        Returns:
            ``actions``, and whatever else is to be stored with the step, by name, leaves ``[B, ...]``; and the state
            after it.
        """

    def update(self, info: Any) -> None:
        """Act as ``info`` says from now on: it has all that is needed, as the weights of a network.

        Raises:
            ValueError: this agent has nothing that changes.
        """
        raise ValueError(f"{type(self).__name__} has no method update, by which it would act otherwise: define it.")
