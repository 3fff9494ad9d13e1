"""Every command works with only the packages that it declares."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import SMALL
from tests.support.only_extras import WITH_THE_EXTRA, installed_with, packages_beyond
from tests.support.optional_packages import need

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ["train", *(word for word in SMALL if not word.startswith("compilation_cache"))]

SEARCH = "search={over: {discount: {low: 0.9,high: 0.99}},trials: 1}"


def run(folder: Path, extras: str, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in one process with only the packages of the core and of these extras."""
    words = [word for command in commands for word in ("--", *command)]
    return subprocess.run(
        [sys.executable, "-m", "tests.support.only_extras", extras, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run and a sweep with the core only; return their folder."""
    folder = tmp_path_factory.mktemp("core")
    done = run(
        folder,
        "",
        TRAIN,
        ["evaluate", "run=latest"],
        ["render", "run=latest", "episodes=1", "format=gif"],
        ["render", "run=latest", "episodes=1", "format=png"],
        *(["export", "run=latest", f"format={name}"] for name in ("numpy", "jax", "html")),
        [*TRAIN, "sweep={discount: [0.9,0.99]}"],
        [*TRAIN, "-m", "seed=0,1", "runs_folder=others"],
        ["runs"],
        ["report", "runs", "others"],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_core_is_enough_to_train_to_watch_to_compare_and_to_take_away(trained: Path) -> None:
    written = {path.suffix for path in trained.rglob("*") if path.is_file()}
    assert written >= {".gif", ".png", ".py", ".stablehlo", ".html", ".csv"}


@pytest.mark.parametrize(
    ("extra", "package", "command", "message"),
    [
        ("video", "av", ["render", "run=latest", "episodes=1", "format=mp4"], "pip install av"),
        ("onnx", "onnxruntime", ["export", "run=latest", "format=onnx"], "pip install onnx"),
        (
            "gymnasium",
            "pygame",
            ["play", "run=latest", "episodes=1"],
            r"pip install 'gymnasium\[classic-control,mujoco\]'",
        ),
        (
            "optuna",
            "optuna",
            [*TRAIN, "search={over: {discount: {low: 0.9,high: 0.99}},trials: 1}"],
            "pip install optuna",
        ),
    ],
)
def test_an_extra_is_enough_for_its_command_which_names_it(
    extra: str, package: str, command: list[str], message: str, trained: Path
) -> None:
    need(package, extra)
    done = run(trained, f"before+{extra}", command)
    assert done.returncode == 0, done.stdout + done.stderr
    without, _, _ = done.stderr.partition(WITH_THE_EXTRA)
    (last,) = without.splitlines()[-1:]
    assert re.fullmatch(rf"(Import)?Error: .*{message}.*", last)


def test_what_is_beyond_an_extra_cannot_be_imported(tmp_path: Path) -> None:
    assert {"jax", "brax", "hydra-core"} <= installed_with([])
    assert not packages_beyond([]) & {"jax", "brax", "numpy", "hydra"}
    assert "pytest" in packages_beyond(["onnx"])
    done = run(tmp_path, "", ["check-env", "pytest:fixture"])
    assert done.returncode != 0
    assert "pytest" in done.stderr.splitlines()[-1]
