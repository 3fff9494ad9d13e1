"""Recorder for MLflow, an optional extra: ``pip install -c constraints.txt -e ".[mlflow]"`` in a clone."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evorl.config.names import explain_missing_package
from evorl.recorders.row_file import as_number
from evorl.recorders.screen import print_line
from evorl.runs.files import RunFolderError, refuse_link, write_atomically
from evorl.runs.privacy import shareable, shareable_text
from evorl.runs.recorder import Recorder, Row, RunPlan

SECONDS_BETWEEN_WRITES = 10.0
SECONDS_AFTER_FAILURE = 60.0
# By default, MLflow retries a failed request for four minutes, and training would wait.
_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_BATCH = 1000  # maximum number of metrics that MLflow accepts at once; parameters: 100
_FILE = "mlflow_run_id.txt"


class MlflowRecorder(Recorder):
    """Sends rows to an MLflow server, with environment steps as x-axis. A resumed run keeps its MLflow run.
    An interrupted run ends with the status ``KILLED``.

    Rows are sent every ten seconds and at the end. If the server cannot be reached during the training, the rows are
    kept and sent a minute later; ``metrics.csv`` has all rows. A failed request is repeated once, with a timeout of ten
    seconds, unless ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` and ``MLFLOW_HTTP_REQUEST_TIMEOUT`` are set.

    Args:
        folder: the run folder; it holds the id of the MLflow run.
        uri: address of the tracking server; ``None`` for the environment variable ``MLFLOW_TRACKING_URI``.
        experiment: name of the experiment, created if missing.
        name: name of the run; by default its title.
        settings: settings of the run by dotted key, stored as parameters, without secrets; see ``evorl.runs.privacy``.

    Raises:
        ImportError: MLflow is not installed; raised at the start, as is ``RunFolderError`` for an invalid run id.
        ValueError: the address is missing.
        ConnectionError: the server cannot be reached, or rejects the run; raised at the start.
    """

    def __init__(
        self,
        folder: Path | str,
        uri: str | None = None,
        experiment: str = "evorl",
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not self._uri:
            raise ValueError(
                "recorders.mlflow needs the address of a tracking server: export MLFLOW_TRACKING_URI=..., or set "
                "recorders.mlflow={uri: http://127.0.0.1:5000}."
            )
        self._shown_uri = shareable_text(self._uri)
        self._experiment, self._name, self._settings = experiment, name, shareable(settings or {})
        self._client: Any = None
        self._run_id = ""
        self._pending: list[tuple[str, float | int, int, int]] = []  # name, value, milliseconds, environment steps
        self._next_write = math.inf
        self._has_warned, self._total, self._status = False, 0, ""

    def start(self, plan: RunPlan) -> None:
        with explain_missing_package("Recording to MLflow", "mlflow"):
            from mlflow import MlflowClient, MlflowException
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        client = MlflowClient(tracking_uri=self._uri)
        try:
            self._open_run(client, plan)
        except MlflowException as error:
            raise ConnectionError(
                f"MLflow at {self._shown_uri} cannot record the run: {_shown(error)}. Start the server, or set "
                "recorders.mlflow=false."
            ) from error
        self._client = client
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
        self._total = plan.total_timesteps
        self._status = "FINISHED" if plan.first_timesteps >= self._total else "KILLED"

    def _open_run(self, client: Any, plan: RunPlan) -> None:
        """Create the run on the server, or continue it."""
        from mlflow.entities import Param

        stored = self.folder / _FILE
        refuse_link(stored)
        if stored.exists():
            self._run_id = stored.read_text(encoding="utf-8", errors="replace").strip()
            if not re.fullmatch(r"\w+", self._run_id, flags=re.ASCII):
                raise RunFolderError(f"{stored} has no valid MLflow run id: delete the file to start a new MLflow run.")
            client.update_run(self._run_id, status="RUNNING")
        else:
            experiment = client.get_experiment_by_name(self._experiment)
            experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
            self._run_id = client.create_run(experiment_id, run_name=self._name or plan.name).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in self._settings.items() if value is not None]
            for first in range(0, len(params), 100):
                client.log_batch(self._run_id, params=params[first : first + 100])
            write_atomically(stored, self._run_id)  # written last: a run with missing parameters must not be continued

    def write(self, row: Row) -> None:
        at, steps = int(time.time() * 1000), int(row["timesteps"])
        self._pending += [(name, as_number(name, value), at, steps) for name, value in row.items()]
        if steps >= self._total:
            self._status = "FINISHED"
        if time.monotonic() >= self._next_write:
            self._send()

    def complete(self) -> None:
        self._status = "FINISHED"

    def failure(self, error: Exception) -> None:
        self._status = "FAILED"

    def close(self) -> None:
        if self._client is None:
            return
        self._send()
        client, self._client = self._client, None
        self._attempt(client.set_terminated, self._run_id, self._status)

    def _send(self) -> None:
        from mlflow.entities import Metric

        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
        while self._pending:
            metrics = [Metric(*entry) for entry in self._pending[:_BATCH]]
            if not self._attempt(self._client.log_batch, self._run_id, metrics):
                self._next_write = time.monotonic() + SECONDS_AFTER_FAILURE
                return
            del self._pending[:_BATCH]

    def _attempt(self, call: Any, *arguments: Any) -> bool:
        """Call the server; return False, and warn once, if it fails."""
        from mlflow.exceptions import MlflowException

        try:
            call(*arguments)
        except (MlflowException, OSError) as error:
            if not self._has_warned:
                text = f"A request to MLflow at {self._shown_uri} failed (metrics.csv has all rows): {_shown(error)}"
                print_line(text, sys.stderr)
                self._has_warned = True
            return False
        return True


def _shown(error: Exception) -> str:
    """Return the message of an error on one line, without the password of the server's address."""
    return shareable_text(" ".join(str(error).split()))[:200]
