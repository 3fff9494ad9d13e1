"""Agents without JAX learn: a table in NumPy, and a network in PyTorch if installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evorl.interop.host_agent import HostAgent
from evorl.interop.replay_memory import ReplayMemory
from evorl.interop.runner import Runner
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.support.interop_parts import CountingEnv

DISCOUNT = 0.9


class Corridor(CountingEnv):
    """Cells 0 to 5; action 2 moves forward, others back. A step costs 0.1; the last cell pays 1 and ends
    the episode.
    """

    def __init__(self) -> None:
        super().__init__(length=5)
        self._clock = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._clock = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._clock += 1
        cell = np.clip(self._obs[0] + (1 if action == 2 else -1), 0, self.length)
        self._obs[0] = cell
        arrived = bool(cell == self.length)
        return self._obs, 1.0 if arrived else -0.1, arrived, self._clock == 30 and not arrived, {}


# From cell k the best policy takes 5 - k steps.
BEST = [-0.1 * sum(DISCOUNT**i for i in range(4 - k)) + DISCOUNT ** (4 - k) for k in range(5)]


class _Table(HostAgent):
    """Tabular ``n``-step Q-learning."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(CountingEnv(1).action_space, seed)
        self.values = np.zeros((6, 3))
        self.random = np.random.default_rng(seed)

    def step(self, obs: Any) -> Any:
        return (super().step(obs) if self.random.random() < 0.5 else (self.eval_step(obs), {}))[0], {}

    def eval_step(self, obs: Any) -> Any:
        return np.argmax(self.values[int(obs[0])])

    def update(self, batch: Any) -> Any:
        rewards = batch.rewards.reshape(len(batch.rewards), -1)
        count = batch.get("num_rewards", 1)
        cells, next_cells = batch.obs[:, 0].astype(int), batch.next_obs[:, 0].astype(int)
        bootstrap = DISCOUNT**count * ~batch.dones * self.values[next_cells].max(axis=1)
        targets = (rewards * DISCOUNT ** np.arange(rewards.shape[1])).sum(axis=1) + bootstrap
        errors = targets - self.values[cells, batch.actions]
        np.add.at(self.values, (cells, batch.actions), 0.1 * errors)
        return {"error": np.abs(errors).mean()}


@pytest.mark.parametrize("warm_up_by", ["agent", "random"])
def test_a_table_in_numpy_learns_the_values_of_the_best_policy(warm_up_by: str) -> None:
    agent = _Table()
    runner = Runner.off_policy(
        Corridor(), agent, rollout_length=4, warm_up=200, warm_up_by=warm_up_by, done_means="terminated"
    )
    evaluation = runner.run(400, eval_every=400, eval_episodes=2)
    np.testing.assert_allclose(agent.values[:5].max(axis=1), BEST, atol=0.02)
    np.testing.assert_allclose(evaluation.episode_return, 0.6, rtol=1e-5)
    assert evaluation.episode_length == 5


def test_a_network_in_torch_learns_too() -> None:
    torch = pytest.importorskip("torch", reason="install torch, which no extra does: with CUDA it is some gigabytes")

    class Network(_Table):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = torch.nn.Linear(6, 3)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)

        def q_values(self, obs: Any) -> Any:
            return self.model(torch.nn.functional.one_hot(torch.from_numpy(obs[..., 0]).long(), 6).float())

        def eval_step(self, obs: Any) -> Any:
            return self.q_values(obs).argmax().numpy()

        def update(self, batch: Any) -> Any:
            tensors = {name: torch.from_numpy(batch[name]) for name in ("actions", "rewards", "dones")}
            q_values = self.q_values(batch.obs).gather(1, tensors["actions"].long()[:, None])[:, 0]
            with torch.no_grad():
                targets = tensors["rewards"] + DISCOUNT * ~tensors["dones"] * self.q_values(batch.next_obs).amax(1)
            loss = torch.nn.functional.mse_loss(q_values, targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return {"loss": loss.item()}

    replay = ReplayMemory(UniformReplayBuffer(capacity=5000))
    runner = Runner.off_policy(
        Corridor(), Network(), rollout_length=4, warm_up=200, replay=replay, done_means="terminated"
    )
    evaluation = runner.run(600, eval_every=600, eval_episodes=2)
    np.testing.assert_allclose(evaluation.episode_return, 0.6, rtol=1e-5)
