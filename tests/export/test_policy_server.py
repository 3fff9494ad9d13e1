"""``evorl act``: a stored policy answers clients, and is replaced by newer checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import evorl
from evorl.cli import act, commands
from evorl.cli.options import ACT
from evorl.envs.space import Box
from evorl.export import policy_server
from evorl.export.policy_server import PolicyServer
from evorl.reports.seed_choice import SeedChoice
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.structure import CheckpointError
from evorl.serving.client import AgentProxy, AgentProxyException
from evorl.serving.serve_settings import ServeSettings
from tests.support.apps import free_port
from tests.support.errors import assert_names, raises_naming
from tests.support.portable import stored

GIVEN = {name: option.default for name, option in ACT.items()}
SETTINGS = ServeSettings(bind="127.0.0.1:0", max_clients=3)


def served(run: RunFolder, **options: object) -> PolicyServer:
    return PolicyServer.of_run({**GIVEN, "run": str(run.path), **options}, SETTINGS)


def client(server: PolicyServer) -> AgentProxy:
    agent = AgentProxy(server.addresses[0].partition("//")[2], timeout=30.0)
    agent.connect(retry=1)
    try:
        agent.init(exploit=True)
    except AgentProxyException:
        agent.disconnect()
        raise
    return agent


def test_clients_get_the_actions_of_the_policy(trained: RunFolder) -> None:
    policy = evorl.load_policy(trained.path)
    states = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    with served(trained) as server:
        agents = [client(server) for _ in range(3)]
        for state in states:
            assert [agent.update(0.0, state) for agent in agents] == 3 * [policy(state)]
        with raises_naming(AgentProxyException, "max_clients=3"):
            client(server)
        agents[0].update(1.0, states[0].tolist(), terminal=True)
        with raises_naming(AgentProxyException, "shape [4]", "got [2]"):
            agents[0].update(None, [0.0, 1.0])
        for agent in agents:
            agent.disconnect()
        assert server.switchboard.num_answers == 60


def test_a_newer_checkpoint_takes_over(trained: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained.path, folder)
    with served(RunFolder.find(str(folder), "runs"), checkpoint="latest") as server:
        assert not server.look_for_newer()
        server.stored = server.stored.__class__(**{**vars(server.stored), "timesteps": 0})  # simulates an older policy
        agent = client(server)
        before = agent.update(0.0, [0.1, 0.2, 0.3, 0.4])
        assert server.look_for_newer()
        assert server.stored.timesteps == 64
        assert agent.update(0.0, [0.1, 0.2, 0.3, 0.4]) == before
        agent.disconnect()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("policy=<file",)),
        (["run=latest", "bind=0.0.0.0:7001"], ("token=",)),
        (["run=latest", "follow=-1"], ("follow", "-1")),
        (["run=latest", "prot=1"], ("'prot'",)),
        (["run=nowhere"], ("nowhere", "no folder")),
    ],
)
def test_what_cannot_be_served_is_told(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming((ValueError, OSError), *parts):
        commands.run(["act", *arguments])


@pytest.mark.parametrize("options", [{"checkpoint": "latest"}, {"checkpoint": "best"}])
def test_a_newer_run_with_as_many_steps_replaces_the_served_one(
    trained: RunFolder, tmp_path: Path, options: dict[str, object]
) -> None:
    shutil.copytree(trained.path, tmp_path / "runs/2024-01-01_00-00-00")
    latest = {**GIVEN, "run": "latest", "runs_folder": str(tmp_path / "runs"), **options}
    with PolicyServer.of_run(latest, SETTINGS) as server:
        assert not server.look_for_newer()
        newer = tmp_path / "runs/2025-01-01_00-00-00"
        shutil.copytree(trained.path, newer)
        os.utime(newer / "config.yaml")
        assert server.look_for_newer()
        assert server.stored.folder == newer
        assert not server.look_for_newer()


def test_another_best_seed_takes_over(trained: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained.path, folder)
    with served(RunFolder.find(str(folder), "runs")) as server:
        before = server.stored.seed.number
        server.stored = dataclasses.replace(server.stored, seed=SeedChoice(1 - before, ""))  # as if it had been best
        assert server.look_for_newer()
        assert server.stored.seed.number == before


def test_a_newer_policy_that_cannot_be_served_leaves_the_old_one_in_use(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    old = policy_server._loaded({**GIVEN, "run": str(trained.path)})
    new = dataclasses.replace(old, timesteps=128)
    bounded = dataclasses.replace(new.policy, obs_space=Box(-9.0, 9.0, (4,)))
    damaged = CheckpointError("a damaged checkpoint")
    loaded = [
        *(old, damaged, damaged, RunFolderError("the folder is gone"), KeyError("an entry of a user's config")),
        *(stored("ppo_min_gru", tmp_path), dataclasses.replace(new, policy=bounded), new),
    ]

    def load(_: object) -> object:
        policy = loaded.pop(0)
        if not loaded:  # after all failures
            agent = AgentProxy(address, timeout=30.0)
            agent.connect(retry=1)
            agent.init(exploit=True)
            assert agent.update(None, [0.1, 0.2, 0.3, 0.4]) in (0, 1)
            agent.disconnect()
        if isinstance(policy, Exception):
            raise policy
        return policy

    monkeypatch.setattr(policy_server, "_loaded", load)
    monkeypatch.setattr(act, "stop_on_signals", lambda: contextlib.nullcontext(lambda: not loaded))
    commands.run(["act", f"run={trained.path}", f"bind={address}", "follow=0.01"])
    output = capsys.readouterr().out
    assert_names(
        output, "a damaged checkpoint", "the folder is gone", "an entry", "inputs, outputs", "obs_space", "128 steps"
    )
    assert output.count("damaged") == 1, "the same error is printed once"
    assert output.count("Still serving") == 5
    assert output.count("Now serving") == 1


def test_corrupted_checkpoints_are_reported(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = policy_server._loaded({**GIVEN, "run": str(trained.path)})
    first = dataclasses.replace(first, notices=("3 is corrupted.",))
    loaded = [first, dataclasses.replace(first, timesteps=128, notices=("5 is corrupted.",))]
    monkeypatch.setattr(policy_server, "_loaded", lambda _: loaded.pop(0))
    monkeypatch.setattr(act, "stop_on_signals", lambda: contextlib.nullcontext(lambda: not loaded))
    commands.run(["act", f"run={trained.path}", "bind=127.0.0.1:0", "follow=0.01"])
    before, after = capsys.readouterr().out.split("Waiting for clients")
    assert_names(before, "3 is corrupted.")
    assert_names(after, "5 is corrupted.", "Now serving")
