"""Non-finite numbers are traced back to the environment that returned them, and to the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, Discrete, EnvState
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.evaluators.episodes import NO_FAULT
from evorl.execution.collector import iterate
from evorl.execution.env_faults import (
    ENV_FAULTS,
    KeyedMessages,
    drop_later_faults,
    env_faults,
    first_fault,
    refuse_faulty_rollout,
    without_env_faults,
)
from evorl.execution.session import TrainingDiverged
from evorl.runs.recorder import Recorder
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State
from evorl.workflows.side_by_side import SideBySideWorkflow
from tests.support.errors import assert_names, raises_naming
from tests.support.small_workflows import small
from tests.support.toy_envs import ToyEnv, toy_state


class Breaking(ToyEnv):
    """Returns a non-finite number at one step of each episode. Its spaces are set per instance."""

    def __init__(self, entry: str = "none", at: int = 7, number: float = np.nan, is_box: bool = False) -> None:
        super().__init__(None if is_box else Discrete(2), Box(-jnp.inf, jnp.inf, (2,)))
        self.entry, self.at, self.number, self.is_box = entry, at, number, is_box

    def reset(self, key: Any) -> EnvState:
        return self._state(jnp.zeros((), jnp.int32))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self._state(env_state.env_state + 1, jnp.sum(action) if self.is_box else 0.0)

    def _state(self, t: Any, paid: Any = 0.0) -> EnvState:
        bad = jnp.where(t == self.at, jnp.float32(self.number), 0.0)
        reward, shown = (1.0 + bad, 0.0) if self.entry == "reward" else (1.0, bad if self.entry == "obs" else 0.0)
        return toy_state(t, jnp.full(2, t / 100.0) + shown, reward + paid)

    def _identity(self) -> Any:
        return self.entry, self.at, repr(self.number), self.is_box


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize(("entry", "number"), [("reward", np.nan), ("obs", np.inf)])
def test_a_bad_number_names_environment_and_step_before_any_learning_rate(
    algorithm: str, entry: str, number: float
) -> None:
    env = {"factory": f"{__name__}:Breaking", "entry": entry, "number": number, "max_episode_steps": 20}
    workflow = small(algorithm, env)
    named = {"reward": "rewards", "obs": "observations"}[entry]
    with raises_naming(
        TrainingDiverged, "environment 0", "Breaking", named, "not finite", "step 7 of the run"
    ) as caught:
        workflow.learn(key=0)
    assert "learning rate" not in str(caught.value)


class Messages(Recorder):
    """Recorder that stores the messages of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("neuroevolution", {}), ("map_elites", {"descriptors": ["next_obs.0", "next_obs.1"]}), ("erl", {})],
)
@pytest.mark.parametrize("entry", ["reward", "obs"])
def test_a_generation_without_a_finite_return_names_the_environment(
    algorithm: str, changes: dict[str, Any], entry: str
) -> None:
    env = {"factory": f"{__name__}:Breaking", "entry": entry, "is_box": True, "max_episode_steps": 10}
    named = {"reward": "rewards", "obs": "observations"}[entry]
    # The observation after the seventh step is the input of the eighth action.
    step = {"reward": 7, "obs": 8}[entry]
    place = f"step {step} of an episode, in iteration 1,"
    with raises_naming(TrainingDiverged, "Breaking", named, "not finite", place, "every episode"):
        small(algorithm, env, **changes).learn(key=0)


def test_a_population_that_diverged_is_no_fault_of_the_environment() -> None:
    env = {"factory": f"{__name__}:Breaking", "is_box": True, "max_episode_steps": 10}
    workflow = small("neuroevolution", env)
    state = workflow.init(0)
    state.ec_state = state.ec_state.replace(mean=jax.tree.map(lambda x: x * jnp.nan, state.ec_state.mean))
    with pytest.raises(TrainingDiverged) as caught:
        workflow.learn(state)
    assert "Breaking" not in str(caught.value)


def test_a_population_names_environment_and_member() -> None:
    env = {"factory": f"{__name__}:Breaking", "entry": "reward", "max_episode_steps": 20}
    workflow = small("pbt", env)
    with raises_naming(
        TrainingDiverged, "environment 0 of member 0", "Breaking", "rewards", "step 7 of this environment, in iteration"
    ):
        workflow.learn(key=0)


def test_a_member_whose_environment_is_broken_leaves_the_others() -> None:
    workflow: Any = small("pbt", {"factory": f"{__name__}:Breaking", "max_episode_steps": 20})
    faults = np.full((3, workflow.pop_size, 3), NO_FAULT, np.int32)
    faults[1:, 2] = (5, 3, 0)
    metrics, recorder = PyTreeDict({ENV_FAULTS: faults, "loss": np.zeros(3)}), Messages()
    message, state = KeyedMessages(recorder.message), State(iterations=8)
    rest, _ = without_env_faults(workflow, metrics, state, 3, message)
    assert set(rest) == {"loss"}
    without_env_faults(workflow, metrics, state, 3, message)
    (text,) = recorder.texts  # once per member
    steps = workflow.iterations_per_generation * 8  # of one environment per generation
    assert_names(text, "environment 3 of member 2 of ", f"step {6 * steps + 6:,} of this environment, in iteration 7")
    faults[2] = (5, 3, 0)
    with raises_naming(TrainingDiverged, "environment 3 of member 2"):
        without_env_faults(workflow, metrics, state, 3, message)


