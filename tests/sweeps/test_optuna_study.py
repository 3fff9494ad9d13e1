"""A search stores its trials, and proposes the same ones with and without interruption."""

from __future__ import annotations

import contextlib
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra optuna")

from evorl.runs.files import RunFolderError
from evorl.sweeps.optuna_study import OptunaStudy, Pruner
from tests.support.errors import raises_naming

OVER = {
    "a": {"low": 1e-3, "high": 1.0, "scale": "log"},
    "b": {"low": -1.0, "high": 1.0, "scale": "linear"},
    "c": [1, 2],
}


def search(path: Path, num_trials: int, reopen: bool) -> list:
    study = OptunaStudy(path, OVER, 3)
    for _ in range(num_trials):
        trial = study.next_trial()
        if reopen:
            study = OptunaStudy(path, OVER, 3)
            assert study.next_trial() == trial  # the unfinished trial
        study.end(trial, -((trial.setting["b"] - 0.5) ** 2) - 0.1 * trial.setting["c"])
    return [(trial.setting, trial.value, trial.state) for trial in study.trials]


def test_a_search_that_was_stopped_tries_the_same_and_finds_the_best(tmp_path: Path) -> None:
    trials = search(tmp_path / "one.log", 25, reopen=False)
    assert trials == search(tmp_path / "two.log", 25, reopen=True)
    assert all(1e-3 <= setting["a"] <= 1.0 and setting["c"] in (1, 2) for setting, _, _ in trials)
    assert len({setting["a"] for setting, _, _ in trials}) == 25
    best = max(trials, key=lambda trial: trial[1])
    assert best[0]["c"] == 1
    assert abs(best[0]["b"] - 0.5) < 0.2


@pytest.mark.parametrize("seed", [2**32 - 1, 2**32 - 2])
def test_the_seeds_of_the_last_trials_wrap_around(seed: int, tmp_path: Path) -> None:
    study = OptunaStudy(tmp_path / "study.log", OVER, seed)
    for _ in range(3):
        study.end(study.next_trial(), 1.0)
    assert len({trial.setting["a"] for trial in study.trials}) == 3


def test_a_failure_is_remembered(tmp_path: Path) -> None:
    study = OptunaStudy(tmp_path / "study.log", OVER, 0)
    study.end(study.next_trial(), None)
    study.end(study.next_trial(), 1.0)
    assert [(trial.state, trial.value) for trial in study.trials] == [("failed", None), ("finished", 1.0)]


DAMAGE = ["null", "[]", "{}", "[", "no JSON", '{"op_code": 99}', "[" * 5000]
VALUES: list[Any] = [None, [], "abc", -1, 10**30, [[1]], {"a": {"b": 1}}, ["abc"]]


def test_a_damaged_journal_is_one_sentence(tmp_path: Path) -> None:
    search(tmp_path / "whole.log", 1, reopen=False)
    lines = (tmp_path / "whole.log").read_text().splitlines()
    damaged = [[*lines[:i], text, *lines[i + 1 :]] for i in range(len(lines)) for text in ["", *DAMAGE]]
    for i, entries in enumerate(map(json.loads, lines)):
        changes = [{**entries, key: value} for key in entries for value in VALUES]
        changes += [{name: x for name, x in entries.items() if name != key} for key in entries]
        damaged += [[*lines[:i], json.dumps(entry), *lines[i + 1 :]] for entry in changes]
    for number, text in enumerate(damaged):
        path = tmp_path / f"{number}.log"
        path.write_text("".join(f"{line}\n" for line in text))
        with contextlib.suppress(RunFolderError), warnings.catch_warnings(action="ignore"):
            study = OptunaStudy(path, OVER, 3)
            study.end(study.next_trial(), 1.0)
            assert all(isinstance(trial.value, float | int | None) for trial in study.trials)
    path.write_text('{"op_code": 0}\n')
    with raises_naming(RunFolderError, path, "corrupted", "journal"):
        OptunaStudy(path, OVER, 3)


def test_a_journal_behind_a_link_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine, without a line end")
    (tmp_path / "study.log").symlink_to(precious)
    with raises_naming(RunFolderError, "study.log", "symbolic link"):
        OptunaStudy(tmp_path / "study.log", OVER, 3)
    assert precious.read_text() == "mine, without a line end"


