"""Whole episodes acquired by the workers of a ``Batcher``, with an idle agent.

Settings: ``num_envs``, ``num_workers``, ``env_args`` of ``make_busy_env``, ``num_episodes`` (per measurement).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.speed.child import read_settings, serve, timed
from evorl.interop import BatchAgent, Batcher


class Idle(BatchAgent):
    """Agent whose action is always 0."""

    def __call__(self, state: Any, obs: Any, agent_info: Any, history: Any = None) -> tuple[Any, Any]:
        return {"actions": np.zeros(len(obs), np.int32)}, state


def prepare() -> Any:
    settings = read_settings()
    batcher = Batcher(
        "benchmarks.speed.drivers.acquiring:Idle",
        "benchmarks.speed.busy_env:make_busy_env",
        num_envs=settings["num_envs"],
        num_workers=settings["num_workers"],
        env_args=settings["env_args"],
    )

    def acquire() -> int:
        batcher.execute(num_episodes=settings["num_episodes"])
        episodes = batcher.get()
        assert episodes is not None, "it waits"
        return int(episodes.lengths.sum())

    acquire()  # starts the workers
    return lambda: timed(None, acquire)


if __name__ == "__main__":
    serve(prepare, "numpy", "evorl")
