"""Checks a training before it begins: builds its workflow without compiling or writing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evorl.cli.init_from import warm_start_from
from evorl.cli.joining import refuse_different_settings
from evorl.cli.overrides import check_run_settings
from evorl.cli.parameter_serving import parameter_service, settle_parameters
from evorl.cli.remote_training import with_training_server
from evorl.cli.size_limits import refuse_hopeless_sizes
from evorl.cli.stored_run import build_workflow, check_folders, prepare_for

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.cli.parameter_serving import ParameterService
    from evorl.runs.folder import RunFolder
    from evorl.workflows.warm_start import WarmStart
    from evorl.workflows.workflow import Workflow


class Prepared(NamedTuple):
    """A training that was checked and has not begun.

    Attributes:
        workflow: of the training.
        served: the service of its parameters; ``None`` without workers.
        beginning: initial parameters from another run; ``None`` for fresh ones.
    """

    workflow: Workflow
    served: ParameterService | None
    beginning: WarmStart | None


def prepare_training(config: DictConfig, resumed: RunFolder | None) -> Prepared:
    """Set JAX up, and build the workflow of a training.

    Args:
        config: whose own settings ``check_run_settings`` has checked.
        resumed: the folder of a run that goes on; ``None`` for a new one.

    Raises:
        ValueError: the settings do not fit together, or the training would learn nothing.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    from evorl.execution.first_update import refuse_idle_training

    refuse_hopeless_sizes(config)
    prepare_for(config)
    refuse_different_settings(f"{config} {resumed}")
    workflow = with_training_server(build_workflow(config), config)
    if not resumed:
        refuse_idle_training(workflow)
    served = parameter_service(workflow, config)
    return Prepared(workflow, served, None if resumed else warm_start_from(config, workflow))


def check_training(config: DictConfig) -> None:
    """Raise the errors that a training of this config would raise before its first iteration is compiled.

    The workflow is built up to the shapes of the first state, and closed again.

    Raises:
        ValueError: the settings do not fit together, the memory cannot hold the state, or nothing would be learned.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    from evorl.cli.searching import check_search
    from evorl.cli.sweeping import sweep_groups

    check_folders(config)
    check_run_settings(config)
    settle_parameters(config, in_sweep=True)
    if config.get("sweep") is not None:
        sweep_groups(config)
    elif config.get("search") is not None:
        check_search(config, check_build)
    else:
        check_build(config)


def check_build(config: DictConfig) -> None:
    """Build the workflow and the shapes of its first state, and close it; see ``check_training`` for the errors."""
    import jax

    from evorl.execution import programs

    workflow, served, _ = prepare_training(config, None)
    try:
        if not served:
            programs.state_shapes(workflow, jax.random.key(config.seed))
    finally:
        workflow.close()
