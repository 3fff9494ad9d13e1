"""Settings to change first, of runs without tuned settings."""

from __future__ import annotations

import pytest

from evorl.assembly import workflow_from_config
from evorl.execution.first_changes import first_changes
from tests.support.config_files import composed
from tests.support.errors import assert_names

OBS, REWARDS, ENTROPY = "agent.normalize_obs=true", "normalize_rewards=true", "agent.entropy_coefficient=0.01"
UPDATES, HELD = "updates_per_iteration=", "env.action_repeat="
ALL = (OBS, REWARDS, ENTROPY, UPDATES, HELD)


def suggested(*overrides: str) -> str | None:
    return first_changes(workflow_from_config(composed(*overrides, "~experiment", "devices=1")))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["agent=ppo", "env=cartpole"], {OBS, REWARDS, ENTROPY, HELD}),
        (["agent=ppo", "env=pendulum"], {OBS, REWARDS, HELD}),
        (["agent=ppo", "env=pendulum", OBS, REWARDS], {HELD}),
        (["agent=ppo", "env=breakout"], {REWARDS, ENTROPY}),  # images
        (["agent=dqn", "env=acrobot"], {OBS, UPDATES, HELD}),
        (["agent=dqn", "env=acrobot", "updates_per_iteration=16"], {OBS, HELD}),
        (["agent=sac", "env=pendulum"], {OBS, HELD}),
        (["agent=crossq", "env=pendulum"], {HELD}),  # normalizes in its networks
        (["agent=ppo", "env=remote", "env.obs_space={shape: [4]}", "env.action_space={n: 2}"], {OBS, ENTROPY}),
    ],
)
def test_the_changes_depend_on_algorithm_and_spaces(overrides: list[str], parts: set[str]) -> None:
    sentence = suggested(*overrides)
    assert sentence is not None
    assert {part for part in ALL if part in sentence} == parts


def test_the_number_of_updates_is_that_of_half_of_the_steps() -> None:
    assert_names(suggested("agent=dqn", "env=acrobot") or "", "updates_per_iteration=16", "for 8 steps")


def test_the_smallest_number_of_updates_has_a_suggestion() -> None:
    assert_names(suggested("agent=dqn", "env=acrobot", "updates_per_iteration=1e-4") or "", "updates_per_iteration=16")


@pytest.mark.parametrize("agent", ["random", "ec/openes", "meta/pbt"])
def test_other_algorithms_have_no_suggestions(agent: str) -> None:
    assert suggested(f"agent={agent}", "env=cartpole") is None
