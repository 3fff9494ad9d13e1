from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.action_conversion import ActionConversion
from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.gymnasium_spaces import action_space_of
from evorl.execution.session import TrainingDiverged
from evorl.interop.host_agent import HostAgent
from evorl.interop.replay_memory import ReplayMemory
from evorl.interop.runner import Runner
from evorl.ops.sum_tree import get_weights
from evorl.recorders import CsvRecorder, Recorder, RecorderGroup, TensorBoardRecorder
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingEnv, CountingRows, TracingAgent


class _Rows(Recorder):
    """Environments that record the calls they receive."""

    def __init__(self) -> None:
        self.plan: Any = None
        self.rows: list[dict] = []

    def start(self, plan: Any) -> None:
        self.plan = plan

    def write(self, row: Any) -> None:
        self.rows.append(dict(row))


class _Running(CountingEnv):
    """Environment with running statistics: an episode starts with the number of steps of all episodes."""

    def reset(self, **arguments: Any) -> tuple[np.ndarray, dict]:
        super().reset(**arguments)
        return np.float32([self.num_steps]), {}


def test_evaluations_use_the_running_statistics_of_the_training_environment() -> None:
    class Agent(HostAgent):
        def eval_step(self, obs: Any) -> Any:
            seen.append(int(obs[0]))
            return 0

    seen: list[int] = []
    env = _Running(1)
    Runner.on_policy(env, Agent(env.action_space), rollout_length=4).run(3, eval_every=1, eval_episodes=1)
    assert seen == [0, 4, 8, 12]


@pytest.mark.parametrize(("eval_every", "evaluated"), [(4, [0, 4, 8, 10]), (5, [0, 5, 10]), (0, [])])
def test_rollouts_updates_and_evaluations_are_as_many_as_asked_for(eval_every: int, evaluated: list[int]) -> None:
    env, eval_env, agent, recorder = CountingEnv(6), CountingEnv(6), TracingAgent(), _Rows()
    runner = Runner.off_policy(
        env, agent, rollout_length=4, batch_size=8, warm_up=0, eval_env=eval_env, recorder=recorder
    )
    evaluation = runner.run(10, eval_every=eval_every, eval_episodes=3)
    assert (env.num_steps, runner.timesteps, len(runner.replay)) == (40, 40, 40)
    assert agent.calls.count("update") == 10
    assert eval_env.num_steps == 18 * len(evaluated)
    assert [row["iterations"] for row in recorder.rows] == evaluated
    assert recorder.plan.total_timesteps == 40
    if not evaluated:
        assert evaluation is None
        return
    assert (evaluation.episode_return, evaluation.episode_return_std, evaluation.episode_length) == (21.0, 0.0, 6.0)
    assert recorder.rows[-1].keys() >= {
        "timesteps", "train/loss", "train/episodes", "eval/episode_return", "eval/episode_return_std",
        "time/steps_per_second",
    }  # fmt: skip
    assert sum(row["train/episodes"] for row in recorder.rows) == 6
    assert recorder.rows[-1]["train/episode_return"] == 21.0


def test_without_an_environment_for_it_evaluations_play_in_a_copy() -> None:
    env = CountingEnv(6)
    runner = Runner.on_policy(env, TracingAgent(), rollout_length=4)
    runner.run(1, eval_every=1, eval_episodes=2)
    assert env.num_steps == 4
    np.testing.assert_array_equal(runner.step().obs[:, 0], [4, 5, 0, 1])


def test_every_extra_is_in_every_batch() -> None:
    class Stochastic(TracingAgent):
        def step(self, obs: Any) -> Any:
            return 0, {"logp": -float(obs[0])}

    agent = Stochastic()
    Runner.off_policy(CountingEnv(5), agent, batch_size=16, warm_up=8, num_steps=3).run(6)
    assert len(agent.batches) == 6
    for batch in agent.batches:
        assert batch.logp.shape == (16,)
        assert batch.rewards.shape == (16, 3)
        np.testing.assert_array_equal(batch.logp, -batch.obs[:, 0])
        np.testing.assert_array_equal(batch.rewards[:, 0], batch.obs[:, 0] + 1)
        np.testing.assert_array_equal(batch.num_rewards, np.minimum(3, 5 - batch.obs[:, 0]))


@pytest.mark.parametrize("warm_up", [0, 1000, 2048, 100_000])
@pytest.mark.parametrize("by", ["agent", "random"])
def test_a_warm_up_stores_so_many_transitions(warm_up: int, by: str) -> None:
    env, agent = CountingEnv(50), HostAgent(CountingEnv(1).action_space)
    runner = Runner.off_policy(env, agent, warm_up=warm_up, warm_up_by=by, capacity=100_000)
    runner.prepare()
    assert len(runner.replay) == env.num_steps == warm_up
    runner.prepare()
    assert env.num_steps == warm_up


