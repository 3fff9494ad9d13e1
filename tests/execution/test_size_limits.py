"""Sizes that are rejected before environments are created."""

from __future__ import annotations

import pytest

from evorl.execution import size_limits
from evorl.execution.size_limits import refuse_hopeless_sizes
from tests.support.errors import raises_naming


@pytest.mark.parametrize("above", ["", "inner.", "learner."])
def test_a_hopeless_replay_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, above: str) -> None:
    monkeypatch.setattr(size_limits, "available_bytes", lambda: 16 * 10**9)
    node = {"replay_capacity": 1e12}
    config = {above.rstrip("."): node} if above else node
    fits = "fit is 800,000,000, at the minimum of 16 bytes for each of the transitions"
    with raises_naming(ValueError, f"{above}replay_capacity=1,000,000,000,000 ", "16 GB of memory", fits):
        refuse_hopeless_sizes(config)
    for capacity in (1e8, 1_000_000, None, "x"):
        refuse_hopeless_sizes({"replay_capacity": capacity})


@pytest.mark.parametrize("above", ["", "inner.", "learner."])
@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"num_envs": 1e6, "rollout_length": 1e5}, ["num_envs=1,000,000", "rollout_length=100,000", "2,147,483,647"]),
        ({"num_envs": 4, "rollout_length": 2e9}, ["rollout_length=2,000,000,000", "2,147,483,647"]),
        ({"num_envs": 1e3, "rollout_length": 1e6}, ["rollout_length=1,000,000 ", "largest that may fit is 800,000"]),
        ({"eval_episodes": 1e12}, ["eval_episodes=1,000,000,000,000 ", "largest that may fit is 800,000,000"]),
        ({"replay_capacity": 1e10}, ["replay_capacity=10,000,000,000 ", "largest that may fit is 800,000,000"]),
    ],
)
def test_hopeless_sizes_are_refused_with_the_number_and_the_limit(
    monkeypatch: pytest.MonkeyPatch, above: str, sizes: dict[str, float], parts: list[str]
) -> None:
    monkeypatch.setattr(size_limits, "available_bytes", lambda: 16 * 10**9)
    with raises_naming(ValueError, f"{above}{parts[0]}") as error:
        refuse_hopeless_sizes({above.rstrip("."): sizes} if above else sizes)
    assert all(part in str(error.value) for part in parts)
    refuse_hopeless_sizes(dict.fromkeys(sizes, 100))
    refuse_hopeless_sizes(dict.fromkeys(sizes, "abc") | {"env": "x"})


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (
            {"num_seeds": 1e9},
            ("num_seeds=1,000,000,000", "fit is 50,000,000,", "of the seeds"),
        ),
        (
            {"pop_size": 1e9},
            ("pop_size=1,000,000,000", "fit is 50,000,000,", "of the members"),
        ),
        (
            {"optimizer": {"pop_size": 1e12}},
            ("optimizer.pop_size=1,000,000,000,000", "fit is 800,000,000,", "individ"),
        ),
    ],
)
def test_hopeless_numbers_of_seeds_and_individuals_are_refused(
    monkeypatch: pytest.MonkeyPatch, config: dict, part: tuple[str, ...]
) -> None:
    monkeypatch.setattr(size_limits, "available_bytes", lambda: 16 * 10**9)
    with raises_naming(ValueError, *part):
        refuse_hopeless_sizes(config)
    refuse_hopeless_sizes({"num_seeds": 100, "pop_size": 100, "optimizer": {"pop_size": 100}})
    refuse_hopeless_sizes({"optimizer": "sgd", "pop_size": None})


@pytest.mark.parametrize("library", ["gymnasium", "envpool", "host", "pettingzoo"])
def test_many_simulators_are_refused_before_the_first_is_started(library: str) -> None:
    with raises_naming(ValueError, "num_envs=1,000,000", f"simulators of {library}", "at most 20,000"):
        refuse_hopeless_sizes({"num_envs": 1e6, "env": {"library": library, "name": "x"}})
    refuse_hopeless_sizes({"num_envs": 1e6, "env": {"library": "brax", "name": "x"}})
