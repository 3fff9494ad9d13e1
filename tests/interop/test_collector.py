from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.interop.collector import Collector
from evorl.interop.host_agent import HostAgent
from evorl.interop.replay_memory import ReplayMemory
from evorl.ops.trees import concatenate_trees
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingEnv, TracingAgent


def test_calls_come_in_order_and_extras_stay_with_their_step() -> None:
    agent = TracingAgent()
    collected = Collector(CountingEnv(3)).collect(agent, 3)
    assert agent.calls == ["step", "view"] * 3 + ["terminal"]
    transitions = collected.transitions
    assert transitions is not None
    np.testing.assert_array_equal(transitions.obs, [[0], [1], [2]])  # though the environment reuses one array
    np.testing.assert_array_equal(transitions.next_obs, [[1], [2], [3]])
    np.testing.assert_array_equal(transitions.seen, [0, 10, 20])
    np.testing.assert_array_equal(transitions.error, 0)
    assert transitions.dones.tolist() == [False, False, True]


def test_steps_wait_for_others_across_calls_but_not_across_episodes() -> None:
    collector, agent = Collector(CountingEnv(4), num_steps=3), TracingAgent()
    counts, waiting = [], []
    for _ in range(5):
        transitions = collector.collect(agent, 2).transitions
        counts.append(0 if transitions is None else len(transitions.rewards))
        waiting.append(collector.num_waiting)
        if transitions is not None:
            np.testing.assert_array_equal(transitions.rewards, [[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 0]])
            np.testing.assert_array_equal(transitions.seen, [0, 10, 20, 30])
    assert counts == [0, 4, 0, 4, 0]
    assert waiting == [2, 0, 2, 0, 2]
    assert collector.timesteps == 10


def test_one_episode_is_collected_with_its_results() -> None:
    collector = Collector(CountingEnv(4), num_steps=3)
    for turn in (1, 2):
        collected = collector.collect_episode(TracingAgent())
        assert collected.transitions is not None
        assert len(collected.transitions.rewards) == 4
        assert (collected.episode_returns.tolist(), collected.episode_lengths.tolist()) == ([10.0], [4])
        assert (collected.ended_at.tolist(), collected.num_episodes) == ([4 * turn], 1)
    collector.collect(TracingAgent(), 1)
    assert collector.collect_episode(TracingAgent()).episode_returns.tolist() == [10.0]  # also for a running episode


def test_episodes_go_on_from_call_to_call_until_they_are_left() -> None:
    env = CountingEnv(5)
    collector = Collector(env, seed=7)
    agent = TracingAgent()
    first, second = collector.collect(agent, 3), collector.collect(agent, 4)
    assert (first.num_episodes, second.ended_at.tolist(), second.episode_returns.tolist()) == (0, [5], [15.0])
    np.testing.assert_array_equal(second.transitions.obs[:, 0], [3, 4, 0, 1])
    collector.restart()
    np.testing.assert_array_equal(collector.collect(agent, 2).transitions.obs[:, 0], [0, 1])
    assert env.seeds == [7, None, None]


def test_nothing_is_collected_in_no_step() -> None:
    collected = Collector(CountingEnv(2)).collect(TracingAgent(), 0)
    assert collected.transitions is None
    assert collected.episode_returns.shape == (0,)


def test_what_the_user_chooses_is_told_and_stored() -> None:
    class Chosen(TracingAgent):
        def step(self, obs: Any) -> Any:
            return self.agent_info["action"], {}

    collector = Collector(CountingEnv(3), info_names=("twice",))
    transitions = collector.collect(Chosen(), 2, agent_info={"action": np.int64(2)}).transitions
    np.testing.assert_array_equal(transitions.actions, [2, 2])
    np.testing.assert_array_equal(transitions.agent_info.action, [2, 2])
    np.testing.assert_array_equal(transitions.twice, [2, 4])
    with raises_naming(HostEnvError, "'twic'", "'twice'"):
        Collector(CountingEnv(3), info_names=("twic",)).collect(TracingAgent(), 1)


class _ReusesAll(CountingEnv):
    """Environment that returns its reward and a position as arrays that it changes in place."""

    def __init__(self, as_reward: Any = np.asarray) -> None:
        super().__init__(9)
        self.position, self._reward = np.zeros(2), as_reward(np.zeros((), np.float32))

    def step(self, action: Any) -> Any:
        obs, _, *flags, _ = super().step(action)
        self.position += 1.0
        self._reward += 1.0
        return obs, self._reward, *flags, {"position": self.position, "parts": {"x": self.position[:1]}}


