"""A toy workflow breaks each workflow invariant once, and the contract detects it."""

from __future__ import annotations

import functools
import inspect
import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import pytest

from evorl.agent import Agent, AgentState
from evorl.envs import Space
from evorl.execution import programs
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, State, pytree_field
from evorl.workflows.workflow import Workflow
from tests.conformance import workflow as suite
from tests.conformance.workflow import WorkflowContract
from tests.support import training_runs
from tests.support.small_workflows import RUN_CONFIG

_calls = itertools.count()


class ToyAgent(Agent):
    """Agent whose parameters are its action."""

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        return PyTreeDict(weights=jax.random.normal(key, (4,)))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return agent_state.params.weights[:1], PyTreeDict()

    evaluate_actions = compute_actions


class ToyWorkflow(Workflow):
    """Adds noise to its parameters, 8 environment steps at a time, with the defect named by ``fault``."""

    agent: ToyAgent
    rate: float = 0.1
    turns: float = pytree_field(static=True, default=1)
    fault: str = ""

    @property
    def timesteps_per_iteration(self) -> int:
        return 8

    def setup(self, key: Key) -> State:
        agent_key, key, eval_key = jax.random.split(key, 3)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        state = State(agent_state=agent_state, key=key, eval_key=eval_key, iterations=WideCounter.create())
        if self.fault == "hides NaN":
            state.hidden = {"params": jnp.zeros(4)}
        return state

    def collect(self, state: State) -> tuple[Any, State]:
        keys = jax.random.split(state.key, 24)  # as many as the smallest real workflow
        noise = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, 0), (4,)))(keys[1:]).mean(axis=0)
        if self.fault == "a key twice":
            noise += jax.random.normal(keys[0], (4,))
        return noise, state.replace(key=keys[0])

    def update(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        if self.fault == "devices show":
            batch *= collectives.num_shards()
        if self.fault == "seeds show":
            batch *= self.execution.num_seeds or 1
        if self.fault == "evaluation shows":
            batch += self.eval_interval
        weights = state.agent_state.params.weights + self.rate * batch
        loss = weights.sum()
        if self.fault == "hides NaN":
            state = state.replace(hidden=PyTreeDict(params=state.hidden.params + batch))
            weights, loss = jnp.nan_to_num(weights), jnp.zeros(())
        if self.fault == "types change":
            weights = weights.astype(jnp.bfloat16)
        params = PyTreeDict(weights=weights)
        return PyTreeDict(loss=loss), state.replace(agent_state=state.agent_state.replace(params=params))

    def evaluation(self, state: State) -> PyTreeDict:
        key = jax.random.fold_in(state.eval_key, state.iterations.low)
        weights = state.agent_state.params.weights + jax.random.normal(key)
        return PyTreeDict(episode_return=weights.mean(), episode_return_std=weights.std())

    def evaluate(self, state: State) -> PyTreeDict:
        if self.fault == "compiles often":
            return jax.jit(lambda state: self.evaluation(state))(state)
        metrics = super().evaluate(state)
        if self.fault == "evaluates at random":
            metrics.episode_return += next(_calls)
        return metrics

    @classmethod
    def build_from_config(cls, config: Mapping[str, Any]) -> Self:
        config = dict(config)
        if config.get("fault") == "takes any key":
            config = {name: x for name, x in config.items() if name in ("env", "fault", *RUN_CONFIG)}
        if config.get("fault") == "takes any value":
            config = {name: x for name, x in config.items() if x != "many"}
        return super().build_from_config(config)


class Toy(WorkflowContract):
    """Contract of the toy, which holds unless a fault is injected."""

    workflow = ToyWorkflow
    SMALL = {**RUN_CONFIG, "rate": 0.1, "num_envs": 8, "fault": ""}
    as_for_users = True  # runs all checks
    endless_env = ("Pendulum-v1", 100)


def _forgetful(restore: Callable[..., Any]) -> Callable[..., Any]:
    def forget(*args: Any) -> Any:
        state, progress = restore(*args)
        zeros = jnp.zeros_like(jax.random.key_data(state.key))
        return state.replace(key=jax.random.wrap_key_data(zeros)), progress

    return forget


def _copying(iterate: Callable[..., Any]) -> Callable[..., Any]:
    return lambda workflow, state, num: iterate(workflow, jax.tree.map(jnp.copy, state), num)


def _by_value(iterate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles again for every value of a number."""
    compiled: dict[float, Any] = {}

    def run(workflow: ToyWorkflow, state: State, num: int) -> Any:
        own = compiled.setdefault(workflow.rate, jax.jit(lambda state: workflow.pure_step(state)))
        own(state)
        return iterate(workflow, state, num)

    return run


# Fault, the test that detects it, and the patch of a library part if the toy itself is correct.
FAULTS: list[tuple[str, str, tuple[Any, str, Callable] | None]] = [
    ("compiles often", "test_programs_are_compiled_once", None),
    ("types change", "test_a_step_keeps_the_types_of_the_state", None),
    ("compiled by value", "test_other_numbers_compile_nothing", (programs, "iterate_program", _by_value)),
    ("a number is static", "test_numbers_are_data", None),
    ("copies its state", "test_the_state_is_donated", (programs, "iterate_program", _copying)),
    ("evaluation shows", "test_evaluation_changes_nothing_else", None),
    ("evaluates at random", "test_evaluation_reads_only", None),
    ("forgets its key", "test_stopped_and_resumed", (training_runs, "restore", _forgetful)),
    ("forgets its key", "test_killed_and_resumed", (training_runs, "restore", _forgetful)),
    ("forgets its key", "test_resumed_on_more_devices", (training_runs, "restore", _forgetful)),
    ("devices show", "test_neither_devices_nor_seeds_show", None),
    ("seeds show", "test_neither_devices_nor_seeds_show", None),
    ("a key twice", "test_no_key_is_used_twice", None),
    ("hides NaN", "test_nan_ends_it_and_the_last_good_checkpoint_stays", None),
    ("takes any key", "test_misspelt_keys_are_refused_in_words", None),
    ("takes any value", "test_values_that_cannot_be_are_refused_in_words", None),
]


@functools.cache
def _contract(fault: str) -> WorkflowContract:
    shaping = frozenset() if fault == "a number is static" else frozenset({"turns"})
    return type("ToyContract", (Toy,), {"SMALL": {**Toy.SMALL, "fault": fault}, "shaping": shaping})()


@functools.cache
def _whole(fault: str) -> tuple[State, bytes, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        return _contract(fault).run_whole(Path(folder))


@functools.cache
def _alone(fault: str) -> dict[int, tuple[dict[str, Any], State]]:
    _whole(fault)  # records the number of compilations
    return _contract(fault).run_alone()


def _check(fault: str, test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one test of the contract on the toy, with its fixtures."""
    makers = {
        "whole": lambda: _whole(fault),
        "alone": lambda: _alone(fault),
        "tmp_path": lambda: tmp_path,
        "monkeypatch": lambda: monkeypatch,
        "num_chunks": lambda: 7,
    }
    bound = getattr(_contract(fault), test)
    bound(**{name: makers[name]() for name in inspect.signature(bound).parameters})


@pytest.mark.parametrize(("fault", "test", "swap"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_a_fault_is_seen(
    fault: str, test: str, swap: tuple[Any, str, Callable] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if swap is not None:
        _whole(fault := "")  # the toy is correct, and shares its programs with passing tests
        place, name, change = swap
        monkeypatch.setattr(place, name, change(getattr(place, name)))
    with pytest.raises((AssertionError, pytest.fail.Exception, TypeError)):
        _check(fault, test, tmp_path, monkeypatch)


def test_devices_that_show_without_several_seeds_are_seen() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        _contract("devices show").check_wide(_alone("devices show"))


@pytest.mark.parametrize("test", dict.fromkeys(test for _, test, _ in FAULTS))
def test_what_is_sound_passes(test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check("", test, tmp_path, monkeypatch)


def test_every_invariant_is_broken_once() -> None:
    tests = {name for name in vars(suite.WorkflowContract) if name.startswith("test_")}
    assert tests == {test for _, test, _ in FAULTS}
