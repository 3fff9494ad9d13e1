"""Options that a simulator receives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evorl.apps.files.app_options import VARIABLE, Options, action_number, read_options


def test_paths_lead_into_sections_and_null_is_the_default() -> None:
    options = Options({"environment": {"x": {"y": 2}, "none": None}, "number": 3})
    assert options.get("environment/x/y") == 2
    assert options.get("environment/none", 7) == 7
    assert options.get("environment/x/y/z") is None
    assert options.seed is None
    assert Options({"environment": {"seed": 4}, "number": 3}).seed == 7


def test_the_connection_knows_address_token_and_length() -> None:
    values = {"server": {"bind": "[::1]:99", "token": "a word"}, "run": {"max_episodes": 5}, "exploit": True}
    given = Options(values).connection()
    assert given["agent"].address == ("::1", 99)
    assert given["options"]["environment"] == {"max_episodes": 5, "infinite_run": False}
    assert given["options"]["exploit"] is True


def test_variables_override_the_address_and_the_token_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"bind_by_env_var": "MY_BIND", "token_by_env_var": "MY_TOKEN"}
    monkeypatch.setattr("evorl.apps.files.app_options.AgentProxy", lambda address, token: (address, token))
    options = Options({"server": {"bind": "127.0.0.1:99", "token": "file", **names}})
    assert options.connection()["agent"] == (("127.0.0.1", 99), "file")
    monkeypatch.setenv("MY_BIND", "server:7001")
    monkeypatch.setenv("MY_TOKEN", "variable")
    assert options.connection()["agent"] == (("server", 7001), "variable")


def test_they_come_from_evorl_run_or_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, json.dumps({"number": 2, "exploit": False}))
    assert read_options(["--exploit"]).values == {"number": 2, "exploit": True}
    monkeypatch.delenv(VARIABLE)
    Path("app.yaml").write_text("environment: {name: x}\n")
    read = read_options(["--show-ui=true"])
    assert (read.get("environment/name"), read.get("show_ui")) == ("x", True)


def test_errors_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in ((["--explode"], "--exploit, --show-ui"), ([], "there is no app.yaml here")):
        with pytest.raises(SystemExit) as ended:
            read_options(arguments)
        assert ended.value.code == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("action", "number"), [(2, 2), ([-1.0], 0), ([-0.4], 1), (0.0, 2), ([0.99], 3), ([1.0], 3)])
def test_continuous_actions_choose_by_equal_parts(action: object, number: int) -> None:
    assert action_number(action, 4) == number
