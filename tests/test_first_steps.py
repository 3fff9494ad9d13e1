"""The first steps of the documentation, run as a newcomer runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.doc_pages import ROOT, blocks


def test_first_steps_run_as_they_are_written(tmp_path: Path) -> None:
    (script,) = [block.text for block in blocks(ROOT / "docs/guide/first_steps.md") if block.language == "bash"]
    assert len(script.splitlines()) <= 12
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs/ppo-cartpole").iterdir()
    (best,) = (tmp_path / "runs/ppo-cartpole-sweep").glob("*/best")
    assert list((run / "videos").glob("*.webp"))
    assert (tmp_path / "runs/report.html").is_file()
    assert (best / "export/policy.py").is_file()
    assert list((best / "play").glob("*.gif"))
    output = done.stdout
    assert "evaluation return 500.0" in output
    assert "episode 1: 500 steps, return 500.00" in output
