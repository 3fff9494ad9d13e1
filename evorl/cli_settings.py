"""Settings of a run on the command line: their checks, and the overrides of a run that is stored already."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evorl.cli_errors import dotted_keys, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

_RUN_FOLDER_KEYS = ("resume", "run", "runs_folder")
_GROUPS = ("agent", "env", "experiment", "evolution")
_INNER = ("inner", "learner")  # short for the choice of another agent inside this one
# A name by itself is short for the entry ``name`` of these, whose other settings stay as they are.
_NAMED = re.compile(r"^((?:\w+\.)*(?:\w*optimizer|archive))=(?=[A-Za-z])(?!null$)")


def check_run_settings(config: DictConfig) -> None:
    """Raises ``ValueError`` for values of the run's own settings that cannot work."""
    from evorl.workflows.settings import checked_value, positive

    seed = config.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2^32 - 1, got {seed!r}.")
    config.checkpoints_kept = positive(config.checkpoints_kept, "checkpoints_kept")
    for name in ("progress", "tensorboard"):
        checked_value(config.recorders[name], bool, f"recorders.{name}")
    if not isinstance(config.compilation_cache, bool | str):
        raise ValueError(f"compilation_cache must be true, false or a folder, got {config.compilation_cache!r}.")
    wandb_settings(config)


def wandb_settings(config: DictConfig) -> dict[str, Any] | None:
    """Arguments of the recorder from ``recorders.wandb``: a flag, or a mapping; ``None`` for no Weights & Biases."""
    from evorl.workflows.building import plain
    from evorl.workflows.settings import check_names

    settings = plain(config)
    given = settings["recorders"]["wandb"]
    if given is None or given is False:
        return None
    if given is not True and not isinstance(given, dict):
        raise ValueError(
            f"recorders.wandb must be true, false or a mapping such as {{project: name, mode: online}}, got {given!r}."
        )
    given = {} if given is True else given
    check_names(given, ("project", "name", "mode"), "key of recorders.wandb")
    return {"config": settings, **given}


@contextmanager
def options_of_any_run() -> Iterator[None]:
    """Let Hydra accept options of any algorithm where a run folder is named: they are checked against its config.

    Elsewhere ``inner=sac`` and ``learner=sac`` choose a config file, as ``agent=sac`` does. ``optimizer=evosax/SNES``
    is short for ``optimizer.name=evosax/SNES``.
    """
    before = sys.argv[:]
    stored = any(argument.startswith(("resume=", "run=")) for argument in before)
    own = (*_RUN_FOLDER_KEYS, *_GROUPS)
    for i, argument in enumerate(before[1:], start=1):
        sys.argv[i] = argument = _NAMED.sub(r"\1.name=", argument)
        key = re.match(r"([A-Za-z_][\w.]*)=", argument)
        if stored and key and key[1] not in own and not key[1].startswith("hydra."):
            sys.argv[i] = f"++{argument}"
        elif not stored and key and key[1] in _INNER:
            sys.argv[i] = f"agent@{argument}"
    try:
        yield
    finally:
        sys.argv[:] = before


def apply_overrides(settings: DictConfig, allowed: tuple[str, ...] | None) -> set[str]:
    """Set what this command line gave besides the run folder; the algorithm and the environment stay.

    Returns:
        The keys that were given.

    Raises:
        ValueError: a key that the run has not, or that is not ``allowed``.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    given: set[str] = set()
    arguments = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    known = dotted_keys(OmegaConf.to_container(settings))
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.key_or_group
        if key in _RUN_FOLDER_KEYS:
            continue
        if key in (*_GROUPS, *_INNER):
            raise ValueError(f"{key} is taken from the run folder: leave {key}=... out.")
        if allowed is not None and key not in allowed:
            raise ValueError(f"{key} has no effect here; what can be set: {', '.join(allowed)}.")
        if override.is_delete() or (key not in known and not str(override.input_line).startswith("+" + key)):
            raise ValueError(f"The run has no setting {key!r}.{nearest(key, known)}")
        OmegaConf.update(settings, key, override.value(), merge=False)
        given.add(key)
    return given