def test_a_kill_at_any_byte_of_the_journal_changes_nothing(tmp_path: Path) -> None:
    """A search with a journal truncated at any byte resumes to the trials of an uninterrupted one."""
    expected = search(tmp_path / "whole.log", 4, reopen=False)
    whole = (tmp_path / "whole.log").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {0, 1, *ends, *(end - 1 for end in ends), *(end + 7 for end in ends[:-1])}
    for cut in sorted(cuts):
        path = tmp_path / f"{cut}.log"
        path.write_bytes(whole[:cut])
        (tmp_path / f"{cut}.log.lock").symlink_to(path)  # left by a killed writer
        study = OptunaStudy(path, OVER, 3)
        while len([trial for trial in study.trials if trial.state != "running"]) < 4:
            trial = study.next_trial()
            study.end(trial, -((trial.setting["b"] - 0.5) ** 2) - 0.1 * trial.setting["c"])
        assert [(trial.setting, trial.value, trial.state) for trial in study.trials] == expected, cut


def test_a_failure_has_its_reason(tmp_path: Path) -> None:
    study = OptunaStudy(tmp_path / "study.log", OVER, 0)
    study.end(study.next_trial(), None, "it diverged")
    study.end(study.next_trial(), None)
    failures = [trial.failure for trial in OptunaStudy(tmp_path / "study.log", OVER, 0).trials]
    assert failures == ["it diverged", "it has no evaluation."]


@pytest.mark.parametrize("name", ["median", "hyperband"])
def test_unpromising_trials_are_pruned_also_after_a_resume(name: str, tmp_path: Path) -> None:
    pruner = Pruner(name, 100, 900)

    def state_of(score: float, path: Path, reopen: bool) -> str:
        study = OptunaStudy(path, OVER, 0, pruner)
        trial = study.next_trial()
        for timesteps in range(100, 1000, 100):
            if reopen:
                study = OptunaStudy(path, OVER, 0, pruner)
                study.report(trial, timesteps, score)  # a killed trial repeats its last evaluation
            if study.report(trial, timesteps, score):
                study.prune(trial)
                return f"pruned at {timesteps}"
        study.end(trial, score)
        return "finished"

    scores = [5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 10.0, 0.0, 0.5]
    states = [state_of(score, tmp_path / "one.log", reopen=False) for score in scores]
    assert states == [state_of(score, tmp_path / "two.log", reopen=True) for score in scores]
    assert states[4] == states[6] == "finished"
    assert any(state.startswith("pruned at") for state in (states[5], *states[7:]))
    trials = OptunaStudy(tmp_path / "one.log", OVER, 0, pruner).trials
    assert [trial.state for trial in trials] == [state.partition(" ")[0] for state in states]
    assert [trial.value for trial in trials] == scores
    assert {trial.failure for trial in trials} == {""}


@pytest.mark.parametrize("longest", [80, 350])
def test_trials_with_evaluations_at_different_steps_are_pruned(longest: int, tmp_path: Path) -> None:
    """Evaluations follow generations of random length, which may exceed the interval.

    Each good trial beats the earlier ones.
    """
    study, lengths = OptunaStudy(tmp_path / "study.log", OVER, 0, Pruner("median", 100, 2000)), random.Random(0)
    states = []
    for number in range(9):
        trial, timesteps, is_good = study.next_trial(), 0, number < 6
        pruned = False
        while timesteps < 2000 and not pruned:
            before = timesteps
            while timesteps // 100 == before // 100:  # the rule of a training for evaluations
                timesteps += lengths.randint(longest // 2, longest)
            pruned = study.report(trial, timesteps, timesteps * (number + 1.0 if is_good else 0.01))
        if pruned:
            study.prune(trial)
        else:
            study.end(trial, 1.0)
        states.append(pruned)
    assert states == [False] * 6 + [True] * 3


def test_a_range_with_ends_of_type_int_is_drawn_in_whole_numbers(tmp_path: Path) -> None:
    over = {"a": {"low": 2, "high": 64, "scale": "log"}, "b": {"low": 2.0, "high": 64.0, "scale": "linear"}}
    study = OptunaStudy(tmp_path / "study.log", over, 0)
    for _ in range(12):
        study.end(study.next_trial(), 1.0)
    study = OptunaStudy(tmp_path / "study.log", over, 0)
    assert {type(trial.setting["a"]) for trial in study.trials} == {int}
    assert all(2 <= trial.setting["a"] <= 64 for trial in study.trials)
    assert not any(trial.setting["b"].is_integer() for trial in study.trials)
