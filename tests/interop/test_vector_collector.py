from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.interop.host_agent import HostAgent
from evorl.interop.vector_collector import VectorCollector
from evorl.padded_batch import split_episodes
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingRows, TracingAgent

LENGTHS = [2, 3, 3, 5]


def test_rows_go_on_by_themselves_and_successors_are_true() -> None:
    env, agent = CountingRows(LENGTHS), TracingAgent()
    collector = VectorCollector(env, seed=1, info_names=("row",))
    collected = collector.collect(agent, 6)
    transitions = collected.transitions
    assert transitions is not None
    for row, length in enumerate(LENGTHS):
        steps = np.arange(6) % length
        np.testing.assert_array_equal(transitions.obs[:, row, 0], steps)
        np.testing.assert_array_equal(transitions.next_obs[:, row, 0], steps + 1)
        np.testing.assert_array_equal(transitions.seen[:, row], 10 * steps)
        np.testing.assert_array_equal(transitions.dones[:, row], steps == length - 1)
    np.testing.assert_array_equal(transitions.truncation, transitions.dones & (np.arange(4) % 2 == 1))
    np.testing.assert_array_equal(transitions.row, np.tile(np.arange(4), (6, 1)))
    assert collected.ended_at.tolist() == [8, 12, 12, 16, 20, 24, 24, 24]
    assert collected.episode_lengths.tolist() == [2, 3, 3, 2, 5, 2, 3, 3]
    assert collected.episode_returns.tolist() == [n * (n + 1) / 2 for n in collected.episode_lengths]
    assert collector.timesteps == 24
    assert agent.calls.count("step") == 6


def test_flags_of_any_type_are_read_as_bools() -> None:
    class Flags(CountingRows):
        def step(self, actions: Any) -> tuple:
            obs, reward, termination, truncation, info = super().step(actions)
            return obs, reward, termination.astype(np.uint8), truncation.astype(np.int64), info

    collected, expected = (
        VectorCollector(env(LENGTHS), seed=1).collect(TracingAgent(), 6) for env in (Flags, CountingRows)
    )
    assert collected.episode_lengths.tolist() == expected.episode_lengths.tolist()
    assert collected.episode_returns.tolist() == expected.episode_returns.tolist()


def test_every_episode_starts_by_a_seed_that_follows_from_the_collectors() -> None:
    started = []
    for lengths, seed in (([2, 3], 4), ([2, 5], 4), ([2, 3], 5)):
        env = CountingRows(lengths)
        VectorCollector(env, seed=seed).collect(TracingAgent(), 4)
        started.append(env.seeds)
    assert [rows for rows, _ in started[0]] == [[0, 1], [0], [1], [0]]
    np.testing.assert_array_equal(started[0][1][1], started[1][1][1])
    assert len({tuple(seeds) for _, seeds in started[0] + started[2]}) == 8


def test_episodes_continue_in_the_next_call_unless_they_are_left() -> None:
    collector, agent = VectorCollector(CountingRows([4, 4])), TracingAgent()
    collector.collect(agent, 3)
    collected = collector.collect(agent, 2)
    np.testing.assert_array_equal(collected.transitions.obs[:, 0, 0], [3, 0])
    assert collected.episode_returns.tolist() == [10.0, 10.0]
    collector.restart()
    np.testing.assert_array_equal(collector.collect(agent, 1).transitions.obs[0], [[0], [0]])


def test_each_row_has_its_own_policy() -> None:
    class Chosen(HostAgent):
        def step(self, obs: Any) -> Any:
            return self.agent_info["agent_id"] % 3, {"by": self.agent_info["agent_id"]}

    ids = np.arange(32)
    collected = VectorCollector(CountingRows([3, 5] * 16)).collect(Chosen(_SPACE, num_envs=32), 7, {"agent_id": ids})
    episodes = split_episodes(collected.transitions, collected.transitions.dones)
    for agent_id in (collected.transitions.agent_info.agent_id, collected.transitions.by):
        np.testing.assert_array_equal(agent_id, np.tile(ids, (7, 1)))
    np.testing.assert_array_equal(episodes.at(0).by, episodes.info.env)


