"""Population-based training: members equal the inner workflow; selection and exploration change no other state."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.pbt import PBTWorkflow
from evorl.execution import programs
from evorl.recorders import ChartRecorder
from evorl.types import State
from evorl.workflows.workflow import Workflow
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import recorded_pendulum
from tests.support.small_workflows import RUN_CONFIG, arrays, assert_close, assert_identical, inner_config, small

SEED = 3
STEPS = 4 * 64 * 2  # environment steps per generation
FIXED = {"exploit": False, "score": "evaluation"}
CSO = {"explore": "cso"}


class TestContract(WorkflowContract):
    workflow = PBTWorkflow
    SMALL = {
        **RUN_CONFIG,
        "inner": inner_config("ppo"),
        "search_space": {
            "gae_lambda": {"low": 0.8, "high": 1.0},
            "optimizer": {"learning_rate": {"low": 1e-3, "high": 1e-2, "scale": "log"}},
            "agent.clip_epsilon": {"low": 0.1, "high": 0.4, "scale": "log"},
        },
        "pop_size": 4,
        "generation_interval": 64 * 2,
        "total_timesteps": 4 * 64 * 2 * 20,
    }


def pbt(**changes: Any) -> PBTWorkflow:
    workflow = small("pbt", "Pendulum-v1", **changes)
    assert isinstance(workflow, PBTWorkflow)
    return workflow


@functools.cache
def trained(num_generations: int, **changes: Any) -> tuple[PBTWorkflow, dict[str, np.ndarray], State]:
    """Return the workflow, its metrics ``[G]``, and its state after ``num_generations``."""
    workflow = pbt(**changes)
    metrics, state = programs.iterate_program(workflow, workflow.init(SEED), num_generations)
    metrics.pop("episodes")
    return workflow, {name: np.asarray(x)[:num_generations] for name, x in metrics.items()}, state


def of_member(workflow: PBTWorkflow, state: State, i: int) -> State:
    """Return the state of member ``i``, with its own iteration counter."""
    counter = state.iterations.times(workflow.iterations_per_generation)
    return State({**jax.tree.map(lambda x: x[i], state.members), "iterations": counter})


def key_words(state: State) -> np.ndarray:
    """Return the data of every PRNG key of the members, ``[P, ...]``."""
    keys = [x for x in jax.tree.leaves(state.members) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    assert len(keys) >= 3  # of the training, the evaluation and the environments
    return np.concatenate([np.asarray(jax.random.key_data(x)).reshape(len(x), -1, 2) for x in keys], axis=1)


def test_members_are_the_inner_workflow_alone() -> None:
    workflow, _, state = trained(2, **FIXED)
    first = workflow.init(SEED)
    for i in (0, 3):
        alone: Workflow = workflow.member(first.hyper_parameters[i])
        assert alone.total_timesteps == workflow.total_timesteps / 4
        _, its_state = programs.iterate_program(alone, of_member(workflow, first, i), 4)
        assert int(its_state.iterations) == 4
        assert_close(of_member(workflow, state, i), its_state, 1e-5)
        assert_identical(state.members.key[i], its_state.key)


def test_without_exploitation_settings_stay() -> None:
    workflow, metrics, state = trained(2, **FIXED)
    assert_identical(state.hyper_parameters, workflow.init(SEED).hyper_parameters)
    assert not metrics["replaced_members"].any()
    np.testing.assert_array_equal(state.history.parents[:2], [range(4)] * 2)


def test_members_are_scored_by_evaluations_of_their_own() -> None:
    workflow, _, state = trained(2, **FIXED)
    for i in (0, 3):
        alone = workflow.member(state.hyper_parameters[i])
        score = alone.evaluate(of_member(workflow, state, i)).episode_return
        assert_close(state.history.scores[1, i], score, 1e-4)
        assert_close(state.scores[i], score, 1e-4)


def test_members_are_scored_by_the_episodes_they_ended() -> None:
    workflow = pbt()
    batch, _ = jax.jit(lambda workflow, state: workflow.collect(state))(workflow, workflow.init(SEED))
    episodes = batch.extras.metrics.episodes
    assert (episodes.count == 8).all()  # 16 steps of 8 environments, in episodes of 10
    assert_close(batch.rewards, episodes.return_sum / 8, 1e-6)
    assert (episodes.return_min <= batch.rewards).all()
    assert (batch.rewards <= episodes.return_max).all()


def test_hyper_parameters_do_their_work() -> None:
    """If one member has another learning rate, only that member learns differently."""
    workflow, _, state = trained(2, **FIXED)
    other = workflow.init(SEED)
    rate = workflow.search_space.paths.index("optimizer.learning_rate")
    other.hyper_parameters = other.hyper_parameters.at[1, rate].mul(0.1)
    _, other = programs.iterate_program(workflow, other, 2)
    for i in range(4):
        difference = jax.tree.map(
            lambda a, b, i=i: np.abs(a[i] - b[i]).max(),
            state.members.agent_state.params,
            other.members.agent_state.params,
        )
        assert (max(jax.tree.leaves(difference)) > 1e-5) == (i == 1)


@pytest.mark.parametrize("explore", ["perturb", "cso"])
def test_replaced_members_are_clones_that_explore(explore: str) -> None:
    changes = {} if explore == "perturb" else CSO
    workflow, metrics, state = trained(1, **changes)
    before, history = workflow.init(SEED), state.history
    parents = np.asarray(history.parents[0])
    replaced = parents != np.arange(4)
    assert replaced.sum() == metrics["replaced_members"][0] == {"perturb": 1, "cso": 2}[explore]
    np.testing.assert_array_equal(history.hyper_parameters[0], before.hyper_parameters)
    assert (history.scores[0][replaced] < history.scores[0][parents[replaced]]).all()
    np.testing.assert_array_equal(state.scores, history.scores[0][parents])
    for i in range(4):
        same = arrays(jax.tree.map(lambda x, i=i: x[i] == x[parents[i]], state.members.agent_state.params))
        assert all(x.all() for x in same.values())
    changed = np.asarray(state.hyper_parameters != before.hyper_parameters)
    assert changed[replaced].any()
    assert not changed[~replaced].any()
    space = workflow.search_space
    assert ((state.hyper_parameters >= space.low) & (state.hyper_parameters <= space.high)).all()
    words = key_words(state).reshape(4, -1)
    assert len(np.unique(words, axis=0)) == 4
    assert all((key_words(state)[i] != key_words(state)[j]).any(axis=-1).all() for i in range(4) for j in range(i))
    if explore == "cso":
        assert (np.asarray(state.velocities != 0).any(axis=1) == replaced).all()


def test_clones_go_different_ways() -> None:
    workflow, _, state = trained(1)
    (clone,) = np.flatnonzero(np.asarray(state.history.parents[0]) != np.arange(4))
    parent = int(state.history.parents[0, clone])
    assert_identical(*(jax.tree.map(lambda x, i=i: x[i], state.members.env_state.obs) for i in (clone, parent)))
    its_own = jax.tree.map(lambda x: x.copy(), state)  # programs donate the states that they receive
    _, after = programs.iterate_program(workflow, its_own, 1)
    assert not np.array_equal(after.members.env_state.obs[clone], after.members.env_state.obs[parent])


def test_a_diverged_member_is_replaced_and_stops_nothing() -> None:
    workflow, _, _ = trained(1)
    state = workflow.init(SEED)
    broken = jax.tree.map(lambda x: x.at[2].set(jnp.nan), state.members.agent_state.params)
    state.members = state.members | {"agent_state": state.members.agent_state.replace(params=broken)}
    metrics, state = programs.iterate_program(workflow, state, 1)
    assert metrics.diverged_members[0] == 1
    assert all(np.isfinite(x).all() for x in arrays(metrics).values() if x.dtype == np.float32 and x.ndim == 1)
    assert state.history.scores[0, 2] == -np.inf
    assert state.history.parents[0, 2] != 2
    assert all(np.isfinite(x).all() for x in arrays(state.members.agent_state.params).values())


def test_evaluation_is_that_of_the_best_member() -> None:
    workflow, metrics, state = trained(1)
    best = int(jnp.argmax(state.history.scores[0]))
    its_state = of_member(workflow, state, best) | {"eval_key": state.eval_key}
    alone = workflow.member(state.hyper_parameters[best])
    assert_close(workflow.evaluate(state), alone.evaluate(its_state), 1e-6)
    for path, value in workflow.search_space.named(state.history.hyper_parameters[0, best]).items():
        assert metrics[f"hyper_parameter/{path}"][0] == value
    assert metrics["score_best"][0] == state.history.scores[0].max()
    assert metrics["score_mean"][0] == pytest.approx(float(state.history.scores[0].mean()))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_seeds_side_by_side(num_devices: int) -> None:
    together = pbt(num_seeds=2, devices=num_devices)
    assert together.execution.axis == (programs.SEED_AXIS if num_devices > 1 else None)
    _, states = programs.iterate_program(together, together.init(SEED - 1), 2)
    _, _, state = trained(2)
    del states["iterations"]  # shared by all seeds
    assert_close(jax.tree.map(lambda x: x[1], states), {k: x for k, x in state.items() if k != "iterations"}, 1e-4)
    assert list(together.charts(states | {"iterations": state.iterations})) == ["schedule_seed_0", "schedule_seed_1"]


def test_the_winning_schedule_is_written(tmp_path: Path) -> None:
    workflow = pbt(log_interval=STEPS, eval_interval=0).replace(total_timesteps=3.0 * STEPS)
    state = workflow.learn(key=SEED, recorder=ChartRecorder(tmp_path))
    (chart,) = workflow.charts(state).values()
    lines = (tmp_path / "schedule.csv").read_text().splitlines()
    assert lines[0].startswith("generation,timesteps,member,parent,score,winner,")
    assert len(lines) == 1 + 3 * 4
    assert (tmp_path / "schedule.png").stat().st_size > 10_000
    winner = chart.columns["winner"] == 1
    assert winner.reshape(3, 4).sum(axis=1).tolist() == [1, 1, 1]
    assert chart.columns["score"][-4:][winner[-4:]] == chart.columns["score"][-4:].max()
    assert chart.columns["timesteps"][-1] == 3 * STEPS


def test_numbers_are_leaves() -> None:
    workflow = pbt()
    assert jax.tree.structure(workflow) == jax.tree.structure(workflow.replace(truncation=0.5, perturbation_factor=2.0))
    other = dataclasses.replace(workflow.search_space, low=workflow.search_space.low * 0.5)  # pyright: ignore[reportArgumentType]
    assert jax.tree.structure(workflow) == jax.tree.structure(workflow.replace(search_space=other))


@pytest.mark.parametrize("inner", ["sac", "dqn"])
def test_off_policy_members(inner: str) -> None:
    """Populations of off-policy workflows are traced as in a run, and include each member's replay buffer."""
    space = {"tau": {"low": 0.01, "high": 0.1, "scale": "log"}}
    env = {"sac": "Pendulum-v1", "dqn": "CartPole-v1"}[inner]
    workflow = small("pbt", env, inner=inner_config(inner), search_space=space, generation_interval=16)
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    metrics, after = jax.eval_shape(workflow.pure_step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(after)] == [(x.shape, x.dtype) for x in jax.tree.leaves(state)]
    assert jax.tree.leaves(after.members.replay_state)[0].shape[0] == 4
    assert metrics.episodes.count.shape == ()


