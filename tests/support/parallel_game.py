"""A small parallel environment: agents walk, fall off one after another, or are called home together."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pettingzoo


class WalkGame(pettingzoo.ParallelEnv):
    """Agent i starts between 0 and 1, walks by 0 or 1, is paid its number, and falls beyond ``limits[i]``."""

    metadata = {"name": "walk"}
    render_mode = None

    def __init__(
        self,
        limits: tuple[float, ...] = (3.0, 6.0, 9.0),
        max_cycles: int = 50,
        kind: str = "vector",
        fails_at: int = -1,
    ) -> None:
        self.possible_agents = [f"walker_{i}" for i in range(len(limits))]
        self.agents: list[str] = []
        self._limits, self._max_cycles, self._kind, self._fails_at = limits, max_cycles, kind, fails_at
        self.closed = False

    def observation_space(self, agent: str) -> Any:
        vector = spaces.Box(-1.0, 100.0, (2,), np.float64)
        return spaces.Dict({"place": vector}) if self._kind == "dict" else vector

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3 if self._kind == "unequal" and agent == self.possible_agents[-1] else 2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self._time = list(self.possible_agents), 0
        self._place = dict(zip(self.agents, np.random.default_rng(seed).uniform(0, 1, len(self.agents))))
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents), "an action for each agent that is there, and for no other"
        self._time += 1
        if self._time == self._fails_at:
            raise ZeroDivisionError("the floor is gone")
        for agent in self.agents:
            self._place[agent] += actions[agent]
        limits = dict(zip(self.possible_agents, self._limits))
        fell = {agent: bool(self._place[agent] > limits[agent]) for agent in self.agents}
        late = dict.fromkeys(self.agents, self._time >= self._max_cycles)
        seen = {agent: self._see(agent) for agent in self.agents}
        paid = {agent: float(self.possible_agents.index(agent) + 1) for agent in self.agents}
        info = {agent: {"time": self._time} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not fell[agent] and not late[agent]]
        return seen, paid, fell, late, info

    def _see(self, agent: str) -> Any:
        seen = np.array([self._place[agent], self._time], np.float64)
        return {"place": seen} if self._kind == "dict" else seen

    def close(self) -> None:
        self.closed = True


def make_walk_game(**options: Any) -> WalkGame:
    """One game."""
    return WalkGame(**options)


def make_no_game() -> object:
    """Something else."""
    return object()
