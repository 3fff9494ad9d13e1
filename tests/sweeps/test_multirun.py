"""The ranking of the settings of a sweep."""

from __future__ import annotations

from evorl.runs.sweep_folder import SweepJob
from evorl.sweeps.multirun import ranked


def test_settings_are_ranked_by_their_mean_over_seeds() -> None:
    def job(agent: str, seed: int, best: float | None) -> SweepJob:
        return SweepJob([], {"agent": agent, "seed": str(seed)}, "", best_return=best)

    jobs = [job("ppo", 0, 9.0), job("ppo", 1, 1.0), job("sac", 0, 6.0), job("sac", 1, None), job("ars", 0, None)]
    assert [name for name, _ in ranked(jobs)] == ["agent=sac", "agent=ppo", "agent=ars"]
