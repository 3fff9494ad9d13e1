"""The command line in this process: train, stop, resume, evaluate, and messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

from evorl.cli import main as cli
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FAILED, FINISHED, HeldState, read_state
from evorl.runs.storage import read_about
from evorl.training import preparation
from evorl.workflows.workflow import Workflow
from tests.support.command_line import SMALL
from tests.support.errors import assert_names


def test_help_is_our_own(run) -> None:
    out, _ = run(cli.train, "--help")
    assert out.startswith("Usage: evorl train [agent=ppo]")
    assert "qd/pga_me" in out
    out, _ = run(cli.evaluate, "-h")
    assert "eval_episodes" in out


def test_overrides_of_a_resume_are_stored(run, tmp_path: Path) -> None:
    run(cli.train, *SMALL, f"runs_folder={tmp_path}")
    folder = RunFolder.latest(tmp_path)
    assert not folder.learning_curve.exists()  # SMALL disables pictures
    before = folder.config.read_bytes()
    run(cli.train, f"resume={folder.path}", "total_timesteps=192", "gae_lambda=0.9")
    assert folder.load_config().total_timesteps == 192
    assert (folder.path / "config.1.yaml").read_bytes() == before
    assert RunCheckpointer(folder.checkpoints).steps[-1] == 3
    run(cli.train, f"resume={folder.path}")  # finished: nothing to train or save
    assert folder.load_config().gae_lambda == 0.9
    assert not (folder.path / "config.2.yaml").exists()
    assert RunCheckpointer(folder.checkpoints).steps[-1] == 3


def test_a_damaged_checkpoint_is_passed_over_and_the_run_says_so(
    run, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, save = [], RunCheckpointer.save
    monkeypatch.setattr(RunCheckpointer, "save", lambda self, *args: kept.append(self.steps) or save(self, *args))
    folder = RunFolder(tmp_path / "copy")
    shutil.copytree(trained.path, folder.path)
    (newest,) = folder.checkpoints.glob("2/structure.json")
    newest.write_text(newest.read_text() + " ")
    folder.metrics_csv.write_text(folder.metrics_csv.read_text().partition("\n")[0] + "\n")
    out, err = run(cli.train, f"resume={folder.path}", "recorders.progress=true")
    assert err == ""
    message = [
        "checkpoints/2 is corrupted: structure.json does not match its digest.",
        "The checkpoint of iteration 1 is used instead.",
        "metrics.csv has 0 bytes, but had ",
        f"Resuming {folder.path} at 64 steps.",
    ]
    log = folder.log.read_text()
    assert all(sentence in out and sentence in log for sentence in message)
    before, after = (RunCheckpointer(of.checkpoints) for of in (trained, folder))
    assert before.steps == after.steps
    assert kept[0] == (1,)  # the corrupted one, whose score would still count, was removed
    assert read_about(before.folder / "2")["progress"] == read_about(after.folder / "2")["progress"]


def test_a_seed_replaces_the_evaluation_stream(run, trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    evaluate = Workflow.evaluate
    monkeypatch.setattr(Workflow, "evaluate", lambda self, state: states.append(state) or evaluate(self, state))
    own, other, again = (run(cli.evaluate, f"run={trained.path}", *seed)[0] for seed in ([], ["seed=7"], ["seed=7"]))
    assert own.startswith(f"{trained.path}\ncheckpoint of 128 steps, 4 episodes:\n  episode_length ")
    assert other == again
    assert sorted(states[0]) == ["agent_state", "eval_key", "iterations"]  # only these are loaded
    assert states[1].eval_key == jax.random.key(7)
    assert states[0].eval_key != states[1].eval_key


POPULATION = [
    "agent=meta/pbt",
    "inner=a2c",
    "pop_size=2",
    "generation_interval=64",
    *[
        ("inner." if setting.startswith(("num_envs", "rollout", "agent")) else "") + setting
        for setting in SMALL
        if not setting.startswith(("num_epochs", "num_minibatches", "total", "eval_interval"))
    ],
    "total_timesteps=512",
    "eval_interval=256",
]


def test_a_population_of_another_agent(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``inner`` selects the members' config; the run writes its schedule, and members are evaluated alone."""
    out, err = run(cli.train, *POPULATION, f"runs_folder={tmp_path}")
    assert err == ""
    folder = RunFolder.latest(tmp_path)
    assert folder.path.parent.name == "meta-pbt-cartpole"
    assert folder.load_config().inner.workflow.endswith("A2CWorkflow")
    assert {"schedule.csv", "schedule.png"} <= {path.name for path in folder.path.iterdir()}
    states = []
    evaluate = Workflow.evaluate
    monkeypatch.setattr(Workflow, "evaluate", lambda self, state: states.append(state) or evaluate(self, state))
    out, err = run(cli.evaluate, f"run={folder.path}", "seed=7")
    assert (err, f"{folder.path}\ncheckpoint of " in out) == ("", True)
    assert sorted(states[0].members) == ["agent_state", "eval_key"]  # no environments, no optimizers
    assert states[0].eval_key == jax.random.key(7)
    out, err = run(cli.train, f"resume={folder.path}", "inner=ppo")
    assert_names(err, "inner", "run folder", "inner=ppo")
    run(cli.train, f"resume={folder.path}", "total_timesteps=768", "inner.agent.value_coefficient=0.4")
    assert RunCheckpointer(folder.checkpoints).steps[-1] == 6
    assert folder.load_config().inner.agent.value_coefficient == 0.4
    assert_names(run(cli.train, "agent=meta/pbt", "inner=sca")[1], "agent 'sca'", "'sac'")


