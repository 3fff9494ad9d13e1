"""Workarounds for the CPU compiler are absent from programs for other platforms."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import evorl
from evorl.evaluators.episodes import run_episodes
from evorl.networks.convolutions import convolution
from evorl.networks.layers import dense
from evorl.networks.linear_cells import linear_scan
from evorl.ops import loops, returns
from evorl.ops.loops import in_loop, precomputed, repeated, when_due
from evorl.ops.optimization import _clipped
from evorl.ops.platform import available_cores, compiled_for, on_cpu, platform
from evorl.ops.random import unrolled
from evorl.ops.returns import linear_recurrence
from evorl.ops.trees import means, pack
from evorl.types import PyTreeDict
from evorl.workflows.nested_learner import in_blocks

KEY = jax.random.key(0)
RUN = PyTreeDict(ended=jnp.zeros(2, bool), step=jnp.asarray(0))
# Functions of a matrix, by the function with a branch for CPUs that they call. Some also call ``pack``, whose programs
# for half precision are the same on all platforms.
BRANCHES: dict[str, Callable[[jax.Array], Any]] = {
    "ops/loops.in_loop": lambda x: in_loop({"a": _half(x), "b": _half(x)}),
    "ops/loops.precomputed": lambda x: precomputed(lambda i: {"a": _half(x)[i]}, 4)(0),
    "ops/loops.repeated": lambda x: repeated(lambda _, x: x + 1, _half(x), x[0, 0].astype(jnp.int32), (1, 2)),
    "ops/loops.when_due": lambda x: when_due(x[0, 0] > 0, jnp.sin, x),
    "ops/optimization._clipped": lambda x: _clipped(1.0).update({"a": x, "b": x[0]}, None),
    "ops/random.unrolled": lambda x: jax.random.normal(unrolled(jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32)))),
    "ops/returns.linear_recurrence": lambda x: linear_recurrence(x, 0.9, 0.0),
    "ops/trees.means": lambda x: means({"a": x[0], "b": x[1]}),
    "ops/trees.pack": lambda x: pack({"a": x, "b": x > 0}).arrays,
    "networks/linear_cells.linear_scan": lambda x: linear_scan(x, x, x[0]),
    "evaluators/episodes.run_episodes": lambda x: run_episodes(
        lambda run: ~run.ended.all(), lambda run: run.replace(step=run.step + 1, ended=x[0, :2] > run.step), RUN, 50
    ),
    "workflows/nested_learner.in_blocks": lambda x: in_blocks(5, lambda i, n, x: x + i * n, x, 2),
}
# All other functions with such a branch: their tests, or the reason why no program depends on them.
OTHERS = {
    "networks/layers._product": "below",
    "networks/convolutions._convolve": "below",
    "networks/linear_cells.unroll": "tests/networks/test_linear_cells.py",
    "agents/actor_critic._values_of_trajectory": "differs only for thousands of environments",
    "agents/adaptive_kl.with_policies": "tests/agents/test_adaptive_kl.py",
    "envs/starts.start_policy": "tests/envs/test_starts.py",
    "envs/playground._checked_impl": "refuses a setting",
    "envs/envpool_compiled.__init__": "refuses a setting",
    **dict.fromkeys(("execution/plan.plan_execution", "execution/preflight.preflight"), "sizes of a run"),
    "execution/memory.program_bytes": "bytes",
    "execution/memory.available_bytes": "bytes",
    "execution/memory._memory_for_run": "bytes",
    "execution/memory._arrays": "bytes",
    "execution/live_bytes.aval_bytes": "bytes",
    "execution/runtime.prepare_runtime": "a setting of JAX",
    "sweeps/capacity.settings_at_once": "bytes",
}


def _of_a_narrow_layer() -> str:
    module, x = dense(2, orthogonal=True, scale=1.0), jnp.zeros((64, 8))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def _of_a_wide_layer() -> str:
    module, x = dense(64, orthogonal=True, scale=1.0), jnp.zeros((512, 64))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def _of_a_convolution() -> str:
    module, x = convolution(2, 3, 1, "same", orthogonal=True, scale=1.0), jnp.zeros((1, 8, 8, 1))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def test_workarounds_are_for_a_cpu() -> None:
    def check_cpu() -> None:
        assert (platform(), on_cpu()) == ("cpu", True)
        assert unrolled(KEY) is not KEY
        assert "optimization_barrier" in _of_a_narrow_layer()
        assert "custom_jvp" in _of_a_wide_layer()
        assert "conv_general_dilated" not in _of_a_convolution()

    check_cpu()
    with compiled_for("cuda"):
        assert (platform(), on_cpu()) == ("gpu", False)
        assert unrolled(KEY) is KEY
        assert "optimization_barrier" not in _of_a_narrow_layer()
        assert "custom_jvp" not in _of_a_wide_layer()
        assert "conv_general_dilated" in _of_a_convolution()
    check_cpu()


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cpu, gpu, cuda, tpu; got 'metal'"), compiled_for("metal"):
        pass


def test_programs_of_branches_differ() -> None:
    assert _equal_on_all_platforms() == []


def test_a_branch_that_ignores_the_platform_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "on_cpu", lambda: True)
    monkeypatch.setattr(loops, "on_cpu", lambda: False)
    names = [name for name in BRANCHES if name.startswith("ops/loops")]
    assert _equal_on_all_platforms() == [*names, "ops/returns.linear_recurrence"]


def _equal_on_all_platforms() -> list[str]:
    def programs(name: str) -> dict[str, str]:
        with compiled_for(name):
            return {name: str(jax.make_jaxpr(function)(jnp.ones((40, 8)))) for name, function in BRANCHES.items()}

    on_a_cpu, on_a_gpu = programs("cpu"), programs("cuda")
    assert programs("cpu") == on_a_cpu
    return [name for name in BRANCHES if on_a_cpu[name] == on_a_gpu[name]]


def test_every_branch_is_known() -> None:
    root = Path(evorl.__path__[0])
    found = {
        f"{path.relative_to(root).with_suffix('').as_posix()}.{function.name}"
        for path in root.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "on_cpu"
    }
    assert found == {*BRANCHES, *OTHERS}


def _half(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def test_cores_are_counted_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(5), raising=False)
    assert available_cores() == 5
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1
