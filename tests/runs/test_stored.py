"""Commands on an untrusted run folder execute, load and overwrite nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from evorl.cli import main as cli
from evorl.cli.config_tree import config_folder
from evorl.runs.folder import RunFolder
from tests.support.errors import assert_names

CONFIG = OmegaConf.load(config_folder() / "config.yaml")
HELPER = """
from pathlib import Path

Path("imported").touch()


class W:
    @classmethod
    def build_from_config(cls, config):
        raise ValueError("W was asked to build a workflow.")


def make(**options):
    raise ValueError("make was asked to make an environment.")
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Return a function that runs a command in ``tmp_path``, next to a module ``helper``, and returns its stderr."""
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)

    def run(command, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["evorl", *arguments])
        with pytest.raises(SystemExit) as end:
            command()
        assert end.value.code == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    return run


def store(tmp_path: Path, **changes) -> Path:
    """Create a run folder of PPO on CartPole with ``changes`` that an attacker made to its config."""
    config = {key: value for key, value in CONFIG.items() if key not in ("defaults", "hydra")}
    config |= {"compilation_cache": False, "workflow": "evorl.algorithms.ppo.PPOWorkflow", "env": "CartPole-v1"}
    return RunFolder.create(tmp_path, {**config, **changes}, name="theirs").path


COMMANDS = [(cli.evaluate, "run"), (cli.train, "resume")]


@pytest.mark.parametrize(("command", "which"), COMMANDS, ids=["evaluate", "resume"])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"env": {"factory": "os:system", "command": "touch executed"}}, "env.factory=os:system"),
        ({"env": {"factory": "helper:make"}}, "env.factory=helper:make"),
        ({"workflow": "helper.W"}, "workflow=helper.W"),
        (
            {"inner": {"workflow": "helper.W"}},
            "inner.workflow=helper.W",
        ),
        ({"trust": True, "workflow": "helper.W"}, "workflow=helper.W"),
        ({"compilation_cache": "programs"}, "compilation_cache=programs"),
    ],
)
def test_code_from_elsewhere_is_not_executed(
    run, tmp_path: Path, command, which: str, changes: dict, names: str
) -> None:
    folder = store(tmp_path, **changes)
    before = sorted(tmp_path.rglob("*"))
    message = run(command, f"{which}={folder}")
    assert_names(message, "outside evorl", names, "trust")
    assert sorted(tmp_path.rglob("*")) == before
    assert "helper" not in sys.modules


@pytest.mark.parametrize(("command", "which"), COMMANDS, ids=["evaluate", "resume"])
@pytest.mark.parametrize("argument", ["trust=true", "workflow=helper.W"])
def test_what_the_user_trusts_is_executed(run, tmp_path: Path, command, which: str, argument: str) -> None:
    folder = store(tmp_path, workflow="helper.W")
    message = run(command, f"{which}={folder}", argument)
    assert_names(message, "Error: ", "module helper", "build_from_config", "ValueError: W was asked to")


def test_one_name_does_not_bring_in_another(run, tmp_path: Path) -> None:
    folder = store(tmp_path, workflow="helper.W", env={"factory": "helper:make"})
    message = run(cli.evaluate, f"run={folder}", "workflow=helper.W")
    assert_names(message, "outside evorl: env.factory=helper:make.")
    assert "helper" not in sys.modules


@pytest.mark.parametrize(("command", "which"), COMMANDS, ids=["evaluate", "resume"])
def test_the_environment_is_not_looked_up(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command, which: str
) -> None:
    monkeypatch.setenv("EVORL_SECRET", "hunter2")
    folder = store(tmp_path)
    with (folder / "config.yaml").open("a") as file:
        file.write("label: ${oc.env:EVORL_SECRET}\n")
    for trust in ([], ["trust=true"]):
        message = run(command, f"{which}={folder}", *trust)
        assert_names(message, "label", "'${oc.env:EVORL_SECRET}'", "interpolations")
    assert not any("hunter2" in path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_config_of_something_else_is_refused(run, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, {"seed": 1, "env": "CartPole-v1"}, name="theirs").path
    assert_names(run(cli.train, f"resume={folder}"), "config of a run", "no workflow")


def test_trust_is_true_or_false(run, tmp_path: Path) -> None:
    assert_names(run(cli.evaluate, f"run={store(tmp_path)}", "trust=perhaps"), "trust", "true or false", "'perhaps'")


def test_a_link_in_the_folder_stops_a_resume(run, tmp_path: Path) -> None:
    folder = store(tmp_path, num_envs=2, rollout_length=2, eval_episodes=1, env="gymnax/CartPole-v1")
    (folder / "run.log").symlink_to(tmp_path / "precious")
    assert_names(run(cli.train, f"resume={folder}"), "run.log", "symbolic link")
    assert not (tmp_path / "precious").exists()
