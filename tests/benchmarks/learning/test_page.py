"""Tables in the pages of the algorithms."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.learning import page
from benchmarks.learning.page import agents_of, learning_section, show_value, with_learning, write_algorithm_pages
from benchmarks.learning.task import TASKS, LearningTask, Published
from benchmarks.pages import DOCS

POINT = {"timesteps": 500, "seconds": 150.0, "mean": -150.0, "spread": 12.0, "by_seed": [-160.0, -150.0, -140.0]}
RESULT = {
    "title": "SAC, a task",
    "backend": None,
    "seeds": [0, 1, 2],
    "curve": [POINT, {**POINT, "timesteps": 1000, "mean": -100.0, "by_seed": [-110.0, -100.0, -90.0]}],
    "versions": {"jax": "1"},
    "machine": "2 cores",
    "date": "2026-01-02",
}
FIGURE = Published("Somebody", "https://example.org/table", timesteps=500, mean=-140.0, spread=20.0)
TASK = LearningTask("theirs", "SAC, a task", ("agent=sac", "env=some"), published=FIGURE)
OTHER = LearningTask("ours", "SAC, another", ("agent=sac", "env=other"), threshold=-120, within_timesteps=1000)
PAGE = """# SAC
<!-- settings: configs/agent/sac.yaml -->
## Learning

<!-- learning -->
old
<!-- end of learning -->

## Reference
"""
THEIRS = "-140.0 ± 20.0 after 500 steps: [Somebody](https://example.org/table) | >= -160.0"


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setattr(page, "TASKS", {"theirs": TASK, "ours": OTHER})


def test_rows_tell_what_is_published_asked_and_reached(tasks):
    section = learning_section(["sac"], {"theirs": {**RESULT, "notes": "Slow."}, "ours": RESULT})
    ours = "-150.0 (-160.0 .. -140.0) at 500"
    assert f"| `theirs`: SAC, a task | 3 | {THEIRS} | {ours} | met | 500 steps |" in section
    last = "-100.0 (-110.0 .. -90.0) at 1,000"
    assert f"| `ours`: SAC, another | 3 | >= -120 within 1,000 steps | 1,000 steps | {last} | met |" in section
    assert "No published figure" in section
    assert "`theirs`: Slow." in section
    assert "<small>2026-01-02. 2 cores. jax 1. `python -m benchmarks.learning theirs ours`</small>" in section


def test_what_was_not_recorded_is_told(tasks):
    section = learning_section(["sac"], {})
    assert f"| `theirs`: SAC, a task | - | {THEIRS} | - | not recorded | - |" in section
    assert "| `ours`: SAC, another | - | >= -120 within 1,000 steps | - | - | not recorded |" in section


def test_what_was_not_reached_is_told(tasks):
    low = {**RESULT, "curve": [{**POINT, "timesteps": 100, "mean": -170.0, "by_seed": [-170.0] * 3}]}
    section = learning_section(["sac"], {"theirs": low, "ours": low})
    assert "| -170.0 (-170.0 .. -170.0) at 100 | **not met**, with a shorter training | never |" in section
    assert "| never | -170.0 (-170.0 .. -170.0) at 100 | **not met** |" in section


def test_a_page_with_one_kind_of_tasks_has_one_table(tasks, monkeypatch):
    monkeypatch.setattr(page, "TASKS", {"theirs": TASK})
    assert "No published figure" not in learning_section(["sac"], {})
    monkeypatch.setattr(page, "TASKS", {"ours": OTHER})
    assert "| published |" not in learning_section(["sac"], {})


@pytest.mark.parametrize(
    ("by_seed", "shown"),
    [
        (None, "-150.0 ± 12.0"),
        ([1.0, 3.0], "2.0 (1.0 .. 3.0)"),
        ([2.0] * 5, "2.0 [2.0, 2.0]"),
        ([2.0] * 10, "IQM 2.0 [2.0, 2.0]"),
        ([0.25, 0.5], "0.375 (0.250 .. 0.500)"),
    ],
)
def test_spread_follows_the_number_of_seeds(by_seed, shown):
    single = {key: value for key, value in POINT.items() if key != "by_seed"}
    assert show_value(single if by_seed is None else {**POINT, "by_seed": by_seed}) == shown


def test_a_figure_without_a_spread_is_told_as_such(tasks, monkeypatch):
    bare = dataclasses.replace(TASK, published=dataclasses.replace(FIGURE, spread=None))
    monkeypatch.setattr(page, "TASKS", {"theirs": bare})
    assert "| -140.0 after 500 steps: [Somebody](https://example.org/table) |" in learning_section(["sac"], {})


def test_only_the_place_of_the_tables_changes(tasks):
    text = with_learning(PAGE, {"theirs": RESULT})
    assert text == PAGE.replace("old\n", learning_section(["sac"], {"theirs": RESULT}) + "\n")
    assert with_learning(text, {"theirs": RESULT}) == text


def test_origins_are_told_once_with_their_tasks(tasks):
    same = learning_section(["sac"], {"theirs": RESULT, "ours": {**RESULT, "load": 3.0}})
    assert same.count("<small>") == 1
    newer = learning_section(["sac"], {"theirs": RESULT, "ours": {**RESULT, "versions": {"jax": "2"}}})
    assert newer.count("<small>") == 2


def test_pages_of_algorithms_are_renewed(tmp_path, tasks):
    (tmp_path / "algorithms").mkdir()
    path = tmp_path / "algorithms" / "sac.md"
    path.write_text(PAGE, encoding="utf-8")
    write_algorithm_pages(tmp_path, {"theirs": RESULT})
    assert path.read_text("utf-8") == with_learning(PAGE, {"theirs": RESULT})


def test_every_task_stands_in_exactly_one_page_that_has_a_table():
    pages = [path.read_text("utf-8") for path in (DOCS / "algorithms").glob("*.md")]
    for task in TASKS.values():
        homes = [text for text in pages if task.agent in agents_of(text)]
        assert len(homes) == 1, f"{task.name}: {len(homes)} pages tell the settings of {task.agent}"
        assert f"| `{task.name}`: " in homes[0], f"{task.name}: its page has no table of learning"
