"""The first steps of the documentation, run as a newcomer runs them."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from evorl.cli.commands import main
from tests.support.doc_pages import ROOT, blocks


def test_first_steps_run_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Line by line, by the function that the program ``evorl`` is: seven processes would compile the same."""
    (script,) = [block.text for block in blocks(ROOT / "docs/guide/first_steps.md") if block.language == "bash"]
    assert len(script.splitlines()) <= 12
    assert shutil.which("evorl", path=Path(sys.executable).parent)
    monkeypatch.chdir(tmp_path)
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "evorl"
        monkeypatch.setattr(sys, "argv", words)
        main()
    told = capfd.readouterr().out
    (run,) = (tmp_path / "runs/ppo-cartpole").iterdir()
    (best,) = (tmp_path / "runs/ppo-cartpole-sweep").glob("*/best")
    assert list((run / "videos").glob("*.webp"))
    assert (tmp_path / "runs/report.html").is_file()
    assert (best / "export/policy.py").is_file()
    assert list((best / "play").glob("*.gif"))
    assert "evaluation return 500.0" in told
    assert "episode 1: 500 steps, return 500.00" in told
