"""Minari data sets, recorded here by Minari, since none can be downloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import Discrete
from evorl.execution.collector import iterate
from evorl.runs.minari_data import minari_columns, minari_conversion, minari_facts, open_minari_dataset
from evorl.runs.replay_file import ReplayFileError
from tests.support.errors import raises_naming
from tests.support.small_workflows import small

NAME = "pendulum/random-v0"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Record three episodes of 12 steps with random actions in [-2, 2]."""
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
            folder.cleanup()  # Minari leaves it to the garbage collector, which warns
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
    )  # agents use [-1, 1]
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
    metrics, _ = iterate(workflow, state, 2)
    assert np.isfinite(np.asarray(metrics.critic_loss[:2])).all()
    workflow.close()


def test_a_data_set_that_is_not_here_is_told_with_those_that_are(dataset: Any) -> None:
    with raises_naming(ReplayFileError, "hopper/none-v0", NAME, "minari download hopper/none-v0"):
        open_minari_dataset("hopper/none-v0")


def test_a_missing_package_is_told_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with raises_naming(ImportError, "pip install 'minari[hdf5]>=0.5'"):
        open_minari_dataset(NAME)


def _recorded(space: spaces.Space, actions: Any, num_observations: int | None = None) -> Any:
    """Return a data set of two episodes with these actions, in Minari's format."""

    def episode(number: int) -> Any:
        num_steps = len(jax.tree.leaves(actions)[0])
        observations = np.arange(num_steps + 1 if num_observations is None else num_observations, dtype=np.float32)
        ends = np.zeros(num_steps, bool)
        return SimpleNamespace(
            id=number,
            observations=observations[:, None],
            actions=actions,
            rewards=observations[: num_steps + 1][:num_steps] + 1.0,
            terminations=ends,
            truncations=ends,
        )

    return SimpleNamespace(action_space=space, iterate_episodes=lambda: iter([episode(3), episode(7)]))


@pytest.mark.parametrize(
    ("space", "recorded", "learned"),
    [
        (spaces.Discrete(3, start=-1), [-1, 0, 1], [0, 1, 2]),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), [[0, 5], [1, 7]], [0, 5]),
        (spaces.MultiBinary(2), np.array([[0, 1], [1, 1]], np.int8), [1, 3]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), (np.array([0, 1]), np.array([2, 0])), [2, 3]),
        (
            spaces.Box(np.float32([2.0, 0.0]), np.float32([2.0, 4.0])),
            [[2.0, 1.0], [2.0, 4.0]],
            [[0.0, -0.5], [0.0, 1.0]],
        ),
        (spaces.Box(-2, 3, (1,), np.int64), [[-2], [3]], [[-5 / 6], [5 / 6]]),
        (spaces.Box(-3.4e38, 3.4e38, (1,)), [[-3.4e38], [3.4e38]], [[-1.0], [1.0]]),
        (spaces.Box(-np.inf, np.inf, (1,)), [[-3.0], [40.0]], [[-3.0], [40.0]]),
    ],
    ids=repr,
)
def test_recorded_actions_become_those_of_agents(space: Any, recorded: Any, learned: Any) -> None:
    actions = recorded if isinstance(recorded, tuple) else np.asarray(recorded)
    columns = minari_columns(_recorded(space, actions))
    np.testing.assert_allclose(columns["actions"], [*learned, *learned], rtol=1e-6)
    assert np.isfinite(columns["actions"]).all()


def test_a_data_set_without_episodes_is_refused() -> None:
    empty = SimpleNamespace(action_space=spaces.Discrete(2), iterate_episodes=lambda: iter(()))
    with raises_naming(ReplayFileError, "no episodes"):
        minari_columns(empty)


@pytest.mark.parametrize("num_observations", [3, 5])
def test_an_episode_whose_arrays_do_not_fit_is_refused_with_its_number(num_observations: int) -> None:
    dataset = _recorded(spaces.Discrete(2), np.array([0, 1, 0]), num_observations)
    with raises_naming(ReplayFileError, "episode 3", "3 rewards", f"{num_observations} observations", "4 are"):
        minari_columns(dataset)


@pytest.mark.parametrize(
    ("space", "actions", "parts"),
    [
        (spaces.Discrete(3), [0, 3], ("step 1", "episode 3", "Discrete(3)")),
        (spaces.Box(0, 4, (1,), np.int32), [[0.5], [1.0]], ("step 0", "episode 3")),
        (spaces.Box(-1.0, 1.0, (1,)), [[0.0], [np.nan]], ("step 1", "episode 3")),
    ],
)
def test_actions_outside_of_their_space_are_refused(space: Any, actions: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ReplayFileError, *parts):
        minari_columns(_recorded(space, np.asarray(actions)))


@pytest.mark.parametrize(
    ("name", "step", "column", "row"),
    [
        ("rewards", 1, "rewards", 1),
        ("observations", 0, "obs", 0),
        ("observations", 3, "next_obs", 2),  # the last observation is only the next one of the last step
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_episode_with_numbers_that_are_not_finite_is_refused(
    name: str, step: int, column: str, row: int, value: float
) -> None:
    dataset = _recorded(spaces.Discrete(2), np.array([0, 1, 0]))
    episodes = list(dataset.iterate_episodes())
    setattr(episodes[1], name, np.array(getattr(episodes[1], name)))
    getattr(episodes[1], name)[step] = value
    dataset.iterate_episodes = lambda: iter(episodes)
    with raises_naming(ReplayFileError, column, "episode 7", "not finite", f"row {row}", "filter_episodes"):
        minari_columns(dataset)


def test_a_data_set_of_other_actions_is_refused() -> None:
    with raises_naming(ReplayFileError, "Discrete(3)", "Discrete(2)"):
        minari_conversion(_recorded(spaces.Discrete(3), np.array([0])), Discrete(2))
    with raises_naming(ReplayFileError, "Text"):
        minari_conversion(_recorded(spaces.Text(3), np.array([0])))
