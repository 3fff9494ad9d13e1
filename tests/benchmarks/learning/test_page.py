"""Tables in the pages of the algorithms."""

from __future__ import annotations

import re

import pytest

from benchmarks.learning import page, tables
from benchmarks.learning.curves import digest_of, file_names
from benchmarks.learning.page import (
    agents_of,
    homes_of,
    learning_section,
    learning_summary,
    pictured_rows,
    with_learning,
    write_algorithm_pages,
)
from benchmarks.learning.task import TASKS
from benchmarks.pages import DOCS
from benchmarks.results import load
from tests.benchmarks.learning.figures import over_seeds, point, published, result, task
from tests.support.errors import assert_names

RESULT = result(point(150, 8.0, 6.0, 9.0), point(300, 2.0, 2.0, 2.0), backend=None, title="SAC, a task")
THEIRS = task("theirs", published=published(spread_over="seeds", num_seeds=4, spread=1.0))
OTHER = task("ours", threshold=6, within_timesteps=300)
PAGE = """# SAC
<!-- settings: configs/agent/sac.yaml -->
## Learning

<!-- learning -->
old
<!-- end of learning -->

## Reference
"""


@pytest.fixture
def stale(monkeypatch):
    """The names whose results are stale, of two tasks with a page."""
    names = set()
    monkeypatch.setattr(page, "TASKS", {"theirs": THEIRS, "ours": OTHER})
    monkeypatch.setattr(tables, "staleness", lambda task, result: "other settings" if task.name in names else None)
    return names


