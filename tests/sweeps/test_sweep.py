"""Sweeps on the command line: one program per structure, the results of single runs, resumption, errors."""

from __future__ import annotations

import csv
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import evorl
from evorl.cli import main as cli
from evorl.reports.recorded_run import find_runs
from evorl.reports.swept_setting import expand_sweep
from evorl.runs.about import read_starts
from evorl.runs.folder import RunFolder
from evorl.runs.replay_file import ReplayFileError
from evorl.runs.spec import RunSpec
from evorl.runs.storage import read_about
from evorl.sweeps.part import Part
from evorl.sweeps.sweep import sweep_groups
from tests.support.command_line import QUIET, SMALL
from tests.support.compilation import compiled_names
from tests.support.config_files import spec_of
from tests.support.errors import missing_parts, raises_naming

SETTINGS = "sweep={agent.clip_epsilon: [0.1,0.4],num_minibatches: [1,2]}"
QUICK = [*SMALL, "optimizer.learning_rate=1e-2", "num_seeds=2"]


def run(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "argv", ["train.py", *arguments])
        cli.train()


def table_in(root: Path) -> list[dict[str, str]]:
    (path,) = root.glob("ppo-cartpole-sweep/*/sweep.csv")
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Run a sweep; return its folder of runs, and the names of the compiled programs."""
    root = tmp_path_factory.mktemp("sweep")
    with compiled_names() as names:
        run(*QUICK, SETTINGS, f"runs_folder={root}")
    return root, list(names)


def test_one_program_for_each_structure(swept: tuple[Path, list[str]]) -> None:
    _, names = swept
    assert names.count("jit(iterations_on_mesh)") == 2


def test_every_setting_is_its_solo_run(swept: tuple[Path, list[str]], tmp_path: Path) -> None:
    rows = table_in(swept[0])
    assert [(row["agent.clip_epsilon"], row["num_minibatches"]) for row in rows] == [
        ("0.1", "1"),
        ("0.1", "2"),
        ("0.4", "1"),
        ("0.4", "2"),
    ]
    run(*QUICK, "agent.clip_epsilon=0.4", "num_minibatches=2", f"runs_folder={tmp_path}")
    with open(RunFolder.latest(tmp_path).metrics_csv, newline="", encoding="utf-8") as file:
        solo = list(csv.DictReader(file))[-1]
    assert rows[3]["timesteps"] == solo["timesteps"]
    for seed in range(2):
        assert float(rows[3][f"seed_{seed}"]) == pytest.approx(
            float(solo[f"eval/episode_return_seed_{seed}"]), rel=1e-4
        )
    (table,) = swept[0].glob("ppo-cartpole-sweep/*/evaluations.csv")
    with open(table, newline="", encoding="utf-8") as file:
        last = [row for row in csv.DictReader(file) if row["setting"] == "3"][-1]
    of_lengths = [f"eval/episode_length{end}" for end in ("", "_seed_0", "_seed_1")]
    assert [float(last[name]) for name in of_lengths] == pytest.approx([float(solo[name]) for name in of_lengths])


def test_the_best_is_a_run_of_its_own(
    swept: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (best,) = swept[0].glob("*/*/best")
    rows = table_in(swept[0])
    config = RunFolder(best).load_config()
    assert read_starts(RunFolder(best).about) == read_starts(RunFolder(best.parent).about) != []
    assert not RunFolder(best).learning_curve.exists()  # SMALL disables pictures
    chosen = next(row for row in rows if row["eval_return"] == str(max(float(row["eval_return"]) for row in rows)))
    assert (str(config.agent.clip_epsilon), str(config.num_minibatches)) == tuple(chosen.values())[1:3]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", f"run={best}"])
    cli.evaluate()
    output = capsys.readouterr().out
    for seed in range(2):
        assert f"{float(chosen[f'seed_{seed}']):.2f}" in output
    with open(RunFolder(best).metrics_csv, newline="", encoding="utf-8") as file:
        scores = [float(row["eval/episode_return"]) for row in csv.DictReader(file)]
    (checkpoint,) = RunFolder(best).checkpoints.iterdir()
    assert read_about(checkpoint)["progress"]["best_score"] == pytest.approx(max(scores))
    run(f"resume={best}", "total_timesteps=192")  # training can continue
    assert RunFolder(best).load_config().total_timesteps == 192
    trained = {path: path.read_bytes() for path in best.rglob("*") if path.is_file()}
    run(f"resume={best.parent}")  # the finished sweep does not change it
    assert {path: path.read_bytes() for path in best.rglob("*") if path.is_file()} == trained


def test_a_sweep_in_training_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a sweep trains, its settings are listed as running, and it cannot be resumed a second time."""

    def states() -> set[str]:
        return {each.state.state for run in find_runs(tmp_path, sweeps=True) for each in expand_sweep(run)}

    def look(*_: object) -> None:
        seen.append(states())
        with pytest.raises(SystemExit):
            run(f"resume={next(tmp_path.glob('*/*'))}")

    seen: list[set[str]] = []
    monkeypatch.setattr(Part, "train", look)  # returns without an end, like a stopped part
    run(*QUICK, SETTINGS, f"runs_folder={tmp_path}")
    assert seen == [{"running"}]
    assert "is already being trained" in capsys.readouterr().err
    assert states() == {"stopped"}


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_a_stopped_sweep_goes_on_to_the_same_table(
    stopped_after: int, swept: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))
    train = Part.train

    def stopped(part: Part, seed: int, start: object, recorders: object, should_stop: object) -> None:
        train(part, seed, start, recorders, lambda: next(calls) >= stopped_after)

    with monkeypatch.context() as context:
        context.setattr(Part, "train", stopped)
        run(*QUICK, SETTINGS, f"runs_folder={tmp_path}")
    (folder,) = tmp_path.glob("*/*")
    assert not (folder / "best").exists()
    run(f"resume={folder}")
    assert (folder / "sweep.csv").read_bytes() == next(swept[0].glob("*/*/sweep.csv")).read_bytes()
    assert (folder / "best").exists()


