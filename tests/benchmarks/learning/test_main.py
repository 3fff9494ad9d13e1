"""Command line of the learning benchmark."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types

import pytest

from benchmarks import results
from benchmarks.learning import __main__ as command
from benchmarks.learning.__main__ import main, show
from benchmarks.learning.judgment import judge
from benchmarks.learning.staleness import composed
from benchmarks.learning.training import overrides_of
from tests.benchmarks.learning.figures import over_seeds, point, result, task
from tests.support.errors import assert_names

TINY = task("tiny", threshold=1.0, within_timesteps=200)
FOLDERS = []  # folders of checkpoints, of all trainings so far


def train_tiny(task, num_seeds, total_timesteps, earlier, folder):
    """Yield the result of the tiny task."""
    FOLDERS.append(folder)
    curve = [point(200, *range(1, num_seeds + 1))]
    yield result(*curve, config=composed(task, num_seeds), overrides=overrides_of(task, num_seeds))


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The command with one tiny task, whose results go to a temporary folder; returns the number of rendered pages."""
    monkeypatch.setattr(command, "TASKS", {"tiny": TINY})
    monkeypatch.setattr(command, "load", lambda kind: results.load(kind, tmp_path))
    monkeypatch.setattr(command, "record", lambda *arguments: results.record(*arguments, tmp_path))
    monkeypatch.setattr(command, "trainings", train_tiny)
    monkeypatch.setattr(command, "about", lambda: {"commit": "abc"})
    rendered = []
    monkeypatch.setattr(command, "write_pages", lambda: rendered.append(1))
    return rendered


def test_screen_shows_requirement_verdict_seeds_and_the_end():
    compared = task(published=over_seeds(1.0, 2.0, 3.0))
    judged = result(point(200, 1.0, 8.0, 9.0), point(300, 4.0, 4.0, 4.0), action_repeat=1)
    text = show(compared, judged)
    verdict = judge(compared, judged).verdict
    assert_names(text, compared.limit, verdict, "6.0", "2 of 3", "P(ours > theirs)", "4.0", "300")
    assert "NOT MET" in show(task(), result(point(200, 1.0)))
    assert "NOT MET" in show(task(), result())


def test_unknown_tasks_are_rejected_with_a_suggestion(capsys):
    with pytest.raises(SystemExit):
        main(["ppo_cartpoll"])
    assert_names(capsys.readouterr().err, "'ppo_cartpoll'", "'ppo_cartpole'")


@pytest.mark.parametrize("arguments", [[], ["--all", "ppo_cartpole"], ["--all", "--total-timesteps", "5"]])
def test_names_or_all_are_required(arguments):
    with pytest.raises(SystemExit):
        main(arguments)


def test_all_records_what_is_missing_and_goes_on_where_it_stopped(tiny, monkeypatch, capsys):
    started = []

    class Ended:
        def poll(self):
            return 0

    def start(arguments):
        assert arguments[:3] == [sys.executable, "-m", "benchmarks.learning"]
        started.append(arguments[3])
        assert main(arguments[3:]) == 0
        return Ended()

    monkeypatch.setattr(subprocess, "Popen", start)
    assert main(["--all", "--seeds", "2", "--hours", "0.001"]) == 1  # no time is left for it
    assert started == []
    assert_names(capsys.readouterr().out, "left to record: tiny")
    assert main(["--all", "--seeds", "2", "--jobs", "2"]) == 0
    assert main(["--all", "--seeds", "2"]) == 0
    assert started == ["tiny"]
    assert len(tiny) == 3  # once by each call, and not by the recording process
    recorded = command.load("learning")["tiny"]
    assert recorded["seeds"] == [0, 1]
    assert recorded["commit"] == "abc"
    assert recorded["curve"] == [point(200, 1, 2)]
    changed = dataclasses.replace(TINY, overrides=(*TINY.overrides, "discount=0.5"))
    monkeypatch.setattr(command, "TASKS", {"tiny": changed})
    assert main(["--all", "--seeds", "2"]) == 0  # with other settings the result is stale, and recorded again
    assert started == ["tiny", "tiny"]
    assert command.load("learning")["tiny"]["config"]["discount"] == 0.5


def test_checkpoints_are_kept_by_commit_for_every_task(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "describe_commit", lambda: "abc")

    def start(arguments):
        assert main(arguments[3:]) == 0
        return types.SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert main(["--all", "--seeds", "2", "--folder", str(tmp_path)]) == 0
    assert FOLDERS[-1] == tmp_path / "abc"
    assert main(["tiny", "--seeds", "2"]) == 0
    assert FOLDERS[-1] is None
    monkeypatch.setattr(command, "describe_commit", lambda: "abc+")  # another state of the code may differ
    with pytest.raises(SystemExit):
        main(["tiny", "--folder", str(tmp_path)])
    assert_names(capsys.readouterr().err, "--folder", "commit")
