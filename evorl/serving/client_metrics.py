"""Metrics that clients of a training server send, stored separately from the metrics of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evorl.live.metrics_store import MetricsRefusedError, MetricsStore
from evorl.serving.session import SessionError


class ClientMetrics:
    """Stores metrics of clients; a metric without a step gets the largest step so far, of the learner or a client.

    Args:
        folder: folder of the ``MetricsStore``, created with the first metric; existing files are continued.
    """

    def __init__(self, folder: Path) -> None:
        self.history = MetricsStore(folder)

    def advance(self, steps: int) -> None:
        """Set the number of environment steps used for learning so far."""
        self.history.advance(steps)

    def close(self) -> None:
        """Close the files."""
        self.history.close()

    def store(self, method: str, name: str, y: Any, x: float | None) -> None:
        """Store ``y`` as a "scalar" or "histogram" (``method``) at step ``x``; ``None`` for the largest step so far.

        Raises:
            SessionError: the metric is rejected; the message is meant for the client.
        """
        try:
            if method == "scalar":
                self.history.scalar(name, y, x)
            elif method == "histogram":
                self.history.histogram(name, y, x)
            else:
                raise SessionError(f"method of a metric must be scalar or histogram, got {method!r}.")
        except (MetricsRefusedError, TypeError) as error:
            raise SessionError(f"{name}: {error}") from error