@pytest.mark.parametrize("wants_history", [False, True])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_arrays_that_are_changed_in_place_are_stored_as_they_were(num_steps: int, wants_history: bool) -> None:
    class Viewing(HostAgent):
        def __init__(self) -> None:
            self.buffer, self.wants_history = np.zeros(1), wants_history
            self.histories: list[list[float]] = []

        def step(self, obs: Any, history: Any = ()) -> Any:
            self.histories.append([float(step["buffer"][0]) for step in history])
            return 0, {}

        def view(self, transition: Any, extras: Any) -> Any:
            self.buffer += 1.0
            return {"buffer": self.buffer}

    collector, agent, agent_info = (
        Collector(_ReusesAll(), num_steps=num_steps, info_names=("position", "parts")),
        Viewing(),
        {"rate": np.zeros(1)},
    )
    parts = []
    for call in range(2):
        agent_info["rate"][0] = call
        parts.append(collector.collect(agent, 3, agent_info=agent_info).transitions)
    transitions = concatenate_trees(parts)
    number = np.arange(1, 8 - num_steps)  # the last steps of a call are pending if num_steps is 3
    np.testing.assert_array_equal(transitions.position, np.stack([number, number], axis=1))
    np.testing.assert_array_equal(transitions.parts.x[:, 0], number)
    np.testing.assert_array_equal(transitions.buffer[:, 0], number)
    np.testing.assert_array_equal(transitions.rewards.reshape(len(number), -1)[:, 0], number)
    np.testing.assert_array_equal(transitions.agent_info.rate[:, 0], number > 3)
    if wants_history:
        assert agent.histories == [[], [1.0], [1.0, 2.0], [], [4.0], [4.0, 5.0]]


class _Tensor(np.ndarray):
    """Array of another framework, which NumPy can read."""


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_returns_are_sums_in_float64(dtype: Any) -> None:
    env = _ReusesAll(lambda zero: zero.astype(dtype) + dtype(0.1))
    collected = Collector(env).collect(HostAgent(env.action_space), 9)
    assert collected.episode_returns == [collected.transitions.rewards.sum(dtype=np.float64)]


def test_rewards_of_another_framework_are_stored_as_they_were() -> None:
    collected = Collector(_ReusesAll(lambda x: x.view(_Tensor))).collect(HostAgent(CountingEnv(1).action_space), 3)
    np.testing.assert_array_equal(collected.transitions.rewards, [1.0, 2.0, 3.0])


def test_an_agent_that_wants_it_sees_the_steps_so_far() -> None:
    class Historian(HostAgent):
        wants_history = True

        def __init__(self) -> None:
            self.seen: list[list[float]] = []

        def step(self, obs: Any, history: list) -> Any:
            self.seen.append([float(step["rewards"]) for step in history])
            return 0, {"length": len(history)}

    agent, collector = Historian(), Collector(CountingEnv(9))
    for _ in range(2):
        np.testing.assert_array_equal(collector.collect(agent, 3).transitions.length, [0, 1, 2])
    assert agent.seen == [[], [1.0], [1.0, 2.0], [], [4.0], [4.0, 5.0]]


def test_after_a_failure_another_episode_starts() -> None:
    class Failing(TracingAgent):
        def step(self, obs: Any) -> Any:
            if obs[0] == 2 and not self.batches:
                raise KeyboardInterrupt
            return super().step(obs)

    env, agent = CountingEnv(5), Failing()
    collector = Collector(env, num_steps=2)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(agent, 4)
    agent.batches.append(None)
    np.testing.assert_array_equal(collector.collect(agent, 4).transitions.obs[:, 0], [0, 1, 2])
    assert len(env.seeds) == 2


class _Counter(TracingAgent):
    """Agent that stores its number of steps in the episode, and fails at call ``fails_at`` of one of its methods."""

    def __init__(self, fails_at: int = 0, fails_in: str = "step") -> None:
        super().__init__()
        self.count, self._fails_at, self._fails_in = 0, fails_at, fails_in

    def _may_fail(self, method: str) -> None:
        if method == self._fails_in and self.calls.count(method) == self._fails_at:
            raise KeyboardInterrupt

    def step(self, obs: Any) -> Any:
        action, _ = super().step(obs)
        self.count += 1
        self._may_fail("step")
        return action, {"count": np.full(np.shape(obs)[:-1], self.count)}

    def view(self, transition: Any, extras: Any) -> Any:
        super().view(transition, extras)
        self._may_fail("view")
        return extras

    def terminal(self, ended: Any = True) -> None:
        super().terminal(ended)
        self.count = 0
        self._may_fail("terminal")


