"""A trained policy serves many clients as it serves one, and keeps a state for each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evorl.envs.space import Box
from evorl.export.stored_policy import LoadedPolicy
from evorl.serving.batched_inference import MAX_BATCH, ActionRequest
from evorl.serving.policy_inference import PolicyInference
from tests.support.errors import raises_naming
from tests.support.portable import stored


def question(client: int, step: int, obs: Any, starts: bool = False) -> ActionRequest:
    return ActionRequest(client, client, step, obs, 0.0, starts, False, False, True, None)


def observations(policy: Any, num_steps: int, num_clients: int) -> np.ndarray:
    shape = (num_steps, num_clients, *policy.obs_space.shape)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ["ppo_normalized", "ppo_gru_history", "dqn"])
def test_each_client_is_answered_as_if_it_were_alone(name: str, tmp_path: Path) -> None:
    policy = stored(name, tmp_path).policy
    obs = observations(policy, 4, 3)
    inference = PolicyInference(policy, num_slots=5)
    alone = [LoadedPolicy(policy) for _ in range(3)]
    for step, together in enumerate(([0, 1, 2], [2], [0, 1], [1, 0, 2])):
        starts = [step == 0 or (client == 2 and step == 1) for client in together]
        given = [question(i, step, obs[step, i], start) for i, start in zip(together, starts, strict=True)]
        actions = inference.ask(given).actions
        for row, (client, start) in enumerate(zip(together, starts, strict=True)):
            if start:
                alone[client].reset()
            np.testing.assert_allclose(actions[row], alone[client](obs[step, client]), rtol=1e-5, atol=1e-6)


def test_draws_are_of_a_client_and_its_step(tmp_path: Path) -> None:
    policy = stored("ppo_normalized", tmp_path, sample=True).policy
    (obs,) = observations(policy, 1, 2)
    both = PolicyInference(policy, 4, seed=7).ask([question(i, 3, obs[i], True) for i in range(2)]).actions
    one = PolicyInference(policy, 4, seed=7).ask([question(1, 3, obs[1], True)]).actions
    np.testing.assert_allclose(both[1], one[0], rtol=1e-5)
    others = [
        PolicyInference(policy, 4, seed).ask([question(client, step, obs[1], True)]).actions[0]
        for seed, client, step in ((8, 1, 3), (7, 0, 3), (7, 1, 4))
    ]
    assert all(not np.allclose(other, one[0]) for other in others)


def test_a_newer_policy_takes_over_and_memory_stays(tmp_path: Path) -> None:
    old, other = stored("ppo_gru_history", tmp_path).policy, stored("ppo_normalized", tmp_path).policy
    obs = observations(old, 2, 1)[:, 0]
    inference, expected = PolicyInference(old, 2), LoadedPolicy(old)
    assert inference.ask([question(0, 0, obs[0], True)]).actions[0] == pytest.approx(expected(obs[0]), rel=1e-5)
    inference.swap(old)
    assert inference.ask([question(0, 1, obs[1])]).actions[0] == pytest.approx(expected(obs[1]), rel=1e-5)
    wider = dataclasses.replace(old, action_space=Box(-3, 3, old.action_space.shape))
    for policy, differing in ((other, "inputs, outputs:"), (wider, "action_space:")):
        with raises_naming(ValueError, differing, "restart the server"):
            inference.swap(policy)


@pytest.mark.parametrize("num_slots", [1, 5, MAX_BATCH, MAX_BATCH + 1, 1000])
def test_only_sizes_of_batches_are_compiled(num_slots: int) -> None:
    sizes: list[int] = []
    port = SimpleNamespace(name="obs", shape=(2,), dtype=np.float32)
    policy = SimpleNamespace(
        inputs=(port,),
        outputs=(),
        obs_space=None,
        action_space=None,
        initial_memory=lambda num_rows: {},
        runnable=lambda: lambda inputs: sizes.append(len(inputs["obs"])),
    )
    inference = PolicyInference(policy, num_slots)
    inference.compile_all()
    expected = [size for size in (1, 4, 16, 64) if size < 4 * num_slots]
    assert sizes == expected
    inference.swap(policy)
    assert sizes == 2 * expected