def test_a_run_that_was_never_scored_is_evaluated_by_its_latest_checkpoint(run, tmp_path: Path) -> None:
    run(cli.train, *SMALL, f"runs_folder={tmp_path}", "eval_interval=0")
    out, err = run(cli.evaluate, "run=latest", f"runs_folder={tmp_path}")
    assert_names(out, "checkpoint of 128 steps", "latest", "evaluation score", "4 episodes")
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["rolout_length=3"], ("setting of the run", "'rolout_length'", "'rollout_length'")),
        (["agent=sac"], ("agent", "run folder", "agent=sac")),
        (["num_epochs=x"], ("num_epochs", "got 'x'.")),
        (["agent.network.torso=[4]"], ("different structure",)),
    ],
)
def test_a_resume_that_cannot_work_changes_nothing(
    run, trained: RunFolder, arguments: list[str], parts: tuple[str, ...]
) -> None:
    before = sorted((path, path.stat().st_mtime) for path in trained.path.rglob("*"))
    out, err = run(cli.train, f"resume={trained.path}", *arguments)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("Error: ")
    assert_names(err, *parts)
    assert sorted((path, path.stat().st_mtime) for path in trained.path.rglob("*")) == before


def test_a_run_that_is_in_training_is_left_alone(run, trained: RunFolder) -> None:
    held = HeldState(trained.state)
    held.hold()
    before = sorted((path, path.stat().st_mtime) for path in trained.path.rglob("*"))
    out, err = run(cli.train, f"resume={trained.path}", "total_timesteps=256")
    held.release()
    assert out == ""
    assert err.startswith(f"Error: {trained.path} ")
    assert_names(err, "being trained")
    assert err.count("\n") == 1
    assert sorted((path, path.stat().st_mtime) for path in trained.path.rglob("*")) == before


def test_a_divergence_is_reported_once_with_the_resume_command(run, tmp_path: Path) -> None:
    quiet = [argument for argument in SMALL if "progress" not in argument]
    arguments = [*quiet, f"runs_folder={tmp_path}", "recorders.progress=true"]
    out, err = run(cli.train, *arguments, "optimizer.learning_rate=1e30")
    (folder,) = (tmp_path / "ppo-cartpole").iterdir()
    assert "became" not in out
    assert err.count("became") == 1
    assert err.endswith(f" {folder}.\n")
    assert (folder / "run.log").read_text().count("became") == 1
    state = read_state(folder / "state.json", folder / "run.log")
    assert state.state == FAILED
    assert str(state.failure).startswith("TrainingDiverged: ")
    run(cli.train, *arguments)
    folder = RunFolder.latest(tmp_path)
    assert read_state(folder.state, folder.log).state == FINISHED
    out, err = run(cli.train, f"resume={folder.path}", "total_timesteps=256", "optimizer.learning_rate=1e30")
    assert f"resume={folder.path}" in err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["env=brax/hoper"], ("env 'brax/hoper'", "'brax/hopper'")),
        (["agent=poo"], ("agent 'poo'",)),
        (["agent=null"], ("agent", "needs a name", "got null:")),
        (["optimizer=3"], ("optimizer", "needs a name", "got int:")),
        (["env="], ("env has no value", "acrobot")),
        (["agent="], ("agent has no value", "a2c")),
        (["agent=ec/openes", "optimizer="], ("optimizer has no value",)),
        (["policy=MlpPolicy"], ("'policy'", "'agent.network'")),
        (["agnet=ppo"], ("config key 'agnet'", "'agent'")),
        (["evn=hopper"], ("config key 'evn'", "'env'")),
        (["seed=-1"], ("seed", "integer", "4,294,967,295, got -1.")),
        (["checkpoints_kept=0"], ("checkpoints_kept", "got 0.")),
        (["recorders.progress=3"], ("recorders.progress", "true or false, got 3.")),
        (["recorders.wandb=yes"], ("recorders.wandb", "true, false", "got 'yes'")),
        (["recorders.wandb={projct: x}"], ("key of recorders.wandb", "'projct'", "'project'")),
        (["autoreset_mode=envpool"], ("autoreset_mode=envpool", "training")),
        (["workflow=os.path"], ("workflow='os.path'", "workflow")),
        (["env.max_episode_steps=abc"], ("max_episode_steps", "got 'abc'")),
        (["+env.gravity=abc"], ("gravity", "number", "got 'abc'.")),
        (["recorders=null"], ("recorders", "{progress: true, wandb: false}, got null.")),
        (["+recorders.csv=true"], ("key of recorders", "'csv'")),
        (["runs_folder=null"], ("runs_folder", "folder", "got null.")),
        (["resume=[a]"], ("no folder [a].",)),
        (["resume=3"], ("no folder 3.",)),
        (["deterministic=3"], ("deterministic", "true or false, got 3.")),
        (["experiment=ppo/nope"], ("experiment 'ppo/nope'", "'ppo/")),
        (["~total_timesteps"], ("~total_timesteps", "removed", "total_timesteps=null")),
        (["total_timesteps=1e18"], ("total_timesteps", "(0, 9007199254740992], got 1e+18.")),
        (["devices=100000"], ("devices=100000", "this machine")),
        (["num_seeds=1e10"], ("num_seeds", "2,147,483,647, got 10000000000.0.")),
        (["num_seeds=1e9"], ("num_seeds=1,000,000,000", "too large")),
        (
            ["run=latest"],
            ("evorl train", "run=latest", "evorl train resume=latest", "evorl evaluate"),
        ),
    ],
)
def test_nonsense_is_one_sentence(run, tmp_path: Path, arguments: list[str], parts: tuple[str, ...]) -> None:
    folder = () if arguments[0].startswith(("runs_folder", "resume")) else (f"runs_folder={tmp_path}",)
    _, err = run(cli.train, *SMALL, *folder, *arguments)
    assert err.startswith("Error: ")
    assert_names(err, *parts)
    assert err.count("\n") == 1
    if not arguments[0].startswith("num_seeds=1e9"):  # found once the state's shapes are known
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("no run was given", "evorl evaluate run=<folder>")),
        (["run=3"], ("no folder 3.",)),
    ],
)
def test_a_run_that_cannot_be_evaluated_is_one_sentence(run, arguments: list[str], parts: tuple[str, ...]) -> None:
    _, err = run(cli.evaluate, *arguments)
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1
    assert_names(err, *parts)


