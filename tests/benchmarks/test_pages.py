"""The benchmarks page matches the results."""

from __future__ import annotations

import json

from benchmarks.learning.page import homes_of
from benchmarks.learning.tuned import results_text, tuned_page, tuned_results
from benchmarks.pages import DOCS, benchmarks_page, write_pages
from benchmarks.results import load, record
from evorl.cli.config_tree import RESULTS_FILE, config_folder, recorded_result
from tests.benchmarks.gpu.test_page import RESULT as GPU
from tests.benchmarks.learning.test_page import RESULT as LEARNING
from tests.benchmarks.speed.test_page import RESULT as SPEED


def test_the_page_follows_from_the_results():
    learning = load("learning")
    texts = {
        DOCS / "benchmarks.md": benchmarks_page(load("speed"), learning, load("defaults")),
        DOCS / "guide" / "tuned_settings.md": tuned_page(learning, homes_of(DOCS)),
        config_folder() / RESULTS_FILE: results_text(tuned_results(learning)),
    }
    for path, text in texts.items():
        assert path.read_text("utf-8") == text, f"{path.name} is out of date: python -m benchmarks.pages"


def test_the_first_line_of_the_readme_run_is_that_of_today():
    text = (DOCS.parent / "README.md").read_text("utf-8")
    assert f"\nTuned settings: ppo/cartpole ({recorded_result('ppo/cartpole')}).\n" in text


def test_pages_are_written_from_a_folder_of_results(tmp_path):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "gpu.md").write_text("<!-- gpu programs -->\n<!-- end of gpu programs -->\n", "utf-8")
    record("gpu", "ppo_cartpole", GPU, tmp_path / "results")
    record("speed", "replay_add", SPEED, tmp_path / "results")
    record("learning", "sac_cartpole", LEARNING, tmp_path / "results")
    (tmp_path / "configs" / "experiment" / "sac").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "sac" / "cartpole.yaml").touch()
    write_pages(tmp_path, tmp_path / "results", tmp_path / "configs")
    entries = json.loads((tmp_path / "configs" / RESULTS_FILE).read_text("utf-8"))
    assert entries["sac/cartpole"]["state"] == "stale"
    assert "`sac/cartpole`" in (tmp_path / "guide" / "tuned_settings.md").read_text("utf-8")
    assert "`ppo_cartpole`, rejax" in (tmp_path / "guide" / "gpu.md").read_text("utf-8")
    assert (tmp_path / "assets" / "speed-dark.svg").exists()
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "### replay_add" in text
    assert "| SAC with discrete actions, CartPole-v1 (gymnax) |" in text


def test_tasks_link_to_the_pages_of_their_algorithms():
    text = benchmarks_page({}, {}, {}, DOCS)
    assert "| [PPO, hopper (brax)](algorithms/ppo.md#learning) |" in text
