"""Command lines in messages can be pasted into a shell, also with folder names that contain shell and Hydra syntax."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from evorl.cli import commands
from evorl.config.command_lines import as_arguments, shell_word
from evorl.runs.folder import RunFolder
from tests.cli.test_arguments import NASTY
from tests.support.command_line import SMALL

NAME = 'a b=é, [x] {y: 1} it\'s "so" $HOME #1; `date` & (z)!'
_LINE = re.compile(r"(?:evorl|python scripts/\w+\.py) (?:train|evaluate|show-episode|save-replay|render|export)\b.*")


def pasted(line: str) -> list[str]:
    """Return the arguments that bash reads from a line."""
    done = subprocess.run(
        ["bash", "-c", f"set -- {line}; printf '%s\\0' \"$@\""], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


@pytest.fixture
def paste(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs an ``evorl`` command line in this process and returns its output."""

    def paste(line: str) -> str:
        program, *arguments = pasted(line)
        assert program == "evorl"
        monkeypatch.setattr(sys, "argv", ["evorl", *arguments])
        commands.main()
        return capsys.readouterr().out

    return paste


def proposed(text: str) -> str:
    """Return the only command line that a text proposes."""
    (line,) = dict.fromkeys(_LINE.findall(text))
    return line


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Create a stopped run in a folder whose name contains special characters."""
    root = tmp_path_factory.mktemp("runs") / NAME

    @contextmanager
    def stop_at_once(resume_command: str):
        yield lambda: True

    with pytest.MonkeyPatch.context() as context:
        context.setattr("evorl.training.run.stop_on_signals", stop_at_once)
        context.setattr(sys, "argv", ["evorl", "train", *SMALL, f"runs_folder={root}"])
        commands.main()
    return RunFolder.latest(root)


@pytest.mark.parametrize("name", [*NASTY, NAME])
def test_words_come_out_of_a_shell_as_they_went_in(name: str) -> None:
    assert pasted(f"evorl train {as_arguments({'resume': name})} {shell_word(name)}") == [
        "evorl",
        "train",
        f"resume={name}",
        name,
    ]


def test_the_line_of_a_stopped_run_goes_on_with_it(
    run_folder: RunFolder, paste, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_folder.path.parents[2])
    listed = paste(f"evorl runs {shell_word(NAME)}")
    assert "1 can be resumed" in listed
    output = paste(proposed(listed))
    assert f"Results are in {run_folder.path} (" in output
    assert RunFolder.latest(run_folder.path.parents[1]) == run_folder


@pytest.mark.parametrize(
    "line",
    [
        "evorl evaluate {run} eval_episodes=2",
        "evorl evaluate run=latest {runs_folder} eval_episodes=2",
        "evorl export {run} format=numpy {to}",
        "evorl report {path}",
        "evorl runs {root}",
    ],
)
def test_a_command_takes_the_path_of_a_run_as_the_shell_hands_it_over(
    line: str, run_folder: RunFolder, paste, tmp_path: Path
) -> None:
    root = run_folder.path.parents[1]
    arguments = {
        "run": as_arguments({"run": run_folder.path}),
        "runs_folder": as_arguments({"runs_folder": root}),
        "to": as_arguments({"to": tmp_path / NAME}),
        "path": shell_word(run_folder.path),
        "root": shell_word(root),
    }
    assert paste(line.format(**arguments))


def test_an_episode_that_was_saved_is_drawn_by_the_line_that_says_so(run_folder: RunFolder, paste) -> None:
    run = as_arguments({"run": run_folder.path})
    output = paste(f"evorl evaluate {run} eval_episodes=2 evaluation.save_episodes=1")
    line = next(line for line in output.splitlines() if "To watch one: " in line).partition("To watch one: ")[2]
    assert ".png" in paste(line)


def test_a_run_begins_with_the_parameters_of_another(run_folder: RunFolder, paste, tmp_path: Path) -> None:
    paths = {"init_from": run_folder.path, "runs_folder": tmp_path / NAME}
    small = " ".join(map(shell_word, [*SMALL, "total_timesteps=64"]))
    paste(f"evorl train {small} {as_arguments(paths)}")
    config = RunFolder.latest(tmp_path).load_config()
    assert config.init_from.run == str(run_folder.path)
    assert config.runs_folder == str(tmp_path / NAME)


@pytest.mark.parametrize("kind", ["-m agent.clip_epsilon=0.1,0.2", "'sweep={agent.clip_epsilon: [0.1,0.2]}'"])
def test_a_sweep_goes_on_by_its_line(kind: str, paste, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def stop_at_once(resume_command: str):
        yield lambda: True

    small = " ".join(map(shell_word, [*SMALL, "total_timesteps=64", "recorders.progress=true"]))
    with monkeypatch.context() as context:
        for module in ("multirun", "sweep"):
            context.setattr(f"evorl.sweeps.{module}.stop_on_signals", stop_at_once)
        output = paste(f"evorl train {small} {kind} {as_arguments({'runs_folder': tmp_path / NAME})}")
    line = next(line for line in output.splitlines() if "To resume" in line)
    output = paste(line[line.index("evorl ") :])
    assert "Best" in output


def test_a_message_about_the_other_option_is_a_line_that_works(
    run_folder: RunFolder, paste, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        paste(f"evorl train {as_arguments({'run': run_folder.path})}")
    message = capsys.readouterr().err
    line = re.search(r"(evorl evaluate .*) plays its best checkpoint", message)
    assert line is not None
    assert "checkpoint of " in paste(line[1])


def test_an_app_can_be_made_in_such_a_folder(paste, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = paste("evorl new './my app é'")
    line = re.search(r"To train: cd (.*) && evorl run all", output)
    assert line is not None
    (folder,) = pasted(line[1])
    assert (Path(folder) / "app.yaml").is_file()
