"""Programs for GPUs: nothing in them waits for the host, and none has a workaround for CPUs.

Of every shipped experiment, and of one setting of each family of workflows. They are lowered, not compiled, so no GPU
and no CUDA package is needed; ``python -m benchmarks.gpu --static`` compiles some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evorl.assembly import workflow_from_config
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.libraries import HOST_LIBRARIES
from evorl.ops.loops import repeated, when_due
from evorl.ops.random import unrolled
from evorl.workflows.nested_learner import in_blocks
from tests.support.config_files import acts_in, composed, online
from tests.support.gpu_programs import NO_LOOPS, OPEN_LOOPS, broken_rules, lowered_for_gpus
from tests.support.optional_packages import need
from tests.support.physics_shapes import let_bodies_be_still
from tests.support.platform_questions import asks_jax, asks_once
from tests.support.small_workflows import small
from tests.test_configs import AGENTS, EXPERIMENTS

ROOT = Path(__file__).parents[1]
THIS = f"tests/{Path(__file__).name}"
# Loops with a number of turns that follows from numbers, by the names of agents and environments: their files and
# numbers, see OPEN_LOOPS. Starts are computed when needed where a reset is expensive.
_NESTED = {"evorl/workflows/nested_learner.py": 1, "evorl/ops/loops.py": 1}
_FRONTS = {"evorl/ec/operators/pareto.py": 1}
_ROOT = {"evorl/ec/optimizers/cma_es.py": 1}
_STARTS = {"evorl/envs/vector.py": 1}
OF_AGENTS: dict[str, Mapping[str, int]] = {
    "trpo": {"evorl/ops/natural_gradient.py": 2},
    "erl": _NESTED,
    "cemrl": _NESTED | {"evorl/workflows/policy_improvement.py": 1},
    "cmaes": _ROOT,
    "cma_me": _ROOT,
    "cma_mae": _ROOT,
    "nsga2": _FRONTS,
    "rvea": _FRONTS,
}
OF_ENVS: dict[str, Mapping[str, int]] = {
    "asterix": {"evorl/rollout.py": 1},
    "playground/CartpoleSwingup": _STARTS,
    "playground/CheetahRun": _STARTS,
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
# Agents that are neither one of these families nor the agent of an experiment.
FURTHER_AGENTS = (
    *("ddpg", "flash_sac", "iql", "rainbow", "random", "reinforce", "td3_bc"),
    *("ec/cmaes", "ec/eggroll", "ec/evosax", "ec/ga", "ec/nsga2", "ec/rvea", "ec/sep_cmaes", "ec/sepcem"),
    *("ec/vanilla_es", "meta/mf_pbt", "qd/cma_mae", "qd/cma_me"),
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
    assert broken_rules(lowered, OF_AGENTS.get(algorithm, NO_LOOPS)) == []


@pytest.mark.parametrize("agent", FURTHER_AGENTS)
def test_a_further_agent(agent: str) -> None:
    env = "acrobot" if acts_in(agent) is ActionSpaces.DISCRETE else "pendulum"
    config = composed(f"agent={agent}", f"env={env}", *online(agent))
    lowered = lowered_step(lambda: workflow_from_config(config))
    # evosax ranks the fitness of a generation in a branch; JAX does not know its place.
    of_library = ["branch: unknown"] if agent == "ec/evosax" else []
    assert broken_rules(lowered, OF_AGENTS.get(Path(agent).name, NO_LOOPS)) == of_library


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Physics is replaced, except for its costs: one program of each engine is lowered by a test below."""
    agent = agent_of(experiment)
    env = experiment.removeprefix(f"{agent}/")
    library = env.partition("/")[0]
    if library == "playground":
        need("mujoco_playground", "playground")
    let_bodies_be_still(monkeypatch)
    on_hosts = ["env.host=loop"] if library == "envpool" else []  # its programs for a GPU do not step simulators
    config = composed(f"agent={agent}", f"env={env}", *on_hosts)
    open_loops = {**OF_AGENTS.get(Path(agent).name, {}), **OF_ENVS.get(env, {})}
    lower = lowered_update if config.env.library in HOST_LIBRARIES else lowered_step
    assert broken_rules(lower(lambda: workflow_from_config(config)), open_loops) == []


