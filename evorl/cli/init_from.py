"""``init_from=<run>``: a new run that begins with the parameters of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from evorl.runs.recording import Recorder
    from evorl.types import State
    from evorl.workflows.warm_start import WarmStart
    from evorl.workflows.workflow import Workflow

_KEYS = ("run", "parts", "which")


def warm_start_from(config: DictConfig, workflow: Workflow) -> WarmStart | None:
    """What ``config.init_from`` has the run begin with; ``None`` where it names no run.

    The config then has the run's own path, which ``latest`` may not mean tomorrow.

    Raises:
        ValueError: the setting makes no sense, or the run does not fit; in words.
        RunFolderError: there is no such run.
    """
    settings = _settings(config)
    if settings["run"] is None:
        return None
    from evorl.runs.folder import RunFolder
    from evorl.workflows.warm_start import warm_start

    folder = RunFolder.find(settings["run"], config.runs_folder)
    config.init_from = {**settings, "run": str(folder.path)}
    return warm_start(workflow, folder.path, settings["parts"], settings["which"])


def begin_with(start: WarmStart, seed: int, recorder: Recorder) -> State:
    """The first state, after it was told what it begins with."""
    for sentence in start.said:
        recorder.message(sentence)
    return start.first_state(seed)


def refuse_with_resume(overrides: Sequence[str]) -> None:
    """Raises ``ValueError`` if ``init_from`` is among the arguments of a resumed run, which has begun already."""
    if any(argument.lstrip("+").startswith(("init_from=", "init_from.")) for argument in overrides):
        raise ValueError("init_from is for a run that begins, and resume goes on with one: leave one of them out.")


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``init_from`` with every key."""
    from evorl.config.values import check_names, plain

    given = plain(config).get("init_from")
    given = {"run": given} if given is None or isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise ValueError(
            f"init_from must be the folder of a run, latest, or a mapping such as {{run: latest, parts: [policy]}}, "
            f"got {given!r}."
        )
    check_names(given, _KEYS, "key of init_from")
    settings = {"run": None, "parts": None, "which": "best"} | dict(given)
    if not (settings["run"] is None or isinstance(settings["run"], str)):
        raise ValueError(f"init_from.run must be the folder of a run, or latest; got {settings['run']!r}.")
    which = settings["which"]
    if which not in ("best", "latest") and not (type(which) is int and 0 <= which < 2**63):
        raise ValueError(f"init_from.which must be best, latest or the number of an iteration; got {which!r}.")
    parts = settings["parts"]
    if isinstance(parts, str):
        settings["parts"] = parts = [parts]
    if not (parts is None or (isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts))):
        raise ValueError(f"init_from.parts must be a list of names such as [policy], or null for all; got {parts!r}.")
    return settings
