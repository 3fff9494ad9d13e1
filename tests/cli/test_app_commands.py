"""evorl new, evorl generate, evorl config."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evorl.apps.app_config import read_app
from evorl.cli import commands
from evorl.cli.app_commands import config_from_arguments, generate_from_arguments, new_from_arguments
from tests.support.errors import assert_names, raises_naming


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a bandit app whose file has user comments, and return its folder."""
    monkeypatch.chdir(tmp_path)
    folder = new_from_arguments(["bandit-test"])
    monkeypatch.chdir(folder)
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("server:", "# mine\nserver:").replace("agent: r", "# yours\nagent: r"))
    return tmp_path / folder


def test_new_makes_a_bandit_for_reinforce(app: Path) -> None:
    assert read_app("app.yaml").agent == "reinforce"
    assert (app / "environment" / "bandit_app.py").is_file()


def test_new_leaves_a_folder_that_is_there_as_it_is(app: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    before = (app / "app.yaml").read_text()
    monkeypatch.chdir(app.parent)
    monkeypatch.setattr(sys, "argv", ["evorl", "new", "bandit-test", "-e", "empty"])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 1
    assert_names(capsys.readouterr().err, "Error: bandit-test", "exists")
    assert (app / "app.yaml").read_text() == before


def test_new_asks_gymnasium_for_the_spaces_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_from_arguments(["car", "-a", "td3", "env=gymnasium/MountainCarContinuous-v0"])
    environment = read_app("car/app.yaml").environment
    assert environment["name"] == "MountainCarContinuous-v0"
    assert environment["action_space"] == {"shape": [1], "dtype": "float32", "low": -1.0, "high": 1.0}
    assert environment["obs_space"]["shape"] == [2]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("one folder", "got none")),
        (["app", "env=bandits"], ("simulator 'bandits'", "'bandit'")),
        (["app", "env=CartPole-v1"], ("simulator 'CartPole-v1'",)),
        (["app", "env=bandit/x"], ("bandit/x", "'gymnasium/x'")),
        (["app", "-a", "pppo"], ("algorithm 'pppo'", "'ppo'")),
        (
            ["app", "-a", "ddpg", "env=gymnasium/CartPole-v1"],
            ("ddpg", "Box actions", "environment.action_space"),
        ),
        (["app", "color=red"], ("option of evorl new", "'color'")),
    ],
)
def test_new_writes_nothing_where_it_cannot(
    arguments: list[str], parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_naming(ValueError, *parts):
        new_from_arguments(arguments)
    assert list(tmp_path.iterdir()) == []


def test_generate_copies_an_algorithm_and_keeps_what_was_there(app: Path) -> None:
    assert generate_from_arguments(["-a", "reinforce"]) == [Path("app.yaml.~1~")]
    own = read_app("app.yaml")
    assert (own.agent, own.algorithm) == ("own/reinforce", "algorithm")
    assert own.training["rollout_length"] == 64
    source = app / "algorithm" / "reinforce.py"
    source.write_text(
        source.read_text().replace(
            'value_coefficient: Annotated[float, Within("[0, inf)")] = 0.5', "value_coefficient: float = 0.25"
        )
    )
    for number in (1, 2):
        kept = generate_from_arguments(["algorithm=ppo"])
        assert app / f"algorithm.~{number}~" in kept
    assert "0.25" in (app / "algorithm.~1~" / "reinforce.py").read_text()
    assert "# mine" in Path("app.yaml").read_text()


def test_generate_writes_the_simulator_and_its_section(app: Path) -> None:
    kept = generate_from_arguments(["-e", "gymnasium"])
    assert kept == [app / "environment.~1~", Path("app.yaml.~1~")]
    assert (app / "environment" / "gymnasium_app.py").is_file()
    assert read_app("app.yaml").environment["name"] == "CartPole-v1"
    assert yaml.safe_load(Path("app.yaml.~1~").read_text())["environment"]["pulls"] == 64
    assert generate_from_arguments(["docker=true"]) == []
    assert (app / "Dockerfile").is_file()
    assert generate_from_arguments(["docker=true"]) == [
        app / f"{name}.~1~" for name in ("Dockerfile", "compose.yaml", ".dockerignore")
    ]


def test_generate_of_both_writes_the_training_for_the_new_simulator(app: Path) -> None:
    generate_from_arguments(["-e", "gymnasium", "-a", "ppo"])
    own = read_app("app.yaml")
    assert (own.agent, own.environment["name"], own.training) == ("own/ppo", "CartPole-v1", {})


def test_a_fresh_copy_of_the_same_algorithm_keeps_the_training(app: Path) -> None:
    generate_from_arguments(["-a", "reinforce"])
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("rollout_length: 64", "rollout_length: 32"))
    generate_from_arguments(["-a", "reinforce"])
    assert read_app("app.yaml").training["rollout_length"] == 32


@pytest.mark.parametrize("command", [generate_from_arguments, config_from_arguments])
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_new_simulator_suits_an_algorithm_for_boxes(
    command: Callable[..., Any], is_copy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.chdir(new_from_arguments(["app", "-a", "td3"]))
    if is_copy:
        generate_from_arguments(["-a", "td3"])
    command(["-e", "gymnasium"])
    assert read_app("app.yaml").environment["name"] == "Pendulum-v1"


def test_generate_is_told_what_to_write(app: Path) -> None:
    with raises_naming(ValueError, "evorl generate -a ppo"):
        generate_from_arguments([])
    with raises_naming(ValueError, "simulator 'atari'"):
        generate_from_arguments(["-e", "atari"])


@pytest.mark.parametrize("arguments", [[], ["-l"]])
def test_config_tells_what_there_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names = config_from_arguments(arguments)
    output = capsys.readouterr().out
    assert {"ppo", "dqn", "ddpg", "a2c", "trpo", "reinforce", "ppo/cartpole", "dqn/cartpole"} <= set(names)
    assert "  ppo " in output
    assert "Proximal policy optimization" in output
    assert "  deepmind-lab " in output


def test_config_fills_sections_in_and_other_comments_stay(app: Path) -> None:
    before = Path("app.yaml").read_text()
    assert config_from_arguments(["-a", "a2c/cartpole", "-e", "gymnasium"]) == [Path("app.yaml.~1~")]
    assert Path("app.yaml.~1~").read_text() == before
    after = Path("app.yaml").read_text()
    filled = read_app("app.yaml")
    assert (filled.agent, filled.training) == ("a2c", {"agent": {"entropy_coefficient": 0.01}})
    assert filled.environment["name"] == "CartPole-v1"
    stable = ("# per simulator", "# secret that")
    kept = [line for line in before.splitlines() if line.startswith("#") or any(text in line for text in stable)]
    assert {"# mine", "# yours"} < set(kept)
    assert [line for line in after.splitlines() if line in kept] == kept


def test_config_of_an_algorithm_alone_suits_the_simulator_there_is(app: Path) -> None:
    config_from_arguments(["-a", "dqn"])
    assert read_app("app.yaml").training["learning_starts"] == 256
    before = Path("app.yaml").read_text()
    with raises_naming(ValueError, "ddpg", "Box actions", "environment.action_space"):
        config_from_arguments(["-a", "ddpg"])
    assert Path("app.yaml").read_text() == before


def test_config_checks_the_version_first(app: Path) -> None:
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("version: ", "version: 9."))
    with raises_naming(ValueError, "app.yaml", "evorl 9.", "is installed"):
        config_from_arguments(["-a", "ppo"])
