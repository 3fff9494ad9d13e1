"""Generations: the optimizer's inputs, state and counters, and settings that must not change results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.neuroevolution import NeuroevolutionWorkflow
from evorl.ec.optimizers import OpenES
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.execution import programs
from evorl.execution.trainable import Execution
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.low_rank import PerturbedMatrix, population_axes
from evorl.types import PyTreeDict, State
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, POP_SIZE, arrays, assert_close, assert_identical, small

GENERATION_STEPS = 2 * POP_SIZE * EPISODE_STEPS  # Pendulum does not end earlier
TUG_OF_WAR = {"factory": "tests.support.toy_envs:TugOfWar", "max_episode_steps": 5}
CONFIG = {"agent": {"network": {"torso": [8]}, "normalize_obs": True}, "episodes_per_individual": 2}


class Rows:
    """Recorder that keeps the rows of metrics."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def start(self, plan: object) -> None: ...
    def progress(self, *_: object) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...
    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def _evolution(**changes: Any) -> Workflow:
    return small("neuroevolution", "Pendulum-v1", **changes)


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    return _evolution(**CONFIG)


@pytest.fixture(scope="module")
def together() -> Workflow:
    """Build a workflow with two seeds."""
    return _evolution(**CONFIG, num_seeds=2)


@pytest.fixture(scope="module")
def collect(workflow: Workflow) -> Callable[[State], tuple[EpisodeOutcomes, State]]:
    return jax.jit(workflow.collect)


def _generations(workflow: Workflow, state: State, number: int = 4) -> tuple[PyTreeDict, State]:
    """Return metrics ``[number, ...]`` of some generations, and the state after them."""
    metrics, state = programs.iterate_program(workflow, state, number)
    return jax.tree.map(lambda x: x[:number], metrics), state


@pytest.fixture(scope="module")
def generations(workflow: Workflow) -> tuple[PyTreeDict, State]:
    return _generations(workflow, workflow.init(0))


def test_a_generation(workflow: Workflow, generations: tuple) -> None:
    metrics, state = generations
    np.testing.assert_array_equal(metrics.timesteps, GENERATION_STEPS)
    assert state.timesteps.as_float() == 4 * GENERATION_STEPS
    assert state.agent_state.obs_preprocessor_state.count == 4 * GENERATION_STEPS
    np.testing.assert_array_equal(metrics.episodes.count, 2 * POP_SIZE)
    np.testing.assert_allclose(metrics.episodes.return_sum / (2 * POP_SIZE), metrics.fitness, rtol=1e-5)
    assert (metrics.fitness_max >= metrics.fitness).all()
    np.testing.assert_array_equal(metrics.best_fitness, np.maximum.accumulate(metrics.fitness_max))
    assert_identical(state.agent_state.params.policy, workflow.optimizer.solution(state.ec_state))
    assert state.ec_state.generation == 4


def test_the_best_individual_is_remembered(workflow: Workflow, collect: Callable) -> None:
    state, best, policy = workflow.init(0), -np.inf, None
    for _ in range(4):
        outcomes, _ = collect(state)
        fitness = np.asarray(outcomes.returns).mean(axis=1)
        if fitness.max() > best:
            best, fittest = fitness.max(), int(fitness.argmax())
            policy = jax.tree.map(lambda x, i=fittest: x[i], workflow.optimizer.ask(state.ec_state))
            statistics = arrays(state.agent_state.obs_preprocessor_state)
        _, state = _generations(workflow, state, 1)
    np.testing.assert_allclose(state.best.fitness, best, rtol=1e-6)
    assert_close(state.best.policy, policy, 1e-6)
    assert_close(arrays(state.best.obs_preprocessor_state), statistics, 1e-6)  # the statistics that it acted with


def test_a_generation_without_a_number_is_not_remembered(workflow: Workflow, collect: Callable) -> None:
    outcomes, state = collect(workflow.init(0))
    for returns in (jnp.nan, jnp.inf):
        metrics, after = jax.jit(workflow.update)(state, outcomes.replace(returns=jnp.full((POP_SIZE, 2), returns)))
        assert_identical(after.best, state.best)
        assert not np.isfinite(metrics.fitness)  # it ends the training
        assert metrics.episodes.count == 0


