"""Tables in the pages of the algorithms."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import learning_page
from benchmarks.learning_page import agents_of, learning_section, with_learning
from benchmarks.learning_tasks import TASKS, LearningTask, Published
from benchmarks.results import DOCS, record
from tests.benchmarks.test_results import LEARNING, POINT

PUBLISHED = Published("Somebody", "https://example.org/table", timesteps=500, mean=-170.0, spread=20.0)
TASK = LearningTask("told", "SAC, a task", ("agent=sac", "env=some"), -200, within_timesteps=9, published=PUBLISHED)
OTHER = LearningTask("other", "SAC, another", ("agent=sac", "env=other"), threshold=5, within_timesteps=100)
PAGE = """# SAC
<!-- settings: configs/agent/sac.yaml -->
## Learning

<!-- learning -->
old
<!-- end of learning -->

## Reference
"""


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.setattr(learning_page, "TASKS", {"told": TASK, "other": OTHER})


def test_row_tells_what_was_reached_when_and_what_is_published(tasks):
    section = learning_section(["sac"], {"told": {**LEARNING, "limit": ">= -200", "notes": "Slow."}})
    assert (
        "| `told`: SAC, a task, >= -200 | 3 | -150.0 ± 12.0 at 1,000 | -150.0 ± 12.0 at 2,000 | 300 "
        "| -170.0 ± 20.0 after 500 steps of training: [Somebody](https://example.org/table) | 2.00, **not met** |"
        in section
    )
    assert "| `other`: SAC, another, >= 5 within 100 steps | - | not recorded | - | - | none found | - |" in section
    assert "`told`: Slow." in section
    assert "<small>2026-01-02. 2 cores. jax 1. `python -m benchmarks.learning told`</small>" in section


def test_what_was_not_reached_has_no_ratio(tasks):
    section = learning_section(["sac"], {"told": {**LEARNING, "reached": None, "met": False}})
    row = next(line for line in section.splitlines() if line.startswith("| `told`"))
    assert "| never, **not met** |" in row
    assert row.endswith("| - |")


@pytest.mark.parametrize(("timesteps", "shown"), [(750, "1.50"), (760, "1.52, **not met**"), (500, "1.00")])
def test_ratio_is_judged_against_what_is_asked(tasks, timesteps, shown):
    section = learning_section(["sac"], {"told": {**LEARNING, "reached": {**POINT, "timesteps": timesteps}}})
    row = next(line for line in section.splitlines() if line.startswith("| `told`"))
    assert row.endswith(f"| {shown} |")


def test_a_length_without_a_return_is_told_as_such(tasks, monkeypatch):
    bare = dataclasses.replace(PUBLISHED, mean=None, spread=None)
    monkeypatch.setattr(learning_page, "TASKS", {"told": dataclasses.replace(TASK, published=bare)})
    assert "| 500 steps of training: [Somebody](https://example.org/table) |" in learning_section(["sac"], {})


def test_only_the_place_of_the_table_changes(tasks):
    text = with_learning(PAGE, {"told": LEARNING})
    assert text == PAGE.replace("old\n", learning_section(["sac"], {"told": LEARNING}) + "\n")
    assert with_learning(text, {"told": LEARNING}) == text


def test_origins_are_told_once_with_their_tasks(tasks):
    same = learning_section(["sac"], {"told": LEARNING, "other": LEARNING})
    assert same.count("<small>") == 1
    assert "`python -m benchmarks.learning told other`" in same
    newer = learning_section(["sac"], {"told": LEARNING, "other": {**LEARNING, "versions": {"jax": "2"}}})
    assert newer.count("<small>") == 2


def test_recording_renews_the_pages_of_algorithms(tmp_path, tasks):
    (tmp_path / "algorithms").mkdir()
    page = tmp_path / "algorithms" / "sac.md"
    page.write_text(PAGE, encoding="utf-8")
    record("learning", "told", LEARNING, tmp_path)
    results = json.loads((tmp_path / "results" / "learning.json").read_text("utf-8"))
    assert page.read_text("utf-8") == with_learning(PAGE, results)


def test_every_task_stands_in_exactly_one_page_that_has_a_table():
    pages = [path.read_text("utf-8") for path in (DOCS / "algorithms").glob("*.md")]
    for task in TASKS.values():
        homes = [page for page in pages if task.agent in agents_of(page)]
        assert len(homes) == 1, f"{task.name}: {len(homes)} pages tell the settings of {task.agent}"
        assert f"| `{task.name}`: " in homes[0], f"{task.name}: its page has no table of learning"


def test_published_numbers_have_a_source():
    for task in TASKS.values():
        if task.published is not None:
            assert task.published.source.startswith("https://"), task.name
            assert task.published.timesteps > 0, task.name
            assert (task.published.mean is None) == (task.published.spread is None), task.name