def test_a_part_stopped_before_its_last_evaluation_goes_on_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = "sweep={over: {agent.clip_epsilon: [0.1,0.2,0.3,0.4]},halving: {first: 200,factor: 2},at_once: 2}"
    settings = [*QUICK, "num_seeds=1", sweep, "total_timesteps=512", "eval_interval=128"]
    settings += ["checkpoint_seconds=600"]
    run(*settings, f"runs_folder={tmp_path / 'whole'}")
    (whole,) = (tmp_path / "whole").glob("*/*")
    polled, train = itertools.count(), Part.train

    def stopped(part: Part, seed: int, start: object, recorders: object, should_stop: object) -> None:
        assert part.checkpoint_seconds == 600
        train(part, seed, start, recorders, lambda: next(polled) >= 2)  # after the third iteration, at 192 steps

    with monkeypatch.context() as context:
        context.setattr(Part, "train", stopped)
        context.setattr("evorl.execution.training_loop.SECONDS_PER_CHUNK", 0.0)
        run(*settings, f"runs_folder={tmp_path / 'stopped'}")
    (folder,) = (tmp_path / "stopped").glob("*/*")
    part = folder / "round_0" / "group_0_part_0"
    assert max(int(path.name) for path in (part / "checkpoints").glob("[0-9]*")) == 3
    run(f"resume={folder}")
    for name in ("sweep.csv", "evaluations.csv"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_resumed_sweep_keeps_its_parts_on_a_machine_with_other_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, resumed = 3, 2
    over = "sweep={agent.clip_epsilon: [0.1,0.2,0.3,0.4]}"
    tables, polled, train = [], itertools.count(), Part.train

    def stopped(part: Part, seed: int, start: object, recorders: object, should_stop: object) -> None:
        train(part, seed, start, recorders, lambda: next(polled) >= 3)

    for path, next_count in ((tmp_path / "whole", at_once), (tmp_path / "stopped", resumed)):
        with monkeypatch.context() as context:
            context.setattr("evorl.sweeps.sweep_run.settings_at_once", lambda *_: (at_once, at_once))
            if path.name == "stopped":
                context.setattr(Part, "train", stopped)
            run(*QUICK, over, f"runs_folder={path}")
        (folder,) = path.glob("*/*")
        monkeypatch.setattr("evorl.sweeps.sweep_run.settings_at_once", lambda *_, count=next_count: (count, count))
        run(f"resume={folder}")
        tables.append((folder / "sweep.csv").read_bytes())
    assert tables[0] == tables[1]


def test_a_setting_with_parameters_that_are_not_finite_has_no_return(tmp_path: Path) -> None:
    """With discrete actions the argmax of NaN logits is still an action, so the episodes have finite returns."""
    with pytest.raises(SystemExit):
        run(*SMALL, "sweep={optimizer.learning_rate: [1e-3,1e30]}", f"runs_folder={tmp_path}")
    assert [bool(row["eval_return"]) for row in table_in(tmp_path)] == [True, False]
    (best,) = tmp_path.glob("*/*/best")
    assert RunFolder(best).load_config().optimizer.learning_rate == 1e-3


def test_parts_and_halving_end_the_worse_early(swept: tuple[Path, list[str]], tmp_path: Path) -> None:
    over = "{agent.clip_epsilon: [0.1,0.2,0.3,0.4]}"
    run(*QUICK, f"sweep={{over: {over},halving: {{first: 64,factor: 2}},at_once: 2}}", f"runs_folder={tmp_path}")
    rows = table_in(tmp_path)
    assert sorted(row["timesteps"] for row in rows) == ["128", "128", "64", "64"]
    (folder,) = tmp_path.glob("*/*")
    assert len(list(folder.glob("round_0/*"))) == 2
    assert len(list(folder.glob("round_1/*"))) == 1
    run(*QUICK, f"sweep={over}", f"runs_folder={tmp_path / 'whole'}")
    whole = {row["setting"]: row for row in table_in(tmp_path / "whole")}
    for row in rows:
        if row["timesteps"] == "128":  # splitting and merging does not change the averages
            assert float(row["eval_return"]) == pytest.approx(float(whole[row["setting"]]["eval_return"]), rel=1e-4)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("sweep={agent.clip_epsilo: [0.1]}", "config key 'agent.clip_epsilo'. Did you mean 'agent.clip_epsilon'"),
        ("sweep={seed: [0,1]}", "seed is shared by all runs, so its values cannot be compared. For several seeds"),
        ("sweep={agent: [ppo,a2c]}", "agent changes the whole run, so its returns .* with -m agent="),
        ("sweep={env.name: [pendulum,cartpole]}", "env.name changes the whole run, so .* with -m env="),
        ("sweep={workflow: [a.B,a.C]}", "workflow changes the whole run, so its returns .* with -m agent="),
        ("sweep={checkpoint_interval: [64,128]}", "checkpoint_interval does not change the training"),
        (
            "sweep={over: {num_minibatches: {low: 1,high: 2}},draws: 2}",
            "num_minibatches .* non-integers: list the values",
        ),
        ("sweep={discount: [0.9,1.9]}", r"discount must be a number in \[0, 1\], got 1\.9"),
        ("sweep={init_from.run: [a,b]}", "sweep does not support init_from.run: .* -m or search"),
        ("sweep={stop.at: [1,2]}", "sweep does not support stop.at: .* -m or search"),
        ("sweep={over: {discount: [0.9,0.99]},halving: {first: 50}}", "first=50 .*eval_interval=64, .*steps=128"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    argument: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*QUICK, argument, f"runs_folder={tmp_path}")
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_new_sweep_checks_its_recording_and_a_resumed_one_does_not() -> None:
    recorded = ("agent=td3_bc", "env=pendulum", "replay.load=nowhere/recorded", "devices=1")
    spec = spec_of(*recorded, "sweep={discount: [0.9,0.99]}")
    with raises_naming(ReplayFileError, "nowhere/recorded", "evorl save-replay"):
        sweep_groups(spec)
    assert len(sweep_groups(spec, is_new=False)[1]) == 2


def test_an_older_sweep_with_a_setting_without_effect_can_be_resumed() -> None:
    spec = spec_of(*QUICK, "recorders.wandb=true", "sweep={discount: [0.9,0.99]}")
    with raises_naming(ValueError, "recorders.wandb=True", "one program", "-m or search"):
        sweep_groups(spec)
    assert len(sweep_groups(spec, is_new=False)[1]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["init_from=nowhere"],
        ["recorders.wandb=true"],
        ["recorders.mlflow={uri: file}"],
        ["recorders.own=[nowhere:Recorder]"],
        ["actors={kind: process, count: 2}"],
        ["serve={max_clients: 3}"],
        ["render_interval=64"],
        ["render_interval=64", "--plan"],
        ["render_interval=64", "-m", "seed=0,1"],
    ],
)
def test_what_has_no_effect_on_a_row_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*QUICK, "sweep={discount: [0.9,0.99]}", f"runs_folder={tmp_path}", *arguments)
    assert not missing_parts(capsys.readouterr().err, "sweep", arguments[0].partition("=")[0], "-m or search")
    assert not list(tmp_path.iterdir())


