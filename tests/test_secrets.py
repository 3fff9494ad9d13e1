"""Secrets of a config are in nothing that leaves the run folder."""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evorl.recorders
from evorl.export import packed_policy
from evorl.export.packed_policy import packed_files
from evorl.live.watched_runs import WatchedRuns
from evorl.recorders import MlflowRecorder, Recorder, TensorBoardRecorder, WandbRecorder
from evorl.reports.model_card import PackedCheckpoint, model_card
from evorl.reports.page import Report
from evorl.reports.recorded_run import find_runs
from evorl.runs import policy_archive
from evorl.runs.about import describe_start
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import HeldState, RunState
from evorl.runs.spec import learning_settings
from tests.support.recorded_runs import record
from tests.support.run_folders import START, make_run

SECRET, PUBLIC = "hushhush", "clip_epsilon"
ADDRESS = f"http://anna:{SECRET}@127.0.0.1:1"
PLANTED = {
    PUBLIC: 0.2,
    "agent": {PUBLIC: 0.2, "hub_token": SECRET, "nested": [{"password": SECRET}]},
    "env": {"library": "gymnax", "name": "CartPole-v1", "apiKey": SECRET, "from": f"{ADDRESS}/data?sig={SECRET}"},
    "serve": {"bind": f"{SECRET}.org:1", "token": SECRET, "cert": f"/srv/{SECRET}.pem", "key": f"/srv/{SECRET}.pem"},
    "parameters": {"bind": f"{SECRET}.org:1", "token": SECRET, "kind": "sum"},
    "recorders": {"mlflow": {"uri": ADDRESS}, "wandb": {"api_key": SECRET}},
    "init_from": {"run": f"https://127.0.0.1/policy.zip?access_token={SECRET}"},
}
ARGUMENTS = [
    f"{PUBLIC}=0.2",
    f"agent.hub_token={SECRET}",
    f"env.apiKey={SECRET}",
    f"serve.bind={SECRET}.org:1",
    f"parameters={{token: {SECRET}}}",
    f"recorders.mlflow={{uri: '{ADDRESS}'}}",
    f"init_from=https://127.0.0.1/policy.zip?access_token={SECRET}",
]


@pytest.fixture
def planted(tmp_path: Path) -> RunFolder:
    """Return a run with secrets in its config, its command line and the message of its failure."""
    start = START | describe_start("evorl train", ARGUMENTS, "1 x cpu")
    folder = make_run(tmp_path / "runs", "a", [[1.0, 2.0], [2.0, 3.0]], PLANTED, start=start)
    state = HeldState(folder.state)
    state.write(RunState("failed", 2000, failure=f"no connection to {ADDRESS}."))
    state.release()
    return folder


def _report(folder: RunFolder, _: pytest.MonkeyPatch) -> str:
    return Report.of(find_runs(folder.path)).to_html()


def _card(folder: RunFolder, _: pytest.MonkeyPatch) -> str:
    (run,) = find_runs(folder.path)
    return model_card(run, PackedCheckpoint(2000, 2.5, 2, {}, None, "none"))


def _live_page(folder: RunFolder, _: pytest.MonkeyPatch) -> str:
    runs = WatchedRuns([str(folder.path)])
    runs.refresh()
    return json.dumps([summary.data for summary in runs.summaries()])


def _about(folder: RunFolder, _: pytest.MonkeyPatch) -> str:
    return folder.about.read_text()


def _packed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> str:
    progress = {"iterations": 2, "score": 2.5, "progress": {"timesteps": 2000}}
    monkeypatch.setattr(packed_policy, "_checkpoint", lambda *_: ({policy_archive.ARRAYS: b""}, progress, []))
    monkeypatch.setattr(packed_policy, "_page", lambda *_: (None, "none"))
    packed = packed_files(folder)
    named = {notice.partition(" ")[0] for notice in packed.notices}
    assert {"agent.hub_token", "agent.nested.0.password", "env.apiKey"} <= named
    assert "clip_epsilon: 0.2" in packed.files[policy_archive.CONFIG].decode()
    return repr(packed)


def _wandb(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> str:
    seen: list[Any] = []
    library: Any = types.ModuleType("wandb")
    run = types.SimpleNamespace(define_metric=lambda *_, **__: None, log=seen.append, finish=lambda **_: None)
    library.init = lambda **settings: seen.extend([settings, list(sys.argv)]) or run
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setattr(sys, "argv", ["evorl", "train", *ARGUMENTS])
    record(WandbRecorder(folder.path, config=PLANTED))
    assert sys.argv == ["evorl", "train", *ARGUMENTS]
    assert seen[1][:3] == ["evorl", "train", "clip_epsilon=0.2"]
    return repr(seen)


def _mlflow(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> str:
    seen: list[Any] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            assert tracking_uri == ADDRESS

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *values, **named: (
                seen.append((name, values, named))
                or types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"), experiment_id="0")
            )

    modules = {name: types.ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.exceptions")}
    vars(modules["mlflow"]).update(MlflowClient=Client, MlflowException=RuntimeError)
    vars(modules["mlflow.entities"]).update(Metric=lambda *values: values, Param=lambda *values: values)
    vars(modules["mlflow.exceptions"]).update(MlflowException=RuntimeError)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    record(MlflowRecorder(folder.path, ADDRESS, settings=_flat()))
    return repr(seen)


def _tensorboard(folder: RunFolder, _: pytest.MonkeyPatch) -> str:
    record(TensorBoardRecorder(folder.tensorboard, _flat()))
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.tensorboard.iterdir())


def _flat() -> dict[str, Any]:
    """Return settings by dotted name, as a user may pass them to a recorder."""
    nested = {f"{part}.{name}": value for part in ("agent", "env", "serve") for name, value in PLANTED[part].items()}
    return {PUBLIC: 0.2, **nested}


EXITS = {
    "report": _report,
    "model card": _card,
    "live page": _live_page,
    "about.json": _about,
    "packed policy": _packed,
    "W&B": _wandb,
    "MLflow": _mlflow,
    "TensorBoard": _tensorboard,
}
_OF_TRACKERS = {WandbRecorder, MlflowRecorder, TensorBoardRecorder}


@pytest.mark.parametrize("name", EXITS)
def test_no_exit_has_a_secret(name: str, planted: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted.config.read_text().count(SECRET) >= 10  # the run itself keeps them
    content = EXITS[name](planted, monkeypatch)
    assert SECRET not in content
    assert PUBLIC in content or name == "live page"


def test_settings_for_comparisons_have_no_secret() -> None:
    settings = learning_settings(PLANTED)
    assert SECRET not in repr(settings)
    assert settings["env.from"] == "http://...@127.0.0.1:1/data?sig=..."


def test_all_recorders_that_take_a_config_are_tested_above() -> None:
    classes = [value for value in vars(evorl.recorders).values() if inspect.isclass(value)]
    take = {kind for kind in classes if {"config", "settings"} & set(inspect.signature(kind).parameters)}
    assert issubclass(WandbRecorder, Recorder)
    assert take == _OF_TRACKERS
