"""Checks a training run before it starts: builds its workflow without compiling or writing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from evorl.assembly import workflow_from_config
from evorl.config.command_lines import is_address
from evorl.config.custom_parts import custom_class, custom_part
from evorl.config.gate import admit
from evorl.config.names import name_and_options
from evorl.config.yaml_text import inline_yaml
from evorl.envs.libraries import HOST_LIBRARIES
from evorl.execution import programs
from evorl.execution.first_update import refuse_idle_training
from evorl.execution.memory import MEMORY_SHARE, available_bytes, rounded, shown_bytes
from evorl.execution.multiprocess import refuse_different_settings
from evorl.execution.runtime import prepare_for
from evorl.ops.processes import is_multiprocess
from evorl.parameter_server.service import ParameterService, parameter_service
from evorl.runs.best_run import find_run
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder
from evorl.runs.shared_policy import SUFFIX
from evorl.runs.spec import RunKind, RunSpec
from evorl.runs.stored import StoredConfig
from evorl.serving.remote_run import refuse_serve_settings, with_training_server
from evorl.workflows.workflow import Workflow

if TYPE_CHECKING:
    from evorl.warm_start import WarmStart

MIN_CHECKED_BYTES = 10**9  # bytes; smaller sizes are not checked
MAX_SIMULATORS = 20_000
MIN_SEED_BYTES = 256  # bytes: keys, counters, and a network of a few numbers
MIN_INDIVIDUAL_BYTES = 16  # bytes: a few parameters and the fitness
MIN_TRANSITION_BYTES = 16  # bytes: observation, next observation, action and reward, with one number each


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
    """Set up JAX, build and check a run's workflow; for a new run (``resumed=None``), also compute its initial shapes.

    Raises:
        ValueError: the settings are inconsistent, the state does not fit in memory, or no update would ever happen.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    refuse_excessive_sizes(spec)
    if spec.recorders.own:
        own_recorders(spec)  # raises before a folder is created
    prepare_for(spec)
    if is_multiprocess():
        refuse_different_settings(f"{spec} {resumed}")
    workflow = workflow_from_config(spec.workflow_config())
    try:
        return _prepared(spec, workflow, resumed)
    except Exception:
        workflow.close()
        raise


def _prepared(spec: RunSpec, workflow: Workflow, resumed: RunFolder | None) -> Prepared:
    served, beginning = None, None
    if spec.kind is RunKind.REMOTE:
        workflow = with_training_server(workflow, spec)
    elif spec.serve is not None and not workflow.env.is_remote:
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


def refuse_excessive_sizes(spec: RunSpec) -> None:
    """Raise ``ValueError`` for sizes too large for any environment: memory, 32-bit indices, ``MAX_SIMULATORS``."""
    for above, node in _levels(spec.workflow):
        capacity, rollout, num_envs, episodes = (
            _number(node.get(name)) for name in ("replay_capacity", "rollout_length", "num_envs", "eval_episodes")
        )
        _refuse_bytes(f"{above}replay_capacity", capacity, MIN_TRANSITION_BYTES, "transitions")
        if rollout * num_envs >= 2**31:
            raise ValueError(
                f"{above}num_envs={num_envs:,} times {above}rollout_length={rollout:,} are {num_envs * rollout:,} "
                f"transitions per iteration, but at most {2**31 - 1:,} can be indexed: choose smaller numbers."
            )
        _refuse_bytes(f"{above}rollout_length", rollout, MIN_TRANSITION_BYTES * max(1, num_envs), "transitions")
        _refuse_bytes(f"{above}eval_episodes", episodes, MIN_TRANSITION_BYTES, "episodes")
        _refuse_bytes(f"{above}pop_size", _number(node.get("pop_size")), MIN_SEED_BYTES, "members")
        if isinstance(optimizer := node.get("optimizer"), Mapping):
            size = _number(optimizer.get("pop_size"))
            _refuse_bytes(f"{above}optimizer.pop_size", size, MIN_INDIVIDUAL_BYTES, "individuals")
    _refuse_bytes("num_seeds", spec.num_seeds, MIN_SEED_BYTES, "seeds")
    _refuse_many_simulators(spec.env.get("library"), _number(spec.workflow.get("num_envs")))


