"""Nested agents: members and learners match the config files."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.agent import policy_improvers
from evorl.algorithms.pbt import PBTWorkflow
from evorl.assembly import workflow_from_config
from evorl.config.nodes import fields_from_config
from evorl.config.values import plain
from evorl.envs.action_spaces import ActionSpaces
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from tests.support.config_files import CONFIGS, acts_in, composed, leaves_of, said_by
from tests.support.errors import raises_naming

SEARCHED = sorted(
    str(path.relative_to(CONFIGS / "search_space").with_suffix(""))
    for path in (CONFIGS / "search_space").rglob("[!_]*.yaml")
)


@pytest.mark.parametrize("agent", SEARCHED)
def test_a_population_of_any_agent_builds(agent: str) -> None:
    env = "cartpole" if acts_in(agent) is ActionSpaces.DISCRETE else "pendulum"
    config = composed("agent=meta/pbt", f"inner={agent}", f"env={env}")
    workflow = workflow_from_config(config)
    assert isinstance(workflow, PBTWorkflow)
    assert workflow.inner.env.num_envs == OmegaConf.select(config, "inner.num_envs", default=workflow.env.num_envs)
    assert len(workflow.search_space.paths) >= 2
    assert int(config.total_timesteps) >= 20 * workflow.timesteps_per_iteration
    if env == "pendulum":
        tuned = CONFIGS / "experiment" / agent / f"{env}.yaml"
        for key, value in leaves_of(said_by(f"experiment/{agent}/{env}")) if tuned.exists() else ():
            of_the_run = key.partition(".")[0] == "env"
            if not key.startswith(workflow.search_space.paths):
                assert OmegaConf.select(config, key if of_the_run else f"inner.{key}") == value


def test_the_environment_as_it_is_tuned_for_the_members_is_that_of_the_run() -> None:
    population = ("agent=meta/pbt", "inner=ppo", "env=mountain_car_continuous")
    config = composed(*population)
    assert (config.env.action_repeat, config.env.reward_scale) == (8, 0.1)
    assert "env" not in config.inner
    assert workflow_from_config(config).inner.env.num_envs == config.inner.num_envs == 8
    assert composed(*population, "env.action_repeat=2").env.action_repeat == 2
    assert composed("agent=meta/pbt", "inner=ppo").env.action_repeat == 1


def test_a_population_of_an_agent_without_a_search_space() -> None:
    with raises_naming(ValueError, "search_space", "empty"):
        workflow_from_config(composed("agent=meta/pbt", "inner=reinforce"))
    space = "+search_space.discount={low: 0.9, high: 0.99}"
    workflow = workflow_from_config(composed("agent=meta/pbt", "inner=reinforce", space))
    assert workflow.search_space.paths == ("discount",)


@pytest.mark.parametrize("agent", ["erl/erl", "erl/cemrl"])
@pytest.mark.parametrize("evolution", ["ga", "es", "eda"])
@pytest.mark.parametrize("learner", ["td3", "sac", "ddpg"])
def test_any_evolution_guides_any_learner(agent: str, evolution: str, learner: str) -> None:
    config = composed(f"agent={agent}", f"evolution={evolution}", f"learner={learner}", "env=pendulum")
    workflow = workflow_from_config(config)
    assert isinstance(workflow, EvolutionGuidedWorkflow)
    assert workflow.learner.learning_starts == 10_000
    assert workflow.optimizer.pop_size == 10
    expected = {"td3": "TD3Workflow", "sac": "SACWorkflow", "ddpg": "TD3Workflow"}[learner]
    assert type(workflow.learner).__name__ == expected


# Settings in the files of these learners that apply only to separate training.
AS_A_LEARNER = {
    "crossq": ["learner.agent.network.torso=[32]"],
    "fast_td3": ["learner.num_envs=1", "learner.agent.normalize_obs=false"],
    "iql": ["learner.offline=false", "learner.agent.normalize_obs=false"],
    "td3_bc": ["learner.offline=false", "learner.agent.normalize_obs=false"],
}
WITH_A_LEARNER = ("qd/pga_me", "erl/erl", "erl/cemrl")


@pytest.mark.parametrize("agent", WITH_A_LEARNER)
@pytest.mark.parametrize("learner", [*policy_improvers(), "ddpg", "fast_td3"])
def test_every_learner_that_improves_policies_is_taken(agent: str, learner: str) -> None:
    changes = AS_A_LEARNER.get(learner, [])
    workflow: Any = workflow_from_config(composed(f"agent={agent}", f"learner={learner}", "env=pendulum", *changes))
    assert workflow.learner.agent is workflow.agent
    assert type(workflow.learner).__name__ == said_by(f"agent/{learner}")["workflow"].rpartition(".")[2]
    assert workflow.learner.env.num_envs == 1


@pytest.mark.parametrize("agent", WITH_A_LEARNER)
@pytest.mark.parametrize(
    ("learner", "lacks"),
    [
        *((name, ("no policy", "critics")) for name in ("dqn", "rainbow", "r2d2")),
        *((name, ("replay buffer",)) for name in ("ppo", "pqn", "random", "reinforce")),
    ],
)
def test_others_are_refused_with_those_that_fit(agent: str, learner: str, lacks: tuple[str, ...]) -> None:
    """Unsuitable learners are rejected with the list of suitable ones, even if the agent's file has other keys."""
    with raises_naming(ValueError, *lacks, *policy_improvers()):
        workflow_from_config(composed(f"agent={agent}", f"learner={learner}", "env=cartpole"))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (["learner=td3_bc"], ("learner.offline=false",)),
        (["learner=fast_td3"], ("learner.num_envs=1",)),
        (["learner=td3", "learner.agent.normalize_obs=true"], ("learner.agent.normalize_obs=true",)),
        (["learner=crossq", "learner.agent.network.torso=[batch_renorm,8]"], ("layers", "batch_renorm")),
    ],
)
def test_settings_that_do_not_suit_a_learner_are_refused_with_those_that_do(
    changes: list[str], parts: tuple[str, ...]
) -> None:
    with raises_naming(ValueError, *parts):
        workflow_from_config(composed("agent=qd/pga_me", "env=pendulum", *changes))