@pytest.mark.parametrize("failure", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_return_that_is_no_number_is_as_bad_as_the_worst(
    workflow: Workflow, collect: Callable, failure: float
) -> None:
    outcomes, state = collect(workflow.init(0))
    outcomes = outcomes.replace(returns=jnp.arange(2.0 * POP_SIZE).reshape(POP_SIZE, 2).at[3, 0].set(failure))
    metrics, state = jax.jit(workflow.update)(state, outcomes)
    assert (float(metrics.best_fitness), float(metrics.fitness_max)) == (10.5, 10.5)
    assert np.isfinite([metrics.fitness, metrics.fitness_std]).all()
    assert (float(metrics.episodes.count), float(metrics.episodes.return_sum)) == (2 * POP_SIZE - 1, 66.0 - 6.0)
    assert all(np.isfinite(leaf).all() for leaf in arrays(state.agent_state).values())


# Six individuals are not divisible by four devices, nor their three pairs by two devices.
def test_a_population_need_not_be_divisible() -> None:
    assert _evolution(devices=4).execution == Execution(axis=DATA_AXIS, num_devices=4)


@pytest.mark.parametrize(
    "layout",
    [
        {"execution": Execution(axis=DATA_AXIS, num_devices=4)},
        {"execution": Execution(axis=DATA_AXIS, num_devices=2), "eval_chunk": 2},
    ],
    ids=["4 devices", "2 devices, parts of 2"],
)
def test_layouts_do_not_show(workflow: Workflow, generations: tuple, layout: dict[str, Any]) -> None:
    laid_out = workflow.replace(**layout)
    metrics, state = _generations(laid_out, programs.place(laid_out, workflow.init(0)))
    assert_close(metrics, generations[0], 1e-4)
    assert_close(state.agent_state, generations[1].agent_state, 1e-4)
    assert_identical(state.key, generations[1].key)


LOW_RANK = {"optimizer": {"name": "openes", "pop_size": POP_SIZE, "rank": 2}}


@pytest.fixture(scope="module")
def low_rank() -> Workflow:
    return _evolution(**CONFIG, **LOW_RANK)


@pytest.fixture(scope="module")
def low_rank_generations(low_rank: Workflow) -> tuple[PyTreeDict, State]:
    return _generations(low_rank, low_rank.init(0), 2)


def test_factored_individuals_play_as_explicit_ones(low_rank: Workflow) -> None:
    """Outputs and returns of a low-rank population equal the results of explicit parameters ``mean + std * E``."""
    state = low_rank.init(0)
    factored, policies = (fn(state, 0, POP_SIZE) for fn in (low_rank.factored_policies, low_rank.policies))
    layers = factored["params"]["torso"]["Dense_0"], factored["params"]["head"]
    assert all(isinstance(layer["kernel"], PerturbedMatrix) for layer in layers)
    obs = jax.random.normal(jax.random.key(1), (POP_SIZE, 5, 3))
    act = jax.vmap(low_rank.agent.policy_network.apply, (population_axes(factored), 0))
    outputs = jax.vmap(low_rank.agent.policy_network.apply)(policies, obs)
    np.testing.assert_allclose(act(factored, obs), outputs, rtol=1e-5, atol=1e-5)

    def returns(policies: Any) -> jax.Array:
        key = jax.random.split(state.key)[1]
        outcomes = low_rank.evaluator(observe=True).evaluate(
            low_rank.agent, state.agent_state, lambda *_: policies, POP_SIZE, key
        )
        return outcomes.returns

    played = jax.jit(low_rank.collect)(state)[0].returns
    np.testing.assert_allclose(played, jax.jit(returns)(policies), rtol=1e-4)


@pytest.mark.parametrize(
    "layout",
    [
        {"execution": Execution(axis=DATA_AXIS, num_devices=4)},
        {"execution": Execution(axis=DATA_AXIS, num_devices=2), "eval_chunk": 2},
    ],
    ids=["4 devices", "2 devices, parts of 2"],
)
def test_layouts_do_not_show_in_low_rank(
    low_rank: Workflow, low_rank_generations: tuple, layout: dict[str, Any]
) -> None:
    laid_out = low_rank.replace(**layout)
    metrics, state = _generations(laid_out, programs.place(laid_out, low_rank.init(0)), 2)
    assert_close(metrics, low_rank_generations[0], 1e-4)
    assert_close(state.agent_state, low_rank_generations[1].agent_state, 1e-4)
    assert_close(state.best, low_rank_generations[1].best, 1e-4)


def test_a_virtual_batch_makes_individuals_explicit() -> None:
    workflow = _evolution(**CONFIG, **LOW_RANK, virtual_batch=16)
    state = workflow.init(0)
    assert_identical(workflow.factored_policies(state, 0, 2), workflow.policies(state, 0, 2))


def test_individuals_play_with_normalized_layers() -> None:
    """A generation in chunks on two devices equals a manually normalized population."""
    workflow = _evolution(**CONFIG, virtual_batch=16)
    before = workflow.init(0)
    assert before.reference_batch.shape == (16, 3)
    shared = workflow.replace(execution=Execution(axis=DATA_AXIS, num_devices=2), eval_chunk=2)
    metrics, state = _generations(shared, programs.place(shared, workflow.init(0)), 1)
    assert_identical(state.reference_batch, before.reference_batch)

    def normalized(state: State, policy: Any) -> Any:
        return workflow.agent.normalized_policy(state.agent_state, policy, before.reference_batch)

    @jax.jit
    def played(state: State) -> tuple[Any, jax.Array]:
        policies = jax.vmap(lambda policy: normalized(state, policy))(workflow.optimizer.ask(state.ec_state))
        key = jax.random.split(state.key)[1]
        outcomes = workflow.evaluator().evaluate(workflow.agent, state.agent_state, lambda *_: policies, POP_SIZE, key)
        return policies, outcomes.returns.mean(axis=1)

    policies, fitness = played(before)
    np.testing.assert_allclose(metrics.fitness, fitness.mean(), rtol=1e-4)
    assert_close(state.best.fitness, fitness.max(), 1e-4)
    assert_close(state.best.policy, jax.tree.map(lambda x: x[fitness.argmax()], policies), 1e-4)
    # The optimizer's solution is not normalized; the agent is, by its current statistics.
    solution = workflow.optimizer.solution(state.ec_state)
    assert_close(state.agent_state.params.policy, normalized(state, solution), 1e-4)
    kernels = [x["params"]["torso"]["Dense_0"]["kernel"] for x in (state.agent_state.params.policy, solution)]
    assert not np.allclose(*kernels, rtol=0.1)


def test_several_seeds_are_those_alone(workflow: Workflow, together: Workflow) -> None:
    metrics, states = _generations(together, together.init(5))
    for i in range(2):
        own_metrics, state = _generations(workflow, workflow.init(5 + i))
        assert_close(jax.tree.map(lambda x, i=i: x[:, i], metrics), own_metrics, 1e-4)
        for name in ("agent_state", "best"):
            assert_close(jax.tree.map(lambda x, i=i: x[i], states[name]), state[name], 1e-4)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_training_ends_with_the_generation_that_has_all_steps(
    num_seeds: int, workflow: Workflow, together: Workflow
) -> None:
    recorder = Rows()
    workflow = workflow if num_seeds == 1 else together
    workflow = workflow.replace(total_timesteps=2.0 * GENERATION_STEPS + 1.0, log_interval=2.0 * GENERATION_STEPS)
    state = workflow.learn(workflow.init(0), recorder=recorder)
    assert [row["iterations"] for row in recorder.rows] == [2, 3]
    assert [row["timesteps"] for row in recorder.rows] == [2 * GENERATION_STEPS, 3 * GENERATION_STEPS]
    assert int(state.iterations) == 3
    assert "train/timesteps" not in recorder.rows[0]
    assert recorder.rows[0]["train/episodes"] == 2 * 2 * POP_SIZE * num_seeds
    # It has already finished when resumed.
    again = workflow.learn(state, recorder=recorder)
    assert int(again.iterations) == 3
    assert len(recorder.rows) == 2


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_envs": 8}, ("'num_envs'",)),
        ({"autoreset_mode": "FAST"}, ("'autoreset_mode'",)),
        ({"optimizer": {"name": "openes", "pop_size": 7}}, ("pop_size=7", "even")),
        ({"optimizer": {"name": "open_is", "pop_size": 8}}, ("'open_is'", "'openes'")),
        ({"optimizer": {"name": "vanilla_es", "pop_size": 8, "num_elites": 9}}, ("num_elites=9", "pop_size=8")),
        ({"episodes_per_individual": 0}, ("episodes_per_individual", "got 0")),
        ({"eval_chunk": 0}, ("eval_chunk", "got 0")),
        ({"virtual_batch": 1}, ("virtual_batch=1", "at least two observations")),
        (
            {"virtual_batch": 8, "agent": {"network": {"torso": [8], "layer_norm": True}}},
            ("virtual_batch", "remove these"),
        ),
        ({"virtual_batch": 8, "agent": {"network": {"torso": []}}}, ("agent.network.torso", "no layer with weights")),
        ({"log_interval": -1}, ("log_interval", "got -1")),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_in_words(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _evolution(**changes)


@pytest.mark.parametrize(
    ("algorithm", "changes", "parts"),
    [
        ("neuroevolution", {}, ("episodes_per_individual=1", "multiple of 2", "2 agents")),
        ("map_elites", {"episodes_per_individual": 3}, ("episodes_per_individual=3", "set episodes_per_individual=4")),
        ("map_elites", {"pop_size": 7}, ("episodes_per_individual", "multiple of 2", "got 7 rows")),
    ],
)
def test_individuals_do_not_share_a_copy(algorithm: str, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small(algorithm, TUG_OF_WAR, **changes)


@pytest.mark.parametrize("algorithm", ["neuroevolution", "map_elites", "erl"])
@pytest.mark.parametrize("setter", ["curriculum", {"name": "several", "of": "achieved"}])
def test_goal_setters_with_a_memory_are_refused(algorithm: str, setter: Any) -> None:
    env = {"name": "goal/point_maze", "max_episode_steps": 5, "goal_setter": setter}
    with raises_naming(ValueError, "env.goal_setter", "generation", "uniform"):
        small(algorithm, env)
    small("neuroevolution", env | {"goal_setter": {"name": "several", "every": 2}})


def test_an_individual_plays_all_agents_of_a_copy() -> None:
    """The two episodes of an individual belong to one copy, whose agents have opposite returns."""
    optimizer = {"name": "openes", "pop_size": POP_SIZE, "noise_std_schedule": {"init": 3.0, "final": 3.0}}
    workflow = small("neuroevolution", TUG_OF_WAR, episodes_per_individual=2, optimizer=optimizer)
    outcomes, _ = jax.jit(workflow.collect)(workflow.init(0))
    np.testing.assert_array_equal(outcomes.returns[:, 0], -outcomes.returns[:, 1])
    assert (np.asarray(outcomes.returns) != 0.0).any()


def test_without_an_optimizer_it_is_openes() -> None:
    optimizer = NeuroevolutionWorkflow.build_from_config({"env": "Pendulum-v1"}).optimizer
    assert isinstance(optimizer, OpenES)
    assert optimizer.pop_size == 256


def test_memory_of_low_rank_does_not_grow_with_the_population() -> None:
    """A generation of 2^14 needs the memory of one of 2^12, less than ten explicit policies for a chunk of 128."""

    def memory(pop_size: int) -> tuple[int, int]:
        optimizer = {"name": "openes", "pop_size": pop_size, "rank": 1}
        workflow = _evolution(optimizer=optimizer, agent={"network": {"torso": [256, 256]}}, eval_chunk=128)
        state = jax.eval_shape(workflow.init, jax.random.key(0))
        compiled = programs.training_program(workflow.execution.in_order).lower(workflow, state, 1).compile()
        of_one = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.agent_state.params.policy))
        return compiled.memory_analysis().temp_size_in_bytes, of_one

    (small, of_one), (large, _) = memory(1 << 12), memory(1 << 14)
    assert large < 1.1 * small < 1.1 * 30 * of_one, (small, large, of_one)


def test_memory_is_that_of_a_chunk_not_of_the_population() -> None:
    """Memory is proportional to the chunk; all 4096 policies of 256-256 would need 1.1 GB."""
    workflow = _evolution(
        optimizer={"name": "openes", "pop_size": 4096}, agent={"network": {"torso": [256, 256]}}, eval_chunk=16
    )
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    compiled = programs.training_program(workflow.execution.in_order).lower(workflow, state, 1).compile()
    of_one = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.agent_state.params.policy))
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 2.5 * 16 * of_one
    assert memory.output_size_in_bytes < 10 * of_one  # the optimizer's state, and metrics of many iterations
