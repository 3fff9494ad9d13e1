"""A run that is stored: its folder, its config with what a command line changes, and its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evorl.cli.composition import config_folder
from evorl.cli.overrides import apply_overrides
from evorl.cli.runtime import prepare_runtime

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.runs.folder import RunFolder
    from evorl.workflows.workflow import Workflow

STORED_SETTINGS = ("workflow", "env", "seed", "recorders", "checkpoints_kept", "compilation_cache")
_OF_THE_COMMAND = {"trust": False, "resume": None, "run": None}  # settings of a command line, never of a stored config


def check_folders(config: DictConfig) -> None:
    """Raise ``ValueError`` for values of ``resume``, ``run``, ``runs_folder`` and ``trust`` of another type."""
    from evorl.config.values import checked_value

    checked_value(config.trust, bool, "trust")
    for name in ("resume", "run"):
        if isinstance(config[name], (Sequence, Mapping)) and not isinstance(config[name], str):
            raise ValueError(f"{name} must be the folder of a run, or latest; got {config[name]}.")
    if not isinstance(config.runs_folder, str) or not config.runs_folder:
        shown = "null" if config.runs_folder is None else repr(config.runs_folder)
        raise ValueError(f"runs_folder must be the name of a folder, got {shown}.")


def stored_config(
    folder: RunFolder,
    trust: bool,
    overrides: Sequence[str],
    allowed: tuple[str, ...] | None = None,
    can_be_given: bool = True,
) -> tuple[DictConfig, set[str]]:
    """Read the config of a stored run and change it as this command line says.

    Unless the config is trusted, the gate restricts what it may name from now on, see ``evorl.config.gate``. The stored
    ``trust``, ``resume`` and ``run`` are ignored: only the user's count.

    Args:
        folder: of the run.
        trust: whether the config may name code from outside this package. Names on the command line are trusted.
        overrides: of this command line.
        allowed: settings that can be changed; ``None`` for everything that the run has.
        can_be_given: whether the command accepts settings of the run, for the message.

    Returns:
        The config, and the keys that the command line gave.

    Raises:
        RunFolderError: the config cannot be read, or would have foreign code executed.
        ValueError: a change that is not allowed.
    """
    from omegaconf import OmegaConf

    from evorl.config.values import checked_value
    from evorl.runs.files import RunFolderError
    from evorl.runs.trust import distrust_config, foreign_names, refuse_foreign_code, settable

    checked_value(trust, bool, "trust")
    config = folder.load_config(trust=True)
    missing = [name for name in STORED_SETTINGS if name not in config]
    if missing:
        raise RunFolderError(f"{folder.config} is not the config of a run: it has no {', '.join(missing)}.")
    if "evaluation" not in config:  # a run of before that could be set
        config.evaluation = OmegaConf.load(config_folder() / "config.yaml").evaluation
    if "render_interval" not in config:  # likewise
        config.render_interval = 0
    config.update({name: value for name, value in _OF_THE_COMMAND.items() if name in config})
    if allowed is not None:
        allowed = (*allowed, *map(settable, foreign_names(config)))
    given = apply_overrides(config, overrides, allowed)
    if not trust:
        distrust_config(config, folder.path, given)
        refuse_foreign_code(config, folder.path, given, can_be_given)
    return config, given


def prepare_for(config: Mapping[str, Any]) -> None:
    """Set JAX up as a run of this config says by ``devices``, ``compilation_cache``, ``deterministic`` and ``env``."""
    env = config["env"]
    library = env.get("library") if isinstance(env, Mapping) else None
    prepare_runtime(
        config.get("devices", "auto"),
        config.get("compilation_cache", True),
        long_programs=library == "brax",
        deterministic=config.get("deterministic", False),
    )


def build_workflow(config: DictConfig) -> Workflow:
    """The workflow that a composed config names and describes.

    Raises:
        ValueError: the config does not fit together, in words.
    """
    from evorl.workflows.assembly import workflow_from_config

    return workflow_from_config(config)