def test_every_agent_is_lowered() -> None:
    def not_lowered(agents: Collection[str]) -> list[str]:
        lowered = {*FURTHER_AGENTS, *map(agent_of, EXPERIMENTS)}
        families = {family for family, _ in FAMILIES}
        return [agent for agent in agents if agent not in lowered and Path(agent).name not in families]

    assert not_lowered(AGENTS) == []
    assert not_lowered([*AGENTS, "ec/new"]) == ["ec/new"]
    assert set(FURTHER_AGENTS) <= set(AGENTS)
    names = {Path(agent).name for agent in AGENTS}
    assert OF_AGENTS.keys() <= names
    assert OF_ENVS.keys() <= {experiment.removeprefix(f"{agent_of(experiment)}/") for experiment in EXPERIMENTS}


@pytest.mark.parametrize(
    ("package", "env", "open_loops"),
    [
        ("brax", {"library": "brax", "name": "hopper", "backend": "spring"}, {}),
        ("mujoco.mjx", {"library": "mjx", "name": "hopper"}, {"mujoco/mjx/_src/solver.py": 1}),
        ("craftax", {"library": "craftax", "name": "Craftax-Classic-Symbolic-v1"}, _STARTS),
        (
            "mujoco_playground",
            {"library": "playground", "name": "CheetahRun"},
            {"mujoco/mjx/_src/solver.py": 1, "evorl/envs/wrappers/clock.py": 1, **_STARTS},
        ),
    ],
)
def test_a_rollout_in_an_environment_of_a_library(package: str, env: dict, open_loops: Mapping[str, int]) -> None:
    need(package, package)
    assert broken_rules(lowered_step(lambda: small("ppo", env)), open_loops) == []


def _while(condition: Callable, body: Callable, start: Callable) -> Callable[[jax.Array], Any]:
    """Return a function of a vector that runs a loop from ``start`` of its first number as int32, 3 at least."""
    return lambda x: jax.lax.while_loop(condition, body, start(jnp.maximum(x[0].astype(jnp.int32), 3)))


@pytest.mark.parametrize(
    "step",
    [
        lambda x: jax.lax.while_loop(lambda x: x.sum() < 5, lambda x: x + 1, x),
        lambda x: jax.lax.fori_loop(0, x.astype(jnp.int32)[0], lambda _, x: x + 1, x),
        lambda x: jax.lax.while_loop(lambda c: c > 1e-3, lambda c: c / 2, x[0]),  # converges
        _while(lambda c: c < 9, lambda c: c + 1, lambda n: n),  # from a number that is not known
        _while(lambda c: c[0] < 9, lambda c: (c[0] + c[1], c[1]), lambda n: (0, n)),  # by such a number
        _while(lambda c: c[0] < 9, lambda c: (c[0] + c[0], c[1]), lambda n: (1, n)),
        _while(lambda c: c[1], lambda c: (c[0] + 1, c[0] < 9), lambda n: (n, True)),
    ],
    ids=["sum", "limit", "convergence", "start", "step", "doubling", "flag"],
)
def test_a_loop_that_asks_the_host_is_found(step: Callable[[jax.Array], Any]) -> None:
    (found,) = _broken(step)
    assert found.startswith("loop: ")
    assert THIS in found


def test_a_counted_loop_is_accepted() -> None:
    assert _broken(lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x * 2, x)) == []
    assert _broken(lambda x: jax.lax.scan(lambda x, y: (x * y, x), x, jnp.arange(4.0), reverse=True)) == []


def test_open_loops_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: jax.Array) -> jax.Array:
        x = jax.lax.while_loop(lambda x: x.sum() < 5, lambda x: x + 1, x)
        return jax.lax.while_loop(lambda x: x.sum() > 5, lambda x: x - 1, x)

    with pytest.raises(ValueError, match=f"OPEN_LOOPS.*{THIS}"):  # without a reason
        _broken(step, {THIS: 2})
    monkeypatch.setitem(OPEN_LOOPS, THIS, "a test")
    assert _broken(step, {THIS: 2}) == []
    for number in (1, 3):
        (found,) = _broken(step, {THIS: number})
        assert f"{THIS} has 2, not {number}" in found


def test_only_updates_of_a_nested_learner_are_of_unknown_number() -> None:
    def loop(_: Any, num_updates: Any, x: jax.Array) -> jax.Array:
        return repeated(lambda _, x: x + 1, x, num_updates, None)

    def other_loop(_: Any, __: Any, x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 5, lambda x: x + 1, x)

    def in_a_nested_learner(block: Callable) -> Callable[[jax.Array], jax.Array]:
        return lambda x: in_blocks(x.astype(jnp.int32)[0], block, x)

    assert _broken(in_a_nested_learner(loop), _NESTED) == []
    nested = {"evorl/workflows/nested_learner.py": 1}
    (found,) = _broken(in_a_nested_learner(other_loop), nested)
    assert THIS in found
    of_another, unused = _broken(lambda x: loop(0, x.astype(jnp.int32)[0], x), {"evorl/ops/loops.py": 1})
    assert re.search(r"evorl/ops/loops.py:\d", of_another)
    assert "has 0, not 1" in unused


