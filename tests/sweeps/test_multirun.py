"""Ranking of the settings of a sweep."""

from __future__ import annotations

from evorl.runs.sweep_folder import SweptRun
from evorl.sweeps.multirun import ranked


def test_settings_are_ranked_by_their_mean_over_seeds() -> None:
    def run(agent: str, seed: int, best: float | None) -> SweptRun:
        return SweptRun([], {"agent": agent, "seed": str(seed)}, "", best_return=best)

    runs = [run("ppo", 0, 9.0), run("ppo", 1, 1.0), run("sac", 0, 6.0), run("sac", 1, None), run("ars", 0, None)]
    assert [name for name, _ in ranked(runs)] == ["agent=sac", "agent=ppo", "agent=ars"]