def test_settings_side_by_side_name_environment_and_row() -> None:
    """The message names the setting and its environment once, although the diverged setting continues."""
    inner = small("ppo", {"factory": f"{__name__}:Breaking", "entry": "obs", "max_episode_steps": 20})
    rows = SideBySideWorkflow.of(inner, ["agent.clip_epsilon"], [[0.1], [0.4]], [0, 2])
    recorder = Messages()
    rows.replace(total_timesteps=64.0 * 4).learn(key=0, recorder=recorder)
    texts = [text for text in recorder.texts if "Breaking" in text]
    assert len(texts) == 2
    for text, row in zip(
        texts, ["row 0 (agent.clip_epsilon=0.1, seed + 0)", "row 1 (agent.clip_epsilon=0.4, seed + 2)"]
    ):
        assert_names(text, f"environment 0 of {row} of ", "observations", "step 7 of this environment, in iteration 1")


def test_the_first_of_several_iterations_counts() -> None:
    faults = np.full((3, 2, 3), NO_FAULT, np.int32)
    faults[1, 0], faults[2, 0] = (4, 1, 2), (0, 0, 0)
    first = np.asarray(first_fault(jnp.asarray(faults), 8))
    assert first[0].tolist() == [12, 1, 2]
    assert first[1, 0] == NO_FAULT


def test_actors_name_the_environment_too() -> None:
    env = {"factory": f"{__name__}:Breaking", "entry": "reward", "max_episode_steps": 20}
    workflow = small("ppo", env)
    batch = SampleBatch(obs=np.zeros((4, 2, 2)), rewards=np.zeros((4, 2)), dones=np.zeros((4, 2), bool))
    refuse_faulty_rollout(workflow.env, batch)
    batch.rewards[3, 1] = np.nan
    with raises_naming(HostEnvError, "environment 1", "Breaking", "rewards", "step 4 of a rollout"):
        refuse_faulty_rollout(workflow.env, batch)


def test_finite_numbers_leave_metrics_as_they_are() -> None:
    workflow = small("ppo", {"factory": f"{__name__}:Breaking", "max_episode_steps": 20})
    metrics, state = iterate(workflow, workflow.init(0), 1)
    stepped, _ = workflow.step(state)
    assert set(metrics) == set(stepped)


def test_the_first_step_counts_and_then_the_reward() -> None:
    shape = (4, 3)
    rewards, obs = np.zeros(shape, np.float32), np.zeros((*shape, 2), np.float32)
    batch = SampleBatch(
        obs=obs, rewards=rewards, next_obs={"a": obs, "b": np.zeros(shape, np.int32)}, dones=rewards > 1
    )
    nothing = env_faults(batch)
    assert nothing is not None
    assert nothing.tolist()[0] == np.iinfo(np.int32).max
    rewards[3, 0], obs[2, 1, 1], rewards[2, 2] = np.inf, np.nan, np.nan
    found = env_faults(batch.replace(rewards=rewards, obs=obs))
    assert found is not None
    assert found.tolist() == [2, 1, 1]
    assert env_faults(PyTreeDict(returns=rewards)) is None


def test_an_environment_is_not_blamed_for_actions_that_are_not_finite() -> None:
    """Non-finite numbers after a non-finite action are the policy's fault; earlier ones the environment's."""
    shape = (4, 2)
    rewards, actions, obs = np.zeros(shape, np.float32), np.zeros((*shape, 1), np.float32), np.zeros((*shape, 3))
    actions[1:, 0], rewards[1:, 0] = np.nan, np.nan
    batch = SampleBatch(obs=obs, next_obs=obs, rewards=rewards, actions=actions, dones=np.zeros(shape, bool))
    assert int(env_faults(batch)[0]) == np.iinfo(np.int32).max
    broken = obs.copy()
    broken[1, 0] = np.inf  # before the first non-finite action
    assert env_faults(batch.replace(obs=broken)).tolist() == [1, 0, 1]


def test_a_fault_after_a_divergence_is_not_the_environments() -> None:
    """Faults in the rollout after a divergence are not attributed to the environment."""
    faults = np.array([[[NO_FAULT, 0, 0]], [[0, 3, 1]], [[2, 1, 0]]], np.int32)  # [N, S, 3]
    metrics = {"loss": np.array([[np.nan], [np.nan], [0.0]]), "maybe": np.full((3, 1), np.nan)}
    assert (np.asarray(drop_later_faults(faults, metrics, ("maybe",)))[..., 0] == NO_FAULT).all()
    metrics["loss"] = np.array([[0.0], [np.nan], [np.nan]])  # caused by the fault itself
    left = np.asarray(drop_later_faults(faults, metrics, ("maybe",)))
    assert left[..., 0].tolist() == [[NO_FAULT], [0], [NO_FAULT]]
    assert left[1].tolist() == faults[1].tolist()
