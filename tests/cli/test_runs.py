"""``evorl runs``."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.runs import list_runs
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.run_folders import make_run, with_checkpoint


def test_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "runs/a", [[1.0]])
    stopped = with_checkpoint(make_run(tmp_path, "runs/b c", [[3.0]], log="killed here"))
    make_run(tmp_path, "runs/d", [[2.0]], algorithm="sac.SAC").metrics_csv.write_text("x\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert list_runs(["sort=return"]) == ["b c", "a"]
    output = capsys.readouterr().out
    assert f"\n1 can be resumed. To resume the newest: evorl train 'resume={stopped.path}'\n" in output
    assert "d is omitted: " in output
    assert list_runs([str(tmp_path), "algorithm=ppo", "state=finished"]) == ["runs/a"]
    assert list_runs(["state=running"]) == []
    assert "No runs.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["a", "b"], ("one folder", "got a, b")),
        (["order=return"], ("evorl runs", "'order'")),
        (["nowhere"], ("no folder nowhere",)),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming((ValueError, RunFolderError), *parts):
        list_runs(arguments)
