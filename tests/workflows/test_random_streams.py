"""No random key is used twice: within a step, between steps, or by an evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.key_record import KeyRecord
from tests.small_workflows import assert_close, small

TINY = {"num_envs": 2, "agent": {"network": {"torso": [3]}}, "eval_episodes": 2}
CONFIGS = {
    "ppo": {**TINY, "rollout_length": 2, "num_epochs": 2, "num_minibatches": 2},
    "sac": {**TINY, "batch_size": 2, "learning_starts": 2, "replay_capacity": 6},
}


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_no_key_is_used_twice(algorithm: str, env: str) -> None:
    """Over set-up, evaluations and steps, before any episode ends (starts of episodes may be computed again)."""
    workflow = small(algorithm, {"name": env, "max_episode_steps": 100}, **CONFIGS[algorithm])
    evaluated = workflow.replace(eval_env=small(algorithm, {"name": env, "max_episode_steps": 2}, **TINY).eval_env)
    record = KeyRecord()
    state = record.run(workflow.setup, jax.random.key(0))
    assert_close(state, workflow.init(0), 1e-6)
    for _ in range(2):
        record.run(evaluated.evaluation, state)
        metrics, state = record.run(workflow.pure_step, state)
    assert float(metrics.episodes.count) == 0.0
    assert sum(record.consumed.values()) > 20
    assert sum(record.folded.values()) > 20
    assert record.misused() == []


def test_the_record_sees_misuse() -> None:
    record = KeyRecord()
    record.run(lambda key: jax.random.normal(key) + jax.random.uniform(key), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: jax.lax.map(lambda i: jax.random.normal(key) * i, jnp.arange(2)), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: (jax.random.fold_in(key, 1), jax.random.split(key)), jax.random.key(0))
    assert record.misused()

    record = KeyRecord()
    record.run(lambda key: [jax.random.normal(k) for k in jax.random.split(key)], jax.random.key(0))
    assert record.misused() == []