@functools.cache
def sharing(num_devices: int) -> State:
    """Return the state of a SAC population with one buffer, after two generations of 16 steps of 2 environments."""
    inner = inner_config("sac") | {"num_envs": 2, "replay_capacity": 1000, "n_step": 2}
    space = {"tau": {"low": 0.01, "high": 0.1, "scale": "log"}}
    shared = {"shared_replay": True, "generation_interval": 32, "history_length": 4}
    workflow = pbt(inner=inner, search_space=space, devices=num_devices, **shared)
    _, state = programs.iterate_program(workflow, workflow.init(SEED), 2)
    return state


def test_members_share_one_buffer() -> None:
    """The shared buffer holds the transitions of every member in separate columns; clones keep theirs."""
    state = sharing(1)
    replay = state.shared.replay_state
    assert "replay_state" not in state.members
    assert replay.data.obs.shape == (125, 4 * 2, 3)
    assert replay.size == 32
    assert (state.history.parents[:2] != np.arange(4)).any()
    obs, next_obs, dones = (np.asarray(x[:32]) for x in (replay.data.obs, replay.data.next_obs, replay.data.dones))
    goes_on = np.abs(next_obs[:-1] - obs[1:]).max(axis=-1) == 0
    assert (goes_on | (dones[:-1] > 0)).all()
    assert len(np.unique(obs[0], axis=0)) == 8
    now = np.asarray(state.members.env_state.obs).reshape(8, 3)
    np.testing.assert_array_equal(now[dones[-1] == 0], next_obs[-1][dones[-1] == 0])


