"""``evorl compare``: trainings of several agents, a report and a verdict."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from evorl.cli.arguments import overrides_first
from evorl.cli.compare import compare
from evorl.cli.multirun import start_sweep
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder
from evorl.training.start import RunPlace, Trained
from tests.support.errors import assert_names, raises_naming
from tests.support.run_folders import START, make_run

SMALL = [
    *("env=cartpole", "total_timesteps=256", "eval_interval=128", "log_interval=256", "eval_episodes=2", "num_envs=4"),
    *("rollout_length=16", "agent.network.torso=[8]", "recorders.tensorboard=false", "recorders.progress=false"),
]


def test_agents_are_trained_on_the_same_seeds_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = compare(["reinforce", "a2c", "seeds=3", *SMALL, f"runs_folder={tmp_path}"])
    assert page is not None
    assert page.parent.parent == tmp_path
    folders = sorted(path for path in page.parent.iterdir() if path.is_dir())
    configs = [RunFolder(folder).load_config() for folder in folders]
    assert [config["workflow"].rpartition(".")[2] for config in configs] == ["ReinforceWorkflow", "A2CWorkflow"]
    assert [(config["seed"], config["num_seeds"]) for config in configs] == [(0, 3)] * 2
    text = page.read_text(encoding="utf-8")
    assert "reinforce" in text
    assert "a2c" in text
    said = [line for line in capsys.readouterr().out.splitlines() if " scores higher than " in line]
    assert len(said) == 1

    page.unlink()
    shutil.rmtree(folders[1])
    sweep = SweepFolder.open(page.parent)
    sweep.runs[1].state = "waiting"
    sweep.save()
    assert compare([f"resume={page.parent}"]) == page  # trains the missing run, and reports again
    assert said[0] in capsys.readouterr().out
    assert folders[1].is_dir()
    assert compare([f"resume={page.parent.name}", f"runs_folder={tmp_path}"]) == page  # everything is trained
    with raises_naming(ValueError, "remove", "a2c", "discount=0.9"):
        compare(["a2c", f"resume={page.parent}", "discount=0.9"])


@pytest.mark.parametrize(
    ("setting", "names_code", "confirmed"),
    [
        ("seed=3", False, ""),
        ("experiment=null", False, " trust=true"),
        ("env.factory=my:Walk", False, " trust=true"),
        ("seed=3", True, " trust=true"),
    ],
)
def test_the_command_that_resumes_a_comparison(
    setting: str, names_code: bool, confirmed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(arguments: Sequence[str]) -> None:
        start_sweep(
            overrides_first(list(arguments)), lambda _: (names_code, None), lambda *_: Trained(None, True), "runs"
        )
        sweep = SweepFolder.open(next(tmp_path.iterdir()), trust=True)
        (started := sweep.folder_of(sweep.runs[0])).path.mkdir(parents=True)
        started.config.write_text("corrupted: [")

    assert compare(["ppo", "a2c", setting, f"runs_folder={tmp_path}"], stop) is None
    (folder,) = tmp_path.iterdir()
    assert f"To resume: evorl compare resume={folder}{confirmed}\n" in capsys.readouterr().out


def test_different_environment_steps_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tuned settings of two agents can differ in ``total_timesteps``."""

    def train_one(overrides: Sequence[str], place: RunPlace) -> Trained:
        agent = next(text for text in overrides if text.startswith("agent=")).removeprefix("agent=")
        returns = [[1.0, 2.0, 3.0, 4.0]] * (10 if agent == "ppo" else 3)
        return Trained(2.5, False, make_run(place.root, place.name or "", returns, start=START | {"agent": agent}).path)

    def train_all(arguments: Sequence[str]) -> None:
        start_sweep(overrides_first(list(arguments)), lambda _: (False, None), train_one, "runs")

    assert compare(["ppo", "sac", "seeds=4", f"runs_folder={tmp_path}"], train_all) is not None
    assert_names(capsys.readouterr().out, "ppo 10k", "sac 3k")


def test_a_folder_that_is_no_comparison_is_not_resumed(tmp_path: Path) -> None:
    started = []
    with raises_naming(RunFolderError, tmp_path, "sweep"):
        compare([f"resume={tmp_path}"], started.append)
    assert not started


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["ppo", "env=cartpole"], ["two different agents", "ppo"]),
        (["ppo", "ppo"], ["two different agents"]),
        (["ppo", "sacc"], ["'sacc'", "'sac'"]),
        (["ppo", "a2c", "num_seeds=3"], ["num_seeds=3", "seeds"]),
        (["ppo", "a2c", "agent=sac"], ["agent=sac"]),
        (["ppo", "a2c", "seeds=1"], ["seeds", "1"]),
        (["ppo", "ppo", "sac"], ["two different agents", "once", "ppo ppo sac"]),
        (["ppo", "sac", "seed=0,1"], ["seed=0,1", "one value"]),
        (["ppo", "sac", "discount=choice(0.9,0.99)"], ["discount=choice(0.9,0.99)", "one value"]),
        (["ppo", "sac", "+seed=range(2)"], ["+seed=range(2)", "one value"]),
        (["ppo", "sac", "title=a,é"], ["title=", "é", "quote"]),
        (["ppo", "sac", "sweep={discount: [0.9, 0.99]}"], ["sweep={discount: [0.9, 0.99]}", "same settings"]),
        (["ppo", "sac", "search={trials: 3}"], ["search={trials: 3}", "same settings"]),
    ],
)
def test_a_wrong_comparison_is_refused_before_anything_is_written(
    arguments: list[str], parts: list[str], tmp_path: Path
) -> None:
    started = []
    with raises_naming(ValueError, *parts):
        compare([*arguments, f"runs_folder={tmp_path / 'runs'}"], started.append)
    assert not started
    assert not (tmp_path / "runs").exists()


def test_several_environments_and_text_with_a_comma_are_passed_on(tmp_path: Path) -> None:
    started: list[list[str]] = []
    settings = ["title='a,b'", f"runs_folder={tmp_path / 'c,d'}", "agent.network.torso=[8,8]", "env=cartpole,acrobot"]
    with raises_naming(RunFolderError, "c,d"):  # nothing was trained
        compare(["ppo", "a2c", *settings], lambda arguments: started.append(list(arguments)))
    assert started[0][1:-1] == ["agent=ppo,a2c", "num_seeds=10", *settings]


def test_a_setting_that_an_agent_lacks_is_refused_before_the_first_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare(["ppo", "a2c", "agent.clip_epsilon=0.1", f"runs_folder={tmp_path / 'runs'}"])
    assert_names(capsys.readouterr().err, "agent.clip_epsilon", "ppo")
    assert not (tmp_path / "runs").exists()
