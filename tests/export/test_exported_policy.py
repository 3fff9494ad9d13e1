"""Loaded exports act as the original policy, and untrusted files are rejected."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export

from evorl.cli import commands
from evorl.cli.options import ACT
from evorl.envs.space import Box, DictSpace, Discrete, TupleSpace
from evorl.export.artifacts import export_policy
from evorl.export.exported_policy import read_exported, space_of
from evorl.export.policy_server import PolicyServer
from evorl.export.portable_policy import described_space
from evorl.export.stored_policy import StoredPolicy
from evorl.runs.files import RunFolderError
from evorl.serving.client import AgentProxy
from evorl.serving.serve_settings import ServeSettings
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.portable import POLICIES, stored

need("onnxruntime", "onnx")


def written(policy: StoredPolicy, form: str, folder: Path) -> Path:
    return export_policy(policy, [form], folder)[0].path


def test_a_description_names_the_action_repeat(tmp_path: Path) -> None:
    once = stored("dqn", tmp_path)
    repeated = dataclasses.replace(once, policy=dataclasses.replace(once.policy, action_repeat=4))
    exported = read_exported(written(repeated, "onnx", tmp_path))
    for policy in (repeated, exported):
        assert "one action per 4 environment steps" in policy.describe()
    assert "one action" not in once.describe()


@pytest.mark.parametrize("form", ["onnx", "jax"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_file_acts_as_its_policy(name: str, form: str, tmp_path: Path) -> None:
    """An exported file acts like its policy over three steps with memory, for every kind of agent."""
    original = stored(name, tmp_path)
    exported = read_exported(written(original, form, tmp_path))
    assert exported.describe().startswith(f"{POLICIES[name][0]} in {original.title} after 64 steps")
    policy, rng = exported.policy, np.random.default_rng(0)
    assert policy.inputs == original.policy.inputs
    assert policy.outputs == original.policy.outputs
    assert policy.action_repeat == original.policy.action_repeat
    assert described_space(policy.obs_space) == described_space(original.policy.obs_space)
    assert described_space(policy.action_space) == described_space(original.policy.action_space)
    memory, run, run_original = policy.initial_memory(2), policy.runnable(), original.policy.runnable()
    for _ in range(3):
        given = {
            port.name: rng.integers(0, 2, (2, *port.shape)).astype(port.dtype)
            for port in (*policy.observations, *policy.draws)
        }
        output, expected = run({**given, **memory}), run_original({**given, **memory})
        assert set(output) == set(expected)
        for port in output:
            np.testing.assert_allclose(output[port], expected[port], rtol=1e-5, atol=1e-5)
        memory = {before.name: np.asarray(output[f"next_{before.name}"]) for before in policy.memory}


@pytest.mark.parametrize("form", ["onnx", "jax"])
def test_clients_are_answered_by_a_file(form: str, tmp_path: Path) -> None:
    """A server with an exported recurrent policy keeps a memory per client and resets it with each episode."""
    original = stored("ppo_gru_history", tmp_path)
    path = written(original, form, tmp_path)
    options = {**{name: option.default for name, option in ACT.items()}, "policy": str(path)}
    states = np.random.default_rng(0).standard_normal((4, *original.policy.obs_space.shape)).astype(np.float32)
    with PolicyServer.of_file(options, ServeSettings(bind="127.0.0.1:0", max_clients=3)) as server:
        agents = [AgentProxy(server.addresses[0].partition("//")[2], timeout=30.0) for _ in range(2)]
        for agent in agents:
            agent.connect(retry=1)
            agent.init(exploit=True)
        first = [np.asarray(agents[0].update(0.0, state)) for state in states]
        agents[0].update(0.0, states[0], terminal=True)
        again = [np.asarray(agent.update(0.0, state)) for state in states for agent in agents]
        for agent in agents:
            agent.disconnect()
    np.testing.assert_allclose(again, [action for action in first for _ in agents], rtol=1e-5)
    expected, memory = [], original.policy.initial_memory(1)
    run = original.policy.runnable()
    for state in states:
        output = run({"obs": state[None], **memory})
        expected.append(output["action"][0])
        memory = {before.name: np.asarray(output[f"next_{before.name}"]) for before in original.policy.memory}
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "space",
    [
        Box(-1, 1, (2, 3)),
        Box([-np.inf, 0.0], [np.inf, 5.0], (2,)),
        Box(0, 255, (4, 4, 1), np.uint8),
        Discrete(3),
        DictSpace({"a": Discrete(2), "b": TupleSpace([Box(0, 1, (1,)), Discrete(5)])}),
    ],
    ids=repr,
)
def test_spaces_come_back(space: Any) -> None:
    assert space_of(json.loads(json.dumps(described_space(space)))) == space


def test_a_space_of_another_kind_is_named() -> None:
    with raises_naming(ValueError, "'graph'", "space"):
        space_of({"kind": "graph"})


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    original = stored("dqn", tmp_path)
    onnx, program = written(original, "onnx", tmp_path), written(original, "jax", tmp_path)
    described = program.with_suffix(".json")
    about = json.loads(described.read_text())
    damage(onnx)
    with raises_naming(RunFolderError, "ONNX model"):
        read_exported(onnx)
    program.write_bytes(program.read_bytes() + b"x")
    with raises_naming(RunFolderError, "policy.json", "does not match"):
        read_exported(program)
    for content in ("[1]", "{", "[" * 10**5):
        described.write_text(content)
        with raises_naming(RunFolderError, "description"):
            read_exported(program)
    program = written(original, "jax", tmp_path)
    for name in about:
        described.write_text(json.dumps({key: value for key, value in about.items() if key != name}))
        if name in ("sha256", "inputs", "outputs", "memory", "random", "env", "observation_space", "action_space"):
            with pytest.raises(RunFolderError):
                read_exported(program)
    described.unlink()
    with raises_naming(RunFolderError, described.name, "missing"):
        read_exported(program)


def test_a_program_that_calls_others_needs_trust(tmp_path: Path) -> None:
    """A ``jax.export`` program with external calls, which run code in this process, requires trust."""
    program = written(stored("dqn", tmp_path), "jax", tmp_path)

    def calling(inputs: dict[str, jax.Array]) -> jax.Array:
        return jax.numpy.linalg.inv(inputs["obs"][:4] * jax.numpy.eye(4))

    seen = {"obs": jax.ShapeDtypeStruct((4, 4), np.float32)}
    content = export.export(jax.jit(calling))(seen).serialize()
    program.write_bytes(content)
    described = program.with_suffix(".json")
    about = json.loads(described.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    described.write_text(json.dumps(about))
    with raises_naming(RunFolderError, "lapack_", "trust=true"):
        read_exported(program)
    with raises_naming(RunFolderError, "policy.stablehlo", "does not match its description"):
        read_exported(program, trust=True)  # it passes the gate, and is not the program of its description


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["policy=nowhere.onnx"], ("nowhere.onnx", "exist")),
        (["policy=policy.py"], ("policy.py", "program")),
        (["policy=policy.onnx", "run=latest", "follow=5"], ("run, follow",)),
    ],
)
def test_what_cannot_be_served_is_told(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming((ValueError, RunFolderError), *parts):
        commands.run(["act", *arguments])


@pytest.mark.parametrize("size", [10**12, 2**28 + 1, 10**400, -1])
@pytest.mark.parametrize("where", ["inputs", "outputs", "observation_space", "action_space"])
def test_declared_shapes_that_fit_no_memory_are_refused(where: str, size: int, tmp_path: Path) -> None:
    """Huge declared shapes are rejected before memory is allocated."""
    program = written(stored("dqn", tmp_path), "jax", tmp_path)
    described = program.with_suffix(".json")
    about = json.loads(described.read_text())
    if where in ("inputs", "outputs"):
        about[where][0]["shape"] = ["rows", size]
    else:
        about[where] = {"kind": "box", "shape": [size], "dtype": "float32", "low": -1.0, "high": 1.0}
    described.write_text(json.dumps(about))
    with raises_naming(RunFolderError, "[-1]" if size == -1 else size) as error:
        read_exported(program)
    assert "268,435,456" in str(error.value) or "at least 0" in str(error.value)
