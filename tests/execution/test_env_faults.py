"""Numbers that are not finite are traced back to the environment that gave them, and to the step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, Discrete, Env, EnvState
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.execution.env_faults import env_faults, refuse_faulty_rollout
from evorl.execution.session import TrainingDiverged
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.small_workflows import small


class Breaking(Env):
    """Gives a bad number at one step of each episode. Its spaces are those of the instance."""

    def __init__(self, what: str = "none", at: int = 7, number: float = np.nan) -> None:
        self.what, self.at, self.number = what, at, number
        self.obs_space, self.action_space = Box(-jnp.inf, jnp.inf, (2,)), Discrete(2)

    def reset(self, key: Any) -> EnvState:
        return self._state(jnp.zeros((), jnp.int32))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self._state(env_state.env_state + 1)

    def _state(self, t: Any) -> EnvState:
        bad = jnp.where(t == self.at, jnp.float32(self.number), 0.0)
        reward, shown = (1.0 + bad, 0.0) if self.what == "reward" else (1.0, bad if self.what == "obs" else 0.0)
        never = jnp.zeros((), bool)
        info = PyTreeDict(termination=never, truncation=never, metrics=PyTreeDict())
        return EnvState(t, jnp.full(2, t / 100.0) + shown, jnp.float32(reward), never, info)

    def _identity(self) -> Any:
        return self.what, self.at, repr(self.number)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize(("what", "number"), [("reward", np.nan), ("obs", np.inf)])
def test_a_bad_number_names_environment_and_step_before_any_learning_rate(
    algorithm: str, what: str, number: float
) -> None:
    env = {"factory": f"{__name__}:Breaking", "what": what, "number": number, "max_episode_steps": 20}
    workflow = small(algorithm, env)
    named = {"reward": "rewards", "obs": "observations"}[what]
    with pytest.raises(
        TrainingDiverged, match=rf"environment 0 of .*Breaking gave {named} that are not finite"
    ) as caught:
        workflow.learn(key=0)
    assert "step 7 of the run" in str(caught.value)
    assert "learning rate" not in str(caught.value)


def test_actors_name_the_environment_too() -> None:
    env = {"factory": f"{__name__}:Breaking", "what": "reward", "max_episode_steps": 20}
    workflow = small("ppo", env)
    batch = SampleBatch(obs=np.zeros((4, 2, 2)), rewards=np.zeros((4, 2)), dones=np.zeros((4, 2), bool))
    refuse_faulty_rollout(workflow.env, batch)
    batch.rewards[3, 1] = np.nan
    with pytest.raises(HostEnvError, match=r"environment 1 of .*Breaking gave rewards.*step 4 of a rollout"):
        refuse_faulty_rollout(workflow.env, batch)


def test_finite_numbers_leave_metrics_as_they_are() -> None:
    workflow = small("ppo", {"factory": f"{__name__}:Breaking", "max_episode_steps": 20})
    metrics, state = workflow.iterate(workflow.init(0), 1)
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
    """A policy that diverged gives NaN, and the environment can only follow; a bad number before it counts."""
    shape = (4, 2)
    rewards, actions, obs = np.zeros(shape, np.float32), np.zeros((*shape, 1), np.float32), np.zeros((*shape, 3))
    actions[1:, 0], rewards[1:, 0] = np.nan, np.nan
    batch = SampleBatch(obs=obs, next_obs=obs, rewards=rewards, actions=actions, dones=np.zeros(shape, bool))
    assert int(env_faults(batch)[0]) == np.iinfo(np.int32).max
    broken = obs.copy()
    broken[1, 0] = np.inf  # seen before the first action that is not finite
    assert env_faults(batch.replace(obs=broken)).tolist() == [1, 0, 1]
