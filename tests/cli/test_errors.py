"""Errors of the command line are one sentence with the closest existing name."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import TRACEBACK_VARIABLE, explained_errors, print_any_character
from evorl.config.names import load_named
from tests.support.errors import assert_names, raises_naming


@pytest.fixture(autouse=True)
def without_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a small config tree."""
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
    with pytest.raises(SystemExit) as exit_info, explained_errors(folder):
        raise error
    assert exit_info.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "env=cartpol",
            ("env 'cartpol'", "'cartpole',"),
        ),
        ("env=brax/Hoper", ("env 'brax/Hoper'", "'brax/hopper'")),
        ("agent=zzz", ("agent 'zzz'", "Available: ppo.")),
        (
            "num_env=4",
            ("config key 'num_env'", "'num_envs'"),
        ),
        ("~env@inner", ("remove env@inner=null", "~env@inner")),
        ("env.nam=x", ("config key 'env.nam'", "'env.name'")),
        (
            "torso=[3]",
            ("config key 'torso'", "'agent.network.torso'"),
        ),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_one(
    override: str, expected: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with initialize_config_dir(str(folder), version_base="1.3"), pytest.raises(SystemExit), explained_errors(folder):
        compose("config", overrides=[override])
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert_names(printed, *expected)


def test_what_cannot_be_read_is_said_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with initialize_config_dir(str(folder), version_base="1.3"), pytest.raises(SystemExit), explained_errors(folder):
        compose("config", overrides=["seed=["])
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("too few"), FloatingPointError("too few"), FileNotFoundError("too few")])
def test_expected_errors_are_printed(error: Exception, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(error, folder, capsys) == "Error: too few\n"


def test_memory_that_ran_out_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore\nlines")
    printed = _printed(error, folder, capsys)
    assert printed.startswith("Error: ")
    assert_names(printed, "enough memory", "RESOURCE_EXHAUSTED: Out of memory alloc")
    assert printed.count("\n") == 1
    with raises_naming(RuntimeError, "INTERNAL: a fault"), explained_errors(folder):
        raise RuntimeError("INTERNAL: a fault")


def test_every_character_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    print_any_character()
    for stream in streams:
        print("3 \N{PLUS-MINUS SIGN} 1", file=stream, flush=True)
        assert stream.buffer.getvalue() == b"3 \\xb1 1\n"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_stream_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    print_any_character()
    stream = getattr(sys, name)
    assert not stream.isatty()
    print("anything", file=stream, flush=True)
    stream.close()


def test_a_fault_of_ours_is_raised_as_it_is(folder: Path) -> None:
    with raises_naming(TypeError, "a fault"), explained_errors(folder):
        raise TypeError("a fault")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_whose_reader_has_gone_ends_quietly(unbuffered: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from evorl.cli.errors import explained_errors\n"
        "sys.stdin.read()\n"
        "with explained_errors(Path()): print('line', flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout
    process.stdout.close()
    process.stdout = None
    _, error = process.communicate(b"")
    assert (process.returncode, error) == (128 + signal.SIGPIPE, b"")


def test_the_traceback_is_there_for_those_who_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    with raises_naming(ValueError, "too few"), explained_errors(folder):
        raise ValueError("too few")


def test_a_name_is_of_the_agent_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for overrides, expected in (
        (
            ["agent=sac", "gae_lambda=0.9"],
            ("config key 'gae_lambda'", "other agents (a2c, ppo, trpo)."),
        ),
        (["agent=ppo", "gae_lamda=0.9"], ("config key 'gae_lamda'", "'gae_lambda'")),
        (["agent=sac", "optimizer=sgd"], ("config key 'optimizer'", "'actor_optimizer'")),
        (["agent=meta/pbt", "inner=sca"], ("agent 'sca'", "'sac'")),
    ):
        monkeypatch.setattr("sys.argv", ["evorl", *overrides])
        with pytest.raises(SystemExit), explained_errors(config_folder()):
            compose_config(overrides)
        printed = capsys.readouterr().err
        assert printed.startswith("Error: ")
        assert_names(printed, *expected)


def test_an_error_of_own_code_ends_in_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part_that_fails.py").write_text("def part(x):\n    return x[3]\n")
    monkeypatch.syspath_prepend(tmp_path)
    part = load_named("part_that_fails:part", "part")
    with pytest.raises(SystemExit), explained_errors(folder):
        part([])
    printed = capsys.readouterr().err
    parts = ["part_that_fails", "IndexError", "part_that_fails.py, line 2", TRACEBACK_VARIABLE]
    assert_names(printed, *parts)
    assert len(printed.splitlines()) == 1
