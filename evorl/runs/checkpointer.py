"""Saves and restores the checkpoints of one run, keeping the newest and the best; each is written atomically.

A checkpoint is written under a temporary name and renamed when complete, so older ones stay intact if the process is
killed. Saving is synchronous: it takes about 20 ms for a small state and 0.5 s for a replay buffer of 1 GB. Saving in
the background would need a second copy of the state, because the next iteration overwrites the state in place.

A restore compares all files with their digests (``evorl.runs.manifest``). It skips a corrupted checkpoint with a notice
and uses the next intact one. With digests, a save of 100 MB takes 229 ms of processor time instead of 126, and its
restore 164 ms instead of 75, spread over the cores. A small state takes 24 ms to save instead of 20, and 12 ms to
restore instead of 9.

Orbax stores the arrays, and about 45 lines of this module decide which checkpoints to keep. ``CheckpointManager`` of
Orbax 0.12 (with the latest three and the best) is not faster with the same packed arrays and without digests: 27 ms of
processor time instead of 20 for a small state, 130 instead of 126 for 100 MB. It removes older checkpoints before the
digests of the new one can be written: if a run is killed in between, no intact checkpoint is left. It cannot save an
iteration twice, as is necessary after a resume from an older checkpoint. It would replace few lines of this module.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from evorl.config.command_lines import user_path
from evorl.ops.processes import decided_by_first, is_first, wait_for_all
from evorl.runs.files import make_folder, refuse_link, writing_to
from evorl.runs.manifest import Damage, read_manifest
from evorl.runs.storage import check_checkpoint, read_about, read_arrays, read_structure, write_checkpoint
from evorl.runs.structure import CheckpointError, describe_structure, explain_difference, unpack

_UNFINISHED = ".unfinished-"
Tree = TypeVar("Tree")


class RunCheckpointer:
    """Saves and restores the states of a run.

    Args:
        folder: folder of the checkpoints, created by the first save.
        max_to_keep: number of newest checkpoints to keep, at least 1, in addition to the best.
        records: files that grow during the run; each checkpoint stores their lengths, see ``differing_records``.
        best_to_keep: number of checkpoints with the highest scores to keep, at least 1; later ones win ties.
        score_over: number of evaluations that the training loop averages in the scores that it passes to ``save``.
        seconds: time since the last save after which ``wants`` requests a checkpoint; 0 disables these requests.
        clock: function that returns the current time in seconds, used for ``seconds``.

    Attributes:
        has_rules: True if ``wants`` may request checkpoints in addition to the scheduled ones.
        save_seconds: total duration of all saves so far, in seconds.
        notices: messages of the last ``restore`` about skipped corrupted checkpoints; empty if none was skipped.
    """

    def __init__(
        self,
        folder: Path | str,
        max_to_keep: int = 3,
        records: Sequence[Path] = (),
        *,
        best_to_keep: int = 1,
        score_over: int = 1,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, number in {"max_to_keep": max_to_keep, "best_to_keep": best_to_keep}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        self.folder = user_path(folder).absolute()
        self.max_to_keep = max_to_keep
        self.records = tuple(records)
        self.best_to_keep, self.score_over, self.seconds = best_to_keep, score_over, seconds
        self.has_rules = best_to_keep > 1 or seconds > 0.0
        self._clock, self._last_save = clock, clock()
        self.save_seconds = 0.0
        self.notices: list[str] = []

    @property
    def steps(self) -> tuple[int, ...]:
        """Iterations of the checkpoints with a valid manifest, oldest first; their other files are not checked."""
        steps = []
        for step in self._named_steps():
            with contextlib.suppress(Damage):
                steps.append(read_manifest(self.folder / str(step)).iterations)
        return tuple(steps)

    @property
    def best_step(self) -> int | None:
        """Iteration of the best checkpoint, the latest of equal scores; ``None`` if no checkpoint has a score."""
        return next((step for _, step in self._scored()), None)

    @property
    def best_score(self) -> float | None:
        """Evaluation score of the best checkpoint; ``None`` if no checkpoint has a score."""
        return next((score for score, _ in self._scored()), None)

    def available(self, which: str | int) -> str | int:
        """Return ``which``, but ``latest`` instead of ``best`` if no checkpoint has a score."""
        return "latest" if which == "best" and self.best_step is None else which

    def wants(self, score: float | None) -> bool:
        """Return True if a save is due by ``seconds``, or if ``best_to_keep`` > 1 and ``score`` exceeds a kept one."""
        if self.seconds > 0.0 and self._clock() - self._last_save >= self.seconds:
            return True
        if score is None or self.best_to_keep == 1 or not math.isfinite(score):
            return False
        best = self._scored()[: self.best_to_keep]
        return len(best) < self.best_to_keep or score > best[-1][0]

    def save(self, state: Any, progress: Mapping[str, Any], score: float | None = None) -> None:
        """Save a state; on return it is on disk, and superseded checkpoints are removed.

        All processes of the run must call ``save``: each writes its part of the state, and the first everything else.

        Args:
            state: any pytree of arrays and numbers, including typed PRNG keys, on any devices.
            progress: JSON data that ``restore`` returns; its entry ``iterations`` names the checkpoint.
            score: score of exactly this state, higher is better, ignored unless finite; ``None`` keeps a stored score.

        Raises:
            RunFolderError: the disk is full or read-only, or the folder is a link; older checkpoints are kept.
            ValueError: ``progress`` has no ``iterations``.
        """
        if "iterations" not in progress:
            raise ValueError(
                f"progress must contain 'iterations', which names the checkpoint; it has: {', '.join(progress)}."
            )
        start = time.perf_counter()
        step = int(progress["iterations"])
        final, unfinished = self.folder / str(step), self.folder / f"{_UNFINISHED}{step}"
        if score is None:
            score = self._score(step)  # keep the score of an earlier save: the same iteration is the same state
        if score is not None and not math.isfinite(score):
            score = None
        with writing_to(self.folder):
            if is_first():
                make_folder(self.folder)
                for left_over in self.folder.glob(f"{_UNFINISHED}*"):
                    _delete(left_over)
            about = {"iterations": step, "score": score, "progress": dict(progress), "records": self._lengths()}
            try:
                write_checkpoint(unfinished, state, about)
                if is_first():
                    replaced = self._set_aside(step) if final.is_symlink() or final.exists() else None
                    unfinished.rename(final)
                    if replaced is not None:  # only now, because deleting many files takes long
                        _delete(replaced)
            except BaseException:
                if is_first():
                    shutil.rmtree(unfinished, ignore_errors=True)
                raise
            if is_first():
                self._prune(step)
            wait_for_all()
        self._last_save = self._clock()
        self.save_seconds += time.perf_counter() - start

    def restore(
        self, template: Tree, which: str | int = "latest", partial: bool = False
    ) -> tuple[Tree, dict[str, Any]]:
        """Return a saved state and the progress saved with it.

        Args:
            template: a state of the expected structure, or its shapes from ``jax.eval_shape``, which need no memory.
                Leaves with a sharding are placed accordingly; the others become NumPy arrays, Python numbers, or PRNG
                keys on the default device. The number of devices may differ from the saving run's.
            which: ``"latest"``, ``"best"`` or an iteration. If the latest or best one is corrupted, the next intact one
                is used, and ``notices`` reports it.
            partial: read only the template's leaves and ignore other saved ones, such as the replay buffer.

        Raises:
            CheckpointError: no matching checkpoint exists or is intact, or its structure differs from the template.
        """
        self.notices = []
        path = self.folder / str(decided_by_first(lambda: self._choose(which)))
        (saved, offsets), specs = read_structure(path), describe_structure(template)
        if partial:
            paths = {spec.path for spec in specs}
            saved = [spec for spec in saved if spec.path in paths]
        difference = explain_difference(saved, specs)
        if difference:
            raise CheckpointError(
                f"The checkpoint {path} has a different structure from this run: {difference}. "
                "Use the config of the run that saved it, or start a new run."
            )
        leaves = jax.tree.leaves(template)
        arrays = read_arrays(path, specs, leaves, offsets)
        restored = [
            unpack(spec, leaf, arrays, offsets.get(spec.path)) for spec, leaf in zip(specs, leaves, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(template), restored), read_about(path)["progress"]

    def differing_records(self, iterations: int) -> list[str]:
        """Return a message for each of ``records`` whose length has changed since the checkpoint of ``iterations``."""
        before = read_about(self.folder / str(iterations)).get("records", {})
        return [
            f"{name} has {length:,} bytes, but had {before[name]:,} when the checkpoint was saved: some rows were "
            "lost or changed."
            for name, length in {**dict.fromkeys(before, 0), **self._lengths()}.items()
            if name in before and length != before[name]
        ]

    def resume_at(self, iterations: int) -> None:
        """Remove the checkpoints after the iteration ``iterations``, which the resumed run saves again.

        Raises:
            RunFolderError: the folder cannot be written, or is a link.
        """
        if not is_first():
            return
        with writing_to(self.folder):
            refuse_link(self.folder)
            for step in self.steps:
                if step > iterations:
                    self._remove(step)

    def wait(self) -> None:
        """Do nothing: a save is complete when it returns."""

    def close(self) -> None:
        """Do nothing: the checkpointer holds no resources."""

    def _choose(self, which: str | int) -> int:
        """Return the first intact iteration for ``which``; messages about corrupted ones are added to ``notices``."""
        for step in self._candidates(which):
            try:
                check_checkpoint(self.folder / str(step))
            except CheckpointError as error:
                self.notices.append(str(error))
                continue
            if self.notices:
                self.notices.append(f"The checkpoint of iteration {step} is used instead.")
            return step
        others = [str(step) for step in self.steps if str(step) != str(which)]
        advice = f"Restore another one: {', '.join(others)}" if str(which).isdigit() and others else "Start a new run"
        raise CheckpointError(f"{' '.join(self.notices)} {advice}.")

    def _candidates(self, which: str | int) -> list[int]:
        """Return the iterations that ``which`` can refer to, best choice first; raise ``CheckpointError`` if none."""
        newest_first = self._named_steps()[::-1]
        if not newest_first:
            instead = "holds no complete checkpoint" if self.folder.is_dir() else "does not exist"
            raise CheckpointError(f"There is nothing to restore: {self.folder} {instead}. Use a run with a checkpoint.")
        if which == "latest":
            return newest_first
        if which == "best":
            best_first = self._best_first(newest_first)
            if not best_first:
                raise CheckpointError(f"No checkpoint in {self.folder} has an evaluation score: restore 'latest'.")
            return best_first
        if not str(which).isdigit() or int(which) not in newest_first:
            raise CheckpointError(
                f"There is no checkpoint {which!r} in {self.folder}: choose latest, best or one of "
                f"{', '.join(map(str, newest_first[::-1]))}."
            )
        return [int(which)]

    def _best_first(self, newest_first: list[int]) -> list[int]:
        """Return iterations with unreadable scores, then those with a score from best to worst, then those without.

        The list is empty if all scores can be read and no checkpoint has one.
        """
        unreadable, scored, unscored = [], [], []
        for step in newest_first:
            try:
                score = read_about(self.folder / str(step))["score"]
            except CheckpointError:
                unreadable.append(step)
                continue
            (unscored if score is None else scored).append((score, step))
        if not scored and not unreadable:
            return []
        return unreadable + [step for _, step in sorted(scored, reverse=True) + unscored]

    def _named_steps(self) -> list[int]:
        """Return the iterations in the folder names, oldest first, without checking the contents."""
        if not self.folder.is_dir():
            return []
        names = [path.name for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink()]
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def _score(self, step: int) -> float | None:
        try:
            return read_about(self.folder / str(step))["score"]
        except CheckpointError:
            return None

    def _scored(self) -> list[tuple[float, int]]:
        """Return ``(score, iteration)`` of each checkpoint with a score, best first."""
        scores = ((self._score(step), step) for step in self.steps)
        return sorted(((score, step) for score, step in scores if score is not None), reverse=True)

    def _lengths(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.records if path.is_file()}

    def _prune(self, just_saved: int) -> None:
        steps = self.steps
        best = {step for _, step in self._scored()[: self.best_to_keep]}
        staying = {*steps[-self.max_to_keep :], *best, just_saved}
        for step in steps:
            if step not in staying:
                self._remove(step)

    def _remove(self, step: int) -> None:
        _delete(self._set_aside(step))

    def _set_aside(self, step: int) -> Path:
        """Rename a checkpoint: a killed process must not leave an incomplete one under a valid name."""
        return (self.folder / str(step)).rename(self.folder / f"{_UNFINISHED}removed-{step}")


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