@pytest.mark.parametrize("agent", WITH_A_LEARNER)
def test_the_files_that_an_agent_includes_belong_to_its_section(agent: str) -> None:
    space = "+search_space.learner.tau={low: 1e-3, high: 0.1, scale: log}"
    config, alone = composed("agent=meta/pbt", f"inner={agent}", "env=pendulum", space), composed(f"agent={agent}")
    assert config.inner.get("optimizer") == alone.get("optimizer")
    assert config.inner.learner.workflow == alone.learner.workflow
    assert not {"optimizer", "learner"} & set(config)
    assert isinstance(workflow_from_config(config), PBTWorkflow)


def test_the_evolutionary_optimizer_of_members_is_a_choice() -> None:
    members = ("agent=meta/pbt", "inner=erl/erl", "env=pendulum")
    assert composed(*members, "inner.optimizer=openes", "inner.optimizer.pop_size=4").inner.optimizer.pop_size == 4
    chosen = composed(*members, "inner.evolution@inner=eda").inner.optimizer
    assert chosen == composed("agent=erl/erl", "evolution=eda").optimizer


@pytest.mark.parametrize(("overrides", "divisor"), [([], 5.0), (["optimizer.variance_divisor=1"], 1.0)])
def test_the_variances_of_cem_rl_are_divided_by_the_number_of_elites(overrides: list[str], divisor: float) -> None:
    config = plain(composed("agent=erl/cemrl", "env=pendulum", *overrides).optimizer)
    optimizer = fields_from_config(EvolutionGuidedWorkflow, {"optimizer": config}, "")["optimizer"]
    assert float(optimizer.variance_divisor) == divisor
    assert optimizer.pop_size // 2 == 5


@pytest.mark.parametrize(
    ("agent", "part"),
    [("erl/erl", "learner"), ("erl/cemrl", "learner"), ("qd/pga_me", "learner"), ("meta/pbt", "inner")],
)
def test_replay_of_the_whole_is_answered_by_the_key_of_the_part_that_has_a_buffer(agent: str, part: str) -> None:
    """``replay`` for the whole workflow is rejected with the key of the part that has a buffer, which works."""
    words = [f"agent={agent}", "env=goal/reacher", *(["inner=sac"] if part == "inner" else [])]
    config = composed(*words, "replay=hindsight")
    with raises_naming(ValueError, "replay buffer", f"{part}.replay.hindsight=future"):
        workflow_from_config(config)
    workflow: Any = workflow_from_config(composed(*words, f"{part}.replay.hindsight=future"))
    assert getattr(workflow, part).replay.hindsight == "future"
