"""MLflow: the real library with a store of files, if it is installed, and a fake for everything else."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evorl.recorders.mlflow_recorder import MlflowRecorder
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import make_plan, make_row, record


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


class FakeError(Exception):
    """Error of the fake library."""


class FakeClient:
    """Tracking server in memory."""

    calls: list[tuple[Any, ...]]
    fails = False

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"id of {name}"

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        self.calls.append(("create", experiment_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    def update_run(self, run_id: str, status: str) -> None:
        self.calls.append(("update", run_id, status))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        if self.fails:
            raise FakeError("no connection")
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.calls.append(("log", run_id, list(metrics), list(params)))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.calls.append(("end", run_id, status))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    class Client(FakeClient):
        calls = []

    modules = {name: types.ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.exceptions")}
    vars(modules["mlflow"]).update(MlflowClient=Client, MlflowException=FakeError)
    vars(modules["mlflow.entities"]).update(Metric=Metric, Param=Param)
    vars(modules["mlflow.exceptions"]).update(MlflowException=FakeError)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return Client


def test_settings_are_parameters_and_rows_metrics(tmp_path: Path, client: type[FakeClient]) -> None:
    settings = {f"setting_{i}": i for i in range(150)} | {"absent": None}
    record(MlflowRecorder(tmp_path, "http://server", "tests", settings=settings))
    created, *logs, ended = client.calls
    assert created == ("create", "id of tests", make_plan().name)
    params = [param for log in logs for param in log[3]]
    assert params == [Param(f"setting_{i}", str(i)) for i in range(150)]
    metrics = [metric for log in logs for metric in log[2]]
    rows: dict[int, dict[str, float]] = {}
    for metric in metrics:
        rows.setdefault(metric.step, {})[metric.key] = metric.value
    assert list(rows.values()) == [make_row(i) for i in range(1, 13)]
    assert ended == ("end", "abc", "FINISHED")


def test_a_row_with_more_metrics_than_one_request_holds_is_sent_completely(
    tmp_path: Path, client: type[FakeClient]
) -> None:
    recorder = MlflowRecorder(tmp_path, "http://server")
    recorder.start(make_plan())
    row = make_row(1) | {f"eval/return_seed_{i}": float(i) for i in range(2500)}
    recorder.write(row)
    recorder.close()
    assert {metric.key: metric.value for call in client.calls if call[0] == "log" for metric in call[2]} == row


def test_a_failed_run_has_failed_on_the_server(tmp_path: Path, client: type[FakeClient]) -> None:
    recorder = MlflowRecorder(tmp_path, "http://server")
    recorder.start(make_plan())
    recorder.failure(ValueError("NaN"))
    recorder.close()
    assert client.calls[-1] == ("end", "abc", "FAILED")


def test_a_resumed_run_keeps_its_run_on_the_server(tmp_path: Path, client: type[FakeClient]) -> None:
    record(MlflowRecorder(tmp_path, "http://server"), last=3)
    record(MlflowRecorder(tmp_path, "http://server"), first=4)
    assert [call[0] for call in client.calls].count("create") == 1
    assert ("update", "abc", "RUNNING") in client.calls
    (tmp_path / "mlflow_run_id.txt").write_text("../x")
    with raises_naming(RunFolderError, "mlflow_run_id.txt", "MLflow run id"):
        MlflowRecorder(tmp_path, "http://server").start(make_plan())


def test_a_server_that_fails_stops_no_training(
    tmp_path: Path, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = MlflowRecorder(tmp_path, "http://server")
    recorder.start(make_plan())
    monkeypatch.setattr("evorl.recorders.mlflow_recorder.SECONDS_BETWEEN_WRITES", 0.0)
    recorder._next_write = 0.0
    client.fails = True
    recorder.write(make_row(1))
    assert recorder._next_write > time.monotonic() + 30
    recorder.write(make_row(2))
    client.fails = False
    recorder.close()
    steps = {metric.step for call in client.calls if call[0] == "log" for metric in call[2]}
    assert steps == {make_row(1)["timesteps"], make_row(2)["timesteps"]}
    assert capsys.readouterr().err.count("no connection") == 1


def test_a_server_that_rejects_the_run_is_one_error_without_a_long_wait(
    tmp_path: Path, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.fails = True
    with raises_naming(ConnectionError, "http://server", "no connection", "recorders.mlflow=false"):
        MlflowRecorder(tmp_path, "http://server", settings={"a": 1}).start(make_plan())
    assert int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) == 1


def test_an_address_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with raises_naming(ValueError, "MLFLOW_TRACKING_URI", "recorders.mlflow={uri:"):
        MlflowRecorder(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs the extra mlflow")
def test_the_real_library_stores_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    record(MlflowRecorder(tmp_path, uri, settings={"discount": 0.5}), last=6)
    record(MlflowRecorder(tmp_path, uri), first=7)
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("evorl").experiment_id])
    assert (run.info.status, run.data.params) == ("FINISHED", {"discount": "0.5"})
    history = client.get_metric_history(run.info.run_id, "train/value_loss")
    assert sorted(metric.step for metric in history) == [100 * i for i in range(1, 13)]


def test_parameters_that_the_server_rejected_are_sent_at_the_next_start(
    tmp_path: Path, client: type[FakeClient]
) -> None:
    client.fails = True
    with raises_naming(ConnectionError, "no connection"):
        MlflowRecorder(tmp_path, "http://server", settings={"a": 1}).start(make_plan())
    client.fails = False
    record(MlflowRecorder(tmp_path, "http://server", settings={"a": 1}))
    assert [Param("a", "1")] in [call[3] for call in client.calls if call[0] == "log"]
    assert client.calls[-1] == ("end", "abc", "FINISHED")


@pytest.mark.parametrize(
    ("last", "is_complete", "status"),
    [(0, False, "KILLED"), (5, False, "KILLED"), (5, True, "FINISHED"), (12, False, "FINISHED")],
)
def test_an_interrupted_run_is_not_finished_on_the_server(
    tmp_path: Path, client: type[FakeClient], last: int, is_complete: bool, status: str
) -> None:
    recorder = MlflowRecorder(tmp_path, "http://server")
    recorder.start(make_plan())
    for iteration in range(1, last + 1):
        recorder.write(make_row(iteration))
    if is_complete:
        recorder.complete()
    recorder.close()
    assert client.calls[-1] == ("end", "abc", status)
