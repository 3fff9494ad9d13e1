"""One checkpoint on disk: written whole by Orbax, and read with every damage told in words.

A checkpoint is a folder named by its iteration::

    <iterations>/state/          the arrays, by Orbax
    <iterations>/structure.json  path, shape and dtype of every leaf, and where it lies among the small ones
    <iterations>/progress.json   iterations, evaluation score, and what the learn loop wants back
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evorl.checkpointing.structure import SMALL, CheckpointError, LeafSpec, describe_structure, large_name, pack

CHUNK_BYTES = 16 * 2**20  # large arrays are written and read in pieces of this size: that bounds the memory
FILE_BYTES = 32 * 2**20


def write_checkpoint(path: Path, state: Any, about: Mapping[str, Any]) -> None:
    """Write a state, its structure, and what is to be known about it (JSON) into a new folder."""
    ocp = _import_orbax()
    arrays, offsets = pack(state)
    path.mkdir(parents=True)
    with _quiet():
        _array_store(ocp).save(
            path / "state",
            args=ocp.args.PyTreeSave(
                arrays,
                save_args={name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in arrays},
                ocdbt_target_data_file_size=FILE_BYTES,
            ),
        )
    structure = [{**spec.to_json(), "offset": offsets.get(spec.path)} for spec in describe_structure(state)]
    (path / "structure.json").write_text(json.dumps({"leaves": structure}, indent=1), encoding="utf-8")
    (path / "progress.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _array_store(ocp: Any) -> Any:
    # Uncompressed: floats shrink by a twelfth, at thrice the time and with a second copy of the state in memory.
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))


def read_arrays(path: Path, wanted: list[LeafSpec], templates: list[Any], offsets: dict[str, int]) -> dict[str, Any]:
    """The stored arrays by name: large ones on the templates' devices, or as NumPy arrays where those name none.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    ocp = _import_orbax()
    restore_args: dict[str, Any] = {}
    for spec, template in zip(wanted, templates, strict=True):
        if spec.path in offsets:
            restore_args[SMALL] = ocp.RestoreArgs(restore_type=np.ndarray)
        elif not spec.is_empty:
            sharding = getattr(template, "sharding", None)
            restore_args[large_name(spec.path)] = (
                ocp.RestoreArgs(restore_type=np.ndarray)
                if sharding is None
                else ocp.ArrayRestoreArgs(sharding=sharding)
            )
    if not restore_args:
        return {}
    try:
        with _quiet():
            wanted_only = ocp.args.PyTreeRestore(
                item=dict.fromkeys(restore_args, 0), restore_args=restore_args, partial_restore=True
            )
            return dict(_array_store(ocp).restore(path / "state", args=wanted_only))
    except Exception as error:  # the array store raises errors of every kind on damaged files
        raise _damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error


def read_structure(path: Path) -> tuple[list[LeafSpec], dict[str, int]]:
    """The leaves of a checkpoint, and where the small ones lie.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    described = _read_json(path / "structure.json")
    try:
        leaves = described["leaves"]
        offsets = {str(leaf["path"]): int(leaf["offset"]) for leaf in leaves if leaf["offset"] is not None}
        return [LeafSpec.from_json(leaf) for leaf in leaves], offsets
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, "structure.json is not as it was written") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name} cannot be read") from error


def read_progress(path: Path) -> dict[str, Any]:
    """What the learn loop wants back.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    progress = _read_json(path / "progress.json")
    if not isinstance(progress, dict) or "progress" not in progress:
        raise _damaged(path, "progress.json is not as it was written")
    return progress["progress"]


def read_score(path: Path) -> float | None:
    """The evaluation score of a checkpoint; ``None`` when there is none, or no checkpoint."""
    try:
        score = json.loads((path / "progress.json").read_text(encoding="utf-8"))["score"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if score is None else float(score)


def _damaged(path: Path, what: str) -> CheckpointError:
    others = sorted(
        int(other.parent.name) for other in path.parent.glob("[0-9]*/progress.json") if other.parent != path
    )
    remedy = f"restore another one: {', '.join(map(str, others))}" if others else "start a new run"
    return CheckpointError(f"The checkpoint {path} is damaged ({what}): {remedy}.")


def _import_orbax() -> Any:
    import orbax.checkpoint as ocp

    return ocp


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax's remarks on its inner life from the screen."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what fails is raised, too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
