"""The bandit: its chances are those of its thresholds, and regret falls with a player that learns."""

from __future__ import annotations

import pytest

from evorl.apps.files.bandit_app import BanditTraining
from tests.support.apps import options_for
from tests.support.fake_agent_server import FakeAgentServer


@pytest.mark.parametrize(("arm", "chance"), [(0, 0.4207), (1, 0.5), (2, 0.5793), (3, 0.6915)])
def test_an_arm_pays_as_often_as_a_normal_number_is_above_its_threshold(arm: int, chance: float) -> None:
    training = BanditTraining(options_for(1))
    assert training.win_probability(arm) == pytest.approx(chance, abs=1e-4)
    paid = [training.pull(arm) for _ in range(20_000)]
    assert set(paid) == {-1.0, 1.0}
    assert paid.count(1.0) / len(paid) == pytest.approx(chance, abs=0.01)


def test_regret_falls_and_is_told(server: FakeAgentServer) -> None:
    training = BanditTraining(options_for(server.port, episodes=20))
    training.run()
    assert server.commands() == ["init", *20 * [*65 * ["update"], "update_metrics", "update_metrics"]]
    regrets = server.metrics("regret")
    assert len(regrets) == len(server.metrics("episode_reward")) == 20
    assert regrets[0] > 0.4
    assert regrets[-1] == pytest.approx(0.0)
    assert training.regret_in_words() == "regret of a pull: 0.447 in the first 2 episodes, 0.000 in the last 2"
    updates = [message for message in server.messages if message["command"] == "update"]
    assert updates[0] == {"command": "update", "reward": None, "state": [], "terminal": False}
    assert [update["terminal"] for update in updates[:66]] == [*64 * [False], True, False]


def test_an_agent_of_continuous_actions_pulls_arms_too(server: FakeAgentServer) -> None:
    server.action = [0.9]
    training = BanditTraining(options_for(server.port, pulls=8))
    training.run()
    assert training.regrets == {0: pytest.approx(0.0)}
