"""Configs that a worker accepts from its server, and the address for its simulators."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.parameter_server.service import worker_config
from evorl.parameter_server.worker_process import check_worker_config, work_for
from evorl.runs.spec import RunSpec
from evorl.serving.serve_settings import ServeSettings
from tests.support.config_files import spec_of
from tests.support.errors import raises_naming

REMOTE = ["env=remote", "env.obs_space={shape: [2]}", "env.action_space={n: 2}"]


def test_where_a_worker_listens_is_its_own_affair(monkeypatch: pytest.MonkeyPatch) -> None:
    config = worker_config(spec_of("agent=a2c", "parameters=server", *REMOTE))
    config["serve"] = {"bind": "0.0.0.0:7", "token": "of-the-server", "max_clients": 3}
    found: list[ServeSettings] = []
    monkeypatch.setattr(
        "evorl.parameter_server.worker_process.work",
        lambda *_, collector, **__: found.append(collector.settings),
    )
    for serve in ({}, {"max_clients": 5, "bind": "127.0.0.1:0"}):
        work_for(RunSpec.from_config(config), "127.0.0.1:7000", serve)
    assert [(each.bind, each.token, each.max_clients) for each in found] == [
        ("127.0.0.1:7001", None, 3),
        ("127.0.0.1:0", None, 5),
    ]
    with raises_naming(ValueError, "serve", "mapping"):
        work_for(RunSpec.from_config(config), "127.0.0.1:7000", 7)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"workflow": "os.path", "env": "CartPole-v1"}, ("workflow=os.path",)),
        ({"workflow": "evorl.algorithms.a2c.A2CWorkflow", "env": {"factory": "os:system"}}, ("env.factory=os:system",)),
        ({"env": "CartPole-v1"}, ("no workflow",)),
        ({"workflow": "evorl.algorithms.a2c.A2CWorkflow", "env": "${oc.env:HOME}"}, ("interpolations",)),
    ],
)
def test_what_a_server_may_not_hand_out(config: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        check_worker_config(config, "127.0.0.1:7000", False)
