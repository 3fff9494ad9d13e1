"""Several processes act as one program: equal results, only the first writes, and none outlives another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evorl import launch
from evorl.execution.multiprocess import ProcessInfo
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from tests.support import trained_together
from tests.support.errors import missing_parts
from tests.support.small_workflows import assert_identical
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
# One of each family, a mesh of seeds, an array written by all processes, and a chart of sharded data.
TRAININGS = ["ppo", "ppo-seeds", "sac-large", "neuroevolution", "map_elites"]
ITERATION = 64  # environment steps
OPTIONS = [
    "env=cartpole",
    "env.max_episode_steps=10",
    "num_envs=8",
    "rollout_length=8",
    "num_epochs=1",
    "num_minibatches=1",
    "agent.network.torso=[8]",
    f"total_timesteps={ITERATION * 200}",
    f"log_interval={ITERATION * 20}",
    "eval_interval=0",
    f"checkpoint_interval={ITERATION * 20}",
    "env_chunk=null",
    "recorders.tensorboard=false",
    "recorders.learning_curve=false",
]
# The launcher with less patience than for users.
LAUNCHER = "import sys; from evorl import launch; launch.PATIENCE = 1.0; sys.exit(launch.main())"


def _environment() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _launch(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(launcher: subprocess.Popen[str], timeout: float = 300) -> tuple[int, str, str]:
    """Return exit status, output and errors."""
    try:
        printed, errors = launcher.communicate(timeout=timeout)
    finally:
        launcher.kill()
    return launcher.returncode, printed, errors


def _program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def _children(launcher: subprocess.Popen[str]) -> list[int]:
    """Return process ids in the order of their start."""
    return [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with two processes of one device each, and return the folder."""
    folder = tmp_path_factory.mktemp("by_two")
    program = _program(folder, "from tests.support.trained_together import main\nmain()\n")
    status, printed, errors = _finish(_launch(folder, "-n", "2", program, ".", *TRAININGS), timeout=600)
    assert (status, errors) == (0, "")
    (line,) = printed.splitlines()  # only the first process prints, without output of Gloo
    assert line.endswith("is done")
    return folder


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_compute_what_two_devices_of_one_do(name: str, by_two: Path, tmp_path: Path) -> None:
    trained_together.train(tmp_path, name)
    expected = trained_together.saved_states(tmp_path, name)
    assert_identical(trained_together.saved_states(by_two, name), expected)
    tables = {path.name for path in (tmp_path / name).glob("*.csv")}
    assert tables >= {"metrics.csv"}
    for table in tables:  # would contain rows of a second writer
        assert (by_two / name / table).read_bytes() == (tmp_path / name / table).read_bytes()
    assert {path.name for path in (by_two / name).iterdir()} == {path.name for path in (tmp_path / name).iterdir()}
    assert [path.name for path in (tmp_path / name).glob("archive*.csv")] == ["archive.csv"] * (name == "map_elites")


def test_large_arrays_are_written_by_all(by_two: Path) -> None:
    writers = {path.name for path in by_two.glob("sac-large/checkpoints/*/state/ocdbt.process_*")}
    assert writers == {"ocdbt.process_0", "ocdbt.process_1"}


def test_a_killed_process_ends_the_run_which_goes_on_by_two_or_one(tmp_path: Path) -> None:
    launcher = _launch(tmp_path, "-n", "2", *OPTIONS)
    saved_steps = "runs/*/*/checkpoints/[0-9]*"
    wait_until(lambda: any(tmp_path.glob(saved_steps)) or launcher.poll() is not None, 240.0)
    _, second = _children(launcher)
    os.kill(second, signal.SIGKILL)
    status, printed, errors = _finish(launcher, timeout=30)
    assert status == 128 + signal.SIGKILL, printed + errors
    folder = RunFolder.latest(tmp_path / "runs")
    first_message, launcher_message = errors.splitlines()
    # It detects the loss itself during training, and is ended by a signal while it waits for the other to save.
    assert first_message.startswith(("Error: Another process of this run has ended", "SIGTERM: ended."))
    assert f"To resume: python -m evorl.launch -n 2 resume={folder.path}" in first_message
    assert not missing_parts(launcher_message, "Process 1 of 2", "SIGKILL", "stopped")
    saved = RunCheckpointer(folder.checkpoints).steps[-1]
    assert 0 < saved < 200
    shutil.copytree(tmp_path / "runs", tmp_path / "again" / "runs")
    status, printed, errors = _finish(_launch(tmp_path, "-n", "2", "resume=latest"))
    assert (status, errors) == (0, "")
    assert f"Resuming {folder.path} at {saved * ITERATION:,} steps." in printed
    command = [sys.executable, "-m", "evorl.cli", "resume=latest", "devices=2"]
    subprocess.run(command, cwd=tmp_path / "again", env=_environment(), check=True, capture_output=True, timeout=240)
    _same_ends(folder, RunFolder.latest(tmp_path / "again" / "runs"))