@pytest.mark.parametrize(
    ("fails_at", "fails_in", "num_taken", "num_terminal"),
    [(1, "step", 0, 1), (4, "step", 3, 1), (6, "step", 5, 2), (4, "view", 4, 1), (1, "terminal", 5, 1)],
)
def test_a_failure_ends_the_episode_of_the_agent_and_counts_its_steps(
    fails_at: int, fails_in: str, num_taken: int, num_terminal: int
) -> None:
    env, agent = CountingEnv(5), _Counter(fails_at, fails_in)
    collector = Collector(env)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(agent, 9)
    assert (collector.timesteps, env.num_steps) == (num_taken, num_taken)
    assert agent.calls.count("terminal") == num_terminal
    np.testing.assert_array_equal(collector.collect(agent, 3).transitions["count"], [1, 2, 3])
    assert collector.timesteps == num_taken + 3


def test_an_error_is_not_hidden_by_that_of_an_agent_which_cannot_end() -> None:
    class Broken(TracingAgent):
        def step(self, obs: Any) -> Any:
            raise KeyError("first")

        def terminal(self, ended: Any = True) -> None:
            raise ValueError("second")

    with raises_naming(KeyError, "first"):
        Collector(CountingEnv(3)).collect(Broken(), 2)


def test_an_episode_that_did_not_start_is_not_ended() -> None:
    class Unstarted(CountingEnv):
        def reset(self, **options: Any) -> Any:
            raise RuntimeError("no start")

    agent = TracingAgent()
    with raises_naming(RuntimeError, "no start"):
        Collector(Unstarted(3)).collect(agent, 2)
    assert agent.calls == []


def test_observations_may_have_several_parts() -> None:
    class Parts(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return self._parts(super().reset(**kwargs)[0]), {}

        def step(self, action: Any) -> Any:
            obs, *others = super().step(action)
            return self._parts(obs), *others

        def _parts(self, obs: np.ndarray) -> Any:
            return {"count": obs, "pair": (obs * 2, int(obs[0]))}

    agent = HostAgent(CountingEnv(1).action_space)
    transitions = Collector(Parts(3), num_steps=2).collect(agent, 3).transitions
    np.testing.assert_array_equal(transitions.obs.count[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(transitions.next_obs.pair[0][:, 0], [4, 6, 6])
    np.testing.assert_array_equal(transitions.obs.pair[1], [0, 1, 2])
    memory = ReplayMemory(UniformReplayBuffer(capacity=5))
    memory.store(transitions)
    np.testing.assert_array_equal(memory.take([2, 0]).obs.pair[1], [2, 0])


def test_what_cannot_work_is_refused_in_words() -> None:
    class NoAgent:
        def step(self, obs: Any) -> Any:
            return 0, {}

    with raises_naming(TypeError, "NoAgent", "view, eval_step, update, terminal", "Host"):
        Collector(CountingEnv(3)).collect(NoAgent(), 1)
    for num_steps in (0, -1, 2.5):
        with raises_naming(ValueError, "num_steps", f"got {num_steps}"):
            Collector(CountingEnv(3), num_steps=num_steps)
    for length in (-1, 2.5):
        with raises_naming(ValueError, "length", f"got {length}"):
            Collector(CountingEnv(3)).collect(TracingAgent(), length)
    env = CountingEnv(3)
    env.step = lambda action: (np.zeros(1), 0.0, False, {})  # the interface of older Gym versions
    with raises_naming(HostEnvError, "(observation, reward, terminated, truncated, info)", "tuple of 4"):
        Collector(env).collect(TracingAgent(), 1)
    env = CountingEnv(3)
    collector = Collector(env)
    collector.collect(TracingAgent(), 1)
    env.step = lambda action: sys.exit(3)
    with raises_naming(HostEnvError, "environment", "after 1 step,", "SystemExit(3)"):
        collector.collect(TracingAgent(), 1)


class _Idle(HostAgent):
    def __init__(self) -> None:
        self.calls = 0

    def step(self, obs: Any) -> Any:
        self.calls += 1
        return self.calls & 1, {}


def _calls(act: Any) -> int:
    """Return the number of Python calls while the function runs: its cost, independent of machine and load."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_collecting_costs_little_beside_the_environment() -> None:
    """Collecting adds at most three Python calls per step to the seven of a bare loop over CartPole."""
    env, steps, agent = gymnasium.make("CartPole-v1"), 2000, _Idle()

    def bare() -> None:
        env.reset(seed=0)
        for i in range(steps):
            _, _, termination, truncation, _ = env.step(i & 1)
            if termination or truncation:
                env.reset()

    collector = Collector(gymnasium.make("CartPole-v1"), seed=0)

    def collect() -> None:
        for _ in range(steps // 250):
            collector.collect(agent, 250)

    bare()
    collect()
    assert _calls(collect) <= _calls(bare) + 3 * steps
