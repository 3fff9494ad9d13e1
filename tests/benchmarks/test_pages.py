"""The benchmarks page matches the results."""

from __future__ import annotations

from benchmarks.pages import DOCS, benchmarks_page, write_pages
from benchmarks.results import load, record
from tests.benchmarks.gpu.test_page import RESULT as GPU
from tests.benchmarks.learning.test_page import RESULT as LEARNING
from tests.benchmarks.speed.test_page import RESULT as SPEED


def test_the_page_follows_from_the_results():
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    assert text == benchmarks_page(load("speed"), load("learning")), "out of date: python -m benchmarks.pages"


def test_pages_are_written_from_a_folder_of_results(tmp_path):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "gpu.md").write_text("<!-- gpu programs -->\n<!-- end of gpu programs -->\n", "utf-8")
    record("gpu", "ppo_cartpole", GPU, tmp_path / "results")
    record("speed", "replay_add", SPEED, tmp_path / "results")
    record("learning", "sac_cartpole", LEARNING, tmp_path / "results")
    write_pages(tmp_path, tmp_path / "results")
    assert "`ppo_cartpole`, rejax" in (tmp_path / "guide" / "gpu.md").read_text("utf-8")
    assert (tmp_path / "assets" / "speed-dark.svg").exists()
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "### replay_add" in text
    assert "| SAC with discrete actions, CartPole-v1 (gymnax) |" in text


def test_tasks_link_to_the_pages_of_their_algorithms():
    text = benchmarks_page({}, {}, DOCS)
    assert "| [PPO, hopper (brax)](algorithms/ppo.md#learning) |" in text
