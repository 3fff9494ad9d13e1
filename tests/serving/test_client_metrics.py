"""Metrics of clients are stored by name and step, and invalid ones are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.serving.client_metrics import ClientMetrics
from evorl.serving.session import SessionError
from tests.support.errors import raises_naming


def test_numbers_without_a_step_have_the_learners(tmp_path: Path) -> None:
    metrics = ClientMetrics(tmp_path)
    metrics.advance(640)
    metrics.store("scalar", "episode_reward", 12.5, None)
    metrics.store("scalar", "episode_reward", 13, 700.0)
    metrics.store("histogram", "actions", [0.0, 1.0, 1.0], None)
    assert list(metrics.history.points("episode_reward")) == [(640.0, 12.5), (700.0, 13.0)]
    assert sum(metrics.history.histograms("actions")[0].counts) == 3
    metrics.close()
    assert "episode_reward" in (tmp_path / "scalars.jsonl").read_text("utf-8")


@pytest.mark.parametrize(
    ("method", "y", "parts"),
    [
        ("average", 1.0, ("average", "scalar", "histogram")),
        ("scalar", "much", ("r: ",)),
        ("histogram", "many", ("r: ",)),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path: Path, method: str, y: object, parts: tuple[str, ...]) -> None:
    with raises_naming(SessionError, *parts):
        ClientMetrics(tmp_path).store(method, "r", y, None)
    assert not (tmp_path / "scalars.jsonl").exists()
