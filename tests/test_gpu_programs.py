"""Programs for GPUs: nothing in them waits for the host, and none has a workaround for CPUs.

Of every shipped experiment, and of one setting of each family of workflows. They are lowered, not compiled, so no GPU
and no CUDA package is needed; ``python -m benchmarks.gpu --static`` compiles some of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import evorl
from evorl.assembly import workflow_from_config
from evorl.envs.libraries import HOST_LIBRARIES
from evorl.ops.random import unrolled
from tests.support.gpu_programs import OPEN_LOOPS, broken_rules, lowered_for_gpus
from tests.support.optional_packages import need
from tests.support.physics_shapes import let_bodies_be_still
from tests.support.small_workflows import small
from tests.test_configs import AGENTS, EXPERIMENTS, composed

NESTED = ("evorl/workflows/nested_learner.py", "evorl/workflows/policy_improvement.py")
# Algorithms whose updates have a number of turns that follows from numbers.
OF_ALGORITHMS: dict[str, Collection[str]] = {
    "trpo": ("evorl/ops/natural_gradient.py",),
    "erl": NESTED,
    "cemrl": NESTED,
    "multi_objective": ("evorl/ec/operators/pareto.py",),
}
FAMILIES = (
    ("ppo", "CartPole-v1"),
    ("ppo", "Pendulum-v1"),
    ("sac", "Pendulum-v1"),
    ("dqn", "CartPole-v1"),
    ("neuroevolution", "CartPole-v1"),
    ("map_elites", "Pendulum-v1"),
    ("a2c", "CartPole-v1"),
    ("impala", "CartPole-v1"),
    ("trpo", "CartPole-v1"),
    ("pqn", "CartPole-v1"),
    ("pqn_continuous", "Pendulum-v1"),
    ("pqn_recurrent", "CartPole-v1"),
    ("reppo", "Pendulum-v1"),
    ("r2d2", "CartPole-v1"),
    ("td3", "Pendulum-v1"),
    ("tqc", "Pendulum-v1"),
    ("crossq", "Pendulum-v1"),
    ("bro", "Pendulum-v1"),
    ("rlpd", "Pendulum-v1"),
    ("erl", "Pendulum-v1"),
    ("cemrl", "Pendulum-v1"),
    ("pga_me", "Pendulum-v1"),
    ("pbt", "CartPole-v1"),
)


def lowered_step(make: Callable[[], Any]) -> Any:
    def step_and_state() -> Any:
        workflow = make()
        return workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0))

    return lowered_for_gpus(step_and_state)


def lowered_update(make: Callable[[], Any]) -> Any:
    """Lower the update of a workflow whose simulators are stepped on the host; it learns from collected transitions."""

    def step_and_inputs() -> Any:
        workflow = make()
        state = jax.eval_shape(workflow.setup, jax.random.key(0))
        batch, state = jax.eval_shape(workflow.collect, state)
        return lambda inputs: workflow.update(*inputs), (state, batch)

    return lowered_for_gpus(step_and_inputs)


@pytest.mark.parametrize(("algorithm", "env"), FAMILIES)
def test_a_family_of_workflows(algorithm: str, env: str) -> None:
    lowered = lowered_step(lambda: small(algorithm, env))
    assert broken_rules(lowered, OF_ALGORITHMS.get(algorithm, ())) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Physics is replaced: one program of each engine is lowered by a test below."""
    agent = max((agent for agent in AGENTS if experiment.startswith(f"{agent}/")), key=len)
    env = experiment.removeprefix(f"{agent}/")
    library = env.partition("/")[0]
    if library == "playground":
        need("mujoco_playground", "playground")
    let_bodies_be_still(monkeypatch)
    on_hosts = ["env.host=loop"] if library == "envpool" else []  # its programs for a GPU do not step simulators
    config = composed(f"agent={agent}", f"env={env}", *on_hosts)
    open_loops = [*OF_ALGORITHMS.get(Path(agent).name, ()), *(("evorl/rollout.py",) if env == "asterix" else ())]
    lower = lowered_update if config.env.library in HOST_LIBRARIES else lowered_step
    assert broken_rules(lower(lambda: workflow_from_config(config)), open_loops) == []


@pytest.mark.parametrize(
    ("package", "env", "open_loops"),
    [
        ("brax", {"library": "brax", "name": "hopper", "backend": "spring"}, ()),
        ("mujoco.mjx", {"library": "mjx", "name": "hopper"}, ("mujoco/mjx/_src/solver.py",)),
        ("craftax", {"library": "craftax", "name": "Craftax-Classic-Symbolic-v1"}, ("evorl/envs/vector.py",)),
    ],
)
def test_a_rollout_in_an_environment_of_a_library(package: str, env: dict, open_loops: Collection[str]) -> None:
    need(package, package)
    assert broken_rules(lowered_step(lambda: small("ppo", env)), open_loops) == []


def test_a_loop_that_asks_the_host_is_found() -> None:
    def step(state: jax.Array) -> jax.Array:
        state = jax.lax.fori_loop(0, 7, lambda _, x: x * 2, state)  # counted
        return jax.lax.while_loop(lambda x: x.sum() < 5, lambda x: x + 1, state)

    (found,) = _broken(step)
    assert found.startswith("loop: ")
    assert Path(__file__).name in found
    assert len(_broken(lambda x: jax.lax.fori_loop(0, x.astype(jnp.int32)[0], lambda _, x: x + 1, x))) == 1
    assert _broken(step, [f"tests/{Path(__file__).name}"]) == []
    assert not any("tests/" in path for path in OPEN_LOOPS)


def test_a_call_of_the_host_is_found() -> None:
    def step(state: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(state.shape, state.dtype), state)

    with pytest.raises(ValueError, match="cuda"):  # without a GPU such a program is not even lowered for one
        _broken(step)
    lowered = jax.jit(step).trace(_state()).lower()
    (found,) = broken_rules(lowered)
    assert found.startswith("host: ")
    assert broken_rules(lowered, calls_hosts=True) == []


def test_numbers_of_64_bits_are_found() -> None:
    with jax.enable_x64(True):
        found = _broken(lambda x: (x.astype(jnp.float64) * 2).astype(jnp.float32))
    assert found
    assert all(line.startswith("float64: ") for line in found)


def test_a_workaround_for_cpus_is_found() -> None:
    (found,) = _broken(lambda x: jax.lax.optimization_barrier(x) + 1)
    assert found.startswith("barrier: ")
    assert unrolled(jax.random.key(0)).dtype != jax.random.key(0).dtype  # where programs are for a CPU


def test_the_platform_is_asked_in_one_place() -> None:
    """Workarounds for CPUs ask ``evorl.ops.platform``, which knows the platform that a program is for."""
    asking = [str(path) for path in _sources() if _asks_jax(path.read_text(encoding="utf-8"))]
    assert [Path(path).name for path in asking] == ["platform.py"]
    assert _asks_jax("import jax\nif jax.default_backend() == 'cpu':\n    pass")
    assert _asks_jax("from jax import default_backend")


def _asks_jax(source: str) -> bool:
    names = [
        getattr(node, "attr", getattr(node, "name", ""))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute | ast.alias)
    ]
    return "default_backend" in names


def _sources() -> list[Path]:
    return sorted(Path(evorl.__path__[0]).rglob("*.py"))


def _state() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((3,), jnp.float32)


def _broken(step: Callable[[jax.Array], jax.Array], open_loops: Collection[str] = ()) -> list[str]:
    return broken_rules(lowered_for_gpus(lambda: (step, _state())), open_loops)
