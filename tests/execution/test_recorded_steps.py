"""Loading and saving recorded transitions: no transition is lost, mixed up, or taken from elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import create_env
from evorl.envs.space import Box
from evorl.execution.collector import iterate
from evorl.execution.recorded_steps import (
    _check_choices,
    _converted,
    _wrap_steps,
    check_recorded_steps,
    save_recorded_steps,
)
from evorl.runs.replay_file import ReplayFileError, read_columns, read_replay_facts, write_replay_file
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State
from tests.support.errors import assert_names, raises_naming
from tests.support.recorded_pendulum import NUM_STEPS, TITLE, pendulum_columns, recorded_pendulum
from tests.support.small_workflows import small
from tests.support.toy_envs import CHOICES

PENDULUM = {"name": "Pendulum-v1", "max_episode_steps": 10}


def _loading(named: str | None = None, algorithm: str = "sac", env: Any = PENDULUM, **changes: Any) -> Any:
    replay = {"load": named or recorded_pendulum(), **changes.pop("replay", {})}
    return small(algorithm, env, **{"replay_capacity": 300, **changes, "replay": replay})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_envs": 3, "prioritized": True},  # leaves one transition over
        {"num_seeds": 2},
        {"num_envs": 8, "devices": 2},
    ],
    ids=["plain", "prioritized", "seeds", "devices"],
)
def test_what_is_loaded_is_what_was_recorded(changes: dict[str, Any]) -> None:
    workflow = _loading(**changes)
    state = workflow.init(0)
    num_envs = workflow.env.num_envs
    num_rows = NUM_STEPS // num_envs
    columns = {name: x[NUM_STEPS - num_rows * num_envs :] for name, x in pendulum_columns().items()}
    replay = state.replay_state
    for seed in range(workflow.execution.num_seeds or 1):
        of_seed = jax.tree.map(lambda x, i=seed: np.asarray(x[i] if "num_seeds" in changes else x), replay)
        assert (of_seed.size, of_seed.cursor) == (num_rows, num_rows % of_seed.data.rewards.shape[0])
        for name in ("obs", "actions", "rewards", "next_obs"):
            pieces = columns[name].reshape(num_envs, num_rows, *columns[name].shape[1:])
            np.testing.assert_array_equal(getattr(of_seed.data, name)[:num_rows], np.swapaxes(pieces, 0, 1))
        dones = (columns["termination"] | columns["truncation"]).reshape(num_envs, num_rows).copy()
        dones[:, -1] = True  # a segment ends there
        np.testing.assert_array_equal(of_seed.data.dones[:num_rows], dones.T)
        termination = columns["termination"].reshape(num_envs, num_rows)
        np.testing.assert_array_equal(of_seed.data.extras.termination[:num_rows], termination.T)
    if workflow.prioritized:
        rows, envs = workflow.replay_buffer.draw_indices(replay, jax.random.key(0), 500)
        assert int(np.asarray(rows).max()) < num_rows
        assert len(set(np.asarray(envs).tolist())) == num_envs
    _, after = iterate(workflow, state, 1)  # the following transitions
    assert int(np.asarray(after.replay_state.size).ravel()[0]) == num_rows + 1


def test_statistics_of_observations_are_those_of_what_was_loaded() -> None:
    workflow = _loading(agent={"network": {"torso": [8]}, "normalize_obs": True})
    statistics = workflow.init(0).agent_state.obs_preprocessor_state
    np.testing.assert_allclose(statistics.mean, pendulum_columns()["obs"].mean(axis=0), atol=1e-5)


def test_saved_and_loaded_it_is_the_same_buffer(tmp_path: Path) -> None:
    """A saved and loaded ring equals the original, also wrapped around and with seeds; saving again is
    bit-identical.
    """
    for seeds in (None, 2):
        changes = {} if seeds is None else {"num_seeds": seeds}
        workflow = small("sac", PENDULUM, num_envs=4, replay_capacity=40, learning_starts=1e6, **changes)
        _, state = iterate(workflow, workflow.init(3), 13)
        replay = jax.tree.map(np.array, state.replay_state)
        path = tmp_path / f"of_{seeds}"
        facts = save_recorded_steps(workflow, state, path)
        assert facts["num_steps"] == 40 * (seeds or 1)
        assert facts["env"] == TITLE
        columns = read_columns(path.with_suffix(".npz"), read_replay_facts(path.with_suffix(".npz")))
        rewards = replay.data.rewards.reshape(seeds or 1, 10, 4)
        expected = np.concatenate([np.roll(of_seed, -3, axis=0).T.ravel() for of_seed in rewards])
        np.testing.assert_array_equal(columns["rewards"], expected)  # 13 = 10 + 3: the oldest row is the fourth
        assert columns["truncation"].reshape(-1, 10)[:, -1].all()  # the recording of each environment ends there
    again = small("sac", PENDULUM, num_envs=4, replay_capacity=80, replay={"load": str(path)})
    facts = save_recorded_steps(again, again.init(0), tmp_path / "again")
    assert facts["num_steps"] == 80
    assert (tmp_path / "again.npz").read_bytes() == path.with_suffix(".npz").read_bytes()


def test_episodes_of_slots_are_saved_and_loaded(tmp_path: Path) -> None:
    """Episodes are saved slot after slot and restored; a file with more episodes than slots is rejected."""
    replay, size = {"overwrite": "random"}, {"num_envs": 4, "replay_capacity": 120}
    workflow = small("sac", PENDULUM, learning_starts=1e6, replay=replay, **size)
    _, state = iterate(workflow, workflow.init(3), 47)
    stored = jax.tree.map(np.array, state.replay_state.data)
    sizes = np.asarray(state.replay_state.size)[0]
    facts = save_recorded_steps(workflow, state, tmp_path / "slots")
    assert facts["num_steps"] == sizes.sum() == 4 * 27
    columns = read_columns(tmp_path / "slots.npz", read_replay_facts(tmp_path / "slots.npz"))
    expected = np.concatenate([stored.rewards[:steps, i] for i, steps in enumerate(sizes)])
    np.testing.assert_array_equal(columns["rewards"], expected)
    np.testing.assert_array_equal(np.flatnonzero(columns["truncation"]) + 1, np.cumsum(sizes))
    loading = {**replay, "load": str(tmp_path / "slots")}
    again = small("sac", PENDULUM, **size, replay=loading).init(0).replay_state
    np.testing.assert_array_equal(again.size[0], sizes)
    for i, steps in enumerate(sizes):
        np.testing.assert_array_equal(again.data.obs[:steps, i], stored.obs[:steps, i])
    few = small("sac", PENDULUM, num_envs=4, replay_capacity=110, replay=loading)
    with raises_naming(ReplayFileError, "3 slots of 10 steps", "has only 2", "replay_capacity=120"):
        few.init(0)


def test_goals_are_saved_and_relabeled(tmp_path: Path) -> None:
    goals = {"name": "goal/bit_flip", "num_bits": 4}
    workflow = small("dqn", goals, num_envs=4, replay_capacity=80, learning_starts=1e6)
    _, state = iterate(workflow, workflow.init(0), 12)
    save_recorded_steps(workflow, state, tmp_path / "bits")
    facts = read_replay_facts(tmp_path / "bits.npz")
    assert {name for name in facts["columns"] if name.startswith("obs")} == {
        "obs.observation",
        "obs.achieved_goal",
        "obs.desired_goal",
    }
    learner = small(
        "dqn",
        goals,
        num_envs=2,
        replay_capacity=facts["num_steps"],
        offline=True,
        replay={"load": str(tmp_path / "bits"), "hindsight": "future"},
    )
    metrics, _ = iterate(learner, learner.init(0), 3)
    assert "episodes" not in metrics
    assert np.isfinite(np.asarray(metrics.td_loss[:3])).all()


def test_an_empty_buffer_is_not_saved(tmp_path: Path) -> None:
    workflow = small("sac", PENDULUM)
    with raises_naming(ReplayFileError, "replay buffer", "empty"):
        save_recorded_steps(workflow, workflow.init(0), tmp_path / "empty")


def test_arrays_that_would_share_a_column_are_not_saved(tmp_path: Path) -> None:
    workflow = small("sac", PENDULUM)
    _, state = iterate(workflow, workflow.init(0), 1)
    obs = state.replay_state.data.obs
    data = state.replay_state.data.replace(obs=PyTreeDict({"eye.left": obs, "eye": {"left": obs + 1}}))
    state = state.replace(replay_state=state.replay_state.replace(data=data))
    with raises_naming(ReplayFileError, "2 arrays", "column 'obs.eye.left'", "rename"):
        save_recorded_steps(workflow, state, tmp_path / "shared")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("Pendulum-v1", {"replay_capacity": 200}, ("256 transitions", "replay_capacity=200", "replay_capacity=256")),
        ("Pendulum-v1", {"num_envs": 300}, ("256 transitions", "at least 300")),
        (
            "MountainCarContinuous-v0",
            {},
            ("gymnax/Pendulum-v1", "gymnax/Mountain", "replay.other_env=true"),
        ),
        (
            "MountainCarContinuous-v0",
            {"replay": {"other_env": True}},
            ("obs in", "float32[3] per step", "float32[2]"),
        ),
        ("CartPole-v1", {"replay": {"other_env": True}}, ("obs in", "float32[3] per step", "float32[4]")),
    ],
)
def test_what_does_not_fit_is_refused_in_words(env: str, changes: dict[str, Any], message: tuple[str, ...]) -> None:
    replay = {"load": recorded_pendulum(), **changes.pop("replay", {})}
    workflow = small("sac", env, **{"replay_capacity": 300, **changes, "replay": replay})
    with raises_naming(ReplayFileError, *message):
        check_recorded_steps(workflow)


@pytest.mark.parametrize("name", ["reward_scale", "reward_clip", "reward_transform", "sparse_reward_interval"])
def test_rewards_with_other_options_are_refused(name: str, tmp_path: Path) -> None:
    env = PENDULUM | {name: "tanh" if name == "reward_transform" else 2}
    workflow = small("sac", env, num_envs=4, replay_capacity=40)
    _, state = iterate(workflow, workflow.init(0), 2)
    save_recorded_steps(workflow, state, tmp_path / "replay")
    check_recorded_steps(_loading(str(tmp_path / "replay"), env=env))
    check_recorded_steps(_loading(str(tmp_path / "replay"), replay={"other_env": True}))
    with raises_naming(ReplayFileError, name, "{}"):
        check_recorded_steps(_loading(str(tmp_path / "replay")))


@pytest.mark.parametrize(
    ("algorithm", "env", "changes"),
    [
        ("r2d2", "CartPole-v1", {"offline": True, "updates_per_iteration": 1}),
        ("recurrent_sac", "Pendulum-v1", {"replay": {"mixed": True}}),
    ],
    ids=["offline", "mixed"],
)
def test_a_recording_without_a_sequence_is_refused_unless_more_is_added(
    algorithm: str, env: str, changes: dict[str, Any]
) -> None:
    replay = {"load": recorded_pendulum(), "other_env": True, **changes.pop("replay", {})}
    length = small(algorithm, env).replay_buffer.length
    num_envs = NUM_STEPS // length + 1
    size = {"num_envs": num_envs, "replay_capacity": 100 * num_envs}
    workflow = small(algorithm, env, **size, **changes, replay=replay)
    with raises_naming(ReplayFileError, "256 transitions", f"{length} consecutive", f"at least {length * num_envs}"):
        check_recorded_steps(workflow)
    more = small(algorithm, env, **size, replay={**replay, "mixed": False})
    with raises_naming(ReplayFileError, "obs in" if env == "CartPole-v1" else "column 'recurrent_state"):
        check_recorded_steps(more)  # large enough: the next check rejects it


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    columns = pendulum_columns()
    del columns["next_obs"]
    write_replay_file(tmp_path / "half", columns, TITLE)
    with raises_naming(ReplayFileError, "column 'next_obs'"):
        check_recorded_steps(_loading(str(tmp_path / "half")))


def test_actions_beyond_the_bounds_of_agents_are_refused(tmp_path: Path) -> None:
    """Torques of Pendulum in [-2, 2] are rejected; rounding errors are not, nor actions without bounds."""
    columns = pendulum_columns()
    columns["actions"][7] = 1 + 1e-6
    write_replay_file(tmp_path / "rounded", columns, TITLE)
    _loading(str(tmp_path / "rounded")).init(0)
    columns["actions"][9] = -1.5
    write_replay_file(tmp_path / "torques", columns, TITLE)
    with raises_naming(ReplayFileError, "row 9", "torques", "is -1.5", "Box(low=-1.0, high=1.0", "scale the actions"):
        _loading(str(tmp_path / "torques")).init(0)
    half = Box([-1.0, -np.inf], [1.0, np.inf])
    _check_choices(half, np.array([[1.0, 50.0], [-1.0, -50.0]]), "half")
    with raises_naming(ReplayFileError, "row 1", "is 2.0"):
        _check_choices(half, np.array([[1.0, 50.0], [2.0, 0.0]]), "half")


@hypothesis.given(st.sampled_from(["uint8", "int32", "bool", "float32", "float16", "bfloat16"]), st.data())
def test_numbers_out_of_range_are_refused(dtype: str, data: st.DataObject) -> None:
    """A recording may be wider than the buffer; its numbers either keep their value or are an error, never others."""
    stored, recorded = jnp.dtype(dtype), np.dtype(np.float64 if "float" in dtype else np.int64)
    largest = 70_000 if dtype == "float16" else 1e39
    number = st.floats(-largest, largest) if recorded.kind == "f" else st.integers(-(2**62), 2**62)
    column = np.array(data.draw(st.lists(number | st.sampled_from([0, 1, 255]), min_size=1, max_size=4)), recorded)
    spec = SampleBatch(obs=jax.ShapeDtypeStruct((), stored))
    limits = jnp.finfo(stored) if recorded.kind == "f" else jnp.iinfo(stored) if dtype != "bool" else None
    low, high = (0, 1) if limits is None else (float(limits.min), float(limits.max))
    beyond = (column < low) | (column > high)
    try:
        converted = _converted(spec, {"obs": column}, "wide").obs
    except ReplayFileError as error:
        assert_names(str(error), f"obs in row {np.argmax(beyond)} of wide", column[np.argmax(beyond)], dtype)
        assert beyond.any()
    else:
        assert converted.dtype == stored
        tolerance = {"rtol": 0 if recorded.kind == "i" else 1e-2, "atol": 1e-6}
        np.testing.assert_allclose(converted.astype(recorded), column, **tolerance)


def test_rewards_beyond_the_buffer_are_refused(tmp_path: Path) -> None:
    columns = pendulum_columns()
    columns["rewards"] = columns["rewards"].astype(np.float64)
    columns["rewards"][7] = 1e39
    write_replay_file(tmp_path / "large", columns, TITLE)
    with raises_naming(ReplayFileError, "rewards in row 7", "1e+39", "float32"):
        _loading(str(tmp_path / "large")).init(0)


@pytest.mark.parametrize("choice", [-1, 3])
def test_choices_that_an_environment_lacks_are_refused(choice: int, tmp_path: Path) -> None:
    columns = pendulum_columns()
    columns |= {"obs": columns["obs"][:, :2], "next_obs": columns["next_obs"][:, :2]}
    columns["actions"] = np.arange(NUM_STEPS, dtype=np.int32) % 3
    write_replay_file(tmp_path / "valid", columns, None)
    _loading(str(tmp_path / "valid"), algorithm="dqn", env="MountainCar-v0").init(0)
    columns["actions"][9] = choice
    write_replay_file(tmp_path / "other", columns, None)
    with raises_naming(ReplayFileError, "row 9", f"is {choice}", "Discrete(3)", "recorded in this environment."):
        _loading(str(tmp_path / "other"), algorithm="dqn", env="MountainCar-v0").init(0)


def test_rewards_that_contain_bonuses_are_not_saved(tmp_path: Path) -> None:
    workflow = small("sac", PENDULUM, intrinsic="rnd")
    with raises_naming(ReplayFileError, "bonuses", "intrinsic=null"):
        save_recorded_steps(workflow, State(), tmp_path / "bonuses")
    assert not list(tmp_path.iterdir())


def test_recorded_observations_pass_through_the_wrappers() -> None:
    env = create_env({"factory": CHOICES, "max_episode_steps": 5, "flatten_obs": True, "history": 2})
    rng = np.random.default_rng(0)
    kinds = rng.integers(1, 4, 5)
    columns: dict[str, Any] = {
        "obs.kind": kinds[:4],
        "next_obs.kind": kinds[1:],
        "actions": np.zeros(4, np.int32),
        "rewards": np.zeros(4, np.float32),
        "termination": np.array([False, True, False, False]),
        "truncation": np.array([False, False, False, True]),
    }
    for name, shape in (("grid", (2, 2)), ("eye", (2, 2))):
        columns |= {f"{which}.{name}": np.zeros((4, *shape), np.int32) for which in ("obs", "next_obs")}
    seen = _wrap_steps(env, columns, "minari:test")
    width = env.obs_space.shape[0] // 2
    of_kind = slice(width - 3, width)  # last part of a frame: eye, grid, kind
    first, second = (seen["obs"][:, start : start + width][:, of_kind] for start in (0, width))
    np.testing.assert_array_equal(second.argmax(axis=1) + 1, kinds[:4])
    # An episode starts with two copies of its first observation: at steps 0 and 2.
    np.testing.assert_array_equal(first.argmax(axis=1) + 1, kinds[[0, 0, 2, 2]])
    newest = seen["next_obs"][:, width:][:, of_kind]
    np.testing.assert_array_equal(newest.argmax(axis=1) + 1, kinds[1:])
    assert seen["actions"] is columns["actions"]


def test_recorded_rewards_pass_through_the_wrappers() -> None:
    columns: dict[str, Any] = {"rewards": np.array([-8.0, 0.5, 0.1], np.float32)}
    env = create_env("gymnax/Pendulum-v1", reward_clip=0.4, reward_scale=0.1)
    seen = _wrap_steps(env, columns, "minari:test")["rewards"]
    one = jax.vmap(lambda reward: jnp.clip(reward, -0.4, 0.4) * 0.1)(columns["rewards"])
    np.testing.assert_allclose(seen, one)
    for option in ({"action_repeat": 2}, {"sparse_reward_interval": 3}):
        with raises_naming(ReplayFileError, "minari:test", f"env.{next(iter(option))}", "single steps"):
            _wrap_steps(create_env("gymnax/Pendulum-v1", **option), columns, "minari:test")


@pytest.mark.parametrize("option", [{"action_repeat": 2}, {"sparse_reward_interval": 3}])
def test_summed_rewards_are_refused_before_the_run(monkeypatch: pytest.MonkeyPatch, option: dict[str, int]) -> None:
    dataset = SimpleNamespace(env_spec=None, total_steps=NUM_STEPS, action_space=gymnasium.spaces.Box(-2.0, 2.0, (1,)))
    monkeypatch.setattr("evorl.execution.recorded_steps.open_minari_dataset", lambda name: dataset)
    with raises_naming(ReplayFileError, "minari:test", f"env.{next(iter(option))}", "single steps"):
        check_recorded_steps(_loading("minari:test", env={**PENDULUM, **option}))
