"""Selection of comparisons on the command line."""

from __future__ import annotations

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed.__main__ import main
from benchmarks.speed.measuring import MeasurementFailed


def test_a_comparison_that_does_not_exist_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["replay_ad"])
    assert "unknown comparison 'replay_ad'. Did you mean 'replay_add'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "peer"), [("dqn_cartpole", "rejax"), ("host_ppo_hopper_sb3", "sb3"), ("serving_grpc", "grpc")]
)
def test_a_peer_without_its_python_is_left_out(name, peer, capsys, monkeypatch):
    monkeypatch.delenv(f"{peer.upper()}_PYTHON", raising=False)
    assert main([name]) == 0
    assert capsys.readouterr().out == f"{name}: skipped, because --{peer}-python is not set\n"


def test_a_peer_is_run_by_its_python(capsys, monkeypatch):
    monkeypatch.delenv("GRPC_PYTHON", raising=False)
    used = {}

    def run(comparison, pythons, rounds, folder, say):
        used.update(pythons)
        raise MeasurementFailed("no process was started")

    monkeypatch.setattr(command, "run_comparison", run)
    assert main(["host_ppo_cartpole_sb3", "--sb3-python", "theirs", "--rejax-python", "another"]) == 1
    assert used == {"sb3": "theirs", "rejax": "another", "grpc": None}
    assert "no process was started" in capsys.readouterr().err