OPENES = ["agent=ec/openes", "env=cartpole", "env.max_episode_steps=50", *QUIET]
OPENES += ["optimizer.pop_size=4", "optimizer.lr_schedule.final=0", "agent.network.torso=[8]", "eval_episodes=2"]
OPENES += ["total_timesteps=600", "eval_interval=300"]


def test_settings_of_an_algorithm_that_counts_its_steps_have_equal_budgets(tmp_path: Path) -> None:
    rates = "optimizer.lr_schedule.init: [1e-9,1.0]"
    with compiled_names() as names:
        run(*OPENES, f"sweep={{{rates}}}", f"runs_folder={tmp_path / 'swept'}")
        assert names.count("jit(iterations_on_mesh)") == 1  # the parts share the program
    (folder,) = (tmp_path / "swept").glob("*/*")
    with open(folder / "sweep.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    run(*OPENES, "optimizer.lr_schedule.init=1.0", f"runs_folder={tmp_path / 'solo'}")
    with open(RunFolder.latest(tmp_path / "solo").metrics_csv, newline="", encoding="utf-8") as file:
        solo = list(csv.DictReader(file))[-1]
    assert [rows[1]["timesteps"], rows[1]["eval_return"]] == [solo["timesteps"], solo["eval/episode_return"]]
    assert all(600 <= int(row["timesteps"]) <= 800 for row in rows)  # at most one generation more


def test_settings_of_an_algorithm_that_counts_its_steps_cannot_share_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = "sweep={over: {optimizer.lr_schedule.init: [0.1,1.0]},at_once: 2}"
    with pytest.raises(SystemExit):
        run(*OPENES, sweep, f"runs_folder={tmp_path}")
    assert not missing_parts(capsys.readouterr().err, "sweep.at_once=2", "total_timesteps", "Remove at_once")
    assert not list(tmp_path.iterdir())


def test_without_evaluations_nothing_could_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(*QUICK, SETTINGS, "eval_interval=0", f"runs_folder={tmp_path}")
    assert not missing_parts(capsys.readouterr().err, "evaluations", "eval_interval is 0")


def test_the_best_of_a_sweep_is_drawn_and_loaded(
    swept: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The best run of a sweep is rendered and loaded, with the seed that has the best recorded evaluations."""
    (best,) = swept[0].glob("ppo-cartpole-sweep/*/best")
    assert evorl.render(run=best, episodes=1, size=24, frames=2, format="png").stat().st_size
    assert re.search(r"seed_number=[01] of 2 seeds \(the best by evaluation", capsys.readouterr().out)
    assert evorl.load_policy(best)(np.zeros(4)) in (0, 1)


def test_nothing_is_looked_up_for_a_setting() -> None:
    """Interpolations in trial settings, which may be untrusted, are rejected."""
    from evorl.sweeps.sweep import spec_of

    spec = RunSpec.from_config({"title": None, "agent": {"network": None}})
    for value in ("${oc.env:HOME}", ["${oc.env:HOME}"], {"torso": "x${oc.env:HOME}"}):
        with raises_naming(ValueError, "agent.network=", "interpolations"):
            spec_of(spec, {"agent.network": value})


def test_a_sweep_in_which_every_setting_diverged_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evorl.sweeps.sweep._has_diverged", lambda _: True)
    with pytest.raises(SystemExit):
        run(*SMALL, "sweep={agent.clip_epsilon: [0.1,0.4]}", f"runs_folder={tmp_path}")
    (sweep,) = find_runs(tmp_path, sweeps=True)
    assert [setting.state.state for setting in expand_sweep(sweep)] == ["finished", "finished"]