def test_who_acts_in_the_warm_up() -> None:
    agent = TracingAgent()
    Runner.off_policy(CountingEnv(5), agent, warm_up=7).prepare()
    assert agent.calls.count("step") == 7
    replay = ReplayMemory(UniformReplayBuffer(capacity=100), extra_columns={"seen": (), "error": ()})
    runner = Runner.off_policy(CountingEnv(5), agent, warm_up=7, warm_up_by="random", replay=replay)
    batch = runner.step()  # zero columns: the random agent returns no extras
    assert agent.calls.count("step") == 8
    assert set(batch.obs[:, 0].tolist()) <= set(range(5))
    assert len(set(replay.take(np.arange(7)).actions.tolist())) > 1


class _OfAgents(TracingAgent):
    gives_agent_actions = True


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-2.0, 2.0, (1,)),
        gymnasium.spaces.Box(0, 7, (2,), np.int32),
        gymnasium.spaces.Discrete(3, start=5),
        gymnasium.spaces.MultiDiscrete([2, 3]),
        gymnasium.spaces.Discrete(3),
    ],
    ids=repr,
)
def test_a_random_warm_up_stores_actions_in_the_format_of_the_agent(space: Any) -> None:
    received, env = [], CountingEnv(5)
    env.action_space = space
    step, env.step = env.step, lambda action: received.append(action) or step(action)
    replay = ReplayMemory(UniformReplayBuffer(capacity=60), extra_columns={"seen": (), "error": ()})
    Runner.off_policy(env, _OfAgents(), warm_up=60, warm_up_by="random", burn_in=5, replay=replay).prepare()
    conversion = ActionConversion(action_space_of(space)[0])
    stored = replay.take(np.arange(60)).actions
    assert np.all(conversion.agent_space.contains(stored))
    np.testing.assert_array_equal(conversion.to_env(stored), np.stack(received[5:]))
    assert len(np.unique(received, axis=0)) > 1


def test_a_random_warm_up_of_simulators_stores_actions_of_the_agent() -> None:
    simulators = make_gymnasium_simulators("Pendulum-v1", 2)
    runner = Runner.off_policy(simulators, _OfAgents(), warm_up=40, warm_up_by="random", eval_env=simulators)
    runner.prepare()
    assert runner.replay is not None
    assert 0.5 < np.abs(runner.replay.take(np.arange(40)).actions).max() <= 1.0


def test_a_burn_in_leaves_nothing_but_what_the_environment_has_seen() -> None:
    env, agent = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")), TracingAgent()
    runner = Runner.off_policy(env, agent, warm_up=0, burn_in=100)
    runner.prepare()
    assert len(runner.replay) == 0
    assert agent.calls == []
    assert env.obs_rms.count >= 100
    counting = CountingEnv(50)
    runner = Runner.on_policy(counting, agent, rollout_length=2, burn_in=20)
    np.testing.assert_array_equal(runner.step().obs[:, 0], [0, 1])  # of the new episode
    assert counting.num_steps == 22


def test_nothing_is_learned_before_there_is_a_batch() -> None:
    agent = TracingAgent()
    runner = Runner.off_policy(CountingEnv(5), agent, rollout_length=1, warm_up=0, num_steps=3)
    assert runner.step() is None
    runner.run(3)
    assert agent.calls.count("update") == 2  # 3-step transitions exist from the third step on


def test_an_equal_seed_gives_an_equal_run() -> None:
    batches = []
    for seed in (1, 1, 2):
        agent = _Random(seed)
        Runner.off_policy(gymnasium.make("CartPole-v1"), agent, warm_up=50, rollout_length=3, seed=seed).run(5)
        batches.append(agent.batches)
    for first, second in zip(*batches[:2], strict=True):
        assert sorted(first) == sorted(second)
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])
    assert any((a.obs != b.obs).any() for a, b in zip(*batches[1:], strict=True))


class _Random(HostAgent):
    def __init__(self, seed: int) -> None:
        super().__init__(gymnasium.spaces.Discrete(2), seed)
        self.batches: list[Any] = []

    def update(self, batch: Any) -> Any:
        self.batches.append(batch)
        return {}


def test_what_an_agent_says_of_stored_transitions_is_written() -> None:
    class Prioritizing(TracingAgent):
        def update(self, batch: Any) -> Any:
            self.weights = batch.weights
            return {"loss": 0.0}, {"indices": batch.indices, "errors": batch.obs[:, 0] ** 2, "seen": batch.obs[:, 0]}

    replay = ReplayMemory(PrioritizedReplayBuffer(capacity=40, exponent=0.5))
    runner = Runner.off_policy(CountingEnv(40), Prioritizing(), replay=replay, warm_up=40, batch_size=400)
    runner.run(1)
    stored = replay.take(np.arange(1, 40))
    np.testing.assert_array_equal(stored.seen, stored.obs[:, 0])
    np.testing.assert_allclose(get_weights(replay.state.priorities, jnp.arange(1, 40)), stored.obs[:, 0], rtol=1e-3)