def _same_ends(by_two: RunFolder, by_one: RunFolder) -> None:
    from evorl.assembly import workflow_from_config
    from evorl.execution.restoration import restore

    workflow = workflow_from_config(by_one.load_config())
    ends = [restore(workflow, RunCheckpointer(run.checkpoints), 0, "200")[0] for run in (by_two, by_one)]
    assert_identical(*ends)
    assert by_two.metrics_csv.read_bytes() == by_one.metrics_csv.read_bytes()


# In these the first process waits for signals, or for an hour.
WAITING = (
    "import json, os, sys, time\nif json.loads(os.environ['EVORL_PROCESS'])['index'] == 0:\n    time.sleep(3600)\n"
)


def test_what_a_failing_process_says_is_shown(tmp_path: Path) -> None:
    program = _program(tmp_path, WAITING + "print('about to fail')\nsys.exit('The disk of this machine is full.')\n")
    status, printed, errors = _finish(_launch(tmp_path, "-n", "2", program), timeout=30)
    assert (status, printed) == (1, "")
    assert errors.splitlines() == [
        "[1] about to fail",
        "[1] The disk of this machine is full.",
        "Process 1 of 2 ended with status 1, and the others were stopped.",
    ]


STOPPED = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
pathlib.Path(f"ready-{os.getpid()}").touch()
while len(list(pathlib.Path().glob("ready-*"))) < 2:
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(3600)
"""


def test_a_stop_that_was_asked_for_is_handed_on(tmp_path: Path) -> None:
    launcher = _launch(tmp_path, "-n", "2", _program(tmp_path, STOPPED))
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    children = _children(launcher)
    launcher.send_signal(signal.SIGINT)
    assert _finish(launcher, timeout=30) == (0, "", "")
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def _process_infos(arguments: str, environment: dict[str, str] | None = None) -> list[ProcessInfo]:
    options, _ = launch.parsed(arguments.split())
    return launch.process_infos(options, environment or {})


def test_processes_of_one_machine() -> None:
    first, second = _process_infos("-n 2 --devices-per-process 3 agent=ppo")
    assert (first.index, second.index, first.count) == (0, 1, 2)
    assert first.coordinator == second.coordinator
    assert str(first.coordinator).startswith("127.0.0.1:")
    assert (second.local_index, second.local_count, second.devices) == (1, 2, 3)
    assert second.command == "python -m evorl.launch -n 2 --devices-per-process 3"


@pytest.mark.parametrize("of_program", ["-n 8 --host db --help", "--coordinator", "other.py -n 1", ""])
def test_options_behind_a_program_are_the_program_s(of_program: str) -> None:
    options, others = launch.parsed(["-n", "2", "folder/program.py", *of_program.split()])
    assert (options.n, options.host, options.coordinator) == (2, 0, None)
    assert others == ["folder/program.py", *of_program.split()]
    options, others = launch.parsed(["agent=ppo", "file=a.py", "-n", "2", "-m"])
    assert (options.n, others) == (2, ["agent=ppo", "file=a.py", "-m"])


def test_processes_of_several_machines() -> None:
    process_infos = _process_infos("-n 2 --hosts 3 --host 1 --coordinator node0:8476")
    assert [info.index for info in process_infos] == [2, 3]
    assert {(info.count, info.coordinator, info.local_count) for info in process_infos} == {(6, "node0:8476", 2)}


def test_tasks_of_slurm() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "node[1-4]"}
    (info,) = _process_infos("agent=ppo", slurm)
    assert (info.index, info.count, info.coordinator) == (3, 8, None)
    assert info.command == "srun python -m evorl.launch"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("agent=ppo", ("number of processes", "missing")),
        ("-n 0", ("1 or more",)),
        ("-n 1 --devices-per-process 0", ("1 or more",)),
        ("-n 1 --hosts 2 --host 2 --coordinator a:1", ("0 to --hosts - 1",)),
        ("-n 1 --hosts 2 --host 1", ("same --coordinator",)),
        *[
            (f"-n 2{hosts} --coordinator {address}", ("same --coordinator", "65535", f"got {address}"))
            for hosts in ("", " --hosts 2", " --hosts 2 --host 1")
            for address in ("node0", "node0:", ":8476", "node0:0", "node0:99999", "node0:8x", "node0:-1", "node0:٣")
        ],
    ],
)
def test_what_does_not_fit_together_is_refused(
    arguments: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        _process_infos(arguments)
    assert not missing_parts(capsys.readouterr().err, *parts)
