"""Trains the runs of a sweep through a Hydra launcher, in other processes or on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from evorl.cli.arguments import SWEEP, as_hydra_overrides
from evorl.cli.errors import failure_text
from evorl.cli.run_command import with_hydra
from evorl.cli.run_names import SUBDIR
from evorl.cli.training import train_run
from evorl.config.command_lines import as_text
from evorl.config.gate import scope
from evorl.runs.spec import RunSpec
from evorl.runs.sweep_folder import SweepFolder
from evorl.sweeps.trained import Attempt, attempt
from evorl.training.start import Trained

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_STOPPED: dict[str, Attempt] = {}  # outcome of the run that filled the disk, by the folder of its sweep


class SweptRuns(Sweeper):
    """Hydra sweeper that passes all runs of a sweep to the chosen launcher at once.

    Attributes:
        runs: the overrides of each run.
        ended: the jobs that the launcher returned, in the same order.
    """

    runs: ClassVar[Sequence[Sequence[str]]] = ()
    ended: ClassVar[Sequence[JobReturn]] = ()

    def __init__(self, **_: object) -> None:
        self._launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the launcher that ``config`` chooses."""
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Launch ``runs`` and wait for all of them; Hydra's ``arguments`` are ignored."""
        assert self._launcher is not None, "setup() creates the launcher"
        type(self).ended = self._launcher.launch(self.runs, initial_job_idx=0)


def launch(sweep: SweepFolder, of_launcher: Sequence[str]) -> list[Attempt]:
    """Train the runs of a sweep, each in its folder, through the Hydra launcher that ``of_launcher`` chooses.

    Returns:
        The outcome of each run, in the order of ``sweep.runs``.
    """
    SweptRuns.runs = [[*as_hydra_overrides(run.overrides), f"{SUBDIR}={as_text(run.folder)}"] for run in sweep.runs]
    folder = f"{SWEEP}={as_text(str(sweep.path))}"
    sweepers = Plugins.instance().class_name_to_class  # Hydra accepts only its plugins as sweepers
    basic = sweepers[_BASIC]
    try:
        sweepers[_BASIC] = SweptRuns
        with_hydra([*of_launcher, folder, *sweep.flags, "-m"], train_job)
        return [_outcome(job) for job in SweptRuns.ended]
    finally:
        sweepers[_BASIC] = basic
        _STOPPED.pop(str(sweep.path), None)


@scope()
def train_job(config: DictConfig) -> Attempt:
    """Train the run of a composed config in its job's process; return an error as a failed or stopped outcome."""
    folder = str(HydraConfig.get().sweep.dir)
    if folder not in _STOPPED:
        try:
            return attempt(lambda: train_run(RunSpec.from_config(config)), failure_text)
        except OSError as error:  # the disk is full: later runs of the sweep in this process do not start
            _STOPPED[folder] = Attempt(Trained(None, True), str(error))
    return _STOPPED[folder]


def _outcome(job: JobReturn) -> Attempt:
    """Return the outcome of a job; a job that raised an error outside training counts as a failed run."""
    if job.status is JobStatus.COMPLETED:
        return job.return_value
    return Attempt(None, f"its process failed: {job._return_value}")
