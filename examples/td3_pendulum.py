"""TD3 (Fujimoto et al. 2018) in Pendulum: a custom agent in evorl's training loop.

python examples/td3_pendulum.py --rollouts 15000
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evorl.interop import HostAgent, Runner
from evorl.ops.trees import polyak_update
from evorl.recorders import ProgressRecorder

DISCOUNT, TAU, POLICY_DELAY, EXPLORATION, SMOOTHING, CLIP = 0.98, 0.005, 2, 0.1, 0.2, 0.5


class MLP(nn.Module):
    """MLP with two hidden layers, ``[..., I] -> [..., width]``."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(128)(x))
        return nn.Dense(self.width)(x)


class TD3(HostAgent):
    """TD3 agent with Gaussian exploration noise; actions in [-1, 1] are scaled to the bounds of the environment."""

    def __init__(self, env: gymnasium.Env, seed: int = 0, learning_rate: float = 1e-3) -> None:
        super().__init__(env.action_space, seed)
        self.scale, self.random = float(env.action_space.high[0]), np.random.default_rng(seed)
        self.policy, self.critic = MLP(env.action_space.shape[0]), MLP(1)
        self.optimizer = optax.adam(learning_rate)
        key, *keys = jax.random.split(jax.random.key(seed), 4)
        obs, action = env.observation_space.sample(), env.action_space.sample()
        critics = jax.vmap(self.critic.init, (0, None))(jnp.stack(keys[1:]), np.concatenate([obs, action]))
        params = {"policy": self.policy.init(keys[0], obs), "critics": critics}
        opt_state = {name: self.optimizer.init(part) for name, part in params.items()}
        self.state = (params, params, opt_state, key)  # the second entry holds the target parameters
        self.num_updates = 0
        self.best = jax.jit(lambda params, obs: self.act(params["policy"], obs))
        self.jitted_update = jax.jit(self.pure_update, static_argnames="moves_policy")

    def act(self, policy_params: Any, obs: jax.Array) -> jax.Array:
        return jnp.tanh(self.policy.apply(policy_params, obs))

    def values(self, critic_params: Any, obs: jax.Array, actions: jax.Array) -> jax.Array:
        """Return the values of both critics, ``[2, N]``."""
        return jax.vmap(self.critic.apply, (0, None))(critic_params, jnp.concatenate([obs, actions], -1))[..., 0]

    def step(self, obs: np.ndarray) -> tuple[np.ndarray, dict]:
        """Return a noisy action; the action before scaling is stored as ``unscaled``."""
        noise = EXPLORATION * self.random.standard_normal(self.policy.width)
        action = np.clip(np.asarray(self.best(self.state[0], obs)) + noise, -1.0, 1.0).astype(np.float32)
        return self.scale * action, {"unscaled": action}

    def eval_step(self, obs: np.ndarray) -> np.ndarray:
        return self.scale * np.asarray(self.best(self.state[0], obs))

    def update(self, batch: Any) -> dict:
        """Update the critics, and at every second call the policy and all target networks."""
        self.num_updates += 1
        self.state, loss = self.jitted_update(self.state, batch, self.num_updates % POLICY_DELAY == 0)
        return {"critic_loss": loss}

    def critic_loss(self, critic_params: Any, target_params: Any, batch: Any, key: jax.Array) -> jax.Array:
        """Compute the squared errors to the minimum of both target critics, at an action with clipped noise."""
        noise = jnp.clip(SMOOTHING * jax.random.normal(key, batch.unscaled.shape), -CLIP, CLIP)
        next_actions = jnp.clip(self.act(target_params["policy"], batch.next_obs) + noise, -1.0, 1.0)
        next_values = self.values(target_params["critics"], batch.next_obs, next_actions).min(axis=0)
        targets = jax.lax.stop_gradient(batch.rewards + DISCOUNT * ~batch.dones * next_values)
        return jnp.square(self.values(critic_params, batch.obs, batch.unscaled) - targets).mean()

    def policy_loss(self, policy_params: Any, critic_params: Any, obs: jax.Array) -> jax.Array:
        """Compute the negative value of the policy's actions under the first critic."""
        return -self.values(critic_params, obs, self.act(policy_params, obs))[0].mean()

    def pure_update(self, state: Any, batch: Any, moves_policy: bool) -> tuple[Any, jax.Array]:
        """Return the next parameters, target parameters, optimizer states and key; and the critic loss."""
        params, target_params, opt_state, key = state
        key, noise_key = jax.random.split(key)
        loss_fn = functools.partial(self.critic_loss, target_params=target_params, batch=batch, key=noise_key)
        loss, gradients = jax.value_and_grad(loss_fn)(params["critics"])
        params, opt_state = self.descend(params, opt_state, "critics", gradients)
        if moves_policy:
            gradients = jax.grad(self.policy_loss)(params["policy"], params["critics"], batch.obs)
            params, opt_state = self.descend(params, opt_state, "policy", gradients)
            target_params = polyak_update(target_params, params, TAU)
        return (params, target_params, opt_state, key), loss

    def descend(self, params: dict, opt_state: dict, name: str, gradients: Any) -> tuple[dict, dict]:
        updates, part_state = self.optimizer.update(gradients, opt_state[name])
        return params | {name: optax.apply_updates(params[name], updates)}, opt_state | {name: part_state}


def train(rollouts: int, seed: int = 0, eval_every: int = 1000, warm_up: int = 1000) -> float:
    """Train for ``rollouts`` rollouts of one step, and return the mean return of the last evaluation."""
    env = gymnasium.make("Pendulum-v1")
    options = {"batch_size": 256, "warm_up": warm_up, "done_means": "terminated", "seed": seed}
    runner = Runner.off_policy(env, TD3(env, seed), recorder=ProgressRecorder(live=False), **options)
    return float(runner.run(rollouts, eval_every=eval_every, eval_episodes=20).episode_return)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=15_000)
    parser.add_argument("--seed", type=int, default=0)
    print(f"mean return {train(**vars(parser.parse_args())):.1f}")