def cells(text: str, name: str) -> list[list[str]]:
    """Return the cells of the rows of a task."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| `{name}`")]


def test_rows_show_figure_requirement_mean_interval_and_seeds(stale):
    section = learning_section(["sac"], {"theirs": {**RESULT, "notes": "Slow."}, "ours": RESULT})
    ((_, figure, required, mean, iqm, probability, seeds, verdict),) = cells(section, "theirs")
    assert_names(figure, "7.0 ± 1.0", "4 seeds", "200 environment steps", "(https://example.org/table)", "line 7")
    assert_names(required, ">= 6.5", "200")
    assert re.fullmatch(r"7\.7 \[6\.0, 9\.0\] at 150", mean)
    assert (iqm, probability, seeds) == ("7.7", "-", "2 of 3")
    assert verdict.startswith("met")
    ((_, required, mean, _, seeds, verdict),) = cells(section, "ours")
    assert (mean, seeds) == ("2.0 [2.0, 2.0] at 300", "0 of 3")
    assert verdict.startswith("**not met**")
    assert_names(section, "theirs is older", "Some-v1", "`theirs`: Slow.")


def test_settings_of_the_published_training_precede_the_other_differences(stale, monkeypatch):
    theirs = task("theirs", published=published(settings="they normalize observations"))
    monkeypatch.setattr(page, "TASKS", {"theirs": theirs})
    assert "published for Some-v1; they normalize observations; theirs is older." in learning_section(["sac"], {})


def test_searches_without_success_are_listed_by_agent(stale, monkeypatch):
    monkeypatch.setattr(page, "SEARCHES", {"sac": "a table of pictures", "ppo": "elsewhere"})
    section = learning_section(["sac"], {})
    assert "`agent=sac`: a table of pictures." in section
    assert "elsewhere" not in section


def test_published_seeds_are_compared_by_probability(stale, monkeypatch):
    monkeypatch.setattr(page, "TASKS", {"theirs": task("theirs", published=over_seeds(1.0, 2.0, 3.0))})
    ((_, figure, _, _, _, probability, seeds, verdict),) = cells(
        learning_section(["sac"], {"theirs": RESULT}), "theirs"
    )
    assert "2.0 ± 1.0" in figure
    assert probability == "1.00 [1.00, 1.00]"
    assert seeds.startswith("3 of 3")
    assert verdict.startswith("better")


def test_steps_beside_a_published_figure_are_those_of_the_environment(stale):
    repeated = result(point(25, 8.0, 8.0), action_repeat=8)
    section = learning_section(["sac"], {"theirs": repeated, "ours": repeated})
    assert cells(section, "theirs")[0][3].endswith("at 200")
    assert cells(section, "ours")[0][2].endswith("at 25")


def test_stale_results_meet_nothing_and_tell_why(stale):
    stale.update({"theirs", "ours"})
    section = learning_section(["sac"], {"theirs": RESULT, "ours": RESULT})
    for name in ("theirs", "ours"):
        row, reason = cells(section, name)
        assert row[-1] == "stale"
        assert set(row[3:-1]) <= {"-"} or name == "ours"
        assert reason[1:3] == ["2026-01-02", "other settings"]
    assert " met " not in section
    assert "stale: 2;" in learning_summary({"theirs": RESULT, "ours": RESULT}, DOCS)


def test_tasks_without_a_result_have_a_row(stale):
    section = learning_section(["sac"], {})
    assert cells(section, "theirs")[0][-1] == "not recorded"
    assert cells(section, "ours")[0][-1] == "not recorded"
    assert "not recorded: 2." in learning_summary({}, DOCS)


def test_a_shorter_training_is_marked(stale):
    short = result(point(100, 8.0))
    assert "fewer steps" in cells(learning_section(["sac"], {"theirs": short}), "theirs")[0][-1]


def test_regression_figures_have_a_table_of_their_own(stale):
    text = learning_summary({"theirs": RESULT, "ours": RESULT}, DOCS)
    first, second = text.split("### Regression figures")
    assert "SAC, a task" in first
    assert first.count("SAC, a task") == second.count("SAC, a task") == 1


def test_only_the_place_of_the_tables_changes(stale):
    text = with_learning(PAGE, {"theirs": RESULT})
    assert text == PAGE.replace("old\n", learning_section(["sac"], {"theirs": RESULT}) + "\n")
    assert with_learning(text, {"theirs": RESULT}) == text


def test_origins_are_listed_once_with_their_tasks(stale):
    same = learning_section(["sac"], {"theirs": RESULT, "ours": {**RESULT, "load": 3.0}})
    assert same.count("<small>") == 1
    assert_names(same, "2026-01-02", "2 cores", "jax 1", "01234567")
    newer = learning_section(["sac"], {"theirs": RESULT, "ours": {**RESULT, "commit": "f" * 40}})
    assert newer.count("<small>") == 2


def test_pages_and_pictures_of_algorithms_are_renewed(tmp_path, stale):
    (tmp_path / "algorithms").mkdir()
    path = tmp_path / "algorithms" / "sac.md"
    path.write_text(PAGE, encoding="utf-8")
    write_algorithm_pages(tmp_path, {"theirs": RESULT, "ours": RESULT})
    text = path.read_text("utf-8")
    assert text == with_learning(PAGE, {"theirs": RESULT, "ours": RESULT})
    pictures = set(re.findall(r"\((learning/[\w.]+\.svg)#", text))
    assert pictures == {f"learning/{name}{kind}.svg" for name in ("theirs", "ours") for kind in ("", ".dark")}
    assert {f"learning/{file.name}" for file in (tmp_path / "algorithms" / "learning").iterdir()} == pictures
    stale.add("theirs")
    write_algorithm_pages(tmp_path, {"ours": {**RESULT, "curve": []}})
    assert ".svg" not in path.read_text("utf-8")
    assert not list((tmp_path / "algorithms" / "learning").iterdir())


def test_every_task_is_in_exactly_one_page_that_has_a_table():
    pages = [path.read_text("utf-8") for path in (DOCS / "algorithms").glob("*.md")]
    for each in TASKS.values():
        homes = [text for text in pages if each.agent in agents_of(text)]
        assert len(homes) == 1, f"{each.name}: {len(homes)} pages have the settings of {each.agent}"
        assert f"| `{each.name}`: " in homes[0], f"{each.name}: its page has no table of learning"


def test_pages_and_pictures_agree_with_the_records():
    results, homes = load("learning"), homes_of(DOCS)
    for path in (DOCS / "algorithms").glob("*.md"):
        text = path.read_text("utf-8")
        assert text == with_learning(text, results), f"{path.name} is out of date: python -m benchmarks.pages"
    drawn = [row for row in pictured_rows(homes, results) if row.pictured and row.result]
    digests = {
        name: digest_of(row.task, row.result, stale=row.stale is not None)
        for row in drawn
        for name in file_names(row.task)
    }
    pictures = {path.name: path.read_text("utf-8") for path in (DOCS / "algorithms" / "learning").glob("*.svg")}
    assert {name for name, text in pictures.items() if digests.get(name, "none") not in text} == set()
    assert set(pictures) == set(digests)
    assert max(map(len, pictures.values())) < 200_000
    assert sum(map(len, pictures.values())) < 21_000 * len(pictures)  # two for each recorded task


def test_every_page_with_a_recorded_task_has_a_picture():
    results = load("learning")
    for path in (DOCS / "algorithms").glob("*.md"):
        text = path.read_text("utf-8")
        is_recorded = any(task.name in results for task in TASKS.values() if task.agent in agents_of(text))
        assert bool(re.findall(r"\(learning/[\w.]+\.svg\)", text)) == is_recorded, path.name


def test_a_page_without_a_current_result_shows_one_stale_curve(stale):
    stale.update({"theirs", "ours"})
    section = learning_section(["sac"], {"theirs": RESULT, "ours": RESULT})
    assert section.count("#only-light") == 1
    assert "learning/theirs.svg" in section
    assert "`theirs`, a stale result:" in section
    stale.remove("ours")
    section = learning_section(["sac"], {"theirs": RESULT, "ours": RESULT})
    assert "`ours`:" in section
    assert "theirs.svg" not in section
