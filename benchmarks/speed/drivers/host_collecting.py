"""Steps of Gymnasium's CartPole with a scripted agent: alone, collected, and stored with sampled batches.

Settings: ``what``, one of ``bare``, ``collected`` and ``replayed``; ``rollout_length``; ``batch_size`` of each sample;
``capacity`` of the replay memory; ``num_rollouts`` per measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from benchmarks.speed.child import read_settings, serve, timed
from evorl.interop import Collector, HostAgent, ReplayMemory
from evorl.replay_buffers.uniform import UniformReplayBuffer


class Alternating(HostAgent):
    """Agent with the actions 1, 0, 1, 0 and so on."""

    def __init__(self) -> None:
        self.calls = 0

    def step(self, obs: Any) -> tuple[int, dict[str, Any]]:
        self.calls += 1
        return self.calls & 1, {}


def rollouts(mode: str, rollout_length: int, batch_size: int, capacity: int) -> Callable[[], None]:
    """Return a function that collects one rollout."""
    env, agent = gymnasium.make("CartPole-v1"), Alternating()
    if mode == "bare":
        obs, _ = env.reset(seed=0)

        def step_bare() -> None:
            nonlocal obs
            for _ in range(rollout_length):
                action, _ = agent.step(obs)
                obs, _, termination, truncation, _ = env.step(action)
                if termination or truncation:
                    obs, _ = env.reset()

        return step_bare
    collector = Collector(env, seed=0)
    if mode == "collected":
        return lambda: collector.collect(agent, rollout_length) and None
    memory = ReplayMemory(UniformReplayBuffer(capacity=capacity))

    def replay() -> None:
        collected = collector.collect(agent, rollout_length)
        assert collected.transitions is not None, "each step is a transition"
        memory.store(collected.transitions)
        memory.sample(batch_size)

    return replay


def prepare() -> Callable[[], dict[str, Any]]:
    settings = read_settings()
    num_rollouts, rollout_length = settings["num_rollouts"], settings["rollout_length"]
    rollout = rollouts(settings["what"], rollout_length, settings["batch_size"], settings["capacity"])

    def run() -> None:
        for _ in range(num_rollouts):
            rollout()

    run()
    return lambda: timed(num_rollouts * rollout_length, run)


if __name__ == "__main__":
    serve(prepare, "gymnasium", "numpy", "jax", "evorl")
