from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evorl.interop.host_evaluation import play_on_host
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingEnv, CountingRows, TracingAgent


class _Evaluated(TracingAgent):
    def __init__(self) -> None:
        super().__init__()
        self.started: list[Any] = []

    def eval_start(self, started: Any = True) -> None:
        self.started.append(np.array(started).tolist())


@pytest.mark.parametrize("num_episodes", [1, 3])
def test_exactly_so_many_episodes_of_one_environment(num_episodes: int) -> None:
    env, agent = CountingEnv(4), _Evaluated()
    metrics = play_on_host(env, agent, num_episodes, seed=5)
    assert metrics.episode_returns.tolist() == [10.0] * num_episodes
    assert metrics.episode_lengths.tolist() == [4] * num_episodes
    assert env.num_steps == 4 * num_episodes
    assert env.seeds == [5, None, None][:num_episodes]
    assert agent.started == [True] * num_episodes
    assert set(agent.calls) == {"step"}


@pytest.mark.parametrize(
    ("num_episodes", "lengths"), [(1, [2]), (4, [2, 3, 3, 5]), (6, [2, 3, 3, 5, 2, 3]), (9, [2, 3, 3, 5] * 2 + [2])]
)
def test_rows_play_turn_by_turn(num_episodes: int, lengths: list[int]) -> None:
    env, agent = CountingRows([2, 3, 3, 5]), _Evaluated()
    metrics = play_on_host(env, agent, num_episodes)
    assert metrics.episode_lengths.tolist() == lengths
    assert metrics.episode_returns.tolist() == [n * (n + 1) / 2 for n in lengths]
    assert agent.started[0] == [True] * 4


def test_an_agent_need_not_hear_of_it() -> None:
    class Plain:
        def eval_step(self, obs: Any) -> int:
            return 1

    assert play_on_host(CountingEnv(2), Plain(), 2).summary().episode_return == 3.0


def test_no_episode_is_refused() -> None:
    with raises_naming(ValueError, "num_episodes", "got 0"):
        play_on_host(CountingEnv(2), TracingAgent(), 0)
