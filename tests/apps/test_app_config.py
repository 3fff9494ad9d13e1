"""Parsing of app.yaml, and errors for invalid contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.apps.app_config import read_app
from evorl.distribution import installed_version
from tests.support.errors import raises_naming

RIGHT = f"""\
version: {installed_version()}
agent: ppo
environment: {{run: [python, a.py], name: x}}
"""


def read(tmp_path: Path, text: str, **variables: str):
    (tmp_path / "app.yaml").write_text(text)
    return read_app(tmp_path / "app.yaml", variables)


def test_ports_and_the_length_of_a_run_have_defaults(tmp_path: Path) -> None:
    app = read(tmp_path, RIGHT + "metrics: {}\n")
    assert (str(app.server), str(app.metrics)) == ("127.0.0.1:7001", "127.0.0.1:7002")
    assert (app.run.max_episodes, app.run.infinite_run, app.server.token) == (1, False, None)
    assert app.folder == tmp_path.resolve()
    assert read(tmp_path, RIGHT).metrics is None
    assert read(tmp_path, RIGHT + "metrics: null\n").metrics is None


def test_addresses_come_from_variables_where_these_are_set(tmp_path: Path) -> None:
    text = RIGHT + "server: {bind: 'localhost:1', bind_by_env_var: WHERE, token: a, token_by_env_var: WORD}\n"
    assert str(read(tmp_path, text).server) == "localhost:1"
    server = read(tmp_path, text, WHERE="[::1]:99", WORD="secret").server
    assert (server.host, server.port, server.token, str(server)) == ("::1", 99, "secret", "[::1]:99")


def test_a_parameter_server_has_servers_and_settings(tmp_path: Path) -> None:
    assert read(tmp_path, RIGHT + "parameters: null\n").parameters is None
    shared = read(tmp_path, RIGHT + "parameters: {servers: 2, mode: averaging}\n").parameters
    assert shared is not None
    assert (str(shared.address), shared.servers, shared.settings) == ("127.0.0.1:7000", 2, {"mode": "averaging"})
    there = {"EVORL_PARAMETERS_BIND": "there:1", "EVORL_PARAMETERS_TOKEN": "a long word"}
    shared = read(tmp_path, RIGHT + "parameters: {}\n", **there).parameters
    assert shared is not None
    assert (str(shared.address), shared.address.token, shared.servers) == ("there:1", "a long word", 1)


def test_a_command_is_words_or_a_text_and_python_is_ours(tmp_path: Path) -> None:
    assert read(tmp_path, RIGHT).environment_command("/py") == ["/py", "a.py"]
    text = RIGHT.replace("[python, a.py]", "'node \"my game.js\" --fast; rm x'")
    assert read(tmp_path, text).environment_command("/py") == ["node", "my game.js", "--fast;", "rm", "x"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            ("version: " + installed_version(), "version: 0.0.9"),
            ("evorl 0.0.9", f"evorl {installed_version()}"),
        ),
        (("version: " + installed_version(), ""), (f"version: {installed_version()}",)),
        (("agent: ppo", "algorithm: {pth: x}"), ("entry of algorithm", "'pth'", "'path'")),
        (("agent: ppo", ""), ("agent", "got null")),
        (("agent: ppo", "agent: ppo\nserver: {bind: 7001}"), ("server.bind", "127.0.0.1:7001, got 7001")),
        (("agent: ppo", "agent: ppo\nserver: {bind: 'x:99999'}"), ("server.bind", "got 'x:99999'")),
        (("agent: ppo", f"agent: ppo\nserver: {{bind: 'x:{'9' * 5000}'}}"), ("server.bind", "127.0.0.1:7001", "...")),
        (("agent: ppo", "agent: ppo\nrun: {stop_seconds: -1}"), ("run.stop_seconds", "negative", "-1")),
        (("agent: ppo", "agent: ppo\nservr: {}"), ("entry of app.yaml", "'servr'", "'server'")),
        (("agent: ppo", "agent: ppo\nrun: {max_episodes: 0}"), ("run.max_episodes", "got 0")),
        (("agent: ppo", "agent: ppo\nrun: {infinite_run: 1}"), ("run.infinite_run", "true or false", "got 1")),
        (("agent: ppo", "agent: ppo\nparameters: {servers: 0}"), ("parameters.servers", "got 0")),
        (("run: [python, a.py]", "run: []"), ("environment.run", "command", "[]")),
        (("run: [python, a.py]", "run: python \"it's"), ("environment.run", "app.yaml", "No closing quotation")),
        (("run: [python, a.py]", "run: python it's"), ("environment.run", "app.yaml", "No closing quotation", "list")),
    ],
)
def test_errors_say_what_came_and_what_to_do(change: tuple[str, str], parts: tuple[str, ...], tmp_path: Path) -> None:
    with raises_naming(ValueError, *parts):
        read(tmp_path, RIGHT.replace(*change))


def test_where_there_is_no_app(tmp_path: Path) -> None:
    with raises_naming(ValueError, "app.yaml", "evorl new"):
        read_app(tmp_path / "app.yaml")
