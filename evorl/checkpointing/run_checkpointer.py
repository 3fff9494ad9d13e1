"""The checkpoints of one run: the newest few and the best, each whole or not there at all.

A checkpoint is a folder named by its iteration::

    <iterations>/state/          the arrays, by Orbax
    <iterations>/structure.json  path, shape and dtype of every leaf, and where it lies among the small ones
    <iterations>/progress.json   iterations, evaluation score, and what the learn loop wants back

It is written under another name and renamed when complete, so a kill at any moment leaves the older ones as they
were. Saving is synchronous: it takes some 20 ms for a small state and half a second for a gigabyte of replay, while
saving in the background would need a second copy of a state that the next iteration overwrites in place.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from evorl.checkpointing.structure import (
    SMALL,
    CheckpointError,
    LeafSpec,
    describe_structure,
    explain_difference,
    large_name,
    pack,
    unpack,
)
from evorl.run_folder import writing_to

CHUNK_BYTES = 16 * 2**20  # large arrays are written and read in pieces of this size: that bounds the memory
FILE_BYTES = 32 * 2**20
_UNFINISHED = ".unfinished-"
Tree = TypeVar("Tree")


class RunCheckpointer:
    """Saves and restores the states of a run.

    Args:
        folder: where the checkpoints lie; made when the first is saved.
        max_to_keep: how many of the newest are kept; the best one is kept besides.

    Attributes:
        save_seconds: what saving has taken so far.
    """

    def __init__(self, folder: Path | str, max_to_keep: int = 3) -> None:
        if max_to_keep < 1:
            raise ValueError(f"max_to_keep must be at least 1, got {max_to_keep}.")
        self.folder = Path(folder).expanduser().resolve()
        self.max_to_keep = max_to_keep
        self.save_seconds = 0.0

    @property
    def steps(self) -> tuple[int, ...]:
        """The iterations of the complete checkpoints, oldest first."""
        found = self.folder.glob("[0-9]*/progress.json")
        return tuple(sorted(int(path.parent.name) for path in found if path.parent.name.isdigit()))

    @property
    def best_step(self) -> int | None:
        """The iteration with the best evaluation score, the later of equals; ``None`` when none was scored."""
        scores = {step: _score(self.folder / str(step)) for step in self.steps}
        scored = [(score, step) for step, score in scores.items() if score is not None]
        return max(scored)[1] if scored else None

    @property
    def best_score(self) -> float | None:
        """The evaluation score of the best checkpoint; ``None`` when none was scored."""
        best = self.best_step
        return None if best is None else _score(self.folder / str(best))

    def save(self, state: Any, progress: Mapping[str, Any], score: float | None = None) -> None:
        """Keep a state; when this returns it is on disk, and older ones are gone that need not be kept.

        Args:
            state: any pytree of arrays and numbers, typed PRNG keys too, on any devices.
            progress: JSON data, with ``iterations``.
            score: the evaluation of exactly this state, the higher the better.

        Raises:
            RunFolderError: the disk is full or read-only; older checkpoints are kept.
            ValueError: ``progress`` has no ``iterations``.
        """
        if "iterations" not in progress:
            raise ValueError(f"progress needs 'iterations', the checkpoint's name; it has: {', '.join(progress)}.")
        start = time.perf_counter()
        step = int(progress["iterations"])
        final, unfinished = self.folder / str(step), self.folder / f"{_UNFINISHED}{step}"
        if score is None:
            score = _score(final)  # saved before with its evaluation: the same iteration is the same state
        if score is not None and not math.isfinite(score):
            score = None
        with writing_to(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            try:
                _write(unfinished, state, {"iterations": step, "score": score, "progress": dict(progress)})
                if final.exists():
                    self._remove(step)
                unfinished.rename(final)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            self._prune(step)
        self.save_seconds += time.perf_counter() - start

    def restore(
        self, template: Tree, which: str | int = "latest", partial: bool = False
    ) -> tuple[Tree, dict[str, Any]]:
        """A saved state and the progress saved with it.

        Args:
            template: a state of the wanted structure, or its shapes from ``jax.eval_shape``, which need no memory.
                Leaves that carry a sharding are placed so; the others come as NumPy arrays, and PRNG keys on the
                default device. The number of devices may differ from that of the saving run.
            which: ``"latest"``, ``"best"`` or an iteration.
            partial: read the template's leaves only, whatever else was saved: an agent without its replay, say.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or of another structure.
        """
        path = self.folder / str(self._resolve(which))
        (saved, offsets), wanted = _read_structure(path), describe_structure(template)
        if partial:
            paths = {spec.path for spec in wanted}
            saved = [spec for spec in saved if spec.path in paths]
        difference = explain_difference(saved, wanted)
        if difference:
            raise CheckpointError(
                f"The checkpoint {path} is of another structure than this run: {difference}. "
                "Resume with the config of the run that saved it, or start a new run."
            )
        leaves = jax.tree.leaves(template)
        arrays = _read_arrays(path, wanted, leaves, offsets)
        restored = [
            unpack(spec, leaf, arrays, offsets.get(spec.path)) for spec, leaf in zip(wanted, leaves, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(template), restored), _read_json(path / "progress.json")[
            "progress"
        ]

    def resume_at(self, iterations: int) -> None:
        """Remove checkpoints of later iterations: they will be computed again.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        with writing_to(self.folder):
            for step in self.steps:
                if step > iterations:
                    self._remove(step)

    def wait(self) -> None:
        """Nothing to wait for: a save is complete when it returns."""

    def close(self) -> None:
        """Nothing to close."""

    def _resolve(self, which: str | int) -> int:
        steps = self.steps
        if not steps:
            held = "holds no complete checkpoint" if self.folder.is_dir() else "does not exist"
            raise CheckpointError(f"There is nothing to restore: {self.folder} {held}.")
        if which == "latest":
            return steps[-1]
        if which == "best":
            best = self.best_step
            if best is None:
                raise CheckpointError(f"No checkpoint in {self.folder} has an evaluation score: restore 'latest'.")
            return best
        if not str(which).isdigit() or int(which) not in steps:
            raise CheckpointError(
                f"There is no checkpoint {which!r} in {self.folder}: choose latest, best or one of "
                f"{', '.join(map(str, steps))}."
            )
        return int(which)

    def _prune(self, just_saved: int) -> None:
        steps = self.steps
        kept = {*steps[-self.max_to_keep :], self.best_step, just_saved}
        for step in steps:
            if step not in kept:
                self._remove(step)

    def _remove(self, step: int) -> None:
        # Renamed first: a kill half-way must not leave half a checkpoint under a good name.
        doomed = self.folder / f"{_UNFINISHED}removed-{step}"
        (self.folder / str(step)).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        for left_over in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left_over, ignore_errors=True)


def _write(path: Path, state: Any, about: Mapping[str, Any]) -> None:
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


def _read_arrays(path: Path, wanted: list[LeafSpec], templates: list[Any], offsets: dict[str, int]) -> dict[str, Any]:
    """The stored arrays by name: large ones on the templates' devices, or as NumPy arrays where those name none."""
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


def _read_structure(path: Path) -> tuple[list[LeafSpec], dict[str, int]]:
    """The leaves of a checkpoint, and where the small ones lie."""
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


def _score(path: Path) -> float | None:
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
