"""Grouping of settings that are trained in parallel."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evorl.envs.host.simulators import Simulators
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import MANIFEST, RunFolderError
from evorl.runs.structure import CheckpointError
from evorl.sweeps import capacity
from evorl.sweeps.grouping import Group
from evorl.sweeps.sweep import sweep_groups
from evorl.sweeps.sweep_run import SweepRun, check_halving, last_rounds, last_score, ranked, rungs_of
from evorl.sweeps.sweep_settings import Halving, SweepSettings
from tests.support.config_files import spec_of
from tests.support.errors import assert_names, raises_naming
from tests.support.small_workflows import small


def run_of(num_settings: int, num_seeds: int, devices: int, **options: int) -> SweepRun:
    members = tuple(range(num_settings))
    group = Group(small("ppo"), members, ("discount",), tuple((0.9 + member / 100,) for member in members))
    sweep = SweepSettings.from_config({"over": {"discount": [0.9]}, **options})
    return SweepRun(Path("nowhere"), sweep, [group], num_seeds, 0, devices, lambda text: None)


@pytest.mark.parametrize(
    ("num_settings", "num_seeds", "devices", "at_once", "parts"),
    [
        (3, 3, 2, 3, [(0, 1, 2)]),  # nine rows are odd: repeating the last setting adds three
        (4, 1, 2, 2, [(0, 1), (2, 3)]),
        (5, 1, 2, 4, [(0, 1, 2), (3, 4)]),
        (3, 1, 1, 3, [(0, 1, 2)]),
    ],
)
def test_rows_are_shared_out_to_devices(
    num_settings: int, num_seeds: int, devices: int, at_once: int, parts: list[tuple[int, ...]]
) -> None:
    run = run_of(num_settings, num_seeds, devices, at_once=at_once)
    found = run.parts(0, range(num_settings))
    assert [member for part in found for member in part.members] == list(range(num_settings))
    assert {part.workflow.execution.num_devices for part in found} == {devices}
    assert len({len(part.workflow.seeds) for part in found}) == 1  # one program
    assert len(found) == len(parts)


def test_simulators_on_the_host_are_refused_before_a_folder_is_created() -> None:
    spec = spec_of("agent=ppo", "env=gymnasium/CartPole-v1", "sweep={discount: [0.9,0.99]}")
    with raises_naming(ValueError, "one compiled program", "outside JAX", "-m"):
        sweep_groups(spec)


@pytest.mark.parametrize("second", ["0.99", "-1"])
def test_simulators_of_a_rejected_sweep_are_closed(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Simulators] = []
    init = Simulators.__init__
    monkeypatch.setattr(Simulators, "__init__", lambda self, *args: made.append(self) or init(self, *args))
    space = f"sweep={{rollout_length: [8,16], gae_lambda: [0.9,{second}]}}"
    with pytest.raises(ValueError) as error:  # as in a notebook, its traceback refers to the workflows
        sweep_groups(spec_of("agent=ppo", "env=gymnasium/CartPole-v1", "num_envs=2", space))
    assert made, error
    assert not any(simulators._live for simulators in made), error


def test_no_more_settings_than_requested_are_trained_in_parallel() -> None:
    for num_settings, num_seeds, at_once in ((3, 3, 1), (4, 1, 3), (5, 3, 3)):
        run = run_of(num_settings, num_seeds, 2, at_once=at_once)
        assert max(len(part.workflow.seeds) for part in run.parts(0, range(num_settings))) <= at_once * num_seeds


@pytest.mark.parametrize("num_settings", [3, 8])
@pytest.mark.parametrize("fits", [1, 3, 4, 5])
def test_rows_for_all_devices_do_not_exceed_the_memory(
    num_settings: int, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "process_peak_bytes", lambda: 0)
    monkeypatch.setattr(capacity, "_state_bytes", lambda rows: 1)
    monkeypatch.setattr(capacity, "program_bytes", lambda num_rows, num_devices: 100 * num_rows)
    compiled = SimpleNamespace(lowered_training=lambda rows, key: SimpleNamespace(compile=lambda: len(rows.seeds)))
    monkeypatch.setattr(capacity, "programs", compiled)
    parts = run_of(num_settings, 1, 2, memory=100 * fits).parts(0, range(num_settings))
    assert max(len(part.workflow.seeds) for part in parts) <= fits
    shared = fits >= 4  # an even number of rows fits for three settings, and for eight in parts of four
    assert {part.workflow.execution.num_devices for part in parts} == {2 if shared else 1}


def test_a_part_saves_checkpoints_by_time(tmp_path: Path) -> None:
    run, saved = dataclasses.replace(run_of(1, 1, 1), folder=tmp_path, checkpoint_seconds=60.0), []
    workflow: Any = SimpleNamespace(total_timesteps=run.groups[0].workflow.total_timesteps)
    workflow.learn = lambda *_, checkpointer, **__: saved.append((checkpointer.has_rules, checkpointer.seconds))
    dataclasses.replace(run.parts(0, [0])[0], workflow=workflow).train(0, lambda: None, [], lambda: True)
    assert saved == [(True, 60.0)]


def test_a_corrupted_checkpoint_of_a_part_is_reported_once_and_not_mixed_with_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunCheckpointer, "_prune", lambda *_: None)
    messages: list[str] = []
    workflow = small("ppo", total_timesteps=192, **dict.fromkeys(("eval_interval", "checkpoint_interval"), 64))
    group = dataclasses.replace(run_of(2, 1, 1).groups[0], workflow=workflow)
    run = dataclasses.replace(run_of(2, 1, 1, at_once=2), folder=tmp_path, groups=[group], message=messages.append)
    assert run.train(lambda part: [], lambda: False)
    (part,) = run.parts(0, range(2))
    (part.folder / "checkpoints" / "3" / "structure.json").write_text("{}")
    messages.clear()
    part = run.parts(0, range(2))[0]
    restored = [part.restore(member) for member in range(2)]
    assert [(int(state.iterations), progress["iterations"]) for state, progress in restored] == [(2, 2), (2, 2)]
    assert len(messages) == 2  # the reason, and the checkpoint that is used instead
    assert_names(messages[0], "checkpoints/3", "corrupted")
    (part.folder / "finished").unlink()
    messages.clear()
    assert run.train(lambda part: [], lambda: False)
    assert_names("".join(messages), "checkpoints/3", "corrupted", "iteration 2")
    rows = (part.folder / "metrics.csv").read_text()
    for manifest in (part.folder / "checkpoints").glob(f"*/{MANIFEST}"):
        manifest.write_text("{}")
    (part.folder / "finished").unlink()
    with raises_naming(CheckpointError, "checkpoints/1", "corrupted", f"remove {part.folder / 'checkpoints'}"):
        run.train(lambda part: [], lambda: False)
    shutil.rmtree(part.folder / "checkpoints")
    assert run.train(lambda part: [], lambda: False)  # as if it had been killed before its first checkpoint
    assert (part.folder / "metrics.csv").read_text() == rows


@pytest.mark.parametrize(
    "stored", ["2", "2\n2\n2", "0\n2", "2\n12", "2.0\n2", "-1\n2", "two\n2", "9" * 5000 + "\n2", "\n2"]
)
def test_a_damaged_number_of_settings_at_once_is_refused(stored: str, tmp_path: Path) -> None:
    run = run_of(4, 1, 1)
    run = dataclasses.replace(run, folder=tmp_path, groups=[*run.groups, *run.groups])
    (tmp_path / "at_once.csv").write_text("3\n2\n")
    assert dataclasses.replace(run).at_once == (3, 2)
    (tmp_path / "at_once.csv").write_text(f"{stored}\n")
    with raises_naming(RunFolderError, str(tmp_path / "at_once.csv"), "2 lines", "from 1 to 11"):
        _ = run.at_once


def test_a_resumed_sweep_tells_that_it_keeps_its_number_of_settings_at_once(tmp_path: Path) -> None:
    messages: list[str] = []
    run = dataclasses.replace(run_of(4, 1, 1, at_once=1), folder=tmp_path, message=messages.append)
    (tmp_path / "at_once.csv").write_text("2\n")
    assert run.at_once == (2,)
    assert_names("".join(messages), "sweep.at_once=1", "no effect", "2 settings")
    assert dataclasses.replace(run, settings=run_of(4, 1, 1, at_once=2).settings).at_once == (2,)
    assert len(messages) == 1


def test_those_that_went_farthest_come_first() -> None:
    returns = {0: {10: [5.0, 7.0]}, 1: {10: [1.0, 1.0], 20: [2.0, 2.0]}, 2: {}, 3: {10: [6.0, float("nan")]}}
    assert ranked(returns, {0: 0, 1: 1, 2: 0, 3: 0}) == [1, 0, 3, 2]
    assert last_score(returns[1]) == 2.0
    assert last_score(returns[2]) == last_score(returns[3]) == float("-inf")


def test_steps_of_the_last_evaluation_do_not_count_within_a_round() -> None:
    """Programs round the steps of evaluations to their own iterations."""
    parts = run_of(2, 1, 1, at_once=1).parts(0, range(2))
    returns = {0: {5120: [30.0], 10240: [20.0]}, 1: {5088: [10.0], 10176: [500.0]}}
    assert ranked(returns, last_rounds([parts])) == [1, 0]
    assert ranked(returns, last_rounds([parts, parts[:1]])) == [0, 1]


@pytest.mark.parametrize(
    ("algorithm", "first", "rungs"),
    [
        ("ppo", 2000, [1984, 3968, 8000]),  # iterations of 64 steps: 31 are the interval, 62 the second selection
        ("ppo", 2900, [1984, 5952, 8000]),
        ("ppo", 4100, [3968, 8000]),
        ("neuroevolution", 2100, [2000, 4000, 8000]),  # evaluations at multiples of the interval
    ],
)
def test_settings_are_selected_at_evaluations(algorithm: str, first: float, rungs: list[float]) -> None:
    workflow = small(algorithm, eval_interval=2000, log_interval=0, total_timesteps=8000)
    group = Group(workflow, (0,), (), ((),))
    halving = Halving(first, 2)
    assert rungs_of(group, halving) == rungs
    check_halving(group, halving)


def test_settings_are_not_selected_at_the_last_iteration() -> None:
    workflow = small("ppo", eval_interval=320, log_interval=0, total_timesteps=672)  # 10 iterations of 64 steps
    group = Group(workflow, (0,), (), ((),))
    assert rungs_of(group, Halving(400, 3)) == [320, 672]
    assert rungs_of(group, Halving(600, 3)) == [672]
    with raises_naming(ValueError, "sweep.halving.first=600", "eval_interval=320", "total_timesteps=672"):
        check_halving(group, Halving(600, 3))


@pytest.mark.parametrize("first", [500, 1999, 8000, 1e300])
def test_a_selection_before_the_first_evaluation_or_after_the_end_is_refused(first: float) -> None:
    group = Group(small("ppo", eval_interval=2000, total_timesteps=8000), (0,), (), ((),))
    with raises_naming(ValueError, "sweep.halving.first", "eval_interval=2,000", "total_timesteps=8,000"):
        check_halving(group, Halving(first, 3))


@pytest.mark.parametrize("options", [{}, {"at_once": 1}, {"halving": {"first": 10, "factor": 2}}])
@pytest.mark.parametrize("devices", [1, 2])
def test_settings_of_an_algorithm_that_counts_its_steps_have_parts_of_their_own(devices: int, options: dict) -> None:
    workflow = small("neuroevolution")
    group = Group(workflow, (0, 1, 2), ("optimizer.lr_schedule.init",), ((0.01,), (0.02,), (0.03,)))
    sweep = SweepSettings.from_config({"over": {"discount": [0.9]}, **options})
    run = SweepRun(Path("nowhere"), sweep, [group], 3, 0, devices, lambda text: None)
    assert [part.members for part in run.parts(0, range(3))] == [(0,), (1,), (2,)]
