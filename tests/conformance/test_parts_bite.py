"""Each invariant of agents, replay buffers and evolutionary optimizers is broken once, and the contracts detect it."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.agents.observations import preprocess
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.envs import Space, create_env
from evorl.envs.vector import VectorEnv
from evorl.ops import collectives
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, pytree_field
from tests.conformance.agent import AgentContract
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.conformance.replay_buffer import ReplayBufferContract

SEEN = (AssertionError, pytest.fail.Exception)  # the second if an expected error is missing
_serial = itertools.count()


class ToyBuffer(UniformReplayBuffer):
    """Replay buffer with the defect named by ``fault``."""

    fault: str = ""
    serial: int = 0

    def __post_init__(self) -> None:
        if self.fault != "any size":
            super().__post_init__()

    def num_bytes(self, sample_spec: Any) -> int:
        return super().num_bytes(sample_spec) // (2 if self.fault == "half the memory" else 1)

    def init(self, sample_spec: Any) -> ReplayState:
        state = super().init(sample_spec)
        if self.fault == "not empty":
            return state.replace(data=jax.tree.map(lambda x: jnp.ones_like(x), state.data))
        return state

    def add(self, state: ReplayState, batch: Any, mask: jax.Array | None = None) -> ReplayState:
        if self.fault == "any batch" and jax.tree.structure(batch) != jax.tree.structure(state.data):
            return state
        after = super().add(state, batch, None if self.fault == "no mask" else mask)
        if self.fault == "types change":
            return after.replace(size=after.size.astype(jnp.float32))
        if self.fault == "the oldest are kept":
            return jax.tree.map(lambda old, new: jnp.where(state.size < self.num_rows, new, old), state, after)
        if self.fault == "one cursor a batch":
            return after.replace(cursor=state.cursor + 1)
        if self.fault == "copies":
            return jax.tree.map(lambda new, old: jnp.where(state.size > 3, new, old), after, state)
        return after

    def draw_indices(self, state: ReplayState, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        if self.fault == "one draw":
            key = jax.random.key(0)
        rows, envs = super().draw_indices(state, key, num)
        if self.fault == "devices show":
            envs = (envs + collectives.num_shards() - 1) % self.num_envs
        return rows, envs

    def sample(self, state: ReplayState, key: Key, batch_size: int) -> Any:
        batch = super().sample(state, key, batch_size)
        if self.fault == "summed where each device has all" and self.num_envs == 1:
            batch = batch.replace(rewards=collectives.sum_shards(batch.rewards))
        return batch.replace(rewards=batch.rewards[::-1]) if self.fault == "mixed up" else batch


BUFFER_FAULTS = {
    "its own program": "test_it_is_structure_but_for_its_numbers",
    "half the memory": "test_memory_is_known_before_it_is_taken",
    "the oldest are kept": "test_the_latest_are_kept",
    "types change": "test_adding_keeps_the_types_of_the_state",
    "one cursor a batch": "test_rows_at_once_do_not_show",
    "no mask": "test_masked_rows_are_as_never_added",
    "mixed up": "test_what_is_drawn_is_stored_and_belongs_together",
    "one draw": "test_draws_follow_from_the_key",
    "not empty": "test_an_empty_buffer_gives_zeros",
    "any batch": "test_batches_that_do_not_fit_are_refused_in_words",
    "any size": "test_impossible_sizes_are_refused_in_words",
    "devices show": "test_devices_do_not_show",
    "summed where each device has all": "test_a_single_environment_is_whole_on_every_device",
    "copies": "test_adding_inside_a_loop_copies_nothing",
}


@functools.cache
def _buffer_contract(fault: str) -> ReplayBufferContract:
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        serial = next(_serial) if fault == "its own program" else 0
        return ToyBuffer(capacity=capacity, num_envs=num_envs, fault=fault, serial=serial)

    return type("Contract", (ReplayBufferContract,), {"make": staticmethod(make)})()


def _check_buffer(fault: str, test: str) -> None:
    bound = getattr(_buffer_contract(fault), test)
    bound(**({"num_devices": 2} if "num_devices" in inspect.signature(bound).parameters else {}))


@pytest.mark.parametrize(("fault", "test"), BUFFER_FAULTS.items())
def test_a_fault_of_a_buffer_is_seen(fault: str, test: str) -> None:
    with pytest.raises(SEEN):
        _check_buffer(fault, test)


class ToySearch(EvoOptimizer):
    """Gradient ascent on the mean of a Gaussian, with the defect named by ``fault``."""

    std: float = 0.3
    fault: str = ""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        return PyTreeDict(mean=PyTreeDict(solution), key=key, generation=jnp.int32(0))

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        rows = jnp.asarray(first) + jnp.arange(count or self.pop_size)
        if self.fault == "parts differ" and count is not None:
            rows = rows + 1
        key = jax.random.fold_in(jax.random.key(0) if self.fault == "one key" else state.key, state.generation)

        def individual(row: jax.Array) -> Params:
            leaves, treedef = jax.tree.flatten(state.mean)
            keys = jax.random.split(jax.random.fold_in(key, row), len(leaves))
            noise = [self.std * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
            return jax.tree.map(jnp.add, state.mean, jax.tree.unflatten(treedef, noise))

        population = jax.vmap(individual)(rows)
        return jax.tree.map(lambda x: x[None], population) if self.fault == "another shape" else population

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        if self.fault == "spoilt by NaN":
            shaped = fitness - fitness.mean()
        else:
            shaped = jnp.argsort(jnp.argsort(jnp.nan_to_num(fitness, nan=-100.0))) / (self.pop_size - 1) - 0.5
        if self.fault == "descends":
            shaped = -shaped
        if self.fault == "by the clock":
            number = jax.ShapeDtypeStruct((), jnp.float32)
            tick = jax.pure_callback(lambda _: np.float32(next(_serial)), number, fitness[0], vmap_method="sequential")
            shaped = shaped * (1.0 + tick)
        population = self.ask(state)
        mean = jax.tree.map(lambda m, x: m + jnp.tensordot(shaped, x - m, axes=1), state.mean, population)
        return state.replace(mean=mean, generation=state.generation + (1.0 if self.fault == "types change" else 1))

    def solution(self, state: PyTreeDict) -> Params:
        return state.mean

    def inject(self, state: PyTreeDict, solutions: Params, rows: jax.Array) -> PyTreeDict:
        return state if self.fault == "says nothing" else super().inject(state, solutions, rows)


class FrozenSearch(ToySearch):
    """Search with a number as static field."""

    std: float = pytree_field(static=True, default=0.3)


SEARCH_FAULTS = {
    "another shape": "test_a_population_is_solutions_with_an_axis",
    "types change": "test_the_state_keeps_its_types",
    "parts differ": "test_a_population_in_parts_is_the_whole",
    "by the clock": "test_the_same_key_is_the_same_search",
    "one key": "test_seeds_and_generations_differ",
    "its own program": "test_numbers_are_leaves",
    "descends": "test_it_climbs_a_sphere",
    "spoilt by NaN": "test_a_failed_individual_spoils_nothing",
    "says nothing": "test_solutions_from_outside",
}


@functools.cache
def _search_contract(fault: str) -> EvoOptimizerContract:
    cls = FrozenSearch if fault == "its own program" else ToySearch
    members = {"make": staticmethod(lambda pop_size: cls(pop_size=pop_size, fault=fault))}
    return type("Contract", (EvoOptimizerContract,), members)()


@functools.cache
def _runs(fault: str) -> dict[str, Any]:
    return _search_contract(fault).run_three()


def _check_search(fault: str, test: str) -> None:
    bound = getattr(_search_contract(fault), test)
    makers = {"runs": lambda: _runs(fault), "run": lambda: jax.tree.map(lambda x: x[0], _runs(fault))}
    bound(**{name: makers[name]() for name in inspect.signature(bound).parameters})


@pytest.mark.parametrize(("fault", "test"), SEARCH_FAULTS.items())
def test_a_fault_of_an_optimizer_is_seen(fault: str, test: str) -> None:
    with pytest.raises((*SEEN, TypeError)):
        _check_search(fault, test)


@jax.custom_batching.custom_vmap
def _one_at_a_time(x: jax.Array) -> jax.Array:
    return x


@_one_at_a_time.def_vmap
def _(_: int, __: Any, x: jax.Array) -> tuple[jax.Array, bool]:
    return 0.0 * x, True


class ToyAgent(Agent):
    """Linear policy with noise and the defect named by ``fault``."""

    std: float = 0.1
    fault: str = ""
    serial: int = 1

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        shape = (*obs_space.zeros().shape, *action_space.zeros().shape)
        kernel = 0.1 * jax.random.normal(key, shape)
        return PyTreeDict(policy=PyTreeDict(kernel=kernel * (jnp.nan if self.fault == "not finite" else 1.0)))

    def _mean(self, agent_state: AgentState, batch: SampleBatch, normalized: bool = True) -> jax.Array:
        obs = preprocess(agent_state, batch.obs) if normalized else batch.obs
        actions = obs @ agent_state.params.policy.kernel
        if self.fault == "rows mix":
            actions -= actions * jnp.arange(len(actions))[:, None]
        return _one_at_a_time(actions) if self.fault == "one at a time" else actions

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        mean = self._mean(agent_state, sample_batch)
        keys = jax.random.split(key, len(mean)) if key.ndim == 0 else key
        noise = self.std * jax.vmap(lambda k: jax.random.normal(k, mean.shape[1:]))(keys)
        actions = jnp.tanh(mean if self.fault == "no noise" else mean + noise)
        extras = PyTreeDict(mean=mean[0] if self.fault == "extras of a row" else mean)
        return actions[None] if self.fault == "another shape" else actions, extras

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        if self.fault == "evaluates at random":
            return self.compute_actions(agent_state, sample_batch, key)
        normalized = self.fault != "forgets to normalize"
        return jnp.tanh(self._mean(agent_state, sample_batch, normalized)), PyTreeDict()


class FrozenAgent(ToyAgent):
    """Agent with a number as static field."""

    std: float = pytree_field(static=True, default=0.1)


AGENT_FAULTS = {
    "not finite": "test_parameters_are_finite_and_follow_from_the_key",
    "another shape": "test_actions_are_of_the_space",
    "extras of a row": "test_what_is_remembered_of_actions_has_their_rows",
    "no noise": "test_exploring_actions_follow_from_the_key",
    "rows mix": "test_rows_do_not_depend_on_one_another",
    "evaluates at random": "test_evaluation_is_deterministic",
    "one at a time": "test_it_composes_with_vmap",
    "its own program": "test_numbers_are_leaves",
    "forgets to normalize": "test_observations_are_normalized_wherever_it_acts",
    "any setting": "test_a_misspelt_setting_is_refused_in_words",
    "another each time": "test_it_is_the_same_from_the_same_settings",
}


@functools.cache
def _agent_contract(fault: str) -> AgentContract:
    def make(env: Any, **changes: Any) -> Agent:
        if fault == "any setting":
            changes = {}
        if fault == "another each time":
            changes["serial"] = 2 + next(_serial)
        cls = FrozenAgent if fault == "its own program" else ToyAgent
        return cls.from_config({"fault": fault, **changes}, env)

    return type("Contract", (AgentContract,), {"make": staticmethod(make)})()


@functools.cache
def _env() -> VectorEnv:
    return create_env("Pendulum-v1", parallel=2)


@functools.cache
def _acted(fault: str) -> dict[str, Any]:
    contract = _agent_contract(fault)
    return contract.act_in(_env(), contract.make(_env()))


def _check_agent(fault: str, test: str) -> None:
    contract = _agent_contract(fault)
    bound = getattr(contract, test)
    makers = {"env": _env, "agent": lambda: contract.make(_env()), "acted": lambda: _acted(fault)}
    bound(**{name: makers[name]() for name in inspect.signature(bound).parameters})


@pytest.mark.parametrize(("fault", "test"), AGENT_FAULTS.items())
def test_a_fault_of_an_agent_is_seen(fault: str, test: str) -> None:
    with pytest.raises(SEEN):
        _check_agent(fault, test)


SUITES = [
    (AgentContract, AGENT_FAULTS, _check_agent),
    (ReplayBufferContract, BUFFER_FAULTS, _check_buffer),
    (EvoOptimizerContract, SEARCH_FAULTS, _check_search),
]


@pytest.mark.parametrize(("check", "test"), [(check, t) for _, faults, check in SUITES for t in faults.values()])
def test_what_is_sound_passes(check: Any, test: str) -> None:
    check("", test)


@pytest.mark.parametrize(("suite", "faults"), [suite[:2] for suite in SUITES], ids=lambda x: getattr(x, "__name__", ""))
def test_every_invariant_is_broken_once(suite: type, faults: dict[str, str]) -> None:
    assert {name for name in vars(suite) if name.startswith("test_")} == set(faults.values())
