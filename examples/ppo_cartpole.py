"""PPO (Schulman et al. 2017) in eight parallel CartPoles: a custom agent in evorl's training loop.

python examples/ppo_cartpole.py --rollouts 100
"""

from __future__ import annotations

import argparse
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.interop import HostAgent, Runner
from evorl.ops.returns import gae
from evorl.ops.trees import flatten_leading_axes
from evorl.recorders import ProgressRecorder

DISCOUNT, GAE_LAMBDA, CLIP, ENTROPY, EPOCHS, MINIBATCHES = 0.98, 0.8, 0.2, 0.001, 10, 4


class ActorCritic(nn.Module):
    """Actor-critic network: observations ``[..., O]`` to logits ``[..., A]`` and values ``[...]``."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = [nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(obs)))) for _ in range(2)]
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(hidden[0])
        return logits, nn.Dense(1)(hidden[1])[..., 0]


class PPO(HostAgent):
    """PPO agent that samples actions and stores their log-probabilities."""

    def __init__(self, env: Any, num_updates: int, seed: int = 0) -> None:
        super().__init__(env.action_space, seed, env.num_envs)
        self.network = ActorCritic(env.action_space.n)
        steps = num_updates * EPOCHS * MINIBATCHES
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(1e-3, 0.0, steps))
        )
        init_key, key = jax.random.split(jax.random.key(seed))
        params = self.network.init(init_key, env.obs_space.zeros())
        self.state = (params, self.optimizer.init(params), key)
        self.sample = jax.jit(self.pure_sample)
        self.best = jax.jit(lambda params, obs: self.network.apply(params, obs)[0].argmax(axis=-1))
        self.jitted_update = jax.jit(self.pure_update)

    def step(self, obs: np.ndarray) -> tuple[np.ndarray, dict]:
        """Sample actions for all environments."""
        self.state, actions, log_prob = self.sample(self.state, obs)
        return np.asarray(actions), {"log_prob": np.asarray(log_prob)}

    def eval_step(self, obs: np.ndarray) -> np.ndarray:
        return np.asarray(self.best(self.state[0], obs))

    def update(self, batch: Any) -> dict:
        """Train for several epochs on the rollout, leaves ``[T, B, ...]``."""
        self.state, metrics = self.jitted_update(self.state, batch)
        return metrics

    def pure_sample(self, state: Any, obs: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """Return the next state (a new key), actions, and their log-probabilities."""
        params, opt_state, (key, sample_key) = *state[:2], jax.random.split(state[2])
        log_probs = nn.log_softmax(self.network.apply(params, obs)[0])
        actions = jax.random.categorical(sample_key, log_probs)
        return (params, opt_state, key), actions, jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]

    def loss(self, params: Any, batch: Any) -> tuple[jax.Array, dict]:
        """Compute the loss: clipped surrogate, squared value error, entropy bonus."""
        logits, values = self.network.apply(params, batch.obs)
        log_probs = nn.log_softmax(logits)
        log_prob = jnp.take_along_axis(log_probs, batch.actions[:, None], axis=-1)[:, 0]
        ratio = jnp.exp(log_prob - batch.log_prob)
        advantages = nn.standardize(batch.advantages)
        policy_loss = -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
        value_loss = jnp.square(values - batch.targets).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return policy_loss + 0.5 * value_loss - ENTROPY * entropy, metrics

    def pure_update(self, state: Any, batch: Any) -> tuple[Any, dict]:
        """Compute the advantages of the rollout, then take gradient steps on shuffled minibatches."""
        params, opt_state, key = state
        values, next_values = (self.network.apply(params, obs)[1] for obs in (batch.obs, batch.next_obs))
        ends = (batch.termination, batch.termination | batch.truncation)
        advantages, targets = gae(batch.rewards, values, next_values, *ends, discount=DISCOUNT, gae_lambda=GAE_LAMBDA)
        data = flatten_leading_axes(batch | {"advantages": advantages, "targets": targets})
        key, *epoch_keys = jax.random.split(key, EPOCHS + 1)

        def one_step(carry: Any, rows: jax.Array) -> Any:
            params, opt_state = carry
            gradients, metrics = jax.grad(self.loss, has_aux=True)(params, jax.tree.map(lambda x: x[rows], data))
            updates, opt_state = self.optimizer.update(gradients, opt_state)
            return (optax.apply_updates(params, updates), opt_state), metrics

        rows = jnp.stack([jax.random.permutation(k, advantages.size) for k in epoch_keys])
        carry, metrics = jax.lax.scan(one_step, (params, opt_state), rows.reshape(EPOCHS * MINIBATCHES, -1))
        return (*carry, key), jax.tree.map(jnp.mean, metrics)


def train(rollouts: int, seed: int = 0, eval_every: int = 20) -> float:
    """Train for ``rollouts`` rollouts of 64 steps in 8 environments; return the last mean evaluation return."""
    env, eval_env = (make_gymnasium_simulators("CartPole-v1", num_envs=count) for count in (8, 20))
    agent, recorder = PPO(env, rollouts, seed), ProgressRecorder(live=False)
    runner = Runner.on_policy(env, agent, rollout_length=64, eval_env=eval_env, recorder=recorder, seed=seed)
    return float(runner.run(rollouts, eval_every=eval_every, eval_episodes=20).episode_return)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    print(f"mean return {train(**vars(parser.parse_args())):.1f}")
