"""Batchers in this process: whole episodes and slices, recurrent states, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.interop import Batcher
from tests.support.errors import raises_naming

AGENT, ENV = "tests.support.interop_parts:Numbered", "tests.support.interop_parts:Rows"


def make(num_envs: int = 4, kind: str = "inline", **settings: Any) -> Batcher:
    return Batcher(AGENT, ENV, num_envs=num_envs, kind=kind, **settings)


def test_whole_episodes_are_padded_to_the_longest() -> None:
    with make() as batcher:
        batcher.execute()
        batch = batcher.get()
    assert batch is not None
    assert batch.lengths.tolist() == [2, 3, 3, 5]
    assert batch.mask.sum() == 13
    ends = np.eye(5, dtype=bool)[batch.lengths - 1]
    np.testing.assert_array_equal(batch.data.dones, ends)
    np.testing.assert_array_equal(batch.data.calls, np.arange(5) * batch.mask)
    np.testing.assert_array_equal(batch.data.next_obs[..., 0], np.arange(1, 6) * batch.mask)
    assert batch.data.obs.shape == (4, 5, 3)
    assert batch.info.agent_state["calls"].tolist() == [0, 0, 0, 0]


def test_slices_go_on_where_the_last_one_ended_and_leave_out_what_has_ended() -> None:
    with make(num_steps=1) as batcher:
        batcher.reset({"agent_id": np.arange(4)}, {"env_id": np.arange(4)})
        running, rows = [], []
        while batcher.num_running:
            running.append(batcher.num_running)
            batcher.execute()
            batch = batcher.get()
            assert batch is not None
            assert set(batch.lengths) == {1}
            assert (batch.data.calls == len(rows)).all()
            np.testing.assert_array_equal(batch.data.agent_id[:, 0], batch.info.row)
            np.testing.assert_array_equal(batch.data.obs[:, 0, 1], batch.info.row)
            rows.append(batch.info.row.tolist())
        assert [*running, batcher.num_running] == [4, 4, 3, 1, 1, 0]
        assert rows == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [3], [3]]
        batcher.execute()
        assert batcher.get() is None


@pytest.mark.parametrize("num_workers", [1, 2])
def test_slices_make_up_whole_episodes(num_workers: int) -> None:
    with make(num_workers=num_workers) as whole, make(num_workers=num_workers, num_steps=2) as slices:
        whole.execute()
        expected = whole.get()
        assert expected is not None
        parts: list[list[np.ndarray]] = [[] for _ in range(4)]
        slices.execute()
        while (batch := slices.get()) is not None:
            assert batch.lengths.min() > 0
            assert batch.lengths.max() <= 2
            for row, part in zip(batch.info.row, batch.episodes(), strict=True):
                parts[row].append(part.obs)
            slices.execute()
        for row, part in zip(parts, expected.episodes(), strict=True):
            np.testing.assert_array_equal(np.concatenate(row), part.obs)


def test_an_agent_for_one_slice_stands_in_the_place_of_the_resets() -> None:
    with make(num_steps=1) as batcher:
        seen = []
        batcher.reset({"agent_id": np.arange(4)})
        for info in (None, {"agent_id": np.arange(4) + 10}, None):
            batcher.execute(info)
            batch = batcher.get()
            assert batch is not None
            np.testing.assert_array_equal(batch.info.agent_info["agent_id"], batch.data.agent_id[:, 0])
            seen.append(batch.data.agent_id[:, 0].tolist())
        assert seen == [[0, 1, 2, 3], [10, 11, 12, 13], [1, 2, 3]]


def test_arrays_of_the_caller_may_change_after_a_request() -> None:
    ids, action = np.arange(4), np.array(1)
    with make() as batcher:
        batcher.update({"action": action})
        batcher.execute({"agent_id": ids}, {"env_id": ids})
        for _ in range(2):
            ids += 100
            batch = batcher.get()
            assert batch is not None
            for values in (batch.info.agent_info["agent_id"], batch.data.agent_id[:, 0], batch.data.obs[:, 0, 1]):
                assert values.tolist() == [0, 1, 2, 3]
            batcher.reexecute()
    with make(num_steps=1) as slices:
        ids = np.arange(4)
        slices.reset({"agent_id": ids})
        ids += 100
        slices.execute()
        batch = slices.get()
        assert batch is not None
        assert batch.data.agent_id[:, 0].tolist() == [0, 1, 2, 3]


def test_a_reset_drops_what_was_going_on() -> None:
    with make(num_steps=3) as batcher:
        batcher.execute()
        batcher.reset()
        batcher.execute()
        first = batcher.get()
        assert first is not None
        assert first.data.obs[:, 0, 0].tolist() == [0, 0, 0, 0]
        batcher.reset()
        assert batcher.num_running == 4
        batcher.execute()
        second = batcher.get()
        assert second is not None
        assert second.lengths.tolist() == [2, 3, 3, 3]
        assert (second.data.obs[:, 0, 2] != first.data.obs[:, 0, 2]).any()


def test_histories_are_of_the_acquisition() -> None:
    with make(num_steps=2, agent_args={"wants_history": True}) as batcher:
        for _ in range(2):
            batcher.execute()
            batch = batcher.get()
            assert batch is not None
            np.testing.assert_array_equal(batch.data.num_before, np.arange(2) * batch.mask)


def test_seeds_make_the_episodes() -> None:
    def starts(**settings: Any) -> list[float]:
        with make(num_workers=2, **settings) as batcher:
            batcher.execute()
            batch = batcher.get()
            assert batch is not None
            return batch.data.obs[:, 0, 2].tolist()

    assert starts(seeds=[3, 4]) == starts(seeds=[3, 4])
    assert starts(seeds=[3, 4])[2:] != starts(seeds=[3, 5])[2:]
    assert starts(seeds=[3, 4])[:2] == starts(seeds=[3, 5])[:2]
    one = starts(seeds=1)
    assert one[:2] != one[2:]
    assert one != starts(seeds=2)
    assert one == starts(seeds=np.int64(1)) == starts(seeds=np.array(1)) != starts(seeds=2**100 + 1)
    assert starts(seeds=[3, 4]) == starts(seeds=np.array([3, 4])) == starts(seeds=(np.uint32(3), 4))


def test_episodes_that_are_too_long_are_cut() -> None:
    with make(max_episode_steps=3) as batcher:
        batcher.execute()
        batch = batcher.get()
    assert batch is not None
    assert batch.lengths.tolist() == [2, 3, 3, 3]
    assert batch.data.truncation[:, 2].tolist() == [False, False, False, True]


def test_gymnasium_gets_its_arguments_as_options() -> None:
    env_args = {"name": "CartPole-v1", "max_episode_steps": 5}
    env = "evorl.envs.gymnasium:make_gymnasium_simulators"
    settings = {"num_envs": 2, "num_workers": 2, "kind": "inline", "env_args": env_args}
    agent = "tests.support.interop_parts:Numbered"
    with Batcher(agent, env, **settings) as batcher:
        low = np.array([0.5, 0.0])
        batcher.execute(env_info={"low": low, "high": low + 0.01})
        batch = batcher.get()
        assert batch is not None
        assert (batch.data.obs[0, 0] >= 0.5).all()
        assert (batch.data.obs[1, 0] < 0.02).all()
        batcher.execute()
        batch = batcher.get()
        assert batch is not None
        assert batch.data.obs[0, 0].max() < 0.06


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"num_envs": 2, "num_workers": 4}, ("num_envs=2", "num_workers=4")),
        ({"num_workers": 2, "seeds": [1, 2, 3]}, ("seeds", "2 workers")),
        ({"kind": "proces"}, ("'proces'", "'process'")),
        ({"num_steps": 0}, ("num_steps", "positive")),
        ({"max_episode_steps": 0}, ("max_episode_steps", "got 0")),
        ({"max_episode_steps": -5}, ("max_episode_steps", "got -5")),
        ({"max_episode_steps": 2.5}, ("max_episode_steps", "got 2.5")),
        ({"num_workers": 2, "seeds": [0.5, 1.5]}, ("seeds", "got 0.5")),
        ({"num_workers": 2, "seeds": [1, -1]}, ("seeds", "got -1")),
        ({"seeds": [-1]}, ("seeds", "got -1")),
        ({"seeds": -1}, ("seeds", "got -1")),
        ({"seeds": 0.5}, ("seeds", "got 0.5")),
        ({"seeds": None}, ("seeds", "got null")),
        ({"seeds": "12"}, ("seeds", "got '12'")),
        ({"agent_args": {"begin": 2}}, ("argument 'begin'",)),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    agent = "tests.support.interop_parts:Numbered"
    with raises_naming(ValueError, *parts):
        Batcher(agent, ENV, **{"num_envs": 4, "kind": "inline", **settings})


@pytest.mark.parametrize(
    ("agent", "env", "parts"),
    [
        (lambda: None, ENV, ("agent", "workers", "got <function")),
        (AGENT, lambda num_envs: None, ("env", "top level of a module")),
        ("tests.support.interop_parts:Numberd", ENV, ("'Numberd'", "'Numbered'")),
        (AGENT, "tests.support.interop_parts", ("env", "package.module:function")),
        (ENV, ENV, ("__call__, initial_state, update", "evorl.interop.BatchAgent")),
        (AGENT, AGENT, ("env=tests.support.interop_parts:Numbered", "argument 'num_envs'")),
        (AGENT, "tests.support.interop_parts:dict", ("tests.support.interop_parts", "'dict'")),
    ],
)
def test_what_is_no_name_of_a_function_is_refused(agent: Any, env: Any, parts: tuple[str, ...]) -> None:
    agent_args = {"num_envs": 1} if agent == ENV else {}
    with raises_naming(ValueError, *parts):
        Batcher(agent, env, num_envs=4, kind="inline", agent_args=agent_args)


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    with make(8, num_workers=2) as batcher, make(num_steps=2) as slices:
        with raises_naming(ValueError, "num_episodes=17", "num_envs=8", "16 or 24"):
            batcher.execute(num_episodes=17)
        with raises_naming(ValueError, "agent_info", "16 episodes", "(8,)"):
            batcher.execute({"agent_id": np.arange(8)}, num_episodes=16)
        with raises_naming(ValueError, "agent_info", "env_info"):
            batcher.reset()
        with raises_naming(ValueError, "call execute"):
            batcher.get()
        with raises_naming(ValueError, "repeat"):
            batcher.reexecute()
        with raises_naming(ValueError, "env_info", "reset"):
            slices.execute(env_info={"env_id": np.arange(4)})
        batcher.execute()
        with raises_naming(ValueError, "call get"):
            batcher.execute()
        batch = batcher.get()
        assert batch is not None
        assert batch.num_rows == 8
    with raises_naming(ValueError, "closed"):
        batcher.execute()


def test_simulators_without_arguments_say_so() -> None:
    with Batcher(AGENT, "tests.support.interop_parts:make_counting", num_envs=2, kind="inline") as batcher:
        batcher.execute()
        batch = batcher.get()
        assert batch is not None
        np.testing.assert_array_equal(batch.data.row, [[0, 0], [1, 1]])
        batcher.execute(env_info={"env_id": np.arange(2)})
        with raises_naming(ValueError, "CountingRows", "env_id"):
            batcher.get()


def test_a_failure_ends_the_batcher() -> None:
    batcher = make(env_args={"fails_at": 2})
    batcher.execute()
    with raises_naming(HostEnvError, "the motor is burnt"):
        batcher.get()
    with raises_naming(ValueError, "worker failed"):
        batcher.get()
