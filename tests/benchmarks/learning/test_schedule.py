"""Recording of all tasks that are missing or stale."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.learning import schedule
from benchmarks.learning.schedule import DEFAULT_MINUTES, minutes_of, pending, run_schedule
from tests.benchmarks.learning.figures import point, result, task

FIVE = result(point(200, *[8.0] * 5), seconds=600.0)


class Clock:
    """A clock that only sleeping advances, with processes that take a number of minutes by name."""

    def __init__(self, minutes):
        self.now, self.minutes, self.started, self.most = 0.0, minutes, [], 0
        self.ends = {}

    def sleep(self, seconds):
        self.now += seconds

    def start(self, name):
        self.started.append(name)
        self.ends[name] = self.now + 60 * self.minutes[name]
        self.most = max(self.most, sum(end > self.now for end in self.ends.values()))
        clock = self

        class Running:
            def poll(self):
                return 0 if clock.now >= clock.ends[name] else None

        return Running()

    def run(self, **options):
        return run_schedule(
            self.minutes, self.start, clock=lambda: self.now, sleep=self.sleep, show=lambda line: None, **options
        )


@pytest.fixture
def stale(monkeypatch):
    """The names whose results are stale."""
    names = set()
    monkeypatch.setattr(schedule, "staleness", lambda task, result: "old" if task.name in names else None)
    return names


def test_missing_and_stale_tasks_are_taken_cheapest_first(stale):
    stale.add("stale")
    tasks = [task("missing", minutes=30), task("stale"), task("current"), task("unknown"), task("cheap", minutes=1)]
    results = {"stale": FIVE, "current": FIVE}
    assert list(pending(tasks, results, 5).items()) == [
        ("cheap", 1),
        ("stale", 10.0),
        ("missing", 30),
        ("unknown", DEFAULT_MINUTES),
    ]


def test_results_of_fewer_seeds_are_taken(stale):
    assert pending([task()], {"task": FIVE}, 5) == {}
    assert pending([task()], {"task": FIVE}, 10) == {"task": 20.0}


def test_estimates_without_a_recording():
    assert minutes_of(task(minutes=7), None, 5) == 7
    assert minutes_of(task(), None, 5) == DEFAULT_MINUTES


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_all_tasks_run_with_a_number_of_jobs(jobs):
    clock = Clock({"a": 1, "b": 2, "c": 3, "d": 4})
    assert clock.run(jobs=jobs) == []
    assert clock.started == ["a", "b", "c", "d"]
    assert clock.most == jobs
    assert clock.now >= max(clock.ends.values())  # running processes are awaited


def test_no_task_starts_that_would_end_too_late():
    clock = Clock({"a": 20, "b": 30, "c": 40})
    assert clock.run(jobs=1, hours=1) == ["c"]
    assert clock.started == ["a", "b"]
    assert Clock({"a": 70}).run(hours=1) == ["a"]


def test_failed_processes_do_not_stop_the_others():
    codes = {"a": 3, "b": 0}
    started = []

    def start(name):
        started.append(name)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({codes[name]})"])

    assert run_schedule({"a": 1, "b": 1}, start, sleep=lambda _: None, show=started.append) == []
    assert [name for name in started if name in codes] == ["a", "b"]
