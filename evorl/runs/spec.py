"""Settings of a run, read once from its composed config: seed, devices, checkpoints, records, start and kind.

The fields of ``RunSpec`` are the keys of a config with their defaults; the docstrings describe them. All other keys
belong to the workflow.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from evorl.config.evaluation_records import EvaluationRecords
from evorl.config.values import check_names, checked_mapping, checked_value, field_types, plain, seed_number, set_at

Reader = Callable[[Any, str], Any]


class RunKind(enum.Enum):
    """Kinds of runs."""

    TRAINING = "training"
    SWEEP = "sweep"
    SEARCH = "search"
    PARAMETER_SERVER = "parameters"
    REMOTE = "remote"


def setting(default: Any = dataclasses.MISSING, *, read: Reader | None = None, **marks: Any) -> Any:
    """Declare a field of a run's settings.

    Args:
        default: immutable default value.
        read: ``read(value, name)`` returns the checked value; ``None`` checks it against the field's annotation.
        **marks: properties of the field, see ``RunSpec.keys``. ``within`` is the valid interval of a number.
    """
    return dataclasses.field(default=default, metadata={"read": read, **marks})


def _read_seconds_or_steps(unit: str) -> Reader:
    def read(value: Any, name: str) -> float:
        try:
            return checked_value(value, float, name, "[0, inf)")
        except ValueError as error:
            raise ValueError(f"{error} It is a number of {unit}, 0 for never.") from None

    return read


def _read_cache(value: Any, name: str) -> bool | str:
    if not isinstance(value, bool | str) or value == "":
        raise ValueError(f"{name} must be true, false or a folder, got {value!r}.")
    return value


def _read_stored_run(value: Any, name: str) -> str | None:
    if isinstance(value, (Sequence, Mapping)) and not isinstance(value, str):
        raise ValueError(f"{name} must be the folder of a run, or latest; got {value}.")
    return None if value is None or value == "" else str(value)


def _read_runs_folder(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be the name of a folder, got {'null' if value is None else repr(value)}.")
    return value


def _read_wandb(value: Any, name: str) -> bool | Mapping[str, Any]:
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{name} must be true, false or a mapping such as {{project: name, mode: online}}, got {value!r}."
        )
    check_names(value, ("project", "name", "mode"), f"key of {name}")
    return dict(value)


def _read_own(value: Any, name: str) -> tuple[Any, ...]:
    value = [] if value is None else value
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, as in [package.module:Class], got {value!r}.")
    return tuple(value)


def _read_parts(value: Any, name: str) -> tuple[str, ...] | None:
    value = [value] if isinstance(value, str) else value
    if value is None:
        return None
    if not (isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value)):
        raise ValueError(f"{name} must be a list of names such as [policy], or null for all; got {value!r}.")
    return tuple(value)


def _read_which(value: Any, name: str) -> str | int:
    if value not in ("best", "latest") and not (type(value) is int and 0 <= value < 2**63):
        raise ValueError(f"{name} must be best, latest or the number of an iteration; got {value!r}.")
    return value


def _read_init_run(value: Any, name: str) -> str | None:
    if not (value is None or isinstance(value, str)):
        raise ValueError(f"{name} must be the folder of a run, or latest; got {value!r}.")
    return value


def _read_evaluation(value: Any, name: str) -> EvaluationRecords | None:
    if value is None or isinstance(value, EvaluationRecords):
        return value
    value = checked_mapping(value, name)
    check_names(value, [field.name for field in dataclasses.fields(EvaluationRecords)], f"key of {name}")
    return dataclasses.replace(_EVALUATION, **value)


_EVALUATION = EvaluationRecords(goals=True)


class _Part:
    """A frozen dataclass that can be read from a mapping."""

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str = "") -> Self:
        """Read the fields of this class from a mapping, with defaults for missing ones.

        Raises:
            ValueError: a value has another type or is out of range.
        """
        values, types = {}, field_types(cls)
        for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            part = field.metadata.get("part")
            name = f"{where}{field.name}"
            if part is not None and field.metadata.get("flat"):
                values[field.name] = part.read(config)
            elif field.name not in config:
                continue
            elif (read := field.metadata.get("read")) is not None:
                values[field.name] = read(config[field.name], name)
            else:
                within = field.metadata.get("within")
                values[field.name] = checked_value(config[field.name], types[field.name], name, within)
        return cls(**values)

    def as_config(self) -> dict[str, Any]:
        """Return the settings as plain data, in the form of a config."""
        config: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if field.metadata.get("flat"):
                config |= value.as_config()
            elif isinstance(value, _Part):
                config[field.name] = value.as_config()
            else:
                config[field.name] = _plain(value)
        return config


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True)
class StoredRun(_Part):
    """A stored run that a command continues or evaluates.

    Attributes:
        resume: a run folder to continue, or latest
        run: a run folder to evaluate (evorl evaluate), or latest
        trust: let a run folder (resume, run) refer to code outside evorl; only for runs of people you trust
        runs_folder: folder in which run folders are created
    """

    resume: str | None = setting(None, read=_read_stored_run, path=True, of_command=True)
    run: str | None = setting(None, read=_read_stored_run, path=True, of_command=True)
    trust: bool = setting(False, of_command=True)
    runs_folder: str = setting("runs", read=_read_runs_folder, path=True)


@dataclasses.dataclass(frozen=True)
class WarmStart(_Part):
    """Initial parameters from another run.

    Attributes:
        run: folder of that run, or latest
        parts: parts of the agent, such as [policy]; null for all that both runs have
        which: checkpoint: best, latest or an iteration
    """

    run: str | None = setting(None, read=_read_init_run)
    parts: tuple[str, ...] | None = setting(None, read=_read_parts)
    which: str | int = setting("best", read=_read_which)


def _read_init_from(value: Any, name: str) -> WarmStart:
    value = {"run": value} if value is None or isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{name} must be the folder of a run, latest, or a mapping such as {{run: latest, parts: [policy]}}, got "
            f"{value!r}."
        )
    check_names(value, [field.name for field in dataclasses.fields(WarmStart)], f"key of {name}")
    return WarmStart.read(value, f"{name}.")


@dataclasses.dataclass(frozen=True)
class CheckpointSettings(_Part):
    """Checkpoints of a run.

    Attributes:
        checkpoints_kept: number of most recent checkpoints kept, in addition to the best
        best_checkpoints_kept: number of best checkpoints kept
        best_over: number of evaluations averaged in a score; 5 ignores a lucky one
        checkpoint_seconds: also save a checkpoint at least every this many seconds; 0 disables
    """

    checkpoints_kept: int = setting(3)
    best_checkpoints_kept: int = setting(1)
    best_over: int = setting(1)
    checkpoint_seconds: float = setting(0, read=_read_seconds_or_steps("seconds"))


@dataclasses.dataclass(frozen=True)
class RecorderSettings(_Part):
    """Recorders of a run, besides metrics.csv and metrics.jsonl.

    Attributes:
        tensorboard: TensorBoard events in the run folder
        learning_curve: plot of the learning curve in the run folder, drawn at the end
        wandb: Weights & Biases (extra wandb): true, or {project: name, name: name, mode: online}; offline by
            default
        own: custom recorders, as in [package.module:Class], see the guide on custom components
        progress: live panel, or plain lines if the output is not a terminal
    """

    tensorboard: bool = setting(True)
    learning_curve: bool = setting(True)
    wandb: bool | Mapping[str, Any] = setting(False, read=_read_wandb)
    own: tuple[Any, ...] = setting((), read=_read_own)
    progress: bool = setting(True)


def _read_recorders(value: Any, name: str) -> RecorderSettings:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping such as {{progress: true, wandb: false}}, got {value!r}.")
    check_names(value, [field.name for field in dataclasses.fields(RecorderSettings)], f"key of {name}")
    return RecorderSettings.read(value, f"{name}.")


@dataclasses.dataclass(frozen=True)
class RunSpec(_Part):
    """Settings of a run and of its workflow.

    Attributes:
        seed: seed of all random numbers of the run
        title: title on the screen and in plots; null for algorithm, environment and seed
        num_seeds: seeds trained in parallel in one program: seed, seed + 1, ...
        devices: number of devices (on a CPU: cores) that share the work; auto uses all if that is faster
        env_chunk: environments stepped at a time: auto fits the processor's cache, null steps all together
        actors: actors that collect in parallel with the learner: {kind: process, count: 2, mode: sync}, see the
            guide; null for none
        deterministic: on a GPU: bit-identical results for the same seed, machine and versions, at the cost of
            speed; always so on a CPU
        compilation_cache: cache compiled programs in the user's cache folder; false, or another folder
        sweep: settings to compare in one program: {agent.clip_epsilon: [0.1, 0.2]}, see the guide; null for one
            training
        search: settings to try with Optuna, one run each: {over: {discount: {low: 0.9, high: 0.999}}, trials:
            30}; null for one training
        serve: server for the simulators of env=remote, see there; null for local environments
        parameters: parameter server of evorl serve-parameters: a file of configs/parameters; null for none
        stored: a stored run that the command continues or evaluates
        init_from: start a new run with the parameters of another one; init_from=<run> is short for
            init_from.run=<run>
        eval_at_start: also evaluate before the first step, as the start of the learning curve
        checkpoints: which checkpoints are saved and kept
        render_interval: environment steps between renderings of the best policy, in the folder videos; 0 for
            none
        evaluation: output of evaluations in addition to metrics; also for evorl evaluate
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
    compilation_cache: bool | str = setting(True, read=_read_cache, path=True, evaluates=True)
    sweep: Any = setting(None, shared=True)
    search: Any = setting(None, shared=True)
    serve: Any = setting(None, names_no_code=True)
    parameters: Any = setting(None, names_no_code=True)
    stored: StoredRun = setting(StoredRun(), part=StoredRun, flat=True, names_no_code=True, shared=True)
    init_from: WarmStart = setting(WarmStart(), part=WarmStart, read=_read_init_from, names_no_code=True)
    eval_at_start: bool = setting(True)
    checkpoints: CheckpointSettings = setting(CheckpointSettings(), part=CheckpointSettings, flat=True)
    render_interval: float = setting(0, read=_read_seconds_or_steps("environment steps"))
    evaluation: EvaluationRecords | None = setting(
        _EVALUATION, part=EvaluationRecords, read=_read_evaluation, builds=True, evaluates=True
    )
    recorders: RecorderSettings = setting(
        RecorderSettings(), part=RecorderSettings, read=_read_recorders, names_no_code=True, shared=True
    )
    workflow: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"rest": True})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the settings of a composed or stored config.

        Args:
            config: nested mapping or OmegaConf node. Missing keys have their defaults.

        Raises:
            ValueError: a value has another type or is out of range; the message has the key, the value and the
                expectation.
        """
        settings = plain(config)
        keys = cls.keys()
        spec = cls.read({key: value for key, value in settings.items() if key in keys})
        rest = {key: value for key, value in settings.items() if key not in keys}
        checked_value(rest.get("workflow"), str | None, "workflow")
        return dataclasses.replace(spec, workflow=rest)

    @classmethod
    def completed_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config completed with the defaults of missing settings."""
        missing = {key: value for key, value in cls().as_config().items() if key not in config}
        return {**config, **missing}

    @classmethod
    def keys(cls, mark: str | None = None) -> frozenset[str]:
        """Return the config keys of the run's settings: all, or only those with a mark.

        The marks: ``builds`` (also used to build the workflow), ``shared`` (one value for a whole sweep or search),
        ``evaluates`` (accepted by ``evorl evaluate``), ``names_no_code`` (its text loads no code), ``path`` (its value
        is a path, used literally), ``of_command`` (only the command line's value counts, never a stored one).
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
        """Yield the classes of these settings and the path of their fields, with a trailing dot."""
        yield "", cls
        for field in dataclasses.fields(cls):
            part = field.metadata.get("part")
            if part is not None:
                yield ("" if field.metadata.get("flat") else f"{field.name}."), part

    @property
    def kind(self) -> RunKind:
        """Kind of the run.

        Raises:
            ValueError: the settings request two kinds.
        """
        if self.sweep is not None and self.search is not None:
            raise ValueError("sweep and search were both given: compare settings in one program, or search by Optuna.")
        if self.sweep is not None:
            return RunKind.SWEEP
        if self.search is not None:
            return RunKind.SEARCH
        if self.parameters is not None:
            return RunKind.PARAMETER_SERVER
        env = self.workflow.get("env")
        is_remote = isinstance(env, Mapping) and env.get("library") == "remote"
        return RunKind.REMOTE if is_remote else RunKind.TRAINING

    def as_config(self) -> dict[str, Any]:
        """Return the whole config as plain data: the run's settings, then the workflow's."""
        config = super().as_config()
        rest = config.pop("workflow")
        return {key: value for key, value in config.items() if key != "parameters" or value is not None} | dict(rest)

    def workflow_config(self) -> dict[str, Any]:
        """Return the config that the workflow is built from."""
        builds = self.keys("builds")
        return {key: value for key, value in self.as_config().items() if key in builds} | dict(self.workflow)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the settings with other values for some keys.

        Args:
            settings: new values by dotted key, such as ``{"agent.clip_epsilon": 0.1, "num_seeds": 1}``.
        """
        config = copy.deepcopy(self.as_config())
        for path, value in settings.items():
            set_at(config, path, value)
        return self.from_config(config)
