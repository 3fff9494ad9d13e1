"""Checks a training before it starts: builds its workflow without compiling or writing anything."""

from __future__ import annotations

from typing import NamedTuple

import jax

from evorl.assembly import workflow_from_config
from evorl.cli.init_from import warm_start_from
from evorl.cli.overrides import own_recorders
from evorl.execution import programs
from evorl.execution.first_update import refuse_idle_training
from evorl.execution.multiprocess import refuse_different_settings
from evorl.execution.runtime import prepare_for
from evorl.execution.size_limits import refuse_hopeless_sizes
from evorl.parameter_server.service import ParameterService, parameter_service, settle_parameters
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunKind, RunSpec
from evorl.serving.remote_run import with_training_server
from evorl.sweeps.search import check_search
from evorl.sweeps.sweep import sweep_groups
from evorl.warm_start import WarmStart
from evorl.workflows.workflow import Workflow


class Prepared(NamedTuple):
    """A checked training that has not started.

    Attributes:
        spec: settings of the run.
        workflow: workflow of the training.
        served: parameter server; ``None`` without workers.
        beginning: initial parameters from another run; ``None`` for random initialization.
    """

    spec: RunSpec
    workflow: Workflow
    served: ParameterService | None
    beginning: WarmStart | None


def prepare_training(spec: RunSpec, resumed: RunFolder | None) -> Prepared:
    """Set up JAX and build the workflow of a training.

    Args:
        spec: settings of the run.
        resumed: folder of the run to continue; ``None`` for a new one.

    Raises:
        ValueError: the settings are inconsistent, or the training would learn nothing.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    refuse_hopeless_sizes(spec.as_config())
    own_recorders(spec)  # rejected before a folder is created
    prepare_for(spec)
    refuse_different_settings(f"{spec} {resumed}")
    workflow = with_training_server(workflow_from_config(spec.workflow_config()), spec)
    if not resumed:
        refuse_idle_training(workflow)
    served = parameter_service(workflow, spec)
    spec, beginning = (spec, None) if resumed else warm_start_from(spec, workflow)
    return Prepared(spec, workflow, served, beginning)


def check_training(spec: RunSpec) -> None:
    """Raise the errors that a run with these settings would raise before its first iteration is compiled.

    The workflow and the shapes of its initial state are built, then the workflow is closed.

    Raises:
        ValueError: the settings are inconsistent, the state exceeds the memory, or nothing would be learned.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    spec = settle_parameters(spec, in_sweep=True)
    if spec.kind is RunKind.SWEEP:
        sweep_groups(spec)
    elif spec.kind is RunKind.SEARCH:
        check_search(spec, check_build)
    else:
        check_build(spec)


def check_build(spec: RunSpec) -> None:
    """Build the workflow and the shapes of its initial state, and close it; see ``check_training`` for errors."""
    prepared = prepare_training(spec, None)
    workflow, served = prepared.workflow, prepared.served
    try:
        if not served:
            programs.state_shapes(workflow, jax.random.key(spec.seed))
    finally:
        workflow.close()
