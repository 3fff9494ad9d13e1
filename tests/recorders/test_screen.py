"""Output on terminals with another encoding; no locale ends a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evorl.recorders.run_status import sparkline
from evorl.recorders.screen import announced, print_line, printable

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = r"""
import sys
from pathlib import Path
from evorl.recorders import LivePanel, make_recorder
from evorl.runs.folder import RunFolder
from tests.support.recorded_runs import record

print(sys.stdout.encoding, sys.flags.utf8_mode)
folder = RunFolder.create(sys.argv[1], {"label": "\u00b5"})
for live in (False, True):
    recorder = make_recorder(folder, live=live, tensorboard=False, learning_curve=False)
    recorder.message("1 \u00b1 2, 90 \u00b0C")
    record(recorder)
"""


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_what_can_be_shown_stays(encoding: str | None) -> None:
    assert printable("1 ± 2 ▁█ °", encoding) == "1 ± 2 ▁█ °"


def test_signs_that_cannot_be_shown_are_told_in_ascii() -> None:
    assert printable("1 ± 2, 90 °C", "ascii") == "1 +- 2, 90 ?C"
    assert printable("1 ± 2 █", "latin-1") == "1 +- 2 @"
    curve = printable(sparkline([float(i) for i in range(8)]), "ascii")
    assert curve.isascii()
    assert len(set(curve)) == 8


def test_lines_are_printed_where_they_can_be() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_line("1 ± 2", stream)
    assert stream.buffer.getvalue() == b"1 +- 2\n"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_run_in_an_ascii_locale_ends_well_and_writes_utf_8(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=ROOT, env={**os.environ, **locale, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    assert shown.startswith("ascii 0\n1 +- 2, 90 ?C\n")
    assert shown.count("300.0 +- 4.0") >= 2  # the plain lines, and the panel
    (folder,) = tmp_path.iterdir()
    assert "1 ± 2, 90 °C" in (folder / "run.log").read_text(encoding="utf-8")
    assert "300.0 ± 4.0" in (folder / "run.log").read_text(encoding="utf-8")


def test_work_is_announced_only_if_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    with announced("Drawing ...", seconds=30.0):
        pass
    with announced("Evaluating ...", seconds=0.001):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "Evaluating ...\n")
