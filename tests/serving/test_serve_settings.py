"""Settings of a server: valid values, and no public address without a token."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.config.nodes import node_from_config
from evorl.serving.serve_settings import ServeSettings
from tests.support.errors import raises_naming

TOKEN = "a good long token"


@pytest.mark.parametrize("name", ["bind", "web"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "example.org"])
def test_others_need_a_token(name: str, host: str) -> None:
    with raises_naming(ValueError, f"serve.{name}=", "serve.token=", "127"):
        ServeSettings(**{name: f"{host}:1"})
    assert ServeSettings(**{name: f"{host}:1", "token": TOKEN}).token == TOKEN


def test_a_token_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAME_TOKEN", TOKEN)
    assert ServeSettings(token="env:GAME_TOKEN").token == TOKEN
    monkeypatch.delenv("GAME_TOKEN")
    with raises_naming(ValueError, "export GAME_TOKEN="):
        ServeSettings(token="env:GAME_TOKEN")
    monkeypatch.setenv("GAME_TOKEN", "short")
    with raises_naming(ValueError, "8 characters"):
        ServeSettings(token="env:GAME_TOKEN")


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"token": "short"}, ("8 characters",)),
        ({"cert": "a.pem"}, ("serve.cert", "serve.key")),
        ({"key": "a.pem"}, ("serve.cert", "serve.key")),
        ({"max_clients": 0}, ("max_clients",)),
        ({"max_frame": -1}, ("max_frame",)),
        ({"hello_seconds": 0}, ("hello_seconds",)),
        ({"idle_seconds": -1}, ("idle_seconds",)),
        ({"max_policy_lag": -1}, ("max_policy_lag",)),
        ({"max_policy_lag": 1.5}, ("max_policy_lag", "integer", "got 1.5")),
        ({"port": 7001}, ("port",)),
        ("127.0.0.1:7001", ("serve",)),
    ],
    ids=str,
)
def test_settings_that_cannot_be(config: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        node_from_config(ServeSettings, config, "serve")


def test_settings_of_a_config() -> None:
    settings = node_from_config(ServeSettings, {"bind": "[::1]:0", "max_policy_lag": 0, "hello_seconds": 3}, "serve")
    assert (settings.bind, settings.max_policy_lag, settings.hello_seconds) == ("[::1]:0", 0, 3.0)
    assert repr(node_from_config(ServeSettings, None, "serve")) == repr(ServeSettings())
