"""What clients of a training server measure, beside its run's own metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evorl.live.metrics_store import MetricsRefusedError, MetricsStore
from evorl.serving.session import SessionError


class ClientMetrics:
    """Keeps numbers of clients in a folder, as ``MetricsStore`` does; those without a step have the learner's.

    Args:
        folder: where they are kept, made when the first comes.
    """

    def __init__(self, folder: Path) -> None:
        self.kept = MetricsStore(folder)

    def advance(self, steps: int) -> None:
        """Tell how many environment steps were learned from."""
        self.kept.advance(steps)

    def close(self) -> None:
        """Close the files."""
        self.kept.close()

    def store(self, method: str, name: str, y: Any, x: float | None) -> None:
        """Keep a number, ``method`` ``scalar``, or several of them, ``histogram``.

        Raises:
            SessionError: it cannot be kept; in words for the client.
        """
        try:
            if method == "scalar":
                self.kept.scalar(name, y, x)
            elif method == "histogram":
                self.kept.histogram(name, y, x)
            else:
                raise SessionError(f"a metric is a scalar or a histogram, not {method!r}.")
        except (MetricsRefusedError, TypeError) as error:
            raise SessionError(f"{name}: {error}") from error