_SPACE = CountingRows([1]).action_space


@pytest.mark.parametrize("length", [-3, -1, 2.5])
def test_a_length_that_is_no_number_of_steps_is_refused(length: Any) -> None:
    with raises_naming(ValueError, "length", f"got {length}"):
        VectorCollector(CountingRows([3])).collect(TracingAgent(), length)


def test_arrays_that_are_changed_in_place_are_stored_as_they_were() -> None:
    class Viewing(TracingAgent):
        buffer = np.zeros(2)

        def view(self, transition: Any, extras: Any) -> Any:
            self.buffer += 1.0
            return {"buffer": self.buffer}

    class Reusing(CountingRows):
        position = np.zeros(2)

        def step(self, actions: Any) -> Any:
            self.position += 1.0
            return *super().step(actions)[:4], {"position": self.position}

    transitions = VectorCollector(Reusing([9, 9]), info_names=("position",)).collect(Viewing(), 3).transitions
    np.testing.assert_array_equal(transitions.position, [[1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(transitions.buffer, [[1, 1], [2, 2], [3, 3]])


def test_a_failure_ends_the_episodes_of_the_agent() -> None:
    class Counter(TracingAgent):
        count = np.zeros(2)

        def step(self, obs: Any) -> Any:
            self.count = self.count + 1
            if self.count.max() == 4:
                raise KeyboardInterrupt
            return super().step(obs)[0], {"count": self.count}

        def terminal(self, ended: Any = True) -> None:
            self.ended = np.array(ended).tolist()
            self.count = np.where(ended, 0, self.count)

    agent, collector = Counter(), VectorCollector(CountingRows([2, 9]))
    with pytest.raises(KeyboardInterrupt):
        collector.collect(agent, 9)
    assert (agent.ended, collector.timesteps) == ([True, True], 6)
    np.testing.assert_array_equal(collector.collect(agent, 3).transitions["count"], [[1, 1], [2, 2], [1, 3]])


def test_no_episode_of_the_agent_ends_twice() -> None:
    class Failing(CountingRows):
        def partial_reset(self, mask: Any, seeds: Any) -> Any:
            if not mask.all():  # not the first reset
                raise KeyboardInterrupt
            return super().partial_reset(mask, seeds)

    ends: list[list[bool]] = []
    agent = TracingAgent()
    agent.terminal = lambda ended=True: ends.append(np.array(ended).tolist())
    with pytest.raises(KeyboardInterrupt):
        VectorCollector(Failing([2, 9])).collect(agent, 9)
    assert ends == [[True, False], [False, True]]


def test_several_steps_in_one_transition_are_for_single_environments() -> None:
    with raises_naming(TypeError, "num_steps", "got 2"):
        VectorCollector(CountingRows([3]), num_steps=2)


def test_simulators_of_gymnasium_are_collected_from() -> None:
    env = make_gymnasium_simulators("CartPole-v1", 3)
    runs = []
    for _ in range(2):
        agent = HostAgent(env.action_space, seed=2, num_envs=3)
        runs.append(VectorCollector(env, seed=3).collect(agent, 60).transitions)
    env.close()
    first, second = runs
    np.testing.assert_array_equal(first.obs, second.obs)
    goes_on = ~first.dones[:-1]
    np.testing.assert_array_equal(first.next_obs[:-1][goes_on], first.obs[1:][goes_on])
    assert (~goes_on).sum() > 3
    assert (np.abs(first.next_obs[:-1][~goes_on]) > np.abs(first.obs[1:][~goes_on])).any(axis=-1).all()
    assert set(np.unique(first.actions)) == {0, 1}
