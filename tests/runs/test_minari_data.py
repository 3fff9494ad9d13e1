"""Data sets of Minari: recorded here by Minari itself, since none can be fetched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from evorl.runs.minari_data import minari_columns, minari_facts, open_minari_dataset
from evorl.runs.replay_file import ReplayFileError
from tests.support.small_workflows import small

NAME = "pendulum/random-v0"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three episodes of 12 steps with random actions in [-2, 2]."""
    import minari

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        env = minari.DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=12))
        first = env._tmp_dir
        env.action_space.seed(0)
        for seed in range(3):
            env.reset(seed=seed)
            done = False
            while not done:
                *_, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated
        env.create_dataset(
            NAME,
            eval_env="Pendulum-v1",
            **dict.fromkeys(("algorithm_name", "author", "author_email", "code_permalink", "description"), "test"),
        )
        for folder in (first, env._tmp_dir):
            folder.cleanup()  # which Minari leaves to the garbage collector, that warns of it
        env.env.close()
        yield open_minari_dataset(NAME)


def test_episodes_become_transitions(dataset: Any) -> None:
    assert minari_facts(dataset) == {"env": "gymnasium/Pendulum-v1", "num_steps": 36}
    columns = minari_columns(dataset)
    assert {name: len(x) for name, x in columns.items()} == dict.fromkeys(
        ("obs", "next_obs", "actions", "rewards", "termination", "truncation"), 36
    )
    episodes = list(dataset.iterate_episodes())
    np.testing.assert_array_equal(columns["obs"][12:24], episodes[1].observations[:-1])
    np.testing.assert_array_equal(columns["next_obs"][12:24], episodes[1].observations[1:])
    np.testing.assert_allclose(
        columns["actions"][12:24], episodes[1].actions / 2.0, rtol=1e-5, atol=1e-6
    )  # as agents give them
    assert np.flatnonzero(columns["truncation"]).tolist() == [11, 23, 35]
    assert not columns["termination"].any()


def test_a_training_learns_from_it(dataset: Any) -> None:
    workflow = small(
        "td3",
        {"library": "gymnasium", "name": "Pendulum-v1"},
        num_envs=1,
        offline=True,
        batch_size=8,
        replay={"load": f"minari:{NAME}"},
    )
    state = workflow.init(0)
    np.testing.assert_allclose(
        np.asarray(state.replay_state.data.rewards[:36, 0]), minari_columns(dataset)["rewards"], rtol=1e-6
    )
    metrics, _ = workflow.iterate(state, 2)
    assert np.isfinite(np.asarray(metrics.critic_loss[:2])).all()
    workflow.close()


def test_a_data_set_that_is_not_here_is_told_with_those_that_are(dataset: Any) -> None:
    with pytest.raises(ReplayFileError, match=f"no data set 'hopper/none-v0' on this machine .*{NAME}"):
        open_minari_dataset("hopper/none-v0")


def test_a_missing_package_is_told_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"pip install 'minari\[hdf5\]>=0.5'"):
        open_minari_dataset(NAME)
