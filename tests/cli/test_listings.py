"""``evorl envs`` and ``evorl agents``: tables and errors."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import evorl
from evorl.cli.commands import run
from tests.support.errors import raises_naming


def test_all_environments_are_listed_with_the_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs"]) == evorl.list_envs()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["env", "observations", "actions"]
    (pendulum,) = (line for line in lines if line.startswith("pendulum "))
    assert pendulum.split()[1:3] == ["Box(3)", "Box(1)"]
    assert "crossq, " in pendulum
    (library,) = (line for line in lines if line.startswith("jumanji "))
    assert "env=jumanji/" in library
    assert library.endswith("extra jumanji")
    assert not [line for line in lines if line.startswith("gymnasium/")]


@pytest.mark.parametrize(("command", "listed"), [("envs", evorl.list_envs), ("agents", evorl.list_agents)])
def test_records_are_printed_as_json(command: str, listed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run([command, "--json"])
    records = json.loads(capsys.readouterr().out)
    assert records == json.loads(json.dumps([dataclasses.asdict(record) for record in listed()]))
    run([command, "json=true", records[0]["name"]])
    assert records[0] in json.loads(capsys.readouterr().out)


def test_few_results_are_described_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    names = [env.name for env in run(["envs", "bit_flip"])]
    assert names == ["goal/bit_flip"]
    out = capsys.readouterr().out
    assert "desired_goal: Box(15, int8)" in out
    assert "evorl train agent=dqn env=goal/bit_flip" in out
    run(["envs", "point_maze"])
    assert "evorl train agent=... env=goal/point_maze" in capsys.readouterr().out
    run(["envs", "library=brax", "agent=td3"])
    assert "evorl train agent=ppo env=hopper" in capsys.readouterr().out


def test_agents_are_listed_by_their_abilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agents"]) == evorl.list_agents()
    (sac,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("sac "))
    assert sac.split() == ["sac", "off-policy", "discrete,", "continuous", "goals", "docs/algorithms/sac.md"]
    assert [agent.name for agent in run(["agents", "memory=true", "continuous=false", "r2d2"])] == [
        *("r2d2", "recurrent_sac"),
    ]
    out = capsys.readouterr().out
    assert "Kapturowski" in out
    assert "Tuned settings for pendulum_hidden_velocity." in out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["envs", "zebra"], ("zebra", "evorl envs")),
        (["envs", "a", "b"], ("a, b",)),
        (["envs", "actions=both"], ("actions", "'both'")),
        (["envs", "librery=brax"], ("librery", "'library'")),
        (["agents", "zebra"], ("zebra", "evorl agents")),
        (["agents", "memory=3"], ("memory", "3")),
        (["agents", "family=ppo"], ("family", "off-policy")),
    ],
)
def test_wrong_filters_are_refused(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        run(arguments)
