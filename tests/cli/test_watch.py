"""``evorl watch``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from evorl.cli import watch
from evorl.cli.watch import watch_runs
from evorl.runs.files import RunFolderError
from tests.support.certificate import write_certificate
from tests.support.errors import raises_naming
from tests.support.run_folders import make_run

TOKEN = "a-token-of-some-length"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVORL_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["bind=0.0.0.0"], ("bind=0.0.0.0", "token")),
        (["token=short"], ("token", "at least 16")),
        (["port=70000"], ("port", "0 to 65,535, got 70000")),
        (["port=yes"], ("port", "0 to 65,535, got True")),
        (["cert=a.pem"], ("cert", "both files")),
        (["open=3"], ("open", "true or false", "got 3")),
        (["metrics={loss: 3}"], ("metrics.loss", "true or false", "got 3")),
        (["nowhere"], ("no folder nowhere",)),
        (["prt=1"], ("option of evorl watch", "'prt'")),
    ],
)
def test_what_cannot_be_is_told_at_the_start(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming((ValueError, RunFolderError), *parts):
        watch_runs(arguments)


def test_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "runs/a", [[1.0]])
    cert, key = write_certificate(tmp_path)
    files = [f"cert={cert}", f"key={key}"]
    request = watch._request(["bind=0.0.0.0", "token=new", "hosts=box, box.lan", "metrics_folder=null", *files])
    guard = request.page.guard
    assert guard.token is not None
    assert (len(guard.token), guard.hosts, request.port, request.token_is_new) == (32, ("box", "box.lan"), 7002, True)
    assert request.tls is not None
    assert request.page.runs.described_places == "runs"
    monkeypatch.setenv("EVORL_TOKEN", TOKEN)
    request = watch._request(["a", "enable_unknown_metrics=false", "metrics={loss: true}"])
    assert (request.page.guard.token, request.token_is_new) == (TOKEN, False)
    assert request.page.store.enabled.as_json() == {"enable_unknown_metrics": False, "metrics": {"loss": True}}
    assert not (tmp_path / "metrics").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_quietly(tmp_path: Path, number: signal.Signals) -> None:
    make_run(tmp_path, "runs/a", [[7.0]])
    command = [sys.executable, "-c", "from evorl.cli.commands import main; main()", "watch", "port=0", "log=true"]
    root = Path(watch.__file__).resolve().parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(root)}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"Watching runs at (http://127\.0\.0\.1:\d+)/ \(Ctrl-C ends it\)\n", line)
            assert found, (line, process.stderr.read())
            body = json.dumps({"name": "episode_reward", "y": 3.5, "x": 10}).encode()
            header = {"Content-Type": "application/json"}
            urllib.request.urlopen(urllib.request.Request(found[1] + "/api/scalars", body, header), timeout=30).close()
            with urllib.request.urlopen(found[1], timeout=30) as answer:
                assert ">episode_reward</a>" in answer.read().decode()
            process.send_signal(number)
            rest, complaints = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (process.returncode, rest, complaints) == (0, "episode_reward 3.5 at 10\n", "")
    assert "episode_reward" in (tmp_path / "metrics/scalars.jsonl").read_text()
    assert len(list((tmp_path / "metrics/tensorboard").iterdir())) == 1
