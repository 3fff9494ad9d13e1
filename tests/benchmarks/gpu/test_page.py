"""The tables of compiled programs follow from recorded results."""

from __future__ import annotations

import json

from benchmarks.gpu.page import PAGE, show_side, static_section, with_gpu, write_gpu_page
from benchmarks.gpu.setting import SETTINGS
from benchmarks.results import record
from tests.benchmarks.gpu.test_breakdown import OURS, THEIRS
from tests.benchmarks.gpu.test_measured_page import MEASURED

NONE = {"collectives": {}, "collective_bytes": 0, "host_calls": 0, "wide_floats": 0}
VERSIONS = {"versions": {"jax": "0.10.2"}}
SIDES = [
    {"side": "evorl", **OURS, **NONE, "temporary_bytes": 71_000_000, "estimated_bytes": 16_800_000, **VERSIONS},
    {"side": "rejax", **THEIRS, **NONE, "temporary_bytes": 26_000_000, "versions": {"rejax": "0.1.3"}},
    {
        "side": "evorl, 2 devices",
        **OURS,
        **NONE,
        "temporary_bytes": 35_000_000,
        "collectives": {"all-gather": 1, "all-reduce": 51},
        "collective_bytes": 5_009_768,
        **VERSIONS,
    },
    {"side": "evorl, 8 devices", "error": "not compiled within 900 s"},
]
RESULT = {"title": "PPO", "date": "2026-11-27", "machine": "2 cores", "command": "python", "sides": SIDES}


def test_a_program_is_a_row_with_its_parts() -> None:
    text = static_section({"ppo_cartpole": RESULT})
    ours = "| `ppo_cartpole`, evorl | 2,258 = 32 x (19 + ? x 11) + 32 x 3 + 16 x 72 + 50 | 30 | 72 | 146 | 32 |"
    theirs = "| `ppo_cartpole`, rejax | 2,097 = 32 x 32 + 32 x 4 + 4 x (13 + 4 x 55) + 13 | 32 | 58.25 | 141 | 0 |"
    assert ours in text
    assert theirs in text
    assert "| 71.0 | 16.8 | 13,117,694 |" in text
    assert "jax 0.10.2" in text
    assert "rejax 0.1.3" in text


def test_requirements_are_judged() -> None:
    text = static_section({"ppo_cartpole": RESULT})
    assert "| `ppo_cartpole`, rejax | kernels | 1.08 | <= 0.8 | **not met** |" in text
    assert "| `ppo_cartpole` | turns of loops of unknown length | 32 | 0 | **not met** |" in text
    few = [{**SIDES[0], "unknown_loops": 0, "kernels": 1600, "temporary_bytes": 26_000_000}, SIDES[1]]
    text = static_section({"ppo_cartpole": {**RESULT, "sides": few}})
    assert "| turns of loops of unknown length | 0 | 0 | met |" in text
    assert "| kernels | 0.76 | <= 0.8 | met |" in text
    assert "| temporary memory | 1.00 | <= 1.2 | met |" in text


def test_a_mesh_has_its_collectives_in_a_table() -> None:
    text = static_section({"ppo_cartpole": RESULT})
    assert "| `ppo_cartpole`, 2 devices | 2,258 | 51 | 1 all-gather | 5,009,768 | 35.0 |" in text
    assert "`ppo_cartpole`, evorl, 8 devices: not compiled within 900 s" in text


def test_calls_of_the_host_are_named() -> None:
    assert "None of these programs calls the host" in static_section({"ppo_cartpole": RESULT})
    calling = {**RESULT, "sides": [{**SIDES[0], "host_calls": 2}]}
    assert "`ppo_cartpole`, evorl: 2 calls of the host, 0 operations" in static_section({"ppo_cartpole": calling})


def test_the_console_shows_the_same() -> None:
    line = show_side(SETTINGS["ppo_cartpole"], SIDES[2])
    for part in ("2,258 kernels = 32 x (19", "32 turns of uncounted loops", "51 x all-reduce", "bound by launches"):
        assert part in line
    assert show_side(SETTINGS["ppo_cartpole"], SIDES[3]) == "failed: not compiled within 900 s"


def test_the_page_follows_from_the_results(tmp_path) -> None:
    text = PAGE.read_text("utf-8")
    assert text == with_gpu(text), "out of date: python -m benchmarks.pages"
    record("gpu", "ppo_cartpole", RESULT, tmp_path / "results")
    (tmp_path / "results" / "gpu_measured.jsonl").write_text(json.dumps(MEASURED) + "\n", "utf-8")
    places = [f"<!-- gpu {what} -->\nold\n<!-- end of gpu {what} -->\n" for what in ("programs", "measurements")]
    (tmp_path / "gpu.md").write_text("\n".join(places), "utf-8")
    write_gpu_page(tmp_path / "gpu.md", tmp_path / "results")
    written = (tmp_path / "gpu.md").read_text("utf-8")
    assert "old" not in written
    assert "`ppo_cartpole`, 2 devices" in written
    assert "2026-12-01. NVIDIA H100 80GB HBM3, 16 cores. jax 0.11.2" in written
