"""Errors of the command line are one sentence, with the nearest name that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from evorl.cli_errors import TRACEBACK_VARIABLE, errors_in_words, known_keys, nearest


@pytest.fixture(autouse=True)
def without_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small config tree."""
    files = {
        "config.yaml": "defaults: [_self_, {agent: ppo}, {env: cartpole}]\nseed: 0\n",
        "agent/ppo.yaml": "# @package _global_\nagent:\n  network:\n    torso: [64]\nnum_envs: 8\n",
        "env/cartpole.yaml": "# @package _global_\nenv:\n  name: CartPole-v1\n",
        "env/brax/hopper.yaml": "# @package _global_\nenv:\n  name: hopper\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _printed(error: Exception, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_info, errors_in_words(folder):
        raise error
    assert exit_info.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("env=cartpol", "There is no env 'cartpol'. Did you mean 'cartpole'?"),
        ("env=brax/Hoper", "There is no env 'brax/Hoper'. Did you mean 'brax/hopper'?"),
        ("agent=zzz", "There is no agent 'zzz'. There are: ppo."),
        ("num_env=4", "There is no config key 'num_env'. Did you mean 'num_envs'?"),
        ("env.nam=x", "There is no config key 'env.nam'. Did you mean 'env.name'?"),
        ("torso=[3]", "There is no config key 'torso'. Did you mean 'agent.network.torso'?"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_one(
    override: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with initialize_config_dir(str(folder), version_base="1.3"), pytest.raises(SystemExit), errors_in_words(folder):
        compose("config", overrides=[override])
    assert capsys.readouterr().err == f"Error: {expected}\n"


def test_what_cannot_be_read_is_said_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with initialize_config_dir(str(folder), version_base="1.3"), pytest.raises(SystemExit), errors_in_words(folder):
        compose("config", overrides=["seed=["])
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("too few"), FloatingPointError("too few"), FileNotFoundError("too few")])
def test_expected_errors_are_printed(error: Exception, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(error, folder, capsys) == "Error: too few\n"


def test_a_fault_of_ours_is_raised_as_it_is(folder: Path) -> None:
    with pytest.raises(TypeError, match="a fault"), errors_in_words(folder):
        raise TypeError("a fault")


def test_the_traceback_is_there_for_those_who_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    with pytest.raises(ValueError, match="too few"), errors_in_words(folder):
        raise ValueError("too few")


def test_known_keys_are_those_of_every_file(folder: Path) -> None:
    keys = known_keys(folder)
    assert keys == ["agent", "agent.network", "agent.network.torso", "env", "env.name", "num_envs", "seed"]


def test_no_near_name_lists_all() -> None:
    assert nearest("zzz", ["ppo", "sac"]) == " There are: ppo, sac."
    assert nearest("zzz", ["agent", "agent.noise", "seed"]) == " There are: agent, seed."
    assert nearest("agent.zzzzzzzzzz", ["agent", "agent.noise", "seed"]) == " There are: agent.noise."
    assert nearest("PPo", ["ppo", "sac"], folded=True) == " Did you mean 'ppo'?"