def test_a_branch_is_found() -> None:
    def step(x: jax.Array) -> jax.Array:
        x = jax.lax.cond(x[0] > 0, lambda x: x + 1, lambda x: x, x)
        return when_due(x[0] > 0, lambda x: x + 1, x)

    (found,) = _broken(step)  # not the branch of when_due
    assert found.startswith(f"branch: {ROOT / THIS}:")
    assert _broken(lambda x: jax.lax.cond(ROOT.exists(), lambda x: x + 1, lambda x: x, x)) == []  # known before


def test_a_call_of_the_host_is_found() -> None:
    """Without a GPU, JAX raises an error that does not name the place of the call."""

    def step(state: jax.Array) -> jax.Array:
        jax.debug.callback(lambda x: None, state)
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(state.shape, state.dtype), state)

    found = _broken(step)
    assert [line.partition(": ")[0] for line in found] == ["host", "host"]
    assert all(THIS in line for line in found)


def test_numbers_of_64_bits_are_found() -> None:
    with jax.enable_x64(True):
        in_between = _broken(lambda x: x.astype(jnp.float64).astype(jnp.float32))
        wide = lowered_for_gpus(lambda: (lambda x: x.astype(jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float64)))
    for found in (in_between, broken_rules(wide)):
        assert len(found) == 1
        assert found[0].startswith("float64: ")


def test_a_workaround_for_cpus_is_found() -> None:
    (found,) = _broken(lambda x: jax.lax.optimization_barrier(x) + 1)
    assert found.startswith("barrier: ")
    assert unrolled(jax.random.key(0)).dtype != jax.random.key(0).dtype  # where programs are for a CPU


def test_the_platform_is_asked_in_one_place() -> None:
    """Workarounds for CPUs ask ``evorl.ops.platform``, which knows the platform that a program is for."""
    asking = {path.relative_to(ROOT).as_posix(): asks_jax(path.read_text("utf-8")) for path in _sources()}
    assert {path for path, names in asking.items() if names} == {"evorl/ops/platform.py"}
    assert {"evorl", "benchmarks", "scripts"} == {path.partition("/")[0] for path in asking}


@pytest.mark.parametrize(
    "source",
    [
        "import jax\nif jax.default_backend() == 'cpu':\n    pass",
        "from jax import default_backend",
        "from jax.extend.backend import get_backend",
        "jax.extend.backend.get_backend()",
        "jax.lax.platform_dependent(x, cpu=f, default=g)",
        "is_here = jax.devices()[0].platform == 'cpu'",
    ],
    ids=["default", "import", "import_backend", "backend", "dependent", "device"],
)
def test_asking_jax_is_found(source: str) -> None:
    assert len(asks_jax(source)) == 1


def test_other_platforms_are_not_those_of_jax() -> None:
    assert asks_jax("import sys\nfrom evorl.ops.platform import on_cpu\nwindows = sys.platform == 'win32'") == []


def test_the_platform_is_asked_for_each_program() -> None:
    found = {path.name: asks_once(path.read_text("utf-8")) for path in _sources()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "FAST = on_cpu()",
        "class A:\n    fast = not platform.on_cpu()",
        "def f(fast=on_cpu()):\n    pass",
        "f = lambda fast=on_cpu(): fast",
        "@decorated(on_cpu())\ndef f():\n    pass",
        "@functools.cache\ndef f():\n    return on_cpu()",
        "@lru_cache(maxsize=3)\ndef f():\n    return lambda: platform()",
    ],
    ids=["module", "class", "default", "default_of_lambda", "decorator", "cache", "lru_cache"],
)
def test_a_platform_that_is_kept_is_found(source: str) -> None:
    assert len(asks_once(source)) == 1
    assert asks_once("def f():\n    return on_cpu()\ng = lambda: on_cpu()") == []


def _sources() -> list[Path]:
    return sorted(path for folder in ("evorl", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py"))


def agent_of(experiment: str) -> str:
    """Return the agent of an experiment, whose name begins with it."""
    return max((agent for agent in AGENTS if experiment.startswith(f"{agent}/")), key=len)


def _state() -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((3,), jnp.float32)


def _broken(step: Callable[[jax.Array], Any], open_loops: Mapping[str, int] = NO_LOOPS) -> list[str]:
    return broken_rules(lowered_for_gpus(lambda: (step, _state())), open_loops)
