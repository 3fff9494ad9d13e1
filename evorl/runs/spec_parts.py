"""Sections of a run's settings: stored run, warm start, checkpoints, recorders and others; readers of their fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from evorl.config.names import no_such
from evorl.config.values import check_names, checked_mapping, checked_value, field_types, short_repr

Reader = Callable[[Any, str], Any]
PLOTS_OF = ("goal", "observation")


def setting(default: Any = dataclasses.MISSING, *, read: Reader | None = None, **marks: Any) -> Any:
    """Declare a field of a run's settings.

    Args:
        default: immutable default value.
        read: ``read(value, name)`` returns the checked value; ``None`` checks it against the field's annotation.
        **marks: properties of the field, see ``RunSpec.keys``. ``within`` is the valid interval of a number.
    """
    return dataclasses.field(default=default, metadata={"read": read, **marks})


def read_seconds_or_steps(unit: str) -> Reader:
    """Return a function that checks a nonnegative number; its error message names ``unit``, such as ``seconds``."""

    def read(value: Any, name: str) -> float:
        try:
            return checked_value(value, float, name, "[0, inf)")
        except ValueError as error:
            raise ValueError(f"{error} Use a number of {unit}; 0 disables it.") from None

    return read


def read_cache(value: Any, name: str) -> bool | str:
    """Return the value of ``compilation_cache``; raise ``ValueError`` unless it is a bool or a nonempty text."""
    if not isinstance(value, bool | str) or value == "":
        raise ValueError(f"{name} must be true, false or a folder, got {short_repr(value)}.")
    return value


def _read_stored_run(value: Any, name: str) -> str | None:
    if isinstance(value, (Sequence, Mapping)) and not isinstance(value, str):
        raise ValueError(f"{name} must be text, such as the path of a run folder, or latest; got {short_repr(value)}.")
    return None if value is None or value == "" else str(value)


def _read_runs_folder(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be the name of a folder, got {short_repr(value)}.")
    return value


def _read_tracker(value: Any, name: str, keys: tuple[str, ...], example: str) -> bool | Mapping[str, Any]:
    """Read the settings of an experiment tracker: a mapping with only ``keys``, true, or false (also for null)."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be true, false or a mapping such as {example}, got {short_repr(value)}.")
    check_names(value, keys, f"key of {name}")
    return dict(value)


_read_wandb = functools.partial(
    _read_tracker, keys=("project", "name", "mode"), example="{project: name, mode: online}"
)
_read_mlflow = functools.partial(
    _read_tracker, keys=("uri", "experiment", "name"), example="{uri: http://127.0.0.1:5000, experiment: name}"
)


def _read_own(value: Any, name: str) -> tuple[Any, ...]:
    value = [] if value is None else value
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, as in [package.module:Class], got {short_repr(value)}.")
    return tuple(value)


def _read_parts(value: Any, name: str) -> tuple[str, ...] | None:
    value = [value] if isinstance(value, str) else value
    if value is None:
        return None
    if not (isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value)):
        raise ValueError(f"{name} must be a list of names such as [policy], or null for all; got {short_repr(value)}.")
    return tuple(value)


def _read_which(value: Any, name: str) -> str | int:
    if value not in ("best", "latest") and not (type(value) is int and 0 <= value < 2**63):
        raise ValueError(f"{name} must be best, latest or an iteration number; got {short_repr(value)}.")
    return value


def _read_init_run(value: Any, name: str) -> str | None:
    if not (value is None or isinstance(value, str)):
        raise ValueError(f"{name} must be a run folder, a packed policy or latest; got {short_repr(value)}.")
    return value