def test_devices_do_not_show_in_a_shared_buffer() -> None:
    assert_close(sharing(2), sharing(1), 1e-4)


def test_members_whose_iterations_differ_in_length() -> None:
    """Evolution strategies as inner workflows work: the interval counts generations, and steps of all members are
    reported.
    """
    part = {
        "workflow": "evorl.algorithms.neuroevolution.NeuroevolutionWorkflow",
        "optimizer": {"name": "openes", "pop_size": 4},
        "agent": {"network": {"torso": [4]}},
    }
    space = {"optimizer.noise_std_schedule.decay": {"low": 0.9, "high": 1.0}}
    given = {"inner": part, "search_space": space, "generation_interval": 2 * 4 * 10, "exploit": False}
    workflow = pbt(**given)
    assert (workflow.timesteps_per_iteration, workflow.iterations_per_generation) == (0, 2)
    metrics, state = workflow.step(workflow.init(SEED))
    assert metrics.timesteps == 4 * 2 * 4 * 10 == metrics.episodes.length_sum
    assert state.members.timesteps.low.tolist() == [2 * 4 * 10] * 4
    np.testing.assert_allclose(metrics.best_fitness, state.members.best.fitness.mean(), rtol=1e-6)
    assert {"best_fitness", "hyper_parameter"} <= set(workflow.latest_metrics)
    assert len(workflow.charts(state)["schedule"].columns["generation"]) == 4
    assert pbt(**given | {"generation_interval": 1}).iterations_per_generation == 1


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"pop_size": 1}, ("pop_size=1", "small")),
        ({"truncation": 0.6}, ("truncation", "(0, 0.5], got 0.6")),
        ({"exploit": "multi"}, ("exploit", "multi_frequency", "'multi'")),
        ({"exploit": "multi_frequency"}, ("pop_size=4", "multiple of 16")),
        ({"explore": "cs"}, ("explore", "cso, perturb; got 'cs'", "'cso'")),
        ({"pop_sice": 4}, ("config key 'pop_sice'", "'pop_size'")),
        ({"discount": 0.9}, ("config key 'discount'",)),
        ({"inner": "ppo"}, ("inner", "mapping", "got 'ppo'")),
        ({"inner": None}, ("inner.workflow", "missing")),
        ({"inner": {"workflow": "evorl.nothing"}}, ("inner.workflow='evorl.nothing'", "class")),
        ({"inner": {"workflow": "x", "num_seeds": 2}}, ("inner.num_seeds", "set num_seeds")),
        ({"search_space": {}}, ("search_space", "empty")),
        (
            {"search_space": {"total_timesteps": {"low": 1, "high": 2}}},
            ("unknown numeric setting", "'total_timesteps'"),
        ),
        (
            {"inner": inner_config("neuroevolution"), "search_space": {"discount": {"low": 0.9, "high": 0.99}}},
            ("unknown numeric setting", "'discount'", "optimizer.lr_schedule.decay"),
        ),
        (
            {"inner": inner_config("erl"), "search_space": {"agent.noise.scale": {"low": 0.1, "high": 0.2}}},
            ("unknown numeric setting", "'agent.noise.scale'", "learner.agent.noise.scale"),
        ),
        ({"shared_replay": True}, ("shared_replay=true", "off-policy", "PPOWorkflow")),
        ({"devices": 3}, ("4 members", "3 devices", "pop_size")),
    ],
)
def test_what_cannot_work_is_refused_in_words(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        pbt(**changes)


@pytest.mark.parametrize("workflow", ["sac.SACWorkflow", "td3_bc.TD3BCWorkflow"])
def test_recorded_steps_that_no_member_would_get_are_refused(workflow: str) -> None:
    inner = inner_config("sac") | {"workflow": f"evorl.algorithms.{workflow}", "replay_capacity": 300}
    inner |= {"replay": {"load": recorded_pendulum(), "other_env": True}}
    with raises_naming(ValueError, f"inner.replay.load={recorded_pendulum()}", "null", "sweep"):
        pbt(inner=inner, search_space={"tau": {"low": 0.001, "high": 0.1}})
