"""Reads and writes one checkpoint on disk. Orbax stores its arrays; corrupted files raise clear errors.

A checkpoint is a folder named after its iteration::

    <iterations>/state/          arrays, written by Orbax
    <iterations>/structure.json  path, shape, dtype of each leaf; byte offset of each small leaf in their common array
    <iterations>/progress.json   iterations, evaluation score, lengths of metrics files, state of the training loop
    <iterations>/manifest.json   digests of all these files, written last
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.ops.processes import any_says, is_first, is_multiprocess, wait_for_all
from evorl.runs.files import RunFolderError
from evorl.runs.manifest import Damage, read_verified, verify, write_manifest
from evorl.runs.structure import SMALL, CheckpointError, LeafSpec, describe_structure, large_name, pack

CHUNK_BYTES = 16 * 2**20  # large arrays are written and read in pieces of this size, to limit memory use
FILE_BYTES = 32 * 2**20  # target size of the files in which Orbax stores these pieces
_SYNTAX = frozenset("[]*?\\")  # characters with a special meaning in paths of Orbax or TensorStore


def write_checkpoint(path: Path, state: Any, about: Mapping[str, Any]) -> None:
    """Write a state and its structure, and ``about`` (with ``iterations``, ``score``, ``progress``), into a new folder.

    If there are several processes, each writes its part of the arrays, and the first one everything else.

    Raises:
        RunFolderError: processes do not write to the same disk, or the path is not supported with several processes.
    """
    arrays, offsets = pack(state)
    write_arrays(path, arrays, structure_of(state, offsets), about)


def structure_of(state: Any, offsets: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return path, shape, dtype and offset of each leaf as JSON data; the offset is ``None`` if not in ``offsets``."""
    return [{**spec.to_json(), "offset": offsets.get(spec.path)} for spec in describe_structure(state)]


def write_arrays(
    path: Path, arrays: Mapping[str, Any], structure: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> None:
    """Write a checkpoint as ``write_checkpoint`` does, from the results of ``pack`` and ``structure_of``."""
    import orbax.checkpoint as ocp

    if is_first():
        path.mkdir(parents=True)
    wait_for_all()
    if any_says(not path.is_dir()):
        raise RunFolderError(
            f"{path} was created by the first process of this run, but another process cannot see it: put runs_folder "
            "on a disk that all hosts share."
        )
    with _quiet(), _plain_path(path) as plain:
        _array_store(ocp).save(
            plain / "state",
            args=ocp.args.PyTreeSave(
                {name: _second(x) for name, x in arrays.items()},
                save_args={name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in arrays},
                ocdbt_target_data_file_size=FILE_BYTES,
            ),
        )
    if not is_first():
        return
    (path / "structure.json").write_text(json.dumps({"leaves": list(structure)}, indent=1), encoding="utf-8")
    (path / "progress.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    write_manifest(path, about["iterations"])


def _second(x: Any) -> Any:
    """Return an array that shares the buffers of ``x``, for Orbax: JAX 0.11 does not donate an array that was read."""
    if not isinstance(x, jax.Array):
        return x
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, [shard.data for shard in x.addressable_shards])


def _array_store(ocp: Any) -> Any:
    # Uncompressed: compression would save a twelfth on floats, take three times as long and copy the state in memory.
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))


def check_checkpoint(path: Path) -> None:
    """Raise ``CheckpointError`` if a file of a checkpoint was changed, removed or added, or the manifest is invalid."""
    try:
        verify(path)
    except Damage as damage:
        raise damaged(path, str(damage)) from damage


def read_arrays(path: Path, specs: list[LeafSpec], templates: list[Any], offsets: dict[str, int]) -> dict[str, Any]:
    """Return the stored arrays for ``specs`` by name: large leaves with their template's sharding, others as NumPy.

    Raises:
        CheckpointError: the checkpoint is corrupted.
        RunFolderError: the path is not supported with several processes.
    """
    import orbax.checkpoint as ocp

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    restore_args: dict[str, Any] = {}
    for spec, template in zip(specs, templates, strict=True):
        if spec.path in offsets:
            restore_args[SMALL] = as_numpy
        elif not spec.is_empty:
            sharding = getattr(template, "sharding", None)
            args = as_numpy if sharding is None else ocp.ArrayRestoreArgs(sharding=sharding)
            restore_args[large_name(spec.path)] = args
    if not restore_args:
        return {}
    only_these = ocp.args.PyTreeRestore(
        item=dict.fromkeys(restore_args, 0), restore_args=restore_args, partial_restore=True
    )
    with _quiet(), _plain_path(path) as plain:
        try:
            return dict(_array_store(ocp).restore(plain / "state", args=only_these))
        except Exception as error:  # the array store raises various exceptions on corrupted files
            raise damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error


def read_structure(path: Path) -> tuple[list[LeafSpec], dict[str, int]]:
    """Return the specs of all leaves of a checkpoint, and by path the offset of each small leaf in their common array.

    Raises:
        CheckpointError: the checkpoint is corrupted.
    """
    described = _read_json(path, "structure.json")
    try:
        leaves = described["leaves"]
        offsets = {str(leaf["path"]): int(leaf["offset"]) for leaf in leaves if leaf["offset"] is not None}
        return [LeafSpec.from_json(leaf) for leaf in leaves], offsets
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, "structure.json does not describe a state") from error


def read_about(path: Path) -> dict[str, Any]:
    """Return the content of ``progress.json``, with at least ``score`` (a number or ``None``) and ``progress``.

    Raises:
        CheckpointError: the checkpoint does not exist, or is corrupted.
    """
    about = _read_json(path, "progress.json")
    if not (isinstance(about, dict) and {"score", "progress"} <= set(about)):
        raise damaged(path, "progress.json does not describe a run")
    if not isinstance(about["progress"], dict):
        raise damaged(path, f"its progress must be a mapping, got {str(about['progress'])[:80]!r}")
    if not isinstance(about["score"], int | float | None):
        raise damaged(path, f"its score must be a number or null, got {about['score']!r}")
    return about


def _read_json(path: Path, name: str) -> Any:
    try:
        return json.loads(read_verified(path, name).decode("utf-8"))
    except Damage as damage:
        raise damaged(path, str(damage)) from damage
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{name} is not valid JSON") from error


def damaged(path: Path, reason: str) -> CheckpointError:
    """Return the error for a corrupted checkpoint."""
    return CheckpointError(f"The checkpoint {path} is corrupted: {reason}.")


@contextlib.contextmanager
def _plain_path(path: Path) -> Iterator[Path]:
    """Yield a path that Orbax can use: Orbax interprets brackets as a pattern and a backslash as a slash.

    If ``path`` has these characters, yield a symbolic link with a plain name, in a private folder.
    """
    if not _SYNTAX & set(str(path)):
        yield path
        return
    if is_multiprocess():  # the processes synchronize on the path, so it must be the same
        raise RunFolderError(
            f"{path} cannot be a checkpoint of several processes: choose a runs_folder, or rename its folders, so that "
            f"its path contains none of {' '.join(sorted(_SYNTAX))}"
        )
    with tempfile.TemporaryDirectory(prefix="evorl-") as folder:
        link = Path(folder) / "checkpoint"
        link.symlink_to(path, target_is_directory=True)
        yield link


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Orbax's warnings and log messages."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # failures are raised anyway
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
