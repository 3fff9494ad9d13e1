"""Every test is in one lane of the suite, by the patterns of ``tests/lanes.py``."""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import LONG, Part, reason_for_long, unused_patterns

ROOT = Path(__file__).resolve().parents[1]


def test_the_lanes_divide_the_tests() -> None:
    paths = ["tests/ops/test_schedules.py", "tests/test_architecture.py"]
    lanes, left_out = {}, {}
    for lane in ("short", "long"):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "--lane", lane]
        done = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True, check=False)
        lanes[lane] = {line for line in done.stdout.splitlines() if "::" in line}
        left_out[lane] = int(re.findall(r"(\d+) deselected", done.stdout)[0])
    assert {test.partition("::")[0] for test in lanes["short"]} == {paths[0]}
    assert {test.partition("::")[0] for test in lanes["long"]} == {paths[1]}
    assert left_out == {"short": len(lanes["long"]), "long": len(lanes["short"])}


def test_parts_divide_the_files() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    parts = [[file for file in files if file in Part(f"{number}/3")] for number in (1, 2, 3)]
    assert sorted(itertools.chain(*parts)) == files
    assert min(map(len, parts)) > len(files) / 4
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "--part", "2/3"]
    done = subprocess.run([*command, "tests/ops"], cwd=ROOT, capture_output=True, text=True, check=True)
    collected = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert collected == {file for file in parts[1] if file.startswith("tests/ops/")}


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b", "-1/3"])
def test_a_part_that_is_none_is_refused(part: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"such as 2/3, got '{part}'"):
        Part(part)


@pytest.mark.parametrize(
    ("test", "is_long"),
    [
        ("tests/algorithms/test_ppo.py::TestContract::test_the_state_is_donated", False),
        ("tests/algorithms/test_a2c.py::TestContract::test_the_state_is_donated", True),
        ("tests/algorithms/test_cartpole.py::test_cartpole_is_solved[ppo]", False),
        ("tests/algorithms/test_cartpole.py::test_cartpole_is_solved[dqn]", True),
        ("tests/cli/test_every_agent.py::test_an_agent_trains_from_the_command_line[sac]", False),
        ("tests/cli/test_every_agent.py::test_an_agent_trains_from_the_command_line[tqc]", True),
        ("tests/ops/test_returns.py::test_gae", False),
        ("tests/algorithms/test_map_elites.py::TestContract::test_neither_devices_nor_seeds_show", False),
        ("tests/ec/optimizers/test_open_es.py::TestContract::test_it_climbs_a_sphere", False),
        ("tests/ec/optimizers/test_ars.py::TestContract::test_it_climbs_a_sphere", True),
        ("tests/envs/test_gymnax.py::TestCartPole::test_spaces_match", False),
        ("tests/envs/test_gymnax.py::TestPendulum::test_spaces_match", True),
        ("tests/replay_buffers/test_uniform.py::TestContract::test_devices_do_not_show[2]", False),
        ("tests/replay_buffers/test_latest.py::TestContract::test_devices_do_not_show[2]", True),
    ],
)
def test_first_of_a_family_is_in_the_short_lane(test: str, is_long: bool) -> None:
    assert (reason_for_long(test) is not None) == is_long


def test_a_file_is_left_out_only_if_all_of_its_tests_are_long() -> None:
    """The short lane skips a file only if one pattern covers all of its tests."""
    patterns = [pattern for patterns in LONG.values() for pattern in patterns]
    assert not [pattern for pattern in patterns if re.search(r"::\(*\?[!=]|::.*\|\)", pattern)]
    assert reason_for_long("tests/envs/test_mjx.py::") is not None
    assert reason_for_long("tests/envs/test_gymnax.py::") is None


def test_a_pattern_without_tests_is_noticed() -> None:
    assert r"tests/examples/" in unused_patterns(["tests/ops/test_returns.py::test_gae"])
    assert r"tests/examples/" not in unused_patterns(["tests/examples/test_examples.py::test_an_example_runs"])
