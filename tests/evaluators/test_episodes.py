"""Transitions of played episodes in the format of replay buffers; entries of ``info`` by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, AgentState
from evorl.envs import AutoresetMode
from evorl.envs.wrappers import VECTOR_ENVS
from evorl.evaluators import episodes
from evorl.evaluators.episodes import (
    NO_FAULT,
    EpisodeOutcomes,
    episode_keys,
    info_entries,
    play_episodes,
    transition_rows,
)
from evorl.evaluators.population_evaluator import PopulationEvaluator
from evorl.replay_buffers.ring import take_n_step
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical
from tests.support.toy_envs import LONGEST, Countdown

KEY = jax.random.key(5)
NUM_EPISODES = 12
STEPS = LONGEST + 2


class Adder(Agent):
    """Agent whose only parameter is its action."""

    def init(self, obs_space: Any, action_space: Any, key: jax.Array) -> AgentState:
        return AgentState(params=PyTreeDict(policy=jnp.zeros(())))

    def compute_actions(self, agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[Any, PyTreeDict]:
        return jnp.full_like(batch.obs, agent_state.params.policy), PyTreeDict()

    def evaluate_actions(self, agent_state: AgentState, batch: SampleBatch, key: jax.Array) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, batch, key)


def _state(action: float = 0.25) -> AgentState:
    return AgentState(params=PyTreeDict(policy=jnp.float32(action)))


def _play(mode: AutoresetMode = AutoresetMode.DISABLED, steps: int = STEPS, **options: Any) -> EpisodeOutcomes:
    env = VECTOR_ENVS[mode](Countdown(), NUM_EPISODES)
    keys = episode_keys(KEY, jnp.arange(NUM_EPISODES))
    wanted = jnp.arange(NUM_EPISODES) != 3
    options = {"record": ("termination",), **options}
    return play_episodes(env, Adder().evaluate_actions, _state(), keys, wanted, steps, **options)


@pytest.mark.parametrize("steps", [STEPS, 3, 67, 130])
def test_blocks_of_steps_do_not_show(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators play past the end of the last episode, also where no number of steps divides their bound."""

    def counted() -> EpisodeOutcomes:
        outcomes = _play(steps=steps, observe=True, watch=True)
        return outcomes.replace(transitions=jax.tree.map(np.asarray, transition_rows(outcomes)))

    expected = counted()
    monkeypatch.setattr(episodes, "on_cpu", lambda: False)
    found = counted()
    (rows, is_step), (expected_rows, expected_is_step) = found.transitions, expected.transitions
    np.testing.assert_array_equal(is_step, expected_is_step)
    kept = jax.tree.map(lambda x: x[is_step], (rows, expected_rows))
    assert_identical(*kept)
    assert_identical(found.replace(transitions=None), expected.replace(transitions=None))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_step_is_recorded(mode: AutoresetMode) -> None:
    """Recorded transitions contain every step until the episode ends, in every autoreset mode."""
    outcomes = _play(mode)
    transitions = outcomes.transitions
    assert transitions is not None
    assert transitions.obs.shape == (NUM_EPISODES, STEPS, 1)
    lengths = np.asarray(outcomes.lengths)
    assert lengths[3] == 0
    assert len(set(lengths)) > 3
    for row, length in enumerate(lengths):
        own = jax.tree.map(lambda x, row=row, length=length: np.asarray(x[row, :length]), transitions)
        left = np.arange(length, 0, -1)
        np.testing.assert_array_equal(own.obs[:, 0], left)
        np.testing.assert_array_equal(own.next_obs[:, 0], left - 1)
        np.testing.assert_array_equal(own.actions[:, 0], np.full(length, 0.25))
        np.testing.assert_array_equal(own.rewards, left + 0.25)
        np.testing.assert_array_equal(own.dones, left == 1)
        np.testing.assert_array_equal(own.extras.env_extras.termination, left == 1)


