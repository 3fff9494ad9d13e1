"""Evaluation, saving and stops of the training loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from evorl.agent import AgentState
from evorl.algorithms.ppo import PPOWorkflow
from evorl.execution import training_loop
from evorl.execution.session import RunSession, TrainingDiverged
from evorl.metrics import WideCounter
from evorl.types import PyTreeDict, State
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, small
from tests.support.training_runs import Shelf

STEPS = 64  # per iteration


def _workflow(**changes: Any) -> Workflow:
    intervals = {"log_interval": STEPS, "eval_interval": 0, "checkpoint_interval": 0, "total_timesteps": 8 * STEPS}
    return small("ppo", **{**intervals, **changes})


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the evaluation returns, first to last."""
    returns: list[float] = []
    monkeypatch.setattr(PPOWorkflow, "evaluate", lambda self, state: PyTreeDict(episode_return=returns.pop(0)))
    return returns


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_the_best_so_far_is_saved(scores: list[float], monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", seconds)
    scores += [1.0, 3.0, 3.0, 2.0]
    shelf = Shelf()
    _workflow(eval_interval=2 * STEPS).learn(checkpointer=shelf)
    assert shelf.saved == [(2, 1.0), (4, 3.0), (8, None)]  # 8 is the end: saved unless it already was
    assert shelf.progress["best_score"] == 3.0


def test_a_resumed_run_knows_the_best_score(scores: list[float]) -> None:
    scores += [2.0, 4.0]
    workflow = _workflow(eval_interval=4 * STEPS)
    shelf = Shelf()
    workflow.learn(workflow.init(0), checkpointer=shelf, progress={"iterations": 0, "best_score": 3.0})
    assert shelf.saved == [(8, 4.0)]


class Asking(Shelf):
    """Checkpointer that requests every scored state, with the mean of two evaluations as score."""

    has_rules, score_over = True, 2

    def wants(self, score: float | None) -> bool:
        return score is not None


def test_a_checkpointer_may_ask_for_more_by_a_score_over_several_evaluations(scores: list[float]) -> None:
    scores += [1.0, 9.0, 3.0, 2.0]
    shelf = Asking()
    workflow = _workflow(eval_interval=2 * STEPS)
    workflow.learn(checkpointer=shelf)
    assert shelf.saved == [(2, 1.0), (4, 5.0), (6, 6.0), (8, 2.5)]
    assert shelf.progress["best_score"] == 6.0
    assert [mean for mean, _ in shelf.progress["scores"]] == [3.0, 2.0]
    scores += [4.0]
    resumed = _workflow(eval_interval=8 * STEPS)
    resumed.learn(resumed.init(0), checkpointer=shelf, progress=shelf.progress)
    assert shelf.saved[-1] == (8, 3.0)


def test_checkpoints_come_at_their_interval() -> None:
    shelf = Shelf()
    _workflow(checkpoint_interval=3 * STEPS).learn(checkpointer=shelf)
    assert shelf.saved == [(3, None), (6, None), (8, None)]


def test_a_stop_saves_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", 0.0)
    shelf, calls = Shelf(), []
    state = _workflow().learn(checkpointer=shelf, should_stop=lambda: calls.append(1) is None and len(calls) == 3)
    assert shelf.saved == [(3, None)]
    assert int(state.iterations) == 3
    _workflow().learn(checkpointer=shelf, should_stop=lambda: True)
    assert shelf.saved[-1] == (1, None)


def test_broken_parameters_are_not_saved_after_finite_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", 0.0)
    workflow = _workflow(checkpoint_interval=STEPS)
    shelf = Shelf()
    state = workflow.learn(checkpointer=shelf, should_stop=lambda: True)
    monkeypatch.setattr(RunSession, "refuse_divergence", lambda self, metrics, iterations: None)
    poisoned = workflow.replace(optimizer=workflow.optimizer.replace(learning_rate=float("nan")))
    with raises_naming(TrainingDiverged, "parameters['agent_state']['policy']", "nan", "iteration 2", "64 steps"):
        poisoned.learn(state, checkpointer=shelf, progress=shelf.progress)
    assert shelf.saved == [(1, None)]


@pytest.mark.parametrize("entry", ["members", "learners", "learner"])
def test_broken_parameters_of_members_and_learners_are_not_saved(entry: str) -> None:
    """Non-finite parameters are found and not saved, also in members of a population and their learners."""
    params = PyTreeDict(policy=jnp.ones((4, 2)), value=jnp.ones((4, 3)))
    shelf = Shelf()
    session = RunSession(checkpointer=shelf)
    whole = State({entry: PyTreeDict(agent_state=AgentState(params=params)), "iterations": WideCounter.create()})
    session.save(whole)
    params = params.replace(value=params.value.at[2, 1].set(jnp.nan))
    broken = State({**whole, entry: PyTreeDict(agent_state=AgentState(params=params))})
    with raises_naming(TrainingDiverged, f"parameters['{entry}']['agent_state']['value']", "nan"):
        session.save(broken)
    assert len(shelf.saved) == 1


def test_the_length_of_chunks_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for seconds in (0.0, 0.001, 1000.0):
        monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", seconds)
        states.append(_workflow(log_interval=8 * STEPS).learn(key=2))
    assert_identical(states[1], states[0])
    assert_identical(states[2], states[0])
