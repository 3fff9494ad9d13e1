"""Double DQN (Mnih et al. 2015, van Hasselt et al. 2016) in CartPole: a custom agent in evorl's training loop.

python examples/dqn_cartpole.py --rollouts 12500
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evorl.interop import HostAgent, Runner
from evorl.recorders import ProgressRecorder

DISCOUNT, NUM_STEPS = 0.99, 3


class QNetwork(nn.Module):
    """Q-network: observations ``[..., O]`` to action values ``[..., A]``."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Apply two hidden layers with layer normalization, without which the values diverge on this task."""
        for width in (128, 128):
            obs = nn.relu(nn.LayerNorm()(nn.Dense(width)(obs)))
        return nn.Dense(self.num_actions)(obs)


class DQN(HostAgent):
    """Double DQN with epsilon-greedy exploration; epsilon decays to 0.05."""

    def __init__(self, env: gymnasium.Env, num_updates: int, seed: int = 0) -> None:
        super().__init__(env.action_space, seed)
        self.network = QNetwork(int(env.action_space.n))
        self.optimizer = optax.adam(optax.linear_schedule(1e-3, 0.0, num_updates))
        self.params = self.network.init(jax.random.key(seed), jnp.zeros(env.observation_space.shape))
        self.target_params = copy.deepcopy(self.params)
        self.opt_state = self.optimizer.init(self.params)
        self.random = np.random.default_rng(seed)
        self.epsilon = 1.0
        self.num_updates = 0
        self.greedy_action = jax.jit(lambda params, obs: self.network.apply(params, obs).argmax(axis=-1))
        self.jitted_update = jax.jit(self.pure_update)

    def step(self, obs: np.ndarray) -> tuple[Any, dict]:
        """Return an epsilon-greedy action."""
        self.epsilon = max(0.05, self.epsilon - 0.95 / 10_000)
        return super().step(obs) if self.random.random() < self.epsilon else (self.eval_step(obs), {})

    def eval_step(self, obs: np.ndarray) -> Any:
        """Return the greedy action."""
        return np.asarray(self.greedy_action(self.params, obs))

    def update(self, batch: Any) -> dict:
        """Take one gradient step, and copy the parameters to the target network every 100 steps."""
        self.params, self.opt_state, loss = self.jitted_update(self.params, self.target_params, self.opt_state, batch)
        self.num_updates += 1
        if self.num_updates % 100 == 0:
            self.target_params = self.params
        return {"loss": loss}

    def loss(self, params: Any, target_params: Any, batch: Any) -> jax.Array:
        """Compute the Huber loss of the temporal-difference errors."""
        q_values = jnp.take_along_axis(self.network.apply(params, batch.obs), batch.actions[:, None], axis=-1)[:, 0]
        best = self.network.apply(params, batch.next_obs).argmax(axis=-1)
        next_values = jnp.take_along_axis(self.network.apply(target_params, batch.next_obs), best[:, None], axis=-1)
        reward_sums = (batch.rewards * DISCOUNT ** jnp.arange(NUM_STEPS)).sum(axis=-1)  # padded with zeros
        targets = reward_sums + DISCOUNT**batch.num_rewards * ~batch.dones * next_values[:, 0]
        return optax.huber_loss(q_values, jax.lax.stop_gradient(targets)).mean()

    def pure_update(self, params: Any, target_params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        """Return the new parameters, the optimizer state and the loss."""
        loss, gradients = jax.value_and_grad(self.loss)(params, target_params, batch)
        updates, opt_state = self.optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss


def train(rollouts: int, seed: int = 0, eval_every: int = 1250, warm_up: int = 1000) -> float:
    """Train for ``rollouts`` rollouts of four steps, and return the mean return of the last evaluation."""
    env = gymnasium.make("CartPole-v1")
    runner = Runner.off_policy(
        env,
        DQN(env, rollouts, seed),
        rollout_length=4,
        batch_size=128,
        num_steps=NUM_STEPS,
        capacity=50_000,
        warm_up=warm_up,
        done_means="terminated",  # the time limit of 500 steps does not terminate the task
        recorder=ProgressRecorder(live=False),
        seed=seed,
    )
    evaluation = runner.run(rollouts, eval_every=eval_every, eval_episodes=20)
    return float(evaluation.episode_return)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=12_500)
    parser.add_argument("--seed", type=int, default=0)
    print(f"mean return {train(**vars(parser.parse_args())):.1f}")
