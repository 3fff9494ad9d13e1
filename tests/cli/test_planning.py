"""``--plan``, and sizes that are refused before environments are made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evorl.cli import main as cli
from evorl.cli.planning import print_plan, refuse_hopeless_sizes
from evorl.execution import memory, preflight
from tests.support.command_line import SMALL


def test_nothing_is_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["evorl", *SMALL, "--plan", f"runs_folder={tmp_path}"])
    cli.train()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("parameters    ")
    assert "iterations    2" in said
    assert said[-1].startswith(f"files         {tmp_path}/.../: config.yaml, metrics.csv, metrics.jsonl, run.log, ")
    assert "tensorboard" not in said[-1]
    assert "checkpoints/ (4 of up to " in said[-1]
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_plan_of_a_new_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--plan is for a run that begins: leave resume out"):
        print_plan(["--plan", "resume=latest"])
    monkeypatch.setattr(preflight, "available_bytes", lambda: 100_000_000)
    with pytest.raises(ValueError, match=r"This run would take more than 80% of the memory: choose smaller numbers"):
        print_plan([*SMALL, "--plan"])


@pytest.mark.parametrize("above", ["", "inner.", "learner."])
def test_a_hopeless_replay_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, above: str) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * 10**9)
    node = {"replay_capacity": 1e12}
    config = {above.rstrip("."): node} if above else node
    with pytest.raises(ValueError) as error:
        refuse_hopeless_sizes(config)
    said = str(error.value)
    assert said.startswith(f"{above}replay_capacity=1,000,000,000,000 is too large for 16 GB of memory, whatever the")
    assert "the largest that may fit is 800,000,000, of transitions of 16 bytes" in said
    for fits in (1e8, 1_000_000, None, "x"):
        refuse_hopeless_sizes({"replay_capacity": fits})
