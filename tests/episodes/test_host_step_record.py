"""Episodes on the host, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from evorl.episodes.recorder import EpisodeRecorder
from evorl.episodes.saved_episode import SavedEpisode
from evorl.interop import Runner, play_on_host
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingEnv, CountingRows, TracingAgent


class Push:
    """Agent of one environment or of many that always returns the same action."""

    def eval_step(self, obs: Any) -> Any:
        return np.full((*np.shape(obs)[:-1], 1), 0.25, np.float32)


@pytest.mark.parametrize(
    ("env", "lengths"),
    [(CountingEnv(4), [4, 4, 4]), (CountingRows([2, 5]), [2, 5, 2]), (CountingRows([3]), [3, 3, 3])],
    ids=["one", "rows", "row"],
)
def test_every_moment_is_kept_though_the_array_is_the_same(env: Any, lengths: list[int]) -> None:
    metrics = play_on_host(env, TracingAgent(), 4, keep_steps=3)
    steps = metrics.steps
    assert metrics.episode_lengths.tolist()[:3] == lengths
    assert steps.obs.shape == (3, max(lengths) + 1, 1)
    for i, length in enumerate(lengths):
        np.testing.assert_array_equal(steps.obs[i, : length + 1, 0], np.arange(length + 1))
        np.testing.assert_array_equal(steps.rewards[i, :length], 1 + np.arange(length))
        by_time = isinstance(env, CountingRows) and i % env.num_envs == 1
        assert steps.terminations[i, :length].tolist() == [False] * (length - 1) + [not by_time]
    assert not steps.physics


def test_none_is_kept_unless_it_is_asked_for_and_no_more_than_are_played() -> None:
    assert play_on_host(CountingEnv(2), TracingAgent(), 2).steps is None
    with raises_naming(ValueError, "keep_steps=3", "num_episodes=2"):
        play_on_host(CountingEnv(2), TracingAgent(), 2, keep_steps=3)


def test_a_runner_saves_episodes_with_their_bodies(tmp_path: Path) -> None:
    """A runner saves evaluation episodes like compiled workflows do, with the positions of bodies."""

    def make() -> gymnasium.Env:
        return gymnasium.make("InvertedPendulum-v5", max_episode_steps=5)

    class Learner(Push):
        def step(self, obs: Any) -> Any:
            return np.zeros(1, np.float32), {}

        def view(self, transition: Any, extras: Any) -> Any:
            return extras

        def terminal(self, ended: Any = True) -> None:
            pass

        def update(self, batch: Any) -> dict:
            return {}

    recorder = EpisodeRecorder(tmp_path, {"env": {"library": "gymnasium", "name": "InvertedPendulum-v5"}}, 2)
    env, eval_env = make(), make()
    runner = Runner.on_policy(
        env, Learner(), rollout_length=2, eval_env=eval_env, keep_episodes=2, recorder=recorder, seed=1
    )
    result = runner.run(2, eval_every=2, eval_episodes=3)
    assert result is not None
    assert "episodes" not in result
    assert len(list(tmp_path.glob("*.npz"))) == 4  # of the first and last evaluation
    episode = SavedEpisode.load(tmp_path / "000000000004_001")
    qpos, length = episode.arrays["qpos"], episode.about["length"]
    assert (qpos.shape, qpos.dtype) == ((length + 1, 2), np.float64)
    np.testing.assert_array_equal(qpos, np.float64(episode.arrays["obs"][:, :2]))
    for made in (env, eval_env):
        made.close()