@dataclasses.dataclass(frozen=True)
class EvaluationRecords:
    """Settings of the data that evaluations store in addition to metrics.

    Attributes:
        goals: for environments with goals, write the goals of all evaluation episodes to eval_goals.csv; evorl evaluate
            prints a table of the goals reached
        goal_cells: number of cells per goal dimension in the table that evorl evaluate prints
        save_episodes: number of episodes per evaluation to record step by step in the folder episodes; null for none
        plot_episodes: number of episodes per evaluation to plot in the folder plots; null for none
        plot_of: plotted quantity, goal or observation; null for the goal if it is observed, else the observation
        plot_dimensions: indices of one or two components to plot, as in [0, 1]; null for the first two

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    goals: bool = False
    goal_cells: int = 3
    save_episodes: int | None = None
    plot_episodes: int | None = None
    plot_of: str | None = None
    plot_dimensions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        hints = field_types(EvaluationRecords)
        for name in ("goals", "goal_cells", "save_episodes", "plot_episodes"):
            object.__setattr__(self, name, checked_value(getattr(self, name), hints[name], f"evaluation.{name}"))
        if self.plot_of is not None and self.plot_of not in PLOTS_OF:
            raise ValueError(no_such("value of evaluation.plot_of", self.plot_of, PLOTS_OF))
        chosen = self.plot_dimensions
        is_list = chosen is None or (isinstance(chosen, list | tuple) and 1 <= len(chosen) <= 2)
        if not is_list or not all(type(i) is int and i >= 0 for i in chosen or ()):
            raise ValueError(f"evaluation.plot_dimensions must be 1 or 2 indices from 0, as in [0, 1]; got {chosen!r}.")

    @property
    def num_steps(self) -> int:
        """Number of episodes whose steps are all stored."""
        return max(self.save_episodes or 0, self.plot_episodes or 0)

    def for_evaluator(self) -> dict[str, Any]:
        """Return the corresponding fields of an ``Evaluator``."""
        return {"keep_goals": self.goals, "keep_steps": self.num_steps}


def read_evaluation(value: Any, default: EvaluationRecords) -> EvaluationRecords | None:
    """Read the section ``evaluation``; missing settings are as in ``default``, and ``None`` disables all records.

    Raises ``ValueError`` if the section is not a mapping, or a setting is unknown or invalid.
    """
    if value is None or isinstance(value, EvaluationRecords):
        return value
    settings = checked_mapping(value, "evaluation")
    check_names(settings, [field.name for field in dataclasses.fields(EvaluationRecords)], "key of evaluation")
    return dataclasses.replace(default, **settings)


class Part:
    """A frozen dataclass that can be read from a mapping."""

    if TYPE_CHECKING:  # every subclass is a dataclass
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str = "") -> Self:
        """Read the fields of this class from a mapping, with defaults for missing ones; ignore other keys.

        Raises:
            ValueError: a value has the wrong type or is out of range; the message names it, after the prefix ``where``.
        """
        values, types = {}, field_types(cls)
        for field in dataclasses.fields(cls):
            name = f"{where}{field.name}"
            if field.metadata.get("flat"):
                values[field.name] = field.metadata["part"].read(config)
            elif field.name not in config or _is_default(config[field.name], field):
                continue
            elif (read := field.metadata.get("read")) is not None:
                values[field.name] = read(config[field.name], name)
            else:
                within = field.metadata.get("within")
                values[field.name] = checked_value(config[field.name], types[field.name], name, within)
        return cls(**values)

    def as_config(self) -> dict[str, Any]:
        """Return the settings as plain data, as ``read`` accepts them."""
        config: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("flat"):
                config |= value.as_config()
            else:
                config[field.name] = _plain(value)
        return config


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    """Return True for a text, bool or null that is the field's default; numbers may need a conversion to float."""
    is_final = value is None or isinstance(value, bool | str)
    return is_final and type(value) is type(field.default) and value == field.default


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


_Part = TypeVar("_Part", bound=Part)


@dataclasses.dataclass(frozen=True)
class StoredRun(Part):
    """A stored run that a command continues or evaluates.

    Attributes:
        resume: run, sweep or search to continue: its folder, or latest; null starts a new run
        run: run that a command such as evorl evaluate reads: a run folder, a packed policy or latest; null for none
        trust: allow code outside evorl that the stored run's config names; only for runs from sources that you trust
        runs_folder: folder in which run folders are created, and which is searched for runs given by name or as latest
    """

    resume: str | None = setting(None, read=_read_stored_run, path=True, of_command=True)
    run: str | None = setting(None, read=_read_stored_run, path=True, of_command=True)
    trust: bool = setting(False, of_command=True)
    runs_folder: str = setting("runs", read=_read_runs_folder, path=True)