def _refuse_bytes(name: str, number: int, bytes_of_each: int, what: str) -> None:
    """Raise ``ValueError`` if ``number`` items of ``bytes_of_each`` bytes exceed the memory; ``what`` names them."""
    if number * bytes_of_each < MIN_CHECKED_BYTES:
        return
    available = available_bytes()
    if available is None or number * bytes_of_each <= MEMORY_SHARE * available:
        return
    most = int(MEMORY_SHARE * available / bytes_of_each)
    raise ValueError(
        f"{name}={number:,} is too large for {shown_bytes(available)} of memory in any environment: the largest "
        f"value that could fit is {rounded(most):,}, at {bytes_of_each:,} bytes or more for each of the {what}. --plan "
        "prints the actual size in this environment."
    )


def _refuse_many_simulators(library: Any, num_envs: int) -> None:
    """Raise ``ValueError`` for more than ``MAX_SIMULATORS`` simulators of a library outside JAX."""
    if num_envs > MAX_SIMULATORS and isinstance(library, str) and library in HOST_LIBRARIES:
        raise ValueError(
            f"num_envs={num_envs:,} simulators of {library} are too many, because each one is started separately: "
            f"choose at most {MAX_SIMULATORS:,}, or an environment in JAX."
        )


def _number(value: Any) -> int:
    """Return a size from the config; 0 for an invalid value, which is rejected where it is used."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value < 1e300 else 0


def own_recorders(spec: RunSpec) -> list[Any]:
    """Import the user's recorders that ``recorders.own`` names, check their settings, and return ``CustomPart``s.

    Raises:
        ValueError: a recorder does not exist, is not a ``Recorder``, or has an unknown or missing setting.
    """
    recorders = map(name_and_options, spec.recorders.own)
    parts = [custom_part(name, options, "recorders.own", num_inputs=1) for name, options in recorders]
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
    from evorl.warm_start import warm_start  # imports all evolutionary optimizers, which most runs do not use

    chosen = spec.init_from
    if is_address(run):
        admit(run, "init_from.run")  # settings of an untrusted source must not make requests
    folder = find_run(run, spec.stored.runs_folder)
    spec = replace(spec, init_from=replace(chosen, run=str(folder.path)))
    parts = None if chosen.parts is None else list(chosen.parts)
    beginning = warm_start(workflow, folder.path, parts, chosen.which)
    remarks = _differing_activations(spec.workflow, StoredConfig.read(folder).config, folder)
    return spec, replace(beginning, messages=(*beginning.messages, *remarks))


def _differing_activations(here: Mapping[str, Any], there: Mapping[str, Any], folder: RunFolder) -> Iterator[str]:
    """Yield a message for each activation that differs from the other run's: shapes do not depend on it."""
    (path, before), (_, after) = (
        [(f"{above}agent", node.get("agent") or {}) for above, node in _levels(settings)][-1]
        for settings in (there, here)
    )
    for part in (name for name, node in before.items() if isinstance(node, Mapping) and "activation" in node):
        sections = [(node.get(part) or {}, node.get("network") or {}) for node in (before, after)]
        old, new = (own.get("activation") or shared.get("activation") for own, shared in sections)
        if part in after and old != new:
            yield (
                f"{path}.{part}.activation is {inline_yaml(old)} in {folder.path} but {inline_yaml(new)} here, so that "
                "the network computes different outputs from the same parameters: use the setting of that run to "
                "continue from its policy."
            )


def _levels(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the settings of an algorithm and of all learners nested in it, each with the prefix of its paths."""
    yield above, settings
    for name in ("learner", "inner"):
        if isinstance(nested := settings.get(name), Mapping):
            yield from _levels(nested, f"{above}{name}.")


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
