"""Results count only with the settings of today."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from benchmarks.learning import staleness as module
from benchmarks.learning.staleness import composed, staleness
from benchmarks.learning.task import TASKS
from benchmarks.learning.training import overrides_of
from tests.benchmarks.learning.figures import point, result, task

TASK = task()


@pytest.fixture
def recorded():
    """A result, as read from its file."""
    return json.loads(json.dumps(result(config=composed(TASK), overrides=overrides_of(TASK, 5))))


def test_the_settings_of_today_count(recorded):
    assert staleness(TASK, recorded) is None


@pytest.mark.parametrize("path", [["discount"], ["agent", "network", "torso"], ["env", "action_repeat"]])
def test_another_setting_is_stale_and_named(recorded, path):
    settings = recorded["config"]
    for key in path[:-1]:
        settings = settings[key]
    settings[path[-1]] = 123
    reason = staleness(TASK, recorded)
    assert ".".join(path) in reason
    assert "123" in reason


def test_a_new_setting_counts_with_its_default_only(recorded):
    del recorded["config"]["stop"], recorded["config"]["n_step"]
    assert staleness(TASK, recorded) is None
    del recorded["config"]["eval_at_start"]  # the tasks set it
    assert "eval_at_start" in staleness(TASK, recorded)


def test_a_new_setting_of_a_config_in_a_config_counts_with_its_default_only():
    sweep = TASKS["pbt_pendulum"]
    curve = [point(sweep.within_timesteps, 1.0)]
    recorded = json.loads(json.dumps(result(*curve, config=composed(sweep), overrides=overrides_of(sweep, 5))))
    inner = recorded["config"]["inner"]
    del inner["normalize_until"], inner["agent"]["network"]["initial_log_std"]
    assert staleness(sweep, recorded) is None
    del inner["optimizer"]["learning_rate"]  # the config of the agent sets it
    assert "inner.optimizer.learning_rate" in staleness(sweep, recorded)


def test_an_inherited_field_that_was_a_setting_counts_with_its_default_only():
    tqc = dataclasses.replace(TASK, overrides=("agent=tqc", "env=pendulum"))
    recorded = json.loads(json.dumps(result(config=composed(tqc), overrides=overrides_of(tqc, 5))))
    recorded["config"]["agent"] |= {"support_low": -10.0, "support_high": 10.0}
    assert staleness(tqc, recorded) is None
    recorded["config"]["agent"]["support_low"] = -20.0
    assert "agent.support_low" in staleness(tqc, recorded)


def test_a_setting_that_is_gone_is_stale(recorded):
    recorded["config"] = {**composed(TASK), "old_option": 1}
    assert "old_option" in staleness(TASK, recorded)


def test_settings_of_the_machine_and_seeds_are_ignored(recorded):
    other = {"devices": 7, "compilation_cache": False, "runs_folder": "/elsewhere", "num_seeds": 3, "seed": 2}
    recorded["config"].update(other, recorders={"own": ["some"]})
    assert staleness(TASK, recorded) is None


def test_other_overrides_that_compose_the_same_settings_count(recorded):
    recorded["overrides"] = ["agent=sac", "env=pendulum", "something=else"]
    assert staleness(TASK, recorded) is None


@pytest.mark.parametrize("missing", ["config", "commit"])
def test_results_of_before_commits_were_stored_are_stale(recorded, missing):
    del recorded[missing]
    recorded["seeds"] = [0, 1, 2, 3, 4]
    same = staleness(TASK, recorded)
    assert same is not None
    differing = staleness(TASK, {**recorded, "overrides": ["agent=sac"]})
    assert differing not in (None, same)


def test_a_training_that_was_stopped_before_its_limit_is_stale():
    limited = task(threshold=1.0, within_timesteps=200)
    same = {"config": json.loads(json.dumps(composed(limited)))}
    assert staleness(limited, result(point(200, 8.0), **same)) is None
    assert staleness(limited, result(point(180, 8.0), **same)) is None
    reason = staleness(limited, result(point(150, 8.0), **same))
    assert reason is not None
    assert all(part in reason for part in ("150", "200"))


def test_another_recording_of_the_replay_buffer_is_stale(recorded):
    offline = dataclasses.replace(TASK, recorded_by=("agent=sac", "env=pendulum"))
    assert staleness(offline, recorded) is not None
    recorded["recorded"] = {"overrides": ["agent=sac", "env=pendulum"]}
    assert staleness(offline, recorded) is None
    assert staleness(TASK, recorded) is not None


def test_each_task_is_composed_once(recorded, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "compose_config", lambda overrides: calls.append(overrides) or recorded["config"])
    module._composed.cache_clear()
    try:
        for _ in range(3):
            assert staleness(TASK, recorded) is None
        old = {key: value for key, value in copy.deepcopy(recorded).items() if key != "config"}
        assert staleness(task("other", threshold=1.0, within_timesteps=9), old) is not None
        assert len(calls) == 1
    finally:
        module._composed.cache_clear()