@dataclasses.dataclass(frozen=True)
class WarmStart(Part):
    """Initial parameters from another run.

    Attributes:
        run: run that provides the parameters: a run folder, latest, or a packed policy (path or address); null for none
        parts: parts of the agent to copy, such as [policy]; null for all that both runs have
        which: checkpoint to copy from: best, latest or an iteration
    """

    run: str | None = setting(None, read=_read_init_run)
    parts: tuple[str, ...] | None = setting(None, read=_read_parts)
    which: str | int = setting("best", read=_read_which)


def read_init_from(value: Any, name: str) -> WarmStart:
    """Read the section ``init_from``: a mapping, or the text of its key ``run``."""
    value = {"run": value} if value is None or isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{name} must be a run folder, a packed policy, latest, or a mapping such as {{run: latest, parts: "
            f"[policy]}}; got {short_repr(value)}."
        )
    check_names(value, [field.name for field in dataclasses.fields(WarmStart)], f"key of {name}")
    return WarmStart.read(value, f"{name}.")


@dataclasses.dataclass(frozen=True)
class CheckpointSettings(Part):
    """Checkpoints of a run.

    Attributes:
        checkpoints_kept: number of most recent checkpoints kept, in addition to the best
        best_checkpoints_kept: number of best checkpoints kept
        best_over: number of latest evaluations whose mean return ranks a checkpoint; a larger number reduces noise
        checkpoint_seconds: also save a checkpoint at least every this many seconds; 0 disables
    """

    checkpoints_kept: int = setting(3)
    best_checkpoints_kept: int = setting(1)
    best_over: int = setting(1)
    checkpoint_seconds: float = setting(0, read=read_seconds_or_steps("seconds"))


@dataclasses.dataclass(frozen=True)
class RecorderSettings(Part):
    """Recorders of a run, in addition to metrics.csv and metrics.jsonl.

    Attributes:
        tensorboard: write TensorBoard events to the run folder
        learning_curve: plot the learning curve in the run folder at the end
        wandb: log to Weights & Biases (extra wandb), offline by default; true or, for example, {project: name, name:
            name, mode: online}
        mlflow: log to MLflow (extra mlflow); true for the server in MLFLOW_TRACKING_URI, or, for example, {uri:
            http://127.0.0.1:5000, experiment: name, name: name}
        own: custom recorders, such as [package.module:Class], see the guide on custom components
        progress: show progress in a live panel on a terminal, a growing curve in a notebook, plain lines elsewhere
    """

    tensorboard: bool = setting(True)
    learning_curve: bool = setting(True)
    wandb: bool | Mapping[str, Any] = setting(False, read=_read_wandb)
    mlflow: bool | Mapping[str, Any] = setting(False, read=_read_mlflow)
    own: tuple[Any, ...] = setting((), read=_read_own)
    progress: bool = setting(True)


def read_recorders(value: Any, name: str) -> RecorderSettings:
    """Read the section ``recorders``, a mapping; raise ``ValueError`` if it is invalid."""
    return _read_part(RecorderSettings, value, name, "{progress: true, wandb: false}")


@dataclasses.dataclass(frozen=True)
class StopSettings(Part):
    """Conditions that end a training run before total_timesteps.

    Attributes:
        at: score that ends training: the mean return of the last best_over evaluations; null disables
        patience: number of consecutive evaluations without a better score that ends training; null disables
        hours: hours since the start, or since the last resume, after which training ends; null disables
    """

    at: float | None = setting(None)
    patience: int | None = setting(None, within="[1, inf)")
    hours: float | None = setting(None, within="(0, inf)")


def read_stop(value: Any, name: str) -> StopSettings:
    """Read the section ``stop``, a mapping or ``None``; raise ``ValueError`` if it is invalid."""
    return _read_part(StopSettings, {} if value is None else value, name, "{at: 475}, {patience: 5} or {hours: 2}")


def _read_part(part: type[_Part], value: Any, name: str, examples: str) -> _Part:
    """Read a section from a mapping, whose keys must be field names."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping such as {examples}, got {short_repr(value)}.")
    check_names(value, [field.name for field in dataclasses.fields(part)], f"key of {name}")
    return part.read(value, f"{name}.")
