"""Settings of a run, read from its composed config: seed, devices, checkpoints, recorders, warm start and others.

The fields of ``RunSpec`` define these keys of a config and their defaults; ``evorl train --cfg job`` prints the
descriptions in its docstring. All other keys of a config belong to the workflow.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, TypeAlias

from evorl.config.values import MAX_SEED, checked_value, flat, plain, seed_number, set_at
from evorl.runs.privacy import shareable
from evorl.runs.spec_parts import (
    CheckpointSettings,
    EvaluationRecords,
    Part,
    RecorderSettings,
    StopSettings,
    StoredRun,
    WarmStart,
    read_cache,
    read_evaluation,
    read_init_from,
    read_recorders,
    read_seconds_or_steps,
    read_stop,
    setting,
)

Precision: TypeAlias = Literal["default", "high", "highest"]
# Settings that cannot affect learning.
_NOT_OF_LEARNING = {
    *"title sweep search eval_at_start render_interval resume run trust runs_folder recorders evaluation".split(),
    *"best_checkpoints_kept best_over checkpoint_seconds".split(),
    *"checkpoints_kept compilation_cache devices env_chunk deterministic checkpoint_interval log_interval".split(),
}
_EVALUATION = EvaluationRecords(goals=True)


class RunKind(enum.Enum):
    """Kind of a run: a single run, a sweep, a search, a parameter server, or training with remote simulators."""

    TRAINING = "training"
    SWEEP = "sweep"
    SEARCH = "search"
    PARAMETER_SERVER = "parameters"
    REMOTE = "remote"


@dataclasses.dataclass(frozen=True)
class RunSpec(Part):
    """Settings of a run and of its workflow.

    Attributes:
        seed: seed of all random numbers of the run
        title: title in the terminal and in plots; null composes it from algorithm, environment and seed
        num_seeds: number of seeds trained in parallel in one program: seed, seed + 1, and so on
        devices: number of devices (on a CPU: cores) that share the work; auto uses as many as speed up training
        env_chunk: number of environments stepped at a time; null for all, auto for as many as fit into the cache of a
            CPU core (on a GPU, all)
        actors: actors that step environments in parallel with the learner, such as {kind: process, count: 2, mode:
            sync}; null steps them in the training process
        deterministic: compute bit-identical results on a GPU for the same seed, machine and versions, at lower speed;
            sets --xla_gpu_deterministic_ops and, unless set, precision=highest; a CPU is always deterministic
        precision: precision of float32 matrix products; highest computes in float32, high in TF32 on a GPU, default in
            the fastest precision of the device (TF32 on a GPU that has it); a CPU always computes in float32
        compilation_cache: folder of cached compiled programs; true for the user's cache folder, false for no cache
        sweep: settings to compare in one program, such as {agent.clip_epsilon: [0.1, 0.2]}; null for no sweep
        search: settings to search with Optuna, one run per trial, such as {over: {discount: {low: 0.9, high: 0.999}},
            trials: 30}; null for no search
        serve: settings of the server to which the simulators of env=remote connect; null for the default settings
        parameters: settings of the parameter server of evorl serve-parameters, see configs/parameters; null for none
        stored: a stored run that the command continues or evaluates
        init_from: start a new run with the parameters of another run; init_from=<run> is short for
            init_from.run=<run>
        eval_at_start: also evaluate before the first step, to start the curve; sweep and parameter servers ignore it
        checkpoints: which checkpoints are saved and kept
        stop: conditions that end training early, such as {at: 475}, {patience: 5} or {hours: 2}
        render_interval: environment steps between animations of the best policy, in the folder videos; 0 disables
        evaluation: records of evaluations in addition to metrics, in training and for evorl evaluate
        recorders: recorders in addition to metrics.csv and metrics.jsonl, which are always written
        workflow: every other key: the workflow's class and settings, its agent and environment
    """

    seed: int = setting(0, read=seed_number, builds=True, shared=True, evaluates=True)
    title: str | None = setting(None, names_no_code=True)
    num_seeds: int = setting(1, builds=True, shared=True)
    devices: Any = setting("auto", builds=True, shared=True, evaluates=True)
    env_chunk: Any = setting("auto", builds=True, evaluates=True)
    actors: Mapping[str, Any] | None = setting(None, read=lambda value, _: value, builds=True)
    deterministic: bool = setting(False, shared=True)
    precision: Precision = setting("default", shared=True, evaluates=True)
    compilation_cache: bool | str = setting(True, read=read_cache, path=True, evaluates=True)
    sweep: Any = setting(None, shared=True)
    search: Any = setting(None, shared=True)
    serve: Any = setting(None, names_no_code=True)
    parameters: Any = setting(None, names_no_code=True)
    stored: StoredRun = setting(StoredRun(), part=StoredRun, flat=True, names_no_code=True, shared=True)
    init_from: WarmStart = setting(WarmStart(), part=WarmStart, read=read_init_from, names_no_code=True)
    eval_at_start: bool = setting(True)
    checkpoints: CheckpointSettings = setting(CheckpointSettings(), part=CheckpointSettings, flat=True)
    stop: StopSettings = setting(StopSettings(), part=StopSettings, read=read_stop, names_no_code=True)
    render_interval: float = setting(0, read=read_seconds_or_steps("environment steps"))
    evaluation: EvaluationRecords | None = setting(
        _EVALUATION,
        part=EvaluationRecords,
        read=lambda value, _: read_evaluation(value, _EVALUATION),
        builds=True,
        evaluates=True,
    )
    recorders: RecorderSettings = setting(
        RecorderSettings(), part=RecorderSettings, read=read_recorders, names_no_code=True, shared=True
    )
    workflow: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"rest": True})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the settings in a composed or stored config; missing keys have their defaults.

        Raises:
            ValueError: a value has the wrong type or is out of range; the message states the accepted values.
        """
        settings = plain(config)
        keys = cls.keys()
        spec = cls.read({key: value for key, value in settings.items() if key in keys})
        if spec.seed + spec.num_seeds - 1 > MAX_SEED:
            raise ValueError(f"seed={spec.seed} and num_seeds={spec.num_seeds} exceed {MAX_SEED}: use a smaller seed.")
        rest = {key: value for key, value in settings.items() if key not in keys}
        checked_value(rest.get("workflow"), str | None, "workflow")
        return dataclasses.replace(spec, workflow=rest)

    @classmethod
    def keys(cls, mark: str | None = None) -> frozenset[str]:
        """Return the config keys of the run's settings, or only the keys with a mark.

        The marks: ``builds`` (also used to build the workflow), ``shared`` (one value for a whole sweep or search),
        ``evaluates`` (accepted by ``evorl evaluate``), ``names_no_code`` (skipped by ``trust.foreign_names``),
        ``path`` (a path, used literally), ``of_command`` (only the command line's value is used, never a stored one).
        """
        return frozenset(key for key, marks in cls._marked() if mark is None or marks.get(mark))

    @classmethod
    def _marked(cls) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for field in dataclasses.fields(cls):
            if field.metadata.get("flat"):
                part = dataclasses.fields(field.metadata["part"])
                yield from ((inner.name, {**field.metadata, **inner.metadata}) for inner in part)
            elif not field.metadata.get("rest"):
                yield field.name, field.metadata

    @classmethod
    def parts(cls) -> Iterator[tuple[str, type]]:
        """Yield ``(prefix, class)`` of each section of the settings; a prefix is empty or ends with a dot."""
        yield "", cls
        for field in dataclasses.fields(cls):
            part = field.metadata.get("part")
            if part is not None:
                yield ("" if field.metadata.get("flat") else f"{field.name}."), part

    @property
    def kind(self) -> RunKind:
        """Kind of the run.

        Raises:
            ValueError: ``sweep`` and ``search`` are combined, or ``stop`` with ``sweep`` or ``parameters``.
        """
        if self.sweep is not None and self.search is not None:
            raise ValueError(
                "sweep and search cannot be combined: compare settings with sweep, or search them with search (Optuna)."
            )
        if self.stop != StopSettings() and (self.sweep is not None or self.parameters is not None):
            shared, remedy = "a parameter server trains all workers", "remove stop"
            if self.sweep is not None:
                shared, remedy = "sweep trains all settings", "remove stop, or compare settings with -m or search"
            raise ValueError(f"stop ends a single training run, but {shared} together: {remedy}.")
        for kind in (RunKind.SWEEP, RunKind.SEARCH, RunKind.PARAMETER_SERVER):
            if getattr(self, kind.value) is not None:
                return kind
        return RunKind.REMOTE if self.env.get("library") == "remote" else RunKind.TRAINING

    @property
    def env(self) -> Mapping[str, Any]:
        """Settings of the environment; a name alone becomes the entry ``name``."""
        env = self.workflow.get("env", {})
        return env if isinstance(env, Mapping) else {"name": env}

    def as_config(self) -> dict[str, Any]:
        """Return the complete config as plain data: run settings (``parameters`` only if set) and workflow settings."""
        config = super().as_config()
        rest = config.pop("workflow")
        return {key: value for key, value in config.items() if key != "parameters" or value is not None} | dict(rest)

    def workflow_config(self) -> dict[str, Any]:
        """Return the config that the workflow is built from: its settings, and run settings marked ``builds``."""
        builds = self.keys("builds")
        return {key: value for key, value in self.as_config().items() if key in builds} | dict(self.workflow)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with new values by dotted key, such as ``{"agent.clip_epsilon": 0.1}``, checked again."""
        config = copy.deepcopy(self.as_config())
        for path, value in settings.items():
            set_at(config, path, copy.deepcopy(value))  # a later path may be inside this value
        return self.from_config(config)


def learning_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all settings that can affect learning, by dotted name, without secrets."""
    settings = {key: value for key, value in shareable(config).items() if key not in _NOT_OF_LEARNING}
    return {name: value for name, value in flat(settings) if name not in _NOT_OF_LEARNING}
