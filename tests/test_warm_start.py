"""Runs initialized with the parameters of another run: loaded parts, fresh parts, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.structure import CheckpointError
from evorl.types import State
from evorl.warm_start import warm_start
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import inner_config, small

ENV = "Pendulum-v1"


def stored(folder: Path, workflow: Workflow, seed: int = 3, score: float | None = None) -> State:
    """Save a state of the workflow as the only checkpoint; return its agent state."""
    state = workflow.init(seed)
    about = {"iterations": 0, "timesteps": 640}
    RunCheckpointer(folder / "checkpoints").save(state, about, score)
    return jax.device_get(state.agent_state)


@pytest.fixture(scope="module")
def ppo() -> Workflow:
    return small("ppo", ENV, agent={"network": {"torso": [8]}, "normalize_obs": True})


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory: pytest.TempPathFactory, ppo: Workflow) -> tuple[Path, Any]:
    """Create a run of PPO with normalized observations; return its folder and agent."""
    folder = tmp_path_factory.mktemp("ppo")
    return folder, stored(folder, ppo)


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("sac")
    return folder, stored(folder, small("sac", ENV))


def equal(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(jax.device_get(a)), jax.tree.leaves(jax.device_get(b)), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_the_agent_is_taken_and_all_else_is_fresh(ppo: Workflow, ppo_run: tuple[Path, Any]) -> None:
    folder, agent = ppo_run
    begin = warm_start(ppo.replace(discount=0.5), folder)
    state, fresh = begin.first_state(5), ppo.init(5)
    assert equal(state.agent_state, agent)
    assert not equal(fresh.agent_state.params.policy, agent.params.policy)
    others = [name for name in fresh if name not in ("agent_state", "key", "eval_key")]
    assert {"opt_state", "env_state", "iterations"} <= set(others)
    assert all(equal(_no_keys(state[name]), _no_keys(fresh[name])) for name in others)
    assert state.key == fresh.key
    sizes = {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in agent.params.items()}
    taken = ", ".join(f"{name} ({size:,} numbers)" for name, size in sizes.items())
    assert begin.messages == (
        f"Starts from {folder}, checkpoint of 640 steps: {taken}, observation statistics.",
        "Newly initialized: optimizers, environments, counters, and the replay buffer if there is one.",
    )


def _no_keys(tree: Any) -> Any:
    def words(x: jax.Array) -> jax.Array:
        return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(words, tree)


def test_a_part_alone(ppo: Workflow, ppo_run: tuple[Path, Any]) -> None:
    folder, agent = ppo_run
    begin = warm_start(ppo, folder, ["policy"])
    state = begin.first_state(5)
    assert equal(state.agent_state.params.policy, agent.params.policy)
    assert equal(state.agent_state.params.value, ppo.init(5).agent_state.params.value)
    assert begin.messages[-1].startswith("Newly initialized: value, optimizers")
    assert begin.messages[-1].endswith("Not loaded: value.")


def test_an_update_learns_on_from_it(ppo: Workflow, ppo_run: tuple[Path, Any]) -> None:
    folder, agent = ppo_run
    _, state = ppo.step(warm_start(ppo, folder).first_state(5))
    distances = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), jax.device_get(state.agent_state.params), agent.params
    )
    assert 0 < max(jax.tree.leaves(distances)) < 0.1  # some steps of 1e-3


def test_one_seed_serves_several_and_not_the_other_way_round(ppo_run: tuple[Path, Any], tmp_path: Path) -> None:
    folder, agent = ppo_run
    several = small("ppo", ENV, agent={"network": {"torso": [8]}, "normalize_obs": True}, num_seeds=2)
    state = warm_start(several, folder).first_state(5)
    for seed in range(2):
        assert equal(jax.tree.map(lambda x, seed=seed: x[seed], state.agent_state), agent)
    two = stored(tmp_path, several)
    assert equal(warm_start(several, tmp_path).first_state(5).agent_state, two)
    with raises_naming(ValueError, "2 seeds", "has 1", "num_seeds=2"):
        warm_start(several.replace(execution=small("ppo", ENV).execution), tmp_path)


def test_target_networks_come_with_what_they_follow(sac_run: tuple[Path, Any], ppo_run: tuple[Path, Any]) -> None:
    sac = small("sac", ENV)
    folder, agent = sac_run
    state = warm_start(sac, folder, ["critic"]).first_state(5)
    assert equal(state.agent_state.params.critic, agent.params.critic)
    assert equal(state.agent_state.params.target_critic, agent.params.target_critic)
    assert not equal(state.agent_state.params.policy, agent.params.policy)
    with raises_naming(ValueError, "normalized observations", "agent.normalize_obs=true"):
        warm_start(sac, ppo_run[0], ["policy"])
    normalizing = small("sac", ENV, agent={"network": {"torso": [8]}, "normalize_obs": True})
    assert "normalize observations" in warm_start(normalizing, folder).messages[-1]


def test_batch_normalization_keeps_its_statistics(tmp_path: Path) -> None:
    network = {"torso": ["batch_norm", {"dense": {"size": 8, "batch_norm": True}}]}
    crossq = small("crossq", ENV, agent={"network": network, "critic_network": network})
    state = crossq.init(3)
    statistics = jax.tree.map(lambda x: x + 0.3, state.agent_state.extra_state)  # as after a training
    agent_state = state.agent_state.replace(extra_state=statistics)
    about = {"iterations": 0, "timesteps": 640}
    RunCheckpointer(tmp_path / "checkpoints").save(state.replace(agent_state=agent_state), about)
    whole = warm_start(crossq, tmp_path).first_state(5).agent_state
    assert equal((whole.params, whole.extra_state), (agent_state.params, statistics))
    partly = warm_start(crossq, tmp_path, ["policy"]).first_state(5).agent_state
    assert equal(partly.extra_state.policy, statistics.policy)
    assert not equal(partly.extra_state.critic, statistics.critic)


def test_of_one_network(tmp_path: Path) -> None:
    dqn = small("dqn")
    agent = stored(tmp_path, dqn)
    state = warm_start(dqn, tmp_path, ["online"]).first_state(5)
    assert equal(state.agent_state.params, agent.params)
    pointers = {id(x) for x in jax.tree.leaves(state.agent_state.params)}
    assert len(pointers) == len(jax.tree.leaves(state.agent_state.params))


def test_evolution_searches_around_the_policy_of_a_gradient_learner(ppo_run: tuple[Path, Any]) -> None:
    folder, agent = ppo_run
    optimizer = {"name": "openes", "pop_size": 4}
    evolution: Any = small(
        "neuroevolution", ENV, optimizer=optimizer, agent={"network": {"torso": [8]}, "normalize_obs": True}
    )
    state = warm_start(evolution, folder).first_state(5)
    solution = evolution.optimizer.solution(state.ec_state)
    for policy in (solution, state.agent_state.params.policy, state.best.policy):
        policy = policy["params"]
        assert equal(policy, {name: agent.params.policy[name] for name in policy})  # all except action spread
    assert not equal(evolution.init(5).agent_state.params.policy, agent.params.policy)


def test_what_does_not_fit_is_told_with_both_shapes(
    ppo: Workflow, ppo_run: tuple[Path, Any], sac_run: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = ppo_run
    wide = small("ppo", ENV, agent={"network": {"torso": [16]}, "normalize_obs": True})
    with raises_naming(ValueError, "policy/", "float32[8, 1]", "float32[16, 1]", "init_from.parts="):
        warm_start(wide, folder)
    with raises_naming(ValueError, "here", "environment", "same spaces"):
        warm_start(wide, folder, ["policy"])
    with raises_naming(ValueError, "observation statistics/mean", "float32[3]", "float32[4]"):
        warm_start(small("ppo", "CartPole-v1", agent={"network": {"torso": [8]}, "normalize_obs": True}), folder)
    with raises_naming(ValueError, "init_from.parts", "'polcy'", "'policy'"):
        warm_start(ppo, folder, ["polcy"])
    with raises_naming(ValueError, "parts is empty", "policy, value"):
        warm_start(ppo, folder, [])
    with raises_naming(ValueError, "common part", "agents"):
        warm_start(small("dqn"), folder)
    with raises_naming(CheckpointError, "complete checkpoint"):
        warm_start(ppo, tmp_path)
    with raises_naming(CheckpointError, "init_from.which=7", "latest, best", "one of 0"):
        warm_start(ppo, folder, which=7)


def test_populations_are_refused(ppo_run: tuple[Path, Any], ppo: Workflow, tmp_path: Path) -> None:
    population = small(
        "pbt", ENV, inner=inner_config("ppo"), pop_size=2, search_space={"discount": {"low": 0.9, "high": 0.99}}
    )
    with raises_naming(ValueError, "init_from", "one agent", "PBT", "population"):
        warm_start(population, ppo_run[0])
    RunCheckpointer(tmp_path / "checkpoints").save(
        {"members": np.zeros(2), "scores": np.zeros(2)}, {"iterations": 1, "timesteps": 10}
    )
    with raises_naming(ValueError, "single agent", "members, scores"):
        warm_start(ppo, tmp_path)
