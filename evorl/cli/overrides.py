"""Settings of a run on the command line: their checks, and the overrides of a run that is stored already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli.composition import AGENT_PARTS
from evorl.cli.errors import dotted_keys
from evorl.cli.override_text import given_text
from evorl.config.command_lines import user_path
from evorl.config.names import no_such

if TYPE_CHECKING:
    from omegaconf import DictConfig

_RUN_FOLDER_KEYS = ("resume", "run", "runs_folder", "trust")
_RECORDERS = ("progress", "tensorboard", "learning_curve", "wandb", "own")
_GROUPS = ("agent", "env", "experiment", "evolution", "parameters")


def check_run_settings(config: DictConfig) -> None:
    """Raises ``ValueError`` for values of the run's own settings that cannot work."""
    from evorl.config.values import check_names, checked_value, positive, seed_number

    config.seed = seed_number(config.seed)
    for name in ("title", "workflow"):
        checked_value(config.get(name), str | None, name)
    config.checkpoints_kept = positive(config.checkpoints_kept, "checkpoints_kept")
    for name in ("best_checkpoints_kept", "best_over"):
        if name in config:
            config[name] = positive(config[name], name)
    for name, unit in {"render_interval": "environment steps", "checkpoint_seconds": "seconds"}.items():
        try:
            checked_value(config.get(name, 0), float, name, "[0, inf)")
        except ValueError as error:
            raise ValueError(f"{error} It is a number of {unit}, 0 for never.") from None
    recorders = config.recorders
    if not isinstance(recorders, Mapping):
        raise ValueError(f"recorders must be a mapping such as {{progress: true, wandb: false}}, got {recorders!r}.")
    check_names(recorders, _RECORDERS, "key of recorders")
    for name in ("progress", "tensorboard"):
        checked_value(recorders.get(name), bool, f"recorders.{name}")
    checked_value(draws_learning_curve(config), bool, "recorders.learning_curve")
    own_recorders(config)
    for name in ("deterministic", "eval_at_start"):
        checked_value(config.get(name, False), bool, name)
    if not isinstance(config.compilation_cache, bool | str) or config.compilation_cache == "":
        raise ValueError(f"compilation_cache must be true, false or a folder, got {config.compilation_cache!r}.")
    wandb_settings(config)


def checkpoint_rules(config: DictConfig) -> dict[str, Any]:
    """Arguments of the run's checkpointer; a run of before has none of these settings."""
    return {
        "best_to_keep": config.get("best_checkpoints_kept", 1),
        "score_over": config.get("best_over", 1),
        "seconds": config.get("checkpoint_seconds", 0),
    }


def draws_learning_curve(config: Mapping[str, Any]) -> bool:
    """Whether a picture is drawn at the end; a run of before has no such setting."""
    return config["recorders"].get("learning_curve", True)


def own_recorders(config: DictConfig) -> list[Any]:
    """Import the user's own recorders, see ``recorders.own``, and check their settings.

    Raises:
        ValueError: it is no list, or one of them does not exist or has no such setting.
    """
    from evorl.config.own_parts import own_part
    from evorl.config.values import plain

    own = plain(config)["recorders"].get("own") or []
    if not isinstance(own, list):
        raise ValueError(f"recorders.own must be a list, as in [package.module:Class], got {own!r}.")
    return [own_part(recorder, "recorders.own", num_inputs=1) for recorder in own]


def wandb_settings(config: DictConfig) -> dict[str, Any] | None:
    """Arguments of the recorder from ``recorders.wandb``: a flag, or a mapping; ``None`` for no Weights & Biases."""
    from evorl.config.values import check_names, plain

    settings = plain(config)
    wandb = settings["recorders"].get("wandb")
    if wandb is None or wandb is False:
        return None
    if wandb is not True and not isinstance(wandb, dict):
        raise ValueError(
            f"recorders.wandb must be true, false or a mapping such as {{project: name, mode: online}}, got {wandb!r}."
        )
    wandb = {} if wandb is True else wandb
    check_names(wandb, ("project", "name", "mode"), "key of recorders.wandb")
    return {"config": settings, **wandb}


def names_a_run(arguments: Sequence[str], setting: str) -> bool:
    """Whether a command line gives a run folder by this setting: its config is changed then, and none is composed."""
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{setting}=")]
    return any(value not in ("", "null") for value in values)


def run_settings(arguments: Sequence[str], usual: DictConfig) -> DictConfig:
    """The run's settings by which ``arguments`` find a run folder, ``usual`` ones where they are silent.

    Raises:
        ValueError: there is a flag of Hydra's among the arguments, or they cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    flags = [argument for argument in arguments if argument.startswith("-")]
    if flags:
        raise ValueError(f"{flags[0]} does not go with a run folder: one run, with its own config. Leave it out.")
    settings = OmegaConf.create({key: usual[key] for key in _RUN_FOLDER_KEYS})
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        if override.key_or_group in _RUN_FOLDER_KEYS:
            settings[override.key_or_group] = override.value()
    return settings


def sweep_to_resume(arguments: Sequence[str], usual: DictConfig) -> tuple[Path | None, bool]:
    """Find the folder of a sweep that ``resume=`` names, and whether it may name code outside evorl.

    Returns:
        The folder, or ``None`` where the arguments name no sweep; and the value of ``trust``.

    Raises:
        ValueError: there is anything else among the arguments, as the jobs of a sweep stay as they are; or ``trust`` is
            neither true nor false.
    """
    from evorl.config.values import checked_value
    from evorl.runs.sweep_folder import SweepFolder

    names = [given_text(argument) for argument in arguments if argument.startswith("resume=")]
    roots = [given_text(argument) for argument in arguments if argument.startswith("runs_folder=")]
    root = roots[-1] if roots else str(usual.runs_folder)
    candidates = [path for name in names[-1:] for path in (user_path(name), user_path(root) / name)]
    folder = next((path for path in candidates if SweepFolder.is_there(path)), None)
    if folder is None:
        return None, False
    others = [argument for argument in arguments if not argument.startswith(("resume=", "runs_folder=", "trust="))]
    if others:
        raise ValueError(
            f"{folder} is a sweep, whose jobs go on as they began: leave {' '.join(others)} out, or resume one of its "
            "runs by itself."
        )
    return folder, checked_value(run_settings(arguments, usual).trust, bool, "trust")


def apply_overrides(settings: DictConfig, arguments: Sequence[str], allowed: tuple[str, ...] | None) -> set[str]:
    """Set what a command line gives besides the run folder; the algorithm and the environment stay.

    A name by itself is short for the entry ``name`` of a setting that has one, whose other entries stay as they are.

    Returns:
        The keys that were given.

    Raises:
        ValueError: a key that the run has not, or that is not ``allowed``.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    changed: set[str] = set()
    known = dotted_keys(OmegaConf.to_container(settings))
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key, value = override.key_or_group, override.value()
        if key in _RUN_FOLDER_KEYS or key.startswith(("hydra.", "hydra/")):
            continue
        if key in (*_GROUPS, *AGENT_PARTS):
            raise ValueError(f"{key} is taken from the run folder: leave {key}=... out.")
        if allowed is not None and key not in allowed:
            raise ValueError(f"{key} has no effect here; what can be set: {', '.join(allowed)}.")
        if override.is_delete() or (key not in known and not override.is_add()):
            raise ValueError(no_such("setting of the run", key, known))
        if isinstance(value, str) and f"{key}.name" in known:
            key = f"{key}.name"
        OmegaConf.update(settings, key, value, merge=False)
        changed.add(key)
    return changed
