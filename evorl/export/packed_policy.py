"""Collects the files of a packed policy: config, a checkpoint without training state, metrics, model card and pages."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from evorl.assembly import workflow_from_config
from evorl.config.gate import leaves, scope
from evorl.config.values import plain
from evorl.execution.restoration import restore
from evorl.execution.runtime import prepare_for
from evorl.export.artifacts import html_page
from evorl.export.parity import ParityError
from evorl.export.stored_policy import stored_policy
from evorl.rendering.players import played_entries
from evorl.reports.elements import without_folders
from evorl.reports.model_card import PackedCheckpoint, model_card
from evorl.reports.page import Report
from evorl.reports.recorded_run import RecordedRun, named
from evorl.runs import policy_archive
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.privacy import shareable
from evorl.runs.spec import RunSpec
from evorl.runs.storage import read_about, structure_of
from evorl.runs.stored import StoredConfig
from evorl.runs.structure import SMALL, pack
from evorl.runs.trust import foreign_names

# Settings of the author's machine and accounts, which a user of the policy does not need.
_PRIVATE = RunSpec.keys("of_command") | {"runs_folder", "compilation_cache", "init_from", "recorders", "title"}


class PackedFiles(NamedTuple):
    """Contents of the archive of a packed policy.

    Attributes:
        files: contents of the files, by their names in ``policy_archive.FILES``.
        about: entries of the manifest: ``algorithm``, ``env``, ``timesteps``, ``score`` and ``license``.
        notices: messages for the user: corrupted checkpoints, omitted settings, and the check of the offline page.
    """

    files: dict[str, bytes]
    about: dict[str, Any]
    notices: tuple[str, ...]


@scope()
def packed_files(
    folder: RunFolder, checkpoint: str | int = "best", license: str | None = None, trust: bool = False
) -> PackedFiles:
    """Collect the files of a run's policy.

    Args:
        folder: the run folder.
        checkpoint: ``best`` (the latest if none has a score), ``latest``, or an iteration number.
        license: license of the policy, for the model card and the manifest; ``None`` states no license.
        trust: true if the run's config may name code from outside this package.

    Raises:
        RunFolderError: the config cannot be read or is not trusted, or a file of the run is a symbolic link.
        CheckpointError: the checkpoint does not exist or is corrupted.
        ValueError: a setting in the config is invalid.
    """
    folder.refuse_links()  # the archive must not contain the target of a link
    contents, progress, notices = _checkpoint(folder, checkpoint, trust)
    stored = plain(folder.load_config(trust=True))
    public = {key: value for key, value in stored.items() if key not in _PRIVATE}
    config = _without_dataset(shareable(public))
    (run,) = named([folder])
    page, remark = _page(folder, int(progress["iterations"]), trust)
    about = PackedCheckpoint(
        timesteps=int(progress["progress"]["timesteps"]),
        score=progress["score"],
        seeds=int(config.get("num_seeds", 1)),
        foreign=foreign_names(config),
        license=license,
        page=remark,
    )
    files = {
        policy_archive.CONFIG: OmegaConf.to_yaml(OmegaConf.create(config)).encode(),
        policy_archive.CARD: _utf8(model_card(run, about)),
        **contents,
        **_records(run),
    }
    if page is not None:
        files[policy_archive.PAGE] = page
    described = {"algorithm": run.algorithm, "env": run.env, "timesteps": about.timesteps, "score": about.score}
    messages = (*notices, *_secrets(public), f"Offline page: {remark}.")
    return PackedFiles(files, {**described, "license": license}, messages)


def _secrets(settings: dict[str, Any]) -> list[str]:
    """Return a message for each omitted setting whose name denotes a secret, except for settings of servers."""
    names = dict(leaves(settings)).keys() - dict(leaves(shareable(settings))).keys()
    return [
        f"{name} is not packed, because its name denotes a secret. Users of the policy set it with {name}=..."
        for name in sorted(names)
        if not name.startswith(("serve.", "parameters."))
    ]


def _without_dataset(run: dict[str, Any]) -> dict[str, Any]:
    """Return the config without its data set, if any: set ``replay.load`` to ``None`` and ``offline`` to False."""
    replay = run.get("replay")
    if not isinstance(replay, dict) or replay.get("load") is None:
        return run
    return {**run, "offline": False, "replay": {**replay, "load": None}}


def _checkpoint(folder: RunFolder, which: str | int, trust: bool) -> tuple[dict[str, bytes], dict[str, Any], list[str]]:
    """Return the files of the checkpoint, its description, and messages about corrupted checkpoints.

    The files contain only the entries of the state that evaluations and animations read: no optimizer or replay state.
    """
    spec = StoredConfig.read(folder).spec(
        trust, {"devices": 1, "evaluation": None, "actors": None}, can_be_overridden=False
    )
    prepare_for(spec)
    workflow = workflow_from_config(spec.workflow_config())
    try:
        checkpointer = RunCheckpointer(folder.checkpoints)
        chosen = checkpointer.available(which)
        state, progress = restore(workflow, checkpointer, spec.seed, chosen, played_entries(workflow))
    finally:
        workflow.close()
        workflow.eval_env.close()
    arrays, offsets = pack(state, large=math.inf)
    step = int(progress["iterations"])
    about = {"iterations": step, "score": read_about(folder.checkpoints / str(step))["score"], "progress": progress}
    contents = {
        policy_archive.ARRAYS: arrays[SMALL].tobytes() if SMALL in arrays else b"",
        policy_archive.STRUCTURE: _json({"leaves": structure_of(state, offsets)}),
        policy_archive.PROGRESS: _json({**about, "records": {}}),
    }
    return contents, about, list(checkpointer.notices)


def _page(folder: RunFolder, step: int, trust: bool) -> tuple[bytes | None, str]:
    try:
        page, check = html_page(stored_policy(folder.path, checkpoint=step, trust=trust))
        return page, f"{policy_archive.PAGE}, {check}"
    except (ValueError, ParityError) as error:
        return None, f"none, because {str(error).removesuffix(': set sample=true.').rstrip('.')}"


def _records(run: RecordedRun) -> dict[str, bytes]:
    """Return files by name: the starts of training, with shortened paths in commands; metrics and report, if any."""
    starts = [{**start, "command": without_folders(str(start.get("command")))} for start in run.starts]
    files = {policy_archive.ABOUT: _json({"starts": starts})}
    if run.folder.metrics_csv.is_file():
        files[policy_archive.METRICS] = run.folder.metrics_csv.read_bytes()
    with contextlib.suppress(ValueError):  # nothing was recorded
        files[policy_archive.REPORT] = _utf8(Report.of([run]).to_html())
    return files


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # names of folders may have bytes that are not UTF-8


def default_path(folder: RunFolder) -> Path:
    """Return the default path of a run's archive: ``export/policy.zip`` in the run folder."""
    return folder.path / "export" / "policy.zip"
