"""Exported policies of a stranger: cut, of another program, or with another description: one sentence each."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.export.exported_policy import read_exported
from evorl.runs.files import RunFolderError
from tests.support.damaged_json import VALUES, changed, places
from tests.support.errors import raises_naming

values = st.sampled_from(VALUES)
DESCRIBED: dict[str, Any] = {
    "env": "gymnax/CartPole-v1",
    "algorithm": "ppo",
    "timesteps": 1000,
    "action_repeat": 1,
    "memory": {},
    "random": {},
    "inputs": [{"name": "obs", "shape": ["rows", 4], "dtype": "float32"}],
    "outputs": [{"name": "action", "shape": ["rows"], "dtype": "int32"}],
    "observation_space": {"kind": "box", "low": -1.0, "high": None, "shape": [4], "dtype": "float32"},
    "action_space": {"kind": "discrete", "n": 2, "start": 0},
}


def _program() -> bytes:
    def act(inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"action": (inputs["obs"].sum(axis=1) > 0).astype(np.int32)}

    shape = jax.export.symbolic_shape("rows, 4")
    exported = jax.export.export(jax.jit(act))({"obs": jax.ShapeDtypeStruct(shape, np.float32)})
    return bytes(exported.serialize())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported policy on disk."""
    path = tmp_path_factory.mktemp("exported") / "policy.stablehlo"
    path.write_bytes(_program())
    return path


def describe(program: Path, described: Any) -> None:
    """Write the description of a program, which is not cut."""
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    described = {"sha256": digest, **described} if isinstance(described, dict) else described
    program.with_suffix(".json").write_text(json.dumps(described))


@given(data=st.data(), value=values)
@settings(max_examples=60, deadline=None)
def test_a_description_of_a_program_with_another_value(data: st.DataObject, value: Any, program: Path) -> None:
    describe(program, DESCRIBED)
    assert read_exported(program).timesteps == 1000
    describe(program, changed(DESCRIBED, data.draw(st.sampled_from([*places(DESCRIBED)])), value))
    with contextlib.suppress(RunFolderError):
        assert "steps" in read_exported(program).describe()


MISFITS = {
    "another number of observations": {"observation_space": {**DESCRIBED["observation_space"], "shape": [5]}},
    "two observations": {"inputs": DESCRIBED["inputs"] * 2},
    "another action": {"action_space": {"kind": "box", "low": -1.0, "high": 1.0, "shape": [2], "dtype": "float32"}},
    "another output": {"outputs": [{"name": "act", "shape": ["rows"], "dtype": "int32"}]},
    "another size": {"inputs": [{"name": "obs", "shape": ["rows", 7], "dtype": "float32"}]},
    "no input": {"inputs": []},
    "no output": {"outputs": []},
    "numbers of another kind": {"random": {"obs": "poisson"}},
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_program_that_is_another(name: str, program: Path) -> None:
    describe(program, DESCRIBED | MISFITS[name])
    with raises_naming(RunFolderError, "policy.stablehlo", "description") as raised:
        read_exported(program)
    assert len(str(raised.value).splitlines()) == 1


def test_a_program_that_is_cut(tmp_path: Path) -> None:
    whole = _program()
    path = tmp_path / "policy.stablehlo"
    for end in (0, 1, 10, len(whole) // 2):
        path.write_bytes(whole[:end])
        describe(path, DESCRIBED)
        with raises_naming(RunFolderError, "policy.stablehlo", "unreadable", "export it again with this JAX"):
            read_exported(path)
    path.with_suffix(".json").write_bytes(b"\xff\xfe")
    with raises_naming(RunFolderError, "policy.stablehlo", "description"):
        read_exported(path)


def test_a_model_that_is_cut(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    make = onnx.helper
    obs, action = (make.make_tensor_value_info(name, 1, ["rows", 4]) for name in ("obs", "action"))
    graph = make.make_graph([make.make_node("Identity", ["obs"], ["action"])], "policy", [obs], [action])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=8)
    whole = model.SerializeToString()
    path = tmp_path / "policy.onnx"
    for content in (*(whole[:end] for end in (0, 1, len(whole) // 2, len(whole) - 1)), b"\xff" * 50, whole):
        path.write_bytes(content)
        with raises_naming(RunFolderError, "policy.onnx"):
            read_exported(path)