class _Rows(VECTOR_ENVS[AutoresetMode.DISABLED]):
    """Countdown whose rewards and observations ``change`` with the actions ``[B, 1]`` where at most 1 step remains."""

    def __init__(self, change: Any) -> None:
        super().__init__(Countdown(), NUM_EPISODES)
        self.change = change

    def step(self, env_state: Any, action: Any) -> Any:
        after = super().step(env_state, action)
        reward, obs = self.change(after.reward, after.obs, action)
        late = after.obs[:, 0] <= 1.0
        return after.replace(reward=jnp.where(late, reward, after.reward), obs=jnp.where(late[:, None], obs, after.obs))


FAULTS = {
    "none": (lambda reward, obs, action: (reward, obs), 0.25, None),
    # Steps from 0, counted from the end: the last but one leads to observation 1.
    "reward": (lambda reward, obs, action: (reward * jnp.inf, obs), 0.25, (2, 0)),
    "obs": (lambda reward, obs, action: (reward, obs * jnp.nan), 0.25, (1, 1)),
    "policy": (lambda reward, obs, action: (reward, obs), jnp.nan, None),
    "policy, and what it is shown": (lambda reward, obs, action: (reward, obs + action), jnp.nan, None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_those_of_the_environment(name: str) -> None:
    """Non-finite rewards and observations are faults of the environment, unless the action was not finite."""
    change, action, expected = FAULTS[name]
    keys = episode_keys(KEY, jnp.arange(NUM_EPISODES))
    wanted = jnp.arange(NUM_EPISODES) != 3
    act = Adder().evaluate_actions
    outcomes = play_episodes(_Rows(change), act, _state(action), keys, wanted, STEPS, watch=True)
    faults, lengths = np.asarray(outcomes.faults), np.asarray(outcomes.lengths)
    assert (lengths > 2).sum() > 3
    for row, length in enumerate(lengths.tolist()):
        if row == 3 or expected is None or (name == "obs" and length == 1):  # not played, valid, or not observed
            assert faults[row].tolist() == [NO_FAULT, 0]
        else:
            assert faults[row].tolist() == [max(length - expected[0], 0), expected[1]]
    assert np.isfinite(outcomes.returns[3])
    if name == "policy":
        assert not np.isfinite(outcomes.returns[lengths > 0]).any()
    assert _play().faults is None


def test_recording_changes_nothing_else() -> None:
    without = _play(record=None)
    assert without.transitions is None
    assert_identical(_play().replace(transitions=None), without)
    with raises_naming(ValueError, "recorded", "record="):
        transition_rows(without)


def test_a_cut_episode_is_done_but_not_terminated() -> None:
    outcomes = _play(steps=3)
    transitions, lengths = outcomes.transitions, np.asarray(outcomes.lengths)
    assert transitions is not None
    assert transitions.dones.shape == (NUM_EPISODES, 3)
    cut = np.asarray(transitions.obs[:, 0, 0]) > 3
    assert cut.any()
    assert (lengths[cut] == 3).all()
    assert np.asarray(transitions.dones)[cut, 2].all()
    assert not np.asarray(transitions.extras.env_extras.termination)[cut].any()


def test_an_episode_with_something_that_is_no_number_is_not_learned_from() -> None:
    outcomes = _play()
    transitions, lengths = outcomes.transitions, np.asarray(outcomes.lengths)
    assert transitions is not None
    longest, shortest = int(lengths.argmax()), int(lengths.argmin())
    rewards = transitions.rewards.at[longest, 1].set(jnp.nan).at[shortest, lengths[shortest]].set(jnp.inf)
    _, is_step = transition_rows(outcomes.replace(transitions=transitions.replace(rewards=rewards)))
    learned = is_step.reshape(NUM_EPISODES, STEPS).sum(axis=1)
    np.testing.assert_array_equal(learned, np.where(np.arange(NUM_EPISODES) == longest, 0, lengths))


def test_rows_in_a_ring_are_whole_episodes_in_order() -> None:
    outcomes = _play()
    rows, is_step = transition_rows(outcomes)
    assert rows.obs.shape == (NUM_EPISODES * STEPS, 1, 1)
    lengths = np.asarray(outcomes.lengths)
    assert is_step.sum() == lengths.sum()
    buffer = UniformReplayBuffer(capacity=NUM_EPISODES * STEPS)
    stored = rows.replace(extras=PyTreeDict(termination=rows.extras.env_extras.termination))
    ring = buffer.add(buffer.init(jax.tree.map(lambda x: x[0, 0], stored)), stored, is_step)
    expected = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    assert int(ring.size) == len(expected)
    np.testing.assert_array_equal(np.asarray(ring.data.obs)[: len(expected), 0, 0], expected)
    # Two-step transitions end with their episode and do not continue into the next one.
    drawn = take_n_step(ring, jnp.arange(len(expected)), jnp.zeros(len(expected), jnp.int32), 1, 2, 1.0)
    np.testing.assert_array_equal(drawn.next_obs[:, 0], np.maximum(expected - 2, 0))
    np.testing.assert_array_equal(drawn.extras.discounts, expected > 2)


def test_chunks_of_a_population_record_the_same() -> None:
    policies, pop_size = jnp.linspace(-1.0, 1.0, 5), 5
    env = VECTOR_ENVS[AutoresetMode.DISABLED](Countdown(), 4)

    def recorded(chunk: int | None) -> tuple[SampleBatch, jax.Array]:
        evaluator = PopulationEvaluator(
            env, num_episodes=2, max_episode_steps=STEPS, chunk=chunk, record=("termination",)
        )

        def ask(first: jax.Array | int, count: int) -> jax.Array:
            return policies[jnp.minimum(first + jnp.arange(count), pop_size - 1)]

        outcomes = evaluator.evaluate(Adder(), _state(), ask, pop_size, KEY)
        assert outcomes.transitions is not None
        assert outcomes.transitions.obs.shape == (pop_size, 2, STEPS, 1)
        return transition_rows(outcomes)

    (whole, is_step), (parts, is_step_in_parts) = recorded(None), recorded(2)
    np.testing.assert_array_equal(is_step, is_step_in_parts)
    assert_identical(whole[np.asarray(is_step)], parts[np.asarray(is_step)])
    actions = np.asarray(whole.actions).reshape(pop_size, -1)[np.asarray(is_step).reshape(pop_size, -1)]
    assert set(actions) == set(np.asarray(policies))


def test_entries_of_info_by_name() -> None:
    info = PyTreeDict(
        next_obs=jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), metrics=PyTreeDict(x=jnp.asarray([5, 6])), steps=jnp.zeros(2)
    )
    entries = info_entries(info, ("next_obs.1", "metrics.x", "next_obs"))
    np.testing.assert_array_equal(entries["next_obs.1"], [2.0, 4.0])
    np.testing.assert_array_equal(entries["metrics.x"], [5.0, 6.0])
    assert entries["metrics.x"].dtype == jnp.float32
    assert entries["next_obs"].shape == (2, 2)
    with raises_naming(ValueError, "'metrics.y'", "metrics.x"):
        info_entries(info, ("metrics.y",))
    with raises_naming(ValueError, "'next_obs.2'", "next_obs", "shape [2]"):
        info_entries(info, ("next_obs.2",))
    with raises_naming(ValueError, "steps.0", "component"):
        info_entries(info, ("steps.0",))


def test_observations_of_an_episode_are_added_up() -> None:
    outcomes = _play(env_fields=("next_obs.0",), record=None)
    lengths = np.asarray(outcomes.lengths)
    np.testing.assert_array_equal(outcomes.totals["next_obs.0"], lengths * (lengths - 1) / 2)
    np.testing.assert_array_equal(outcomes.last["next_obs.0"], np.zeros(NUM_EPISODES))
