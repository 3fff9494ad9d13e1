"""Results of the tuned settings: tasks of a file, states, and the text of a run's first line."""

from __future__ import annotations

import json

import pytest

from benchmarks.learning.judgment import judge
from benchmarks.learning.page import homes_of
from benchmarks.learning.tables import Row
from benchmarks.learning.task import LearningTask
from benchmarks.learning.tuned import describe_result, results_text, tuned_page, tuned_tasks
from benchmarks.pages import DOCS
from evorl.cli import config_tree
from evorl.cli.config_tree import RESULTS_FILE, config_folder, config_names, recorded_result
from tests.benchmarks.learning.figures import point, published, result, task

RESULT = result(point(100, 100.0, 300.0, 500.0), point(190, 160.0, 180.0, 200.0), point(400, 1.0, 1.0, 1.0))


def current(drawn: LearningTask, recorded: dict = RESULT) -> Row:
    return Row(drawn, recorded, None, judge(drawn, recorded))


def test_only_tasks_without_other_overrides_train_with_a_file_as_it_is() -> None:
    by_file = {name: [each.name for each in tasks] for name, tasks in tuned_tasks(config_folder()).items()}
    assert by_file["ppo/cartpole"] == ["ppo_cartpole"]  # and not in bfloat16
    assert by_file["sac/goal/reacher"] == ["sac_hindsight_reacher"]
    assert by_file["ppo/_box2d"] == ["ppo_lunar_lander"]
    assert "ppo/memory_chain" not in by_file  # one task adds a memory, the other cannot be solved
    files = config_names(config_folder() / "experiment")
    assert len(files) == 99
    assert all(len(by_file[name]) == 1 for name in by_file if name in files)


def test_a_current_result_is_judged_at_the_published_steps() -> None:
    entry = describe_result(current(task(published=published(timesteps=200, mean=150.0))))
    assert entry["summary"] == "180 ± 20 over 3 seeds after 190 steps; published 150"
    assert (entry["state"], entry["verdict"], entry["mean"], entry["steps"]) == ("current", "met", 180.0, 190)
    assert entry["published"]["source"] == "https://example.org/table"


def test_different_published_steps_are_stated() -> None:
    later = describe_result(current(task(published=published(timesteps=300_000, mean=0.25))))
    assert later["summary"] == "1.000 ± 0.000 over 3 seeds after 400 steps; published 0.250 after 300k steps"
    repeated = {**RESULT, "config": {"env": {"action_repeat": 8}}}
    entry = describe_result(current(task(published=published(timesteps=1600)), repeated))
    assert entry["steps"] == 1520


def test_a_stale_result_is_marked_and_a_missing_one_has_no_figure() -> None:
    entry = describe_result(Row(task(threshold=1, within_timesteps=9), RESULT, "its settings differ", None))
    assert entry["state"] == "stale"
    assert entry["summary"] == "stale result of 2026-01-02: 1.000 ± 0.000 over 3 seeds after 400 steps"
    assert "verdict" not in entry
    missing = describe_result(Row(task(), None, None, None))
    assert (missing["state"], missing["summary"]) == ("not measured", "not measured; published 7.0 after 200 steps")
    assert describe_result(None) == {"state": "not measured", "summary": "not measured"}


def test_a_single_seed_and_a_success_rate() -> None:
    drawn = task(threshold=0.5, within_timesteps=200, score="eval/goal_reached")
    assert describe_result(current(drawn, result(point(150, 0.75))))["summary"] == (
        "goal reached 0.750 with 1 seed after 150 steps"
    )


def test_the_text_of_a_run_comes_from_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(config_tree, "config_folder", lambda: tmp_path)
    assert recorded_result("ppo/pendulum") is None
    (tmp_path / "experiment").mkdir()
    text = results_text({"ppo/pendulum": {"summary": "-167 ± 20"}, "ppo/ant": {"state": "not measured"}})
    (tmp_path / RESULTS_FILE).write_text(text, encoding="utf-8")
    assert [recorded_result(name) for name in ("ppo/pendulum", "ppo/ant", "ppo/x")] == ["-167 ± 20", None, None]
    assert len(text.splitlines()) == len(json.loads(text)) + 2


def test_the_page_lists_every_file_with_its_count() -> None:
    page = tuned_page({}, homes_of(DOCS))
    names = config_names(config_folder() / "experiment")
    assert [name for name in names if f"| [`{name}`](" not in page] == []
    assert f"for {len(names)} pairs" in page
    assert f"current: 0; stale: 0; not measured: {len(names)}" in " ".join(page.split())
    assert "| `ppo/_brax` | `brax/*` |" in page
