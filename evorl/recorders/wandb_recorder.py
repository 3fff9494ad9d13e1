"""Recorder for Weights & Biases, an optional extra: ``pip install -c constraints.txt -e ".[wandb]"`` in a clone."""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evorl.recorders.row_file import as_number
from evorl.runs.files import RunFolderError, make_folder, refuse_link, write_atomically, writing_to
from evorl.runs.privacy import shareable, shareable_argument
from evorl.runs.recorder import Recorder, Row, RunPlan


class WandbRecorder(Recorder):
    """Sends rows to Weights & Biases, or stores them for a later ``wandb sync``. A resumed run keeps its W&B run.

    Args:
        folder: the run folder; ``wandb/`` below it holds the data and the run's id.
        project: name of the project.
        name: name of the run; by default the name of the folder.
        config: the composed config, as plain data; it is sent without secrets, see ``evorl.runs.privacy``.
        mode: ``offline`` (no account, no network), ``online`` or ``disabled``.

    Raises:
        ImportError: wandb is not installed; raised at the start, as is ``RunFolderError`` for an invalid run id.
        ValueError: the mode is unknown.
    """

    def __init__(
        self,
        folder: Path | str,
        project: str = "evorl",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        mode: str = "offline",
    ) -> None:
        if mode not in ("offline", "online", "disabled"):
            raise ValueError(f"mode of recorders.wandb must be offline, online or disabled, got {mode!r}.")
        self.folder = Path(folder)
        self._settings = {"project": project, "name": name or self.folder.name, "config": shareable(config or {})}
        self._mode: Any = mode  # one of those names; wandb annotates them as a Literal
        self._run: Any = None
        self._exit_code: int | None = None

    def start(self, plan: RunPlan) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                "Recording to Weights & Biases needs the package wandb: pip install wandb, or set recorders.wandb to "
                "false. metrics.csv and TensorBoard have the same metrics."
            ) from error
        self._exit_code = None
        with writing_to(self.folder), _shareable_arguments():
            self._run = wandb.init(
                dir=str(self.folder), id=self._run_id(), resume="allow", mode=self._mode, **self._settings
            )
        # Rows contain the x-axis: wandb's step cannot decrease, but would after a resume from an earlier checkpoint.
        self._run.define_metric("timesteps")
        self._run.define_metric("*", step_metric="timesteps")

    def write(self, row: Row) -> None:
        if self._run is not None:
            self._run.log({name: as_number(name, value) for name, value in row.items()})

    def failure(self, error: Exception) -> None:
        self._exit_code = 1

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=self._exit_code)

    def _run_id(self) -> str:
        stored = self.folder / "wandb" / "run_id.txt"
        make_folder(stored.parent)
        refuse_link(stored)
        if not stored.exists():
            write_atomically(stored, secrets.token_hex(4))  # eight characters, like W&B's own ids
        run_id = stored.read_text(encoding="utf-8", errors="replace").strip()
        if not re.fullmatch(r"[\w-]+", run_id, flags=re.ASCII):
            raise RunFolderError(f"{stored} contains no valid run id: delete the file to start a new W&B run.")
        return run_id


@contextlib.contextmanager
def _shareable_arguments() -> Iterator[None]:
    """Hide the secrets of the command line within the context: wandb sends ``sys.argv`` as metadata."""
    arguments = sys.argv
    sys.argv = [*arguments[:1], *map(shareable_argument, arguments[1:])]
    try:
        yield
    finally:
        sys.argv = arguments
