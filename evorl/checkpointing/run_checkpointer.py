"""The checkpoints of one run: the newest few and the best, each whole or not there at all.

A checkpoint is written under another name and renamed when complete, so a kill at any moment leaves the older ones as
they were. Saving is synchronous: it takes some 20 ms for a small state and half a second for a gigabyte of replay,
while saving in the background would need a second copy of a state that the next iteration overwrites in place.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from evorl.checkpointing.storage import read_arrays, read_progress, read_score, read_structure, write_checkpoint
from evorl.checkpointing.structure import CheckpointError, describe_structure, explain_difference, unpack
from evorl.run_folder import writing_to

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
        scores = {step: read_score(self.folder / str(step)) for step in self.steps}
        scored = [(score, step) for step, score in scores.items() if score is not None]
        return max(scored)[1] if scored else None

    @property
    def best_score(self) -> float | None:
        """The evaluation score of the best checkpoint; ``None`` when none was scored."""
        best = self.best_step
        return None if best is None else read_score(self.folder / str(best))

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
            score = read_score(final)  # saved before with its evaluation: the same iteration is the same state
        if score is not None and not math.isfinite(score):
            score = None
        with writing_to(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            try:
                write_checkpoint(unfinished, state, {"iterations": step, "score": score, "progress": dict(progress)})
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
        (saved, offsets), wanted = read_structure(path), describe_structure(template)
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
        arrays = read_arrays(path, wanted, leaves, offsets)
        restored = [
            unpack(spec, leaf, arrays, offsets.get(spec.path)) for spec, leaf in zip(wanted, leaves, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(template), restored), read_progress(path)

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
