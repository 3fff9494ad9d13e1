"""Which comparisons the command measures."""

from __future__ import annotations

import pytest

from benchmarks.speed.__main__ import main


def test_a_comparison_that_does_not_exist_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["replay_ad"])
    assert "there is no comparison 'replay_ad'. Did you mean 'replay_add'?" in capsys.readouterr().err


def test_a_peer_without_its_python_is_left_out(capsys, monkeypatch):
    monkeypatch.delenv("REJAX_PYTHON", raising=False)
    assert main(["dqn_cartpole"]) == 0
    assert capsys.readouterr().out == "dqn_cartpole: left out, --rejax-python is not given\n"
