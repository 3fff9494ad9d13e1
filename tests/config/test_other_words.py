"""Words of the field for what settings are called here."""

from __future__ import annotations

import pytest

from evorl.config.names import did_you_mean
from evorl.config.other_words import called_here

PPO = ["discount", "optimizer", "optimizer.learning_rate", "rollout_length", "num_minibatches", "agent.network.torso"]
SAC = ["tau", "batch_size", "replay_capacity", "actor_optimizer.learning_rate", "critic_optimizer.learning_rate"]


@pytest.mark.parametrize(
    ("word", "valid", "meant"),
    [
        ("gamma", PPO, ["discount"]),
        ("optimizer.lr", PPO, ["optimizer.learning_rate"]),
        ("lr", SAC, ["actor_optimizer.learning_rate", "critic_optimizer.learning_rate"]),
        ("critic_optimizer.lr", SAC, ["critic_optimizer.learning_rate"]),
        ("batch_size", PPO, ["num_minibatches"]),
        ("minibatch_size", SAC, ["batch_size"]),
        ("n_steps", [*PPO, "n_step"], ["n_step"]),
        ("hidden_sizes", PPO, ["agent.network.torso"]),
        ("gamma", ["inner.discount", "search_space.inner.discount"], ["inner.discount"]),
        ("BUFFER_SIZE", SAC, ["replay_capacity"]),
        ("gamma", SAC, []),
        ("discount", PPO, []),
    ],
)
def test_a_word_is_told_by_the_settings_that_there_are(word: str, valid: list[str], meant: list[str]) -> None:
    assert called_here(word, valid) == meant


def test_what_is_meant_is_told_before_what_is_spelled_alike() -> None:
    assert did_you_mean("n_envs", ["num_envs", "n_env"]) == " Did you mean 'num_envs'?"
    assert did_you_mean("lr", SAC).endswith("'actor_optimizer.learning_rate' or 'critic_optimizer.learning_rate'?")
