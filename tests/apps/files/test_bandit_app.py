"""The bandit: win probabilities follow from the thresholds, and regret falls for a player that learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.reinforce import ReinforceWorkflow
from evorl.apps.files.bandit_app import BanditTraining
from evorl.apps.kinds import default_training
from evorl.envs.env import EnvState
from evorl.envs.space import Box, Discrete
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key
from tests.support.apps import options_for
from tests.support.rlx_server import BanditServer
from tests.support.toy_envs import ToyEnv, toy_state


@pytest.mark.parametrize(("arm", "chance"), [(0, 0.4207), (1, 0.5), (2, 0.5793), (3, 0.6915)])
def test_an_arm_pays_as_often_as_a_normal_number_is_above_its_threshold(arm: int, chance: float) -> None:
    training = BanditTraining(options_for(1))
    assert training.win_probability(arm) == pytest.approx(chance, abs=1e-4)
    paid = [training.pull(arm) for _ in range(20_000)]
    assert set(paid) == {-1.0, 1.0}
    assert paid.count(1.0) / len(paid) == pytest.approx(chance, abs=0.01)


def test_regret_falls_and_is_told(server: BanditServer) -> None:
    training = BanditTraining(options_for(server.port, episodes=20))
    training.run()
    assert [message["command"] for message in server.messages] == [
        "init",
        *20 * [*65 * ["update"], "update_metrics", "update_metrics"],
    ]
    regrets = server.metrics("regret")
    assert len(regrets) == len(server.metrics("episode_reward")) == 20
    assert regrets[0] > 0.4
    assert regrets[-1] == pytest.approx(0.0)
    assert training.describe_regret() == "regret per pull: 0.447 in the first 2 episodes, 0.000 in the last 2"
    updates = [message for message in server.messages if message["command"] == "update"]
    assert updates[0] == {"command": "update", "reward": None, "state": [], "terminal": False}
    assert [update["terminal"] for update in updates[:66]] == [*64 * [False], True, False]


def test_an_agent_of_continuous_actions_pulls_arms_too(server: BanditServer) -> None:
    server.action = [0.9]
    training = BanditTraining(options_for(server.port, pulls=8))
    training.run()
    assert training.regrets == {0: pytest.approx(0.0)}


class Arms(ToyEnv):
    """The arms in JAX with the constant observation 1, as the server presents it to an agent."""

    def __init__(self, thresholds: list[float]) -> None:
        super().__init__(Discrete(len(thresholds)), Box(-jnp.inf, jnp.inf, (1,)))
        self.thresholds = thresholds

    def _identity(self) -> tuple[float, ...]:
        return tuple(self.thresholds)

    def reset(self, key: Key) -> EnvState:
        return toy_state(as_typed_key(key), jnp.ones(1))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        key, draw = jax.random.split(env_state.env_state)
        reward = jnp.where(jax.random.normal(draw) > jnp.array(self.thresholds)[action], 1.0, -1.0)
        return toy_state(key, jnp.ones(1), reward)


def test_a_hundred_episodes_are_enough_whatever_the_seed() -> None:
    training = default_training("reinforce", "bandit", is_off_policy=False, own_critic_layers=False)
    del training["serve"]  # here nothing acts while learning
    bandit = BanditTraining(options_for(1))
    arms = {"factory": f"{__name__}:Arms", "thresholds": bandit.thresholds, "max_episode_steps": bandit.pulls}
    workflow = ReinforceWorkflow.build_from_config(training | {"env": arms, "num_seeds": 32, "eval_episodes": 32})
    state = workflow.init(0)
    for _ in range(100):
        _, state = workflow.step(state)
    returns = np.asarray(workflow.evaluate(state).episode_return) / bandit.pulls
    # The mean rewards of the arms are -0.16, 0, 0.16 and 0.38.
    assert returns.shape == (32,)
    assert returns.min() > 0.3