def test_batches_may_be_several_and_be_changed() -> None:
    agent = TracingAgent()
    options = {"num_batches": 2, "transform": lambda batches: [batch.obs * 2 for batch in batches]}
    Runner.off_policy(CountingEnv(5), agent, warm_up=8, batch_size=4, **options).run(1)
    assert [half.shape for half in agent.batches[0]] == [(4, 1), (4, 1)]
    assert set(np.concatenate(agent.batches[0])[:, 0].tolist()) <= {0.0, 2.0, 4.0, 6.0, 8.0}


def test_simulators_side_by_side() -> None:
    agent = TracingAgent()
    batch = Runner.on_policy(CountingRows([3, 4]), agent, rollout_length=6).step()
    assert batch.obs.shape == (6, 2, 1)
    runner = Runner.off_policy(CountingRows([3, 4]), agent, warm_up=10, batch_size=5, eval_env=CountingRows([3, 4]))
    evaluation = runner.run(4, eval_every=4, eval_episodes=2)
    assert (len(runner.replay), runner.timesteps) == (18, 18)
    assert agent.batches[-1].obs.shape == (5, 1)
    assert float(evaluation.episode_return) == (6 + 10) / 2


def test_rows_reach_files_and_tensorboard(tmp_path: Path) -> None:
    recorder = RecorderGroup([CsvRecorder(tmp_path / "metrics.csv"), TensorBoardRecorder(tmp_path / "events")])
    runner = Runner.on_policy(CountingEnv(3), TracingAgent(), rollout_length=2, recorder=recorder)
    runner.run(6, eval_every=3, eval_episodes=1, log_every=2)
    recorder.close()
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header.split(",")[:2] == ["iterations", "timesteps"]
    assert [row.split(",")[:2] for row in rows] == [["0", "0"], ["2", "4"], ["3", "6"], ["4", "8"], ["6", "12"]]
    assert "eval/episode_return" in header
    assert b"eval/episode_return" in next((tmp_path / "events").iterdir()).read_bytes()


def test_it_stops_where_a_loss_is_no_number() -> None:
    class Diverging(TracingAgent):
        def update(self, batch: Any) -> Any:
            return {"loss": np.nan}

    with raises_naming(TrainingDiverged, "loss", "nan", "iteration 1"):
        Runner.on_policy(CountingEnv(3), Diverging(), rollout_length=2).run(3)


def test_what_cannot_work_is_refused_in_words() -> None:
    env, agent = CountingEnv(3), TracingAgent()
    wrong = {
        ("rollout_length", "got 0"): lambda: Runner.on_policy(env, agent, rollout_length=0),
        ("warm_up=5", "replay memory"): lambda: Runner.on_policy(env, agent, rollout_length=1, warm_up=5),
        ("warm_up_by", "'agents'", "'agent'"): lambda: Runner.off_policy(env, agent, warm_up_by="agents"),
        ("simulators", "copied", "eval_env"): lambda: Runner.on_policy(
            CountingRows([2]), agent, rollout_length=1
        ).evaluate(1),
        ("no replay memory",): lambda: Runner.on_policy(env, _Changing(), rollout_length=1).run(1),
    }
    for parts, build in wrong.items():
        with raises_naming(ValueError, *parts):
            build()


def test_zero_batches_are_refused() -> None:
    with raises_naming(ValueError, "num_batches", "got 0"):
        Runner.off_policy(CountingEnv(3), TracingAgent(), warm_up=0, num_batches=0)


@pytest.mark.parametrize("name", ["warm_up", "burn_in", "keep_episodes", "num_batches", "log_every", "eval_every"])
@pytest.mark.parametrize("value", [-5, 0.5])
def test_numbers_that_are_no_counts_are_refused_at_once(name: str, value: Any) -> None:
    def build(**options: Any) -> Runner:
        return Runner.off_policy(CountingEnv(3), TracingAgent(), **{"warm_up": 0, **options})

    with raises_naming(ValueError, name, f"got {value}"):
        if name.endswith("every"):
            build().run(2, **{name: value})
        else:
            build(**{name: value})


class _Changing(TracingAgent):
    def update(self, batch: Any) -> Any:
        return {}, {"indices": [0]}


def test_an_environment_that_cannot_be_copied_says_so() -> None:
    class Uncopied(CountingEnv):
        def __deepcopy__(self, memo: Any) -> Any:
            raise copy.Error("a window")

    with raises_naming(ValueError, "(a window)", "eval_env"):
        Runner.on_policy(Uncopied(3), TracingAgent(), rollout_length=1).evaluate(1)


def test_an_environment_that_cannot_be_copied_any_more_is_evaluated_in_its_last_copy() -> None:
    class OpensAWindow(CountingEnv):
        def __deepcopy__(self, memo: Any) -> Any:
            if self.num_steps:
                raise copy.Error("a window")
            return CountingEnv(3)

    runner = Runner.on_policy(OpensAWindow(3), TracingAgent(), rollout_length=2)
    assert runner.evaluate(1).episode_length == 3
    runner.step()
    assert runner.evaluate(1).episode_length == 3
