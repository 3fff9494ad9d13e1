"""Checks a training run before it starts: builds its workflow without compiling or writing anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax

from evorl.assembly import workflow_from_config
from evorl.config.command_lines import is_address
from evorl.config.custom_parts import custom_class, custom_part
from evorl.config.gate import admit
from evorl.execution import programs
from evorl.execution.first_update import refuse_idle_training
from evorl.execution.multiprocess import refuse_different_settings
from evorl.execution.runtime import prepare_for
from evorl.execution.size_limits import refuse_hopeless_sizes
from evorl.ops.processes import are_several
from evorl.parameter_server.service import ParameterService, parameter_service
from evorl.runs.best_run import find_run
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.shared_policy import SUFFIX
from evorl.runs.spec import RunKind, RunSpec
from evorl.serving.remote_run import refuse_serve_settings, with_training_server
from evorl.warm_start import WarmStart, warm_start
from evorl.workflows.workflow import Workflow


class Prepared(NamedTuple):
    """A checked training run that has not started.

    Attributes:
        spec: settings of the run.
        workflow: workflow of the training run.
        served: parameter server; ``None`` if the run has no workers in other processes.
        beginning: initial parameters from another run (``init_from``); ``None`` for random initialization.
    """

    spec: RunSpec
    workflow: Workflow
    served: ParameterService | None
    beginning: WarmStart | None


def prepare_training(spec: RunSpec, resumed: RunFolder | None) -> Prepared:
    """Set up JAX, build a run's workflow and check it; for a new run, also compute the shapes of the initial state.

    Args:
        spec: settings of the run.
        resumed: folder of the run to continue; ``None`` for a new one.

    Raises:
        ValueError: the settings are inconsistent, the state does not fit in memory, or no update would ever happen.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    refuse_hopeless_sizes(spec.as_config())
    if spec.recorders.own:
        own_recorders(spec)  # raises before a folder is created
    prepare_for(spec)
    if are_several():
        refuse_different_settings(f"{spec} {resumed}")
    workflow = workflow_from_config(spec.workflow_config())
    try:
        return _prepared(spec, workflow, resumed)
    except Exception:
        workflow.close()
        raise


def _prepared(spec: RunSpec, workflow: Workflow, resumed: RunFolder | None) -> Prepared:
    # Modules that a plain training run does not use are imported only if the settings request them.
    served, beginning = None, None
    if spec.kind is RunKind.REMOTE:
        workflow = with_training_server(workflow, spec)
    elif spec.kind is RunKind.TRAINING and spec.serve is not None:
        refuse_serve_settings()
    if not resumed:
        refuse_idle_training(workflow)
    if spec.kind is RunKind.PARAMETER_SERVER:
        served = parameter_service(workflow, spec)
    if spec.init_from.run is not None and not resumed:
        spec, beginning = warm_start_from(spec.init_from.run, spec, workflow)
    if not resumed and not served:
        programs.state_shapes(workflow, jax.random.key(spec.seed))
    return Prepared(spec, workflow, served, beginning)


def own_recorders(spec: RunSpec) -> list[Any]:
    """Import the user's recorders that ``recorders.own`` names, check their settings, and return ``CustomPart``s.

    Raises:
        ValueError: a recorder does not exist, is not a ``Recorder``, or has an unknown or missing setting.
    """
    parts = [custom_part(recorder, "recorders.own", num_inputs=1) for recorder in spec.recorders.own]
    for part in parts:
        if isinstance(part.function, type):
            custom_class(part.name, Recorder, "recorders.own")
    return parts


def warm_start_from(run: str, spec: RunSpec, workflow: Workflow) -> tuple[RunSpec, WarmStart]:
    """Load the initial parameters from ``run``: a run folder, ``latest``, or the file or address of a packed policy.

    Returns:
        The settings, with ``init_from.run`` replaced by the path of the run's folder; and the parameters.

    Raises:
        ValueError: the parameters do not fit the workflow.
        RunFolderError: the run does not exist.
        ForeignCodeError: ``run`` is an address from settings of an untrusted source, and the user does not allow it.
    """
    chosen = spec.init_from
    if is_address(run):
        admit(run, "init_from.run")  # settings of an untrusted source must not make requests
    folder = find_run(run, spec.stored.runs_folder)
    spec = replace(spec, init_from=replace(chosen, run=str(folder.path)))
    parts = None if chosen.parts is None else list(chosen.parts)
    return spec, warm_start(workflow, folder.path, parts, chosen.which)


def with_fixed_source(spec: RunSpec) -> RunSpec:
    """Return the settings of a sweep in which ``init_from.run`` is the path of a run folder.

    So ``latest`` or a folder of runs names the same earlier run for all runs of the sweep. Packed policies and
    addresses are unchanged. For errors see ``find_run``.
    """
    run = spec.init_from.run
    if run is None or is_address(run) or run.lower().endswith(SUFFIX):
        return spec
    return replace(spec, init_from=replace(spec.init_from, run=str(find_run(run, spec.stored.runs_folder).path)))


def check_build(spec: RunSpec) -> None:
    """Build and check the workflow of a new run, then close it; see ``prepare_training`` for the errors."""
    prepare_training(spec, None).workflow.close()
