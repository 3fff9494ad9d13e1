"""A panel on terminals, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from evorl.recorders import LivePanel, PlainLines, ProgressRecorder
from tests.support.recorded_runs import make_plan


def test_output_that_is_no_terminal_gets_plain_lines(capsys: pytest.CaptureFixture) -> None:
    recorder = ProgressRecorder()
    recorder.message("early")
    recorder.start(make_plan())
    assert isinstance(recorder.recorders[0], PlainLines)
    recorder.message("late")
    recorder.close()
    assert capsys.readouterr().out == "early\nPPOWorkflow: 1,200 environment steps\nlate\n"


@pytest.mark.parametrize("stdout", [None, io.StringIO(), SimpleNamespace(write=len, flush=int)])
def test_output_without_a_terminal_is_plain_lines(stdout: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stdout)
    recorder = ProgressRecorder()
    recorder.start(make_plan())
    assert isinstance(recorder.recorders[0], PlainLines)


def test_the_panel_can_be_asked_for(capsys: pytest.CaptureFixture) -> None:
    recorder = ProgressRecorder(live=True)
    recorder.start(make_plan())
    assert isinstance(recorder.recorders[0], LivePanel)
    recorder.close()
    assert "PPOWorkflow" in capsys.readouterr().out
