"""ONNX models, run by onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.export import onnx_file
from evorl.export.artifacts import policy_graph
from evorl.export.graph import NoRule
from evorl.export.onnx_file import OnnxSession, onnx_bytes
from tests.support.array_functions import FUNCTIONS, rows_of
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.portable import VERSIONS, portable_function, stored


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(onnx_file.importlib, "import_module", missing)
    with raises_naming(ImportError, "onnxruntime", "pip install onnx onnxrun"):
        OnnxSession(tmp_path / "policy.onnx")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_computes_the_same_for_any_number_of_rows(name: str, tmp_path: Path) -> None:
    need("onnxruntime", "onnx")
    fn, shape = FUNCTIONS[name]
    rows = rows_of(name, 7)
    expected = np.asarray(jax.jit(jax.vmap(fn))(rows))
    policy, path = portable_function(fn, shape), tmp_path / "function.onnx"
    path.write_bytes(onnx_bytes(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, "A test."))
    session = OnnxSession(path)
    for num_rows in (1, 7):
        actual = session({"obs": rows[:num_rows]})["action"]
        assert (actual.dtype, actual.shape) == (expected.dtype, (num_rows, *expected.shape[1:]))
        np.testing.assert_allclose(actual, expected[:num_rows], rtol=2e-6, atol=2e-6)


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    need("onnx", "onnx")
    import onnx

    policy = stored("r2d2", tmp_path).policy
    about = {**VERSIONS, **policy.describe()}
    model = onnx.load_from_string(onnx_bytes(policy, policy_graph(policy), about, "R2D2 in CartPole."))
    assert [x.name for x in model.graph.input] == ["obs", "memory_recurrent_hidden"]
    assert [x.name for x in model.graph.output] == ["action", "action_scores", "next_memory_recurrent_hidden"]
    first = model.graph.input[0].type.tensor_type.shape.dim
    assert (first[0].dim_param, first[1].dim_value) == ("rows", 4)
    (entry,) = model.metadata_props
    assert json.loads(entry.value) == json.loads(json.dumps(about))
    assert (model.producer_name, model.producer_version, model.doc_string) == ("evorl", "1.2.3", "R2D2 in CartPole.")


def test_what_onnx_has_not_is_told() -> None:
    need("onnx", "onnx")
    policy = portable_function(lambda x: x, (3,))
    graph = policy_graph(policy)
    graph.outputs = [graph.add("atan2", graph.inputs, (None, 3), np.float32)]
    with raises_naming(NoRule, "atan2", "ONNX", "format=numpy", "format=jax"):
        onnx_bytes(policy, graph, {**VERSIONS, **policy.describe()}, "A test.")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "uint8", "int32", "bool"])
def test_observations_of_any_dtype_run_or_are_rejected(dtype: str, tmp_path: Path) -> None:
    """Neither onnxruntime nor NumPy without JAX has arrays in bfloat16."""
    need("onnxruntime", "onnx")
    policy, path = portable_function(lambda x: x.astype(np.float32) * 2, (3,), jnp.dtype(dtype)), tmp_path / "f.onnx"
    if dtype == "bfloat16":
        with raises_naming(NoRule, "bfloat16", "format=jax"):
            policy_graph(policy)
        return
    path.write_bytes(onnx_bytes(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, "A test."))
    rows = np.array([[0, 1, 1]], dtype)
    np.testing.assert_array_equal(OnnxSession(path)({"obs": rows})["action"], rows.astype(np.float32) * 2)
