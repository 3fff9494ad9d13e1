"""``evorl export`` on the command line: files, output, and invalid options."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evorl.cli import commands
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming


def test_files_are_written_checked_and_told(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = RunFolder(shutil.copytree(trained.path, tmp_path / trained.path.name))  # other tests share the run
    commands.run(["export", f"run={trained.path}", "format=numpy,jax", "seed_number=1"])
    output = capsys.readouterr().out.splitlines()
    assert output[0] == str(trained.path)
    assert output[1].startswith("PPO in gymnax/CartPole-v1, the best checkpoint of ")
    assert [line.split(":")[0] for line in output[2:]] == ["numpy", "jax"]
    assert all("over 1,000 observations, 1,000 of 1,000 actions the same" in line for line in output[2:])
    names = {path.name for path in (trained.path / "export").iterdir()}
    assert names == {"policy.py", "policy.stablehlo", "policy.json"}
    assert "(run " + trained.path.name in (trained.path / "export" / "policy.py").read_text().splitlines()[0]


def test_a_file_of_another_name(trained: RunFolder, tmp_path: Path) -> None:
    to = tmp_path / "new" / "cartpole.py"
    (written,) = commands.run(["export", f"run={trained.path}", "format=numpy", f"to={to}"])
    assert written.path == to
    assert to.exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=latest"], ("format=onnx|jax|numpy|html",)),
        (["format=numpy"], ("evorl export run=<folder>", "run=latest")),
        (["run=latest", "format=onxx"], ("'onxx'", "'onnx'")),
        (["run=latest", "format=jax", "seed_number=-1"], ("seed_number", "best", "got '-1'")),
        (["run=latest", "format=jax", "sample=2"], ("sample", "true or false")),
        (["run=latest", "formats=jax"], ("'formats'", "'format'")),
    ],
)
def test_arguments_are_checked(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        commands.run(["export", *arguments])