def test_overrides_stand_on_both_sides_of_a_flag(run, tmp_path: Path) -> None:
    out, err = run(cli.train, "env=pendulum", "--cfg", "job", "seed=3")
    assert err == ""
    assert "seed: 3  # seed of all random numbers of the run\n" in out
    assert "Pendulum" in out


@pytest.mark.parametrize("flags", ["--cfg job", "--cfg=job --resolve", "--cfg job --config-dir mine"])
def test_a_config_is_printed_only_if_a_training_accepts_it(
    flags: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine/experiment").mkdir(parents=True)
    (tmp_path / "mine/experiment/own.yaml").write_text("# @package _global_\nseed: 7\n")
    for argument, parts in {"experiment=ppo/typo": ["'ppo/typo'"], "~agent.network": ["cannot be removed"]}.items():
        out, err = run(cli.train, argument, *flags.split())
        assert out == ""
        assert_names(err, *parts)
    out, err = run(cli.train, "experiment=null", *flags.split())
    assert (err, "seed: 0" in out) == ("", True)
    if "mine" in flags:
        assert "seed: 7" in run(cli.train, "experiment=own", *flags.split())[0]
        (tmp_path / "mine/agent").mkdir()
        (tmp_path / "mine/agent/ppo.yaml").write_text("num_envs: 3\n")
        assert_names(run(cli.train, *flags.split())[1], "Error: ", "mine/agent/ppo.yaml", "agent=my_ppo")


NO_PLATFORM = (
    "Unable to initialize backend 'nope': Backend 'nope' is not in the list of known backends: ['cpu', 'tpu']. "
    "(set JAX_PLATFORMS='' to automatically choose an available backend)"
)
NO_PLATFORM_NAME = (
    "Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present. Platforms present are: "
    "cpu"
)
BROKEN_PLUGIN = (
    "Unable to initialize backend 'cuda': no driver (you may need to uninstall the failing plugin package, or set "
    "JAX_PLATFORMS=cpu to skip this backend.)"
)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (NO_PLATFORM, ("'nope'", "['cpu', 'tpu']. Set")),
        (NO_PLATFORM_NAME, ("'gpu'", "present are: cpu. Set")),
        (BROKEN_PLUGIN, ("'cuda'", "no driver. Set")),
    ],
)
def test_a_platform_that_is_none_is_one_sentence(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, parts: tuple[str, ...]
) -> None:
    def fail(config: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(preparation, "workflow_from_config", fail)
    _, err = run(cli.train, *SMALL, f"runs_folder={tmp_path}")
    assert err.startswith("Error: ")
    assert_names(err, "JAX", "JAX_PLATFORMS=cpu", *parts)
    assert err.count("\n") == 1


def test_a_missing_gpu_is_one_sentence() -> None:
    """JAX itself ends in an assertion without a text if it has no plugin for CUDA."""
    code = """
    from pathlib import Path
    import jax
    from evorl.cli.errors import explained_errors
    with explained_errors(Path()):
        jax.devices()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: JAX cannot run on 'cuda'")
    assert ended.stderr.count("\n") == 1


def test_an_assertion_that_fails_on_a_machine_with_devices_is_a_bug(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(preparation, "workflow_from_config", fail)
    with pytest.raises(AssertionError):
        run(cli.train, *SMALL, f"runs_folder={tmp_path}")
