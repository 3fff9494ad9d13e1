"""Batchers with worker processes: order of rows, updates, non-blocking calls, and workers that die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.interop import Batcher
from evorl.padded_batch import PaddedBatch
from tests.interop.test_batcher import AGENT, ENV
from tests.support.errors import raises_naming

ENV_ARGS = {"seconds": 0.02}
IDS = {"agent_id": np.arange(32)}


def settings(**changes: object) -> dict:
    return {"num_envs": 16, "num_workers": 4, "env_args": ENV_ARGS, "seeds": [5, 6, 7, 8], **changes}


@pytest.fixture(scope="module")
def output() -> list[str]:
    return []


@pytest.fixture(scope="module")
def batcher(output: list[str]) -> Iterator[Batcher]:
    """Create one batcher of four processes for all tests of this file, in their order, because the start
    takes seconds.
    """
    with Batcher(AGENT, ENV, **settings(message=output.append)) as made:
        yield made


def taken(batcher: Batcher) -> PaddedBatch:
    batch = batcher.get()
    assert batch is not None
    return batch


def test_episodes_are_in_the_order_of_their_infos(batcher: Batcher) -> None:
    batcher.execute(IDS, {"env_id": np.arange(32)}, num_episodes=32)
    batch = taken(batcher)
    assert batch.num_rows == 32
    assert batch.lengths.tolist() == [2, 3, 3, 5] * 8
    for column in (batch.data.agent_id, batch.data.obs[..., 1]):
        np.testing.assert_array_equal(column, np.where(batch.mask, np.arange(32)[:, None], 0))
    np.testing.assert_array_equal(batch.info.agent_info["agent_id"], np.arange(32))
    np.testing.assert_array_equal(batch.info.env_info["env_id"], np.arange(32))
    processes = batch.data.process[:, 0].reshape(4, 8)
    assert len(set(processes.ravel())) == 4
    assert (processes == processes[:, :1]).all()
    assert os.getpid() not in processes
    assert len(set(batch.data.obs[:, 0, 2])) > 16  # no two workers or rounds play equal episodes
    with Batcher(AGENT, ENV, **settings(kind="inline")) as inline:
        inline.execute(IDS, {"env_id": np.arange(32)}, num_episodes=32)
        np.testing.assert_array_equal(taken(inline).data.obs, batch.data.obs)
    with raises_naming(ValueError, "num_episodes=33", "num_envs=16", "32 or 48"):
        batcher.execute(num_episodes=33)


def test_the_same_again(batcher: Batcher) -> None:
    batcher.reexecute()
    first = taken(batcher)
    batcher.reexecute()
    second = taken(batcher)
    np.testing.assert_array_equal(first.data.agent_id, second.data.agent_id)
    np.testing.assert_array_equal(first.data.obs[..., 1], second.data.obs[..., 1])
    assert (first.data.obs[:, 0, 2] != second.data.obs[:, 0, 2]).any()


def test_the_caller_goes_on_meanwhile(batcher: Batcher) -> None:
    start = time.monotonic()
    batcher.execute(num_episodes=64)  # 20 steps of 20 ms per worker
    assert batcher.get(blocking=False) is None
    while (batch := batcher.get(blocking=False)) is None:
        time.sleep(0.01)
    assert batch.num_rows == 64
    assert time.monotonic() - start >= 0.4


def test_an_update_reaches_all_agents_after_what_is_under_way(batcher: Batcher) -> None:
    batcher.execute()
    batcher.update({"action": 7})
    before = taken(batcher)
    assert not before.data.actions.any()
    batcher.execute()
    after = taken(batcher)
    np.testing.assert_array_equal(after.data.actions, np.where(after.mask, 7, 0))
    np.testing.assert_array_equal(after.data.rewards, np.where(after.mask, 7.0, 0.0))


def test_a_process_that_is_killed_is_replaced_and_its_episodes_are_the_same(
    batcher: Batcher, output: list[str]
) -> None:
    batcher.execute(IDS, num_episodes=32)
    victim = taken(batcher).data.process[8, 0]
    batcher.reexecute()
    os.kill(victim, signal.SIGKILL)
    batch = taken(batcher)
    assert len(output) == 1
    assert output[0].startswith("Actor 1 ended by SIGKILL: it was replaced")
    assert victim not in batch.data.process
    np.testing.assert_array_equal(batch.data.agent_id, np.where(batch.mask, np.arange(32)[:, None], 0))
    np.testing.assert_array_equal(batch.data.actions, np.where(batch.mask, 7, 0))  # of the previous update
    assert not os.path.exists(f"/proc/{victim}")


def test_close_leaves_no_process(batcher: Batcher) -> None:
    batcher.execute()
    processes = set(taken(batcher).data.process[:, 0])
    batcher.execute(num_episodes=160)
    batcher.close()
    assert len(processes) == 4
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_slices_after_a_process_was_killed_and_one_that_fails() -> None:
    """After a process was killed, only its running rows restart."""
    env_args = {"lengths": [2, 9], "fails_at": 8}
    output: list[str] = []
    changes = {"num_envs": 2, "num_workers": 1, "num_steps": 3, "seeds": 0, "env_args": env_args}
    with Batcher(AGENT, ENV, **settings(message=output.append, **changes)) as batcher:
        batcher.execute()
        first = taken(batcher)
        assert first.lengths.tolist() == [2, 3]
        assert batcher.num_running == 1
        os.kill(first.data.process[0, 0], signal.SIGKILL)
        batcher.execute()
        second = taken(batcher)
        assert second.info.row.tolist() == [1]
        assert second.data.obs[0, :, 0].tolist() == [0, 1, 2]
        assert len(output) == 1
        batcher.update({"action": 1})
        batcher.execute()
        assert taken(batcher).data.obs[0, :, 0].tolist() == [3, 4, 5]
        batcher.execute()
        with raises_naming(HostEnvError, "actor 0", "step", "the motor is burnt"):
            batcher.get()
