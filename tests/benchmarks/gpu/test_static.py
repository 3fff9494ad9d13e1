"""Sides are compiled in processes with a time limit, and recorded one by one."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.setting import GpuSetting, Side
from benchmarks.gpu.static import Compiler, compile_setting
from benchmarks.results import load
from tests.benchmarks.gpu.test_breakdown import OURS, THEIRS

COSTS = {"evorl": {**OURS, "versions": {"jax": "0.10.2"}}, "rejax": {**THEIRS, "versions": {"jax": "0.10.2"}}}
SETTING = GpuSetting("ppo", "PPO", 65536, 32, 16, 1, {"evorl": Side("evorl", {}), "rejax": Side("rejax", {})}, ())


def _python(tmp_path, code: str) -> str:
    """Return an interpreter that runs this code instead of compiling."""
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\nexec {sys.executable} - \"$@\" <<'END'\n{code}\nEND\n", "utf-8")
    file.chmod(0o755)
    return str(file)


def test_sides_are_recorded_one_by_one(tmp_path) -> None:
    python = _python(tmp_path, f"import json, sys\nprint('noise')\nprint(json.dumps({COSTS!r}[sys.argv[3]]))")
    recorded = []

    def report(side: str, cost: dict) -> None:
        recorded.append(
            (side, cost["kernels"], [row["side"] for row in load("gpu", tmp_path).get("ppo", {}).get("sides", [])])
        )

    compile_setting(SETTING, Compiler(python, "packages"), report, tmp_path)
    assert recorded == [("evorl", 2258, []), ("rejax", 2097, ["evorl"])]
    assert load("gpu", tmp_path)["ppo"]["sides"] == [{"side": side, **cost} for side, cost in COSTS.items()]


def test_a_side_without_packages_keeps_its_recorded_cost(tmp_path) -> None:
    python = _python(tmp_path, f"import json, sys\nprint(json.dumps({COSTS!r}[sys.argv[3]]))")
    compile_setting(SETTING, Compiler(python, "packages"), lambda *_: None, tmp_path)
    compile_setting(
        SETTING, Compiler(_python(tmp_path, "raise SystemExit('out of memory')")), lambda *_: None, tmp_path
    )
    ours, theirs = load("gpu", tmp_path)["ppo"]["sides"]
    assert ours == {"side": "evorl", "error": "out of memory"}
    assert theirs["kernels"] == 2097


def test_a_side_that_takes_too_long_is_ended(tmp_path) -> None:
    compiler = Compiler(_python(tmp_path, "import time\ntime.sleep(60)"), limit=0.2)
    assert compiler.compile(SETTING, SETTING.sides["evorl"]) == {"error": "not compiled within 0 s"}


def test_an_environment_without_the_compiler_is_named(tmp_path, capsys) -> None:
    arguments = ["--static", "--cuda-python", sys.executable, "--only", "ppo_cartpole", "--results", str(tmp_path)]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "evorl, 8 devices" in printed
    assert "has no CUDA plugin: pip install 'jax[cuda13]==" in printed
    assert "rejax" not in printed


def test_settings_and_interpreters_are_checked(capsys) -> None:
    for arguments, named in ((["--only", "ppo_cartpol"], "ppo_cartpole"), (["--static"], "--cuda-python")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert named in capsys.readouterr().err
